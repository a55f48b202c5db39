"""Shell text as far as a server's command needs it: lines, and variables that the text itself sets.

Read are assignments that stand alone (`X=1`, `export X=1`, `ARGS=(...)`, `ARGS+=(...)`) and are not within a
branch, and what `for` loops go through. `$X`, `${X}`, `${X:-default}` and `"${ARGS[@]}"` are put in where
they stand, but for single quotes.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specfleet.experiments.flags.faults import LineFault

_NAME = r"[A-Za-z_]\w*"
_ASSIGNS = re.compile(rf"\s*(?:(?:export|local|readonly|declare|typeset)\s+(?:-\w+\s+)*)?({_NAME})(\+?)=")
_USE = re.compile(
    rf"\$(?:({_NAME})|\{{(?:({_NAME})(?:\[[@*]\])?|([A-Za-z_0-9]\w*)(?::?[-=]([^}}]*)|:?\?[^}}]*))\}})"
)
_LISTED = re.compile(rf'"\$\{{({_NAME})\[[@*]\]\}}"')
_LOOSE = re.compile(r"\$(?:[A-Za-z_@*]|\{)")
"""A variable that is still there once all that are set have been put in."""
_NAMES_A_FILE = ("config", "extra_llm_api_options")
_UNSET = "the text does not set it; write its value"
_OPENS, _CLOSES = ("if", "case"), ("fi", "esac")
_LOOP = re.compile(rf"\s*for\s+({_NAME})\s+in\s+(.*?)\s*(?:;.*)?", re.DOTALL)
_SUM = re.compile(r"\$\(\((.*?)\)\)", re.DOTALL)
_IN_A_BRANCH = re.compile(rf"(?:&&|\|\||then|else|do)\s+({_NAME})\+?=")


@dataclass
class Shell:
    """What a text has set so far.

    Attributes:
        values: of variables, as text.
        lists: of arrays, word by word.
        branched: names that are set within a branch, and so not known.
        loops: variables of `for` loops, and the words that they go through.
    """

    values: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    branched: set[str] = field(default_factory=set)
    loops: dict[str, list[str]] = field(default_factory=dict)

    def parts(self, text: str) -> Iterator[str]:
        """The lines of a text that may be commands, their variables put in; assignments are taken in.

        Lines that end in a backslash, or within quotes or an array's brackets, go on in the next one.
        """
        depth = 0
        for part in _parts(re.sub(r"\\\n", " ", text)):
            part = _SUM.sub(lambda found: "$((" + "".join(found[1].split()) + "))", part)
            if loop := _LOOP.fullmatch(part):
                self.loops[loop[1]] = _split(self.put_in(loop[2]))
            first = part.split(maxsplit=1)[0].rstrip(";") if part.strip() else ""
            depth += (first in _OPENS) - (first in _CLOSES)
            self.branched |= set(_IN_A_BRANCH.findall(part))
            if not self._assigned(part, known=depth <= 0):
                yield self.put_in(part)

    def _assigned(self, part: str, *, known: bool) -> bool:
        """Takes in a line of assignments and nothing else; False of any other line."""
        found: list[tuple[str, str, str]] = []
        rest = part
        while match := _ASSIGNS.match(rest):
            value, rest = _word(rest[match.end() :])
            found.append((match[1], match[2], value))
            rest = rest.lstrip(" \t;")
        if not found or (rest.strip() and not rest.lstrip().startswith("#")):
            return False
        for name, more, value in found:
            if not known:
                self.branched.add(name)
            elif value.startswith("("):
                words = _split(self.put_in(value[1:-1]))
                self.lists[name] = [*(self.lists.get(name, []) if more else []), *words]
            else:
                self._set(name, more, value)
        return True

    def _set(self, name: str, more: str, value: str) -> None:
        words = _split(self.put_in(value))
        text = " ".join(words) if len(words) <= 1 else self.put_in(value)
        self.values[name] = (self.values.get(name, "") if more else "") + text

    def put_in(self, text: str) -> str:
        """A text with the variables that are set in their places; the others stay."""
        runs = itertools.groupby(_marks(text), key=lambda one: one[1])
        parts = ((quote, "".join(mark for mark, _ in run)) for quote, run in runs)
        return "".join(
            part if quote == "'" else self._used(part, within_quotes=quote == '"') for quote, part in parts
        )

    def _used(self, run: str, *, within_quotes: bool) -> str:
        """One stretch of the same quotes."""

        def listed(match: re.Match[str]) -> str:
            return shlex.join(self.lists[match[1]]) if match[1] in self.lists else match[0]

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2] or match[3]
            found = shlex.join(self.lists[name]) if name in self.lists else self.values.get(name)
            if not found and match[4] is not None:
                found = self.put_in(match[4].strip("\"'"))
            if found is None:
                return match[0]
            return re.sub(r'(["\\])', r"\\\1", found) if within_quotes else found

        return _USE.sub(value, _LISTED.sub(listed, run))


def without_loose(
    words: Sequence[str],
    takes: Callable[[str], int | None],
    harmless: Callable[[str], bool],
    writes_files: bool = False,
) -> tuple[list[str], list[str], list[LineFault]]:
    """Words without those that name variables which the text does not set.

    Args:
        words: of a command.
        takes: the values that an option takes: 0 of a switch, None of an unknown option.
        harmless: whether an option changes no prediction.
        writes_files: whether the text writes files, of which one may be what an option names.

    Returns:
        the words left; what is said of the others; and faults, where their values are needed.
    """
    kept: list[str] = []
    notes: list[str] = []
    faults: list[LineFault] = []
    names_model = any(word.partition("=")[0] in ("--model", "--model-path") for word in words)
    for word in words:
        option, equals, _ = word.partition("=")
        whole = bool(equals) and word.startswith("-")
        if not whole:
            option = kept[-1] if kept and kept[-1].startswith("-") and "=" not in kept[-1] else ""
        if not _LOOSE.search(word) or (writes_files and _plain(option) in _NAMES_A_FILE):
            kept.append(word)
            continue
        if option and takes(option) != 0:
            if not whole:
                kept.pop()
            if harmless(option):
                notes.append(f"{option} {word} is left out: no effect on the prediction")
            else:
                faults.append(LineFault("variable", option, f"{word}: {_UNSET}"))
        elif not names_model and not any(not one.startswith("-") for one in kept if one != "serve"):
            faults.append(LineFault("variable", "model", f"{word}: {_UNSET}"))
        else:
            notes.append(f"the line goes on with {word}, which the text does not set: left out")
    return kept, notes, faults


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _split(text: str) -> list[str]:
    """Words of shell text; of text with an open quote those that blanks make."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _marks(text: str) -> Iterator[tuple[str, str]]:
    """Each mark, and the quotes that it stands in or makes; a backslash for one escaped, # in a comment."""
    quote, before, escaped, comment = "", "", False, False
    for mark in text:
        comment = mark != "\n" and (
            comment or (mark == "#" and not quote and before in ("", " ", "\t", "\n"))
        )
        before = mark
        if comment:
            yield mark, "#"
        elif escaped or (mark == "\\" and quote != "'"):
            escaped = not escaped
            yield mark, quote or "\\"
        elif quote or mark in "'\"":
            yield mark, quote or mark
            quote = "" if mark == quote else quote or mark
        else:
            yield mark, ""


def _parts(text: str) -> Iterator[str]:
    """Lines, a line end within quotes or an array taken as part of the line; comments left out."""
    here, array = "", 0
    for mark, within in _marks(text + "\n"):
        if within == "#":
            continue
        if mark == "\n" and not within and not array:
            yield here
            here = ""
            continue
        here += mark
        if mark == "(" and not within and (array or _opens_array(here)):
            array += 1
        elif mark == ")" and not within and array:
            array -= 1
    if here.strip():
        yield here.rstrip("\n")


def _opens_array(here: str) -> bool:
    match = _ASSIGNS.match(here)
    return match is not None and here[match.end() :] == "("


def _word(text: str) -> tuple[str, str]:
    """The first word of a text as it is written, an array's brackets with all in them, and the rest."""
    depth = 0
    for at, (mark, within) in enumerate(_marks(text)):
        if within:
            continue
        if not depth and (mark.isspace() or mark == ";"):
            return text[:at], text[at:]
        depth += (mark in "({") - (mark in ")}")
    return text, ""
