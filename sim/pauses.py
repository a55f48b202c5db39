"""Pauses of more than one iteration: a row each, or those alike in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specfleet.sim.recorder import Columns

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Alike(NamedTuple):
    """Counted pauses, those that follow one another and are alike in one row.

    Attributes:
        end_s, gap_s: when each ends, and how long it was.
        chunks: how many chunks of so many tokens end it, shape `(n, most tokens + 1)`.
    """

    end_s: F64
    gap_s: F64
    chunks: I64

    def tokens(self) -> int:
        """Returns the tokens of all chunks."""
        return int(self.chunks.sum(axis=0) @ np.arange(self.chunks.shape[1]))

    def together(self) -> Alike:
        """Returns the same, no two that follow one another alike, and none that no chunk ends."""
        some, used = self.chunks.any(axis=1), np.flatnonzero(self.chunks.any(axis=0))
        width = int(used.max(initial=0)) + 1
        end_s, gap_s, chunks = self.end_s[some], self.gap_s[some], self.chunks[some, :width]
        starts = _starts(end_s, gap_s)
        if len(starts):
            chunks = np.add.reduceat(chunks, starts, axis=0)
        return Alike(end_s[starts], gap_s[starts], chunks)


def _starts(end_s: F64, gap_s: F64) -> I64:
    """Returns the rows that are not like the one before."""
    other = np.ones(len(end_s), dtype=np.bool_)
    np.logical_or(end_s[1:] != end_s[:-1], gap_s[1:] != gap_s[:-1], out=other[1:])
    return np.flatnonzero(other)


class LatePauses(Columns):
    """Columns of pauses that are made when somebody asks for one: most ask only for those alike.

    Args:
        make: returns them.
        alike: the same, those alike in one row.
    """

    def __init__(self, make: Callable[[], Columns], alike: Alike) -> None:
        super().__init__()
        self._make: Callable[[], Columns] | None = make
        self.alike = alike

    def _made(self) -> None:
        if self._make is not None:
            made, self._make = self._make(), None
            self.update(made)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        self._made()
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self._made()
        return super().__iter__()

    def __len__(self) -> int:
        self._made()
        return super().__len__()

    def keys(self) -> Any:
        """As of a dict."""
        self._made()
        return super().keys()

    def items(self) -> Any:
        """As of a dict."""
        self._made()
        return super().items()

    def values(self) -> Any:
        """As of a dict."""
        self._made()
        return super().values()

    def pop(self, name: str, *default: Any) -> Any:
        """As of a dict."""
        self._made()
        return super().pop(name, *default)

    def __contains__(self, name: object) -> bool:
        self._made()
        return super().__contains__(name)

    def __reduce__(self) -> tuple[type, tuple[list[tuple[str, npt.NDArray[Any]]]]]:
        return dict, ([*self.items()],)


def alike(pauses: Columns) -> Alike:
    """Returns counted pauses (columns as `RunResult.odd_gaps`), those alike in one row."""
    if isinstance(pauses, LatePauses):
        return pauses.alike
    odd = pauses["counted"] == 1
    end_s = np.asarray(pauses["end_s"][odd], dtype=np.float64)
    gap_s = np.asarray(pauses["gap_s"][odd], dtype=np.float64)
    tokens = pauses["tokens"][odd].astype(np.int64)
    starts = _starts(end_s, gap_s)
    width = int(tokens.max(initial=0)) + 1
    row = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(end_s)))
    chunks = np.bincount(row * width + tokens, minlength=len(starts) * width)
    return Alike(end_s[starts], gap_s[starts], chunks.reshape(len(starts), width))
