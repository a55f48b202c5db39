"""Whether a worker would find what is found here: the same release, file by file, Python and libraries."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import specfleet

LIBRARIES = ("numpy", "simpy", "pydantic")
"""What a point's bytes depend on, or what it travels as."""
SUFFIXES = {".py", ".yaml", ".csv", ".json"}


@dataclass(frozen=True)
class Likeness:
    """What must be alike.

    Attributes:
        versions: of Specfleet, its files, Python and the libraries, by name.
        simd: the instructions that numpy uses on this processor; where they differ, times may in the last
            bit.
    """

    versions: Mapping[str, str]
    simd: tuple[str, ...]

    def unlike(self, other: Likeness) -> str:
        """Returns in what another differs from this, in words; nothing where it does not."""
        found = [
            f"{name} {said}, here {mine}"
            for name, mine in self.versions.items()
            if (said := other.versions.get(name, "is not there")) != mine
        ]
        return "; ".join(found)


@cache
def likeness() -> Likeness:
    """Returns what this process has."""
    versions = {
        "Specfleet": specfleet.__version__,
        "its files": _files_digest()[:12],
        "Python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
    }
    return Likeness(versions, _simd())


def _files_digest() -> str:
    """The SHA-256 of names and contents of all that is installed as `specfleet`."""
    root = Path(specfleet.__file__).parent
    found = hashlib.sha256()
    tops = sorted(path for path in root.iterdir() if path.is_dir() and path.name != "__pycache__")
    paths = (path for top in tops for path in top.resolve().rglob("*") if path.suffix in SUFFIXES)
    for path in sorted(paths, key=lambda path: path.parts):
        found.update(f"{path.name}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not there"


def _simd() -> tuple[str, ...]:
    import numpy as np

    shown = np.show_config(mode="dicts")
    found = shown.get("SIMD Extensions", {}) if isinstance(shown, dict) else {}
    return (platform.machine(), *map(str, [*found.get("baseline", ()), *found.get("found", ())]))
