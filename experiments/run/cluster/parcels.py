"""What travels to a worker and back: work as bytes, with the files that it names.

A worker may be a machine that has none of the user's files. So a text that is the path of one goes as a
reference to its content, and where it is read again the path of a copy stands in its place. On the way back
each such path, in whatever text it stands, becomes what the user wrote.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_letters
from typing import Any

from specfleet.experiments.run.inputs import LONGEST
from specfleet.hardware.hfconfig import QUANT_FILE

ROOTS = ("/", *(f"{letter}:" for letter in ascii_letters))
"""What a whole path begins with."""
READ_WHEREVER = (".yaml", ".yml", ".json")
"""Endings of files that are named from where a command is started; other paths are whole."""


@dataclass(frozen=True)
class Luggage:
    """A file, or a folder with a `config.json`, that an experiment names.

    Attributes:
        given: its path as the experiment has it.
        place: of its copy, below a folder of its own.
        contents: of the file and of what is read beside it, by path below that folder.
    """

    given: str
    place: str
    contents: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """Names it by all that it is."""
        found = hashlib.sha256(f"{self.given}\0{self.place}".encode())
        for name, content in sorted(self.contents.items()):
            found.update(f"\0{name}\0".encode() + hashlib.sha256(content).digest())
        return found.hexdigest()

    @classmethod
    def at(cls, text: str) -> Luggage | None:
        """Returns what lies at a path; None where a text is the path of nothing that a point reads.

        Raises:
            OSError: it cannot be read.
        """
        path = Path(text)
        folder = path.is_dir()
        file = path / "config.json" if folder else path
        if not file.is_file():
            return None
        beside = file.resolve().parent.name if file.name == "config.json" else file.absolute().parent.name
        above = beside or "root"
        names = [
            file.name,
            f"{file.stem}.{QUANT_FILE}",
            *([QUANT_FILE] if file.name == "config.json" else []),
        ]
        contents = {f"{above}/{file.name}": file.read_bytes()}
        if file.suffix == ".json":
            others = (file.with_name(name) for name in names[1:])
            contents |= {f"{above}/{other.name}": other.read_bytes() for other in others if other.is_file()}
        return cls(text, above if folder else f"{above}/{file.name}", contents)

    def unpack(self, below: Path) -> Path:
        """Writes the files below a folder, unless they are there; returns the path of the copy."""
        root = below / self.digest[:32]
        for name, content in self.contents.items():
            path = root / name
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                beside = path.with_name(f".{path.name}.{os.getpid()}")
                beside.write_bytes(content)
                beside.replace(path)
        return root / self.place


@dataclass
class Sender:
    """Packs work, and finds the files that it names.

    Attributes:
        known: what each text is the path of, None where of nothing.
    """

    known: dict[str, Luggage | None] = field(default_factory=dict)

    def packed(self, content: object) -> tuple[bytes, tuple[Luggage, ...]]:
        """Returns work as bytes, and the files it names in the order in which the bytes number them."""
        named: dict[str, Luggage] = {}

        def reference(text: str) -> int | None:
            luggage = self._luggage(text)
            if luggage is None:
                return None
            named.setdefault(text, luggage)
            return list(named).index(text)

        return _packed(content, reference), tuple(named.values())

    def _luggage(self, text: str) -> Luggage | None:
        if not (text.startswith(ROOTS) or text.endswith(READ_WHEREVER)):
            return None
        if text not in self.known:
            sound = len(text) <= LONGEST and "\n" not in text and "\0" not in text
            try:
                self.known[text] = Luggage.at(text) if sound else None
            except (OSError, ValueError):
                self.known[text] = None  # whoever reads it says why
        return self.known[text]


def unpacked(parcel: bytes, places: tuple[str, ...]) -> Any:
    """Returns work with the paths of copies in the place of references."""
    return _Unpickler(parcel, places.__getitem__).load()


def answered(content: object, given: Mapping[str, str]) -> bytes:
    """Returns an answer as bytes, with what the user wrote in the place of the paths of copies.

    Args:
        content: the answer.
        given: path of a copy, or of its folder, -> the same as the user wrote it.
    """
    where = sorted(given, key=len, reverse=True)

    def reference(text: str) -> str | None:
        found = text
        for place in where:
            found = found.replace(place, given[place])
        return None if found == text else found

    return _packed(content, reference if where else None)


def answer_in(parcel: bytes) -> Any:
    """Returns the answer."""
    return _Unpickler(parcel, lambda text: text).load()


def _packed(content: object, reference: Callable[[str], object] | None) -> bytes:
    file = io.BytesIO()
    _Pickler(file, reference).dump(content)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Asks of every text whether something else goes in its place."""

    def __init__(self, file: io.BytesIO, reference: Callable[[str], object] | None) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._reference = reference

    def persistent_id(self, obj: object) -> object:
        """What goes in the place of an object; None: the object itself."""
        return self._reference(obj) if self._reference is not None and type(obj) is str else None


class _Unpickler(pickle.Unpickler):
    """Puts back what stands for a reference."""

    def __init__(self, parcel: bytes, found: Callable[[Any], object]) -> None:
        super().__init__(io.BytesIO(parcel))
        self._found = found

    def persistent_load(self, pid: Any) -> object:
        """What a reference stands for."""
        return self._found(pid)
