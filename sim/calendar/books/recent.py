"""What was booked of the last iterations where K changes: whoever is given up takes some of it back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from specfleet.sim.calendar.luck import I64, U8
from specfleet.sim.calendar.stay import Stay


class Booked(NamedTuple):
    """Rounds that were booked together.

    Attributes:
        now: the first iteration behind them.
        place, begin, had, ends: of each sequence, its first iteration, its rounds, and where these end below.
        tokens, sampled: tokens kept of each round, and sampled, flat.
        k: drafts of each.
    """

    now: int
    place: I64
    begin: I64
    had: I64
    ends: I64
    tokens: I64
    sampled: I64
    k: int


class Recent:
    """What was booked of the last two iterations, and perhaps more."""

    def __init__(self) -> None:
        self._booked: deque[Booked] = deque()

    def note(self, place: I64, begin: I64, had: I64, tokens: I64, sampled: I64, k: int) -> None:
        """Notes what has just been booked, as `Booked`."""
        now = int((begin + had).max(initial=0))
        while self._booked and self._booked[0].now < now - 1:
            self._booked.popleft()
        self._booked.append(Booked(now, place, begin, had, np.cumsum(had), tokens, sampled, k))

    def note_one(self, stay: Stay, first: int, rounds: int, k: int) -> None:
        """As `note`, of the first rounds of one sequence whose prefill ended in `first`."""
        sampled = np.ones(rounds, dtype=np.int64) if stay.gains is None else stay.gains[:rounds]
        tokens = sampled.astype(np.int64)
        if rounds == stay.rounds:
            tokens[-1:] = stay.kept
        place, begin, had = np.array([[stay.place], [first + 1], [rounds]])
        self.note(place, begin, had, tokens, sampled.astype(np.int64), k)

    def behind(self, place: int, known: int) -> Iterator[tuple[int, U8, int, int]]:
        """Yields the rounds of a request behind iteration `known`, as they were booked.

        Yields:
            The iteration before the first of them, tokens sampled in each, tokens kept of the last, and K.
        """
        for booked in self._booked:
            for j in np.flatnonzero(booked.place == place).tolist():
                end, stop = int(booked.ends[j]), int(booked.begin[j] + booked.had[j])
                count = min(int(booked.had[j]), stop - 1 - known)
                if count > 0:
                    sampled = booked.sampled[end - count : end].astype(np.uint8)
                    yield stop - count - 1, sampled, int(booked.tokens[end - 1]), booked.k
