"""The files that an experiment reads besides itself, by content: traces, recordings, profiles, models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from specfleet.experiments.run.files import sha256_of
from specfleet.experiments.schema.blocks.experiment import Experiment

NO_FILES = {"name", "report", "claim"}
"""Blocks whose texts are never read as files."""
LONGEST = 4096
"""Characters of a path, at most."""


def input_files(experiment: Experiment) -> dict[str, str]:
    """Returns path -> SHA-256 of every file that an experiment or an axis of it names.

    A folder with a `config.json` stands for that file, as where it names a model.
    """
    named = sorted({path for text in _texts(experiment.model_dump(exclude=NO_FILES)) for path in _file(text)})
    return {str(path): _digest(path) for path in named}


def changed_files(files: Mapping[str, str]) -> list[str]:
    """Returns those of `input_files` that hold something else now, or are gone."""
    return [
        name for name, digest in files.items() if not Path(name).is_file() or _digest(Path(name)) != digest
    ]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _texts(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _texts(child)


def _file(text: str) -> Iterator[Path]:
    if not text or len(text) > LONGEST or "\n" in text or "\0" in text:
        return
    try:
        path = Path(text).resolve()
        for candidate in (path, path / "config.json"):
            if candidate.is_file():
                yield candidate
    except OSError:
        return


def _digest(path: Path) -> str:
    status = path.stat()
    return _known(path, status.st_size, status.st_mtime_ns)


@cache
def _known(path: Path, size: int, changed_ns: int) -> str:
    """A file's SHA-256, computed once while size and time of its last change stay."""
    return sha256_of(path)
