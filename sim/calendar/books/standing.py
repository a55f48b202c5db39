"""Where sequences stand, and what those drawn together do and have had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.luck import I64, U8


class Standing(NamedTuple):
    """Where sequences stand between two steps, a value each, in the order of the running list.

    Attributes:
        place: of the request. computed: KV tokens.
        known: output tokens known before the last step (0: its prompt was computed in it).
        asked: KV tokens the last step was scheduled for.
        held: KV blocks.
    """

    place: I64
    computed: I64
    known: I64
    asked: I64
    held: I64

    @classmethod
    def nobody(cls) -> Standing:
        """Returns an empty one."""
        return cls(*np.zeros((5, 0), dtype=np.int64))


@dataclass(slots=True)
class Term:
    """Sequences drawn together at one K, in the iteration `begin`: a value a sequence, and flat arrays.

    Attributes:
        standing: of each at the beginning.
        rounds, starts: that each needs at this K; its first flat place.
        gains, footprint: as in `LifeBatch`; gains is None at K = 0 (one token each).
        whole: it is drawn to its end; the others go on behind their `rounds`.
        kept: tokens kept of the last round, if it has one.
        unused: place, from its first, of its row none of whose drafts can be used, or -1.
    """

    begin: int
    standing: Standing
    rounds: I64
    starts: I64
    whole: npt.NDArray[np.bool_]
    gains: U8 | None
    footprint: I64
    kept: I64
    unused: I64


class Had(NamedTuple):
    """What the sequences of a term have had when it ends, a value a sequence.

    Attributes:
        place: of the request. begin: its first iteration with a row in the term.
        had: rounds. over: they were its last ones. before: KV tokens before the latest.
        gains: tokens sampled in each round, flat.
    """

    place: I64
    begin: I64
    had: I64
    over: npt.NDArray[np.bool_]
    before: I64
    gains: I64


class Drawn(NamedTuple):
    """What sequences drawn together add to the calendars, flat; places count from their first iteration.

    Attributes:
        offsets, row, side: places, and what they get of both packed words.
        unused: places of rows none of whose drafts can be used.
        beyond: places of rows for which the drafter has no positions left, where there may be any.
    """

    offsets: I64
    row: I64
    side: I64 | None
    unused: I64
    beyond: I64 | None = None

    @classmethod
    def nobody(cls) -> Drawn:
        """Returns what nobody adds."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, None, none)
