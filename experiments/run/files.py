"""Files of a results folder: written beside their place and renamed; a damaged one is named when read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from specfleet.experiments.schema.faults import Fault, InputFaults

if TYPE_CHECKING:
    import pandas as pd


WHOLE = "_SUCCESS"
"""Last file of a simulation's folder."""


class FolderFault(InputFaults):
    """A results folder, or a file of one, that cannot be used: which one, and why."""

    def __init__(self, path: Path | str, message: str) -> None:
        super().__init__([Fault(str(path), 0, "", message)])


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives a failure to write that names no file, such as a full disk, the name of this one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` make a file beside `path` and renames it: there is the old content or the new, never less.

    Raises:
        OSError: with the file's name; nothing is left behind.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with naming(path):
        try:
            write(beside)
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def write_folder(path: Path, files: Mapping[str, Callable[[Path], object]]) -> None:
    """Writes a folder of files, `_SUCCESS` among them, in the place of what is there: whole or not at all.

    Args:
        path: the folder.
        files: what writes each of them, by name.

    Raises:
        OSError: with a file's name; nothing is left behind.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with naming(path):
            unfinished.mkdir(parents=True)
            for name, write in files.items():
                write(unfinished / name)
            (unfinished / WHOLE).touch()
            shutil.rmtree(path, ignore_errors=True)
            unfinished.rename(path)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file as `write_whole` does."""
    write_whole(path, lambda beside: beside.write_bytes(content))


def write_text(path: Path, text: str) -> None:
    """Writes a file as `write_whole` does."""
    write_bytes(path, text.encode())


def is_page(path: Path) -> bool:
    """Whether a file is a page of Specfleet's, by the title in it."""
    with path.open("rb") as file:
        return b"Specfleet</title>" in file.read(20_000)


def write_page(path: Path, page: str) -> None:
    """Writes a page.

    Raises:
        FolderFault: there is something else in its place.
    """
    parent = next(p for p in path.parents if p.exists())
    if not parent.is_dir():
        raise FolderFault(parent, f"is a file, so {path} cannot be written; use another place")
    if path.is_dir():
        raise FolderFault(path, "is a folder; name a file")
    if path.exists() and path.stat().st_size and not is_page(path):
        raise FolderFault(path, "is not a page of Specfleet's and stays as it is; use another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_object(path: Path) -> Mapping[str, object]:
    """Returns what a JSON file holds.

    Raises:
        FolderFault: it is damaged, or holds something else than an object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FolderFault(path, f"is damaged: {error}") from None
    if not isinstance(found, dict):
        raise FolderFault(path, "is damaged: it holds no JSON object")
    return found


def read_table(path: Path) -> pd.DataFrame:
    """Returns what a CSV file holds.

    Raises:
        FolderFault: it is damaged.
    """
    import pandas as pd

    try:
        return pd.read_csv(path)
    except ValueError as error:
        raise FolderFault(path, f"is damaged: {str(error).splitlines()[0]}") from None
