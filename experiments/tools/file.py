"""A file of another tool as its readers see it: text, lines, JSON documents with the line each begins on."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

Document: TypeAlias = tuple[int, object]
"""The line on which a JSON document begins, and what it says."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_JSON_BEGINS = re.compile(r"\s*(\{|\[\s*[\[{\]])")
_SPACE = re.compile(r"\s*")
_JSON = json.JSONDecoder()


class Unreadable(ValueError):  # noqa: N818 - it says what the file is
    """A file, or a result in it, that a reader cannot take: what is wrong, and what to do.

    Args:
        message: both.
        key: at fault, or "".
        line: on which it stands, 0 where that says nothing.
    """

    def __init__(self, message: str, key: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.message, self.key, self.line = message, key, line


@dataclass(frozen=True)
class ToolFile:
    """A file that some tool wrote.

    Args:
        path: as the user named it.
        text: what it says; bytes that are no text are marked, colours of a terminal are gone.
    """

    path: str
    text: str

    @classmethod
    def of(cls, path: Path) -> ToolFile:
        """Reads a file; OSError if it cannot be."""
        return cls(str(path), decoded(path.read_bytes()))

    @property
    def name(self) -> str:
        """The file's own name."""
        return Path(self.path).name

    @property
    def is_json(self) -> bool:
        """Whether it begins as JSON objects, or a list of them; a log line may begin with a bracket, too."""
        return _JSON_BEGINS.match(self.text) is not None

    @cached_property
    def documents(self) -> list[Document]:
        """The JSON documents: one, or one after another (JSON lines, results appended); lists are opened.

        Raises:
            Unreadable: for text that is no JSON, with its line.
        """
        return [part for line, document in _documents(self.text) for part in _opened(line, document)]

    @cached_property
    def objects(self) -> list[tuple[int, Mapping[str, object]]]:
        """The JSON objects with their lines; other values are left out.

        Raises:
            Unreadable: as `documents`.
        """
        return [(line, found) for line, found in self.documents if isinstance(found, dict)]

    @cached_property
    def lines(self) -> list[str]:
        """The lines of a log."""
        return self.text.splitlines()


def decoded(content: bytes) -> str:
    """Returns a file's bytes as text without the colours of a terminal; never fails."""
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    return _COLOURS.sub("", content.decode(encoding, errors="replace"))


def _documents(text: str) -> Iterator[Document]:
    """Yields one JSON document after another; what stands between them is blank."""
    at, line = 0, 1
    while True:
        space = _SPACE.match(text, at)
        begin = space.end() if space else at
        line += text.count("\n", at, begin)
        if begin == len(text):
            return
        try:
            found, end = _JSON.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            message = f"is no JSON: {error.msg}; the file is cut short, or of another kind"
            raise Unreadable(message, line=error.lineno) from None
        except RecursionError:
            raise Unreadable("is no JSON of a tool: nested too deeply", line=line) from None
        except ValueError as error:
            raise Unreadable(f"is no JSON: {error}", line=line) from None
        yield line, found
        line += text.count("\n", begin, end)
        at = end


def _opened(line: int, document: object) -> Iterator[Document]:
    """Yields a document, or the entries of a list (of lists)."""
    waiting = [document]
    while waiting:
        first = waiting.pop()
        if isinstance(first, list):
            waiting += reversed(first)
        else:
            yield line, first
