"""What a lane notes of its requests: each stay on the running list, in the order of first tokens."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.books.ledger import Ledger
from specfleet.sim.calendar.luck import I64, U8

NUMBERS = 6
"""Of a stay, in `SglangStays.noted`."""
FIRST, RANK, SINCE, ROUNDS = 1, 2, 4, 5


class SglangStays:
    """A stay begins with a prefill, whose token is its first, and decodes in successive decode batches.

    Attributes:
        noted: six numbers of each: the request's place, the iteration of its first token, the place of that
            in its batch, and the iteration of the request's first admission; its first decode batch, and how
            many give it tokens (-1: its first was thrown away).
        cached: tokens found at their first admission, by place, where there are any.
        retractions: of those who were retracted, by place.
        gains: of those who were: tokens kept of each round, by stay.
        booked: changes to what is known of lives drawn ahead, as `Ledger.book_stay` takes them.
        thrown_away: place and tokens of rounds whose result was.
        segments: the stay, first decode and last decode of each time somebody stands between the same others;
            None as long as nobody was retracted, and stays are that.
    """

    def __init__(self) -> None:
        self.noted = array("q")
        self.cached: dict[int, int] = {}
        self.retractions: dict[int, int] = {}
        self.gains: dict[int, U8] = {}
        self.booked: list[tuple[int, int, U8, int, int]] = []
        self.thrown_away: list[tuple[int, int]] = []
        self.segments: tuple[array[int], array[int], array[int]] | None = None
        self._stands: dict[int, int] = {}

    def begin(self, place: int, iteration: int, rank: int, admitted: int, since: int, rounds: int) -> int:
        """Notes a stay; returns its number."""
        stay = len(self.noted) // NUMBERS
        self.noted.extend((place, iteration, rank, admitted, since, rounds))
        if self.segments is not None:
            self.stand(stay, since, since + rounds - 1)
        return stay

    def columns(self) -> I64:
        """Returns the numbers of all stays, shape `(6, stays)`; nothing may be noted while they are held."""
        return np.frombuffer(self.noted, dtype=np.int64).reshape(-1, NUMBERS).T

    def stand(self, stay: int, since: int, last: int) -> None:
        """Notes a segment of a stay."""
        assert self.segments is not None
        self._stands[stay] = len(self.segments[0])
        for column, value in zip(self.segments, (stay, since, last), strict=True):
            column.append(value)

    def divide(self) -> None:
        """SglangStays have segments from now on; those so far are one each."""
        if self.segments is None:
            since, rounds = self.columns()[[SINCE, ROUNDS]].tolist()
            last = [first + count - 1 for first, count in zip(since, rounds, strict=True)]
            self.segments = array("q", range(len(since))), array("q", since), array("q", last)

    def close(self, stay: int, last: int) -> None:
        """Notes that a stay's last segment ends with a decode batch, if not before."""
        assert self.segments is not None
        segment = self._stands.get(stay, stay)
        self.segments[2][segment] = min(self.segments[2][segment], last)

    def note_cached(self, place: int, tokens: int) -> None:
        """Notes the tokens that a newcomer found."""
        if tokens:
            self.cached[place] = tokens

    def resumes(self, stay: int, place: int, since: int, gains: U8, kept: int) -> None:
        """Notes the rounds of a stay whose request had been retracted; `kept` of the last one."""
        tokens = gains.copy()
        if len(gains):
            tokens[-1] = kept
        self.gains[stay] = tokens
        self.booked.append((place, since - 1, gains, kept, 1))

    def cut(self, place: int, since: int, gains: U8, kept: int, thrown_away: int) -> None:
        """Takes back the rounds from decode batch `since` on; the first `thrown_away` of them took place."""
        self.booked.append((place, since - 1, gains, kept, -1))
        self.thrown_away += [(place, int(tokens)) for tokens in gains[:thrown_away]]

    def correct(self, ledger: Ledger, lane: int) -> None:
        """Books what became of those who were retracted; `lane` as `Ledger.book_stay`."""
        for place, first, gains, kept, sign in self.booked:
            ledger.book_stay(lane, place, first, gains, kept, sign)
        for place, tokens in self.thrown_away:
            if int(ledger.lives.order[place]) >= ledger.num_warmups:
                ledger.accepted[tokens] += 1


@dataclass(frozen=True)
class Segments:
    """Parts of stays in which somebody stands between the same others on the running list, in its order.

    Attributes:
        stay: of each. since, last: its first decode batch and its last; before `since` if there is none.
    """

    stay: I64
    since: I64
    last: I64


class StayColumns:
    """SglangStays as columns, those left out whose first token was thrown away.

    Args:
        stays: of a lane after its run.
        gains: tokens of every round kept, and where those of each place begin; None without speculation.

    Attributes:
        place, first, rank, admitted, since, rounds: as of `SglangStays`.
        whole: stays as segments. segments: in which each stands between the same others.
        opening, closing: the first stay and the last of each request.
        again, before: stays that are not a request's first, and those before them; None: there are none.
    """

    def __init__(self, stays: SglangStays, gains: tuple[U8, I64] | None) -> None:
        columns = stays.columns().copy()
        there = columns[-1] >= 0
        self.place: I64
        self.first: I64
        self.rank: I64
        self.admitted: I64
        self.since: I64
        self.rounds: I64
        self.place, self.first, self.rank, self.admitted, self.since, self.rounds = (
            columns if there.all() else columns[:, there]
        )
        self.whole = Segments(np.arange(len(self.place)), self.since, self.since + self.rounds - 1)
        self.segments = self.whole
        self.opening: I64 | slice = slice(None)
        self.closing: I64 | slice = slice(None)
        self.again: I64 | None = None
        self.before = np.zeros(0, dtype=np.int64)
        self._gains, self._begins = None, self.place
        if gains is not None:
            self._gains, begins = gains[0], gains[1][columns[0]]
            self._begins = self._with_more(stays.gains, begins)[there]
        if stays.segments is not None:
            self._divide(stays.segments, there)

    def _with_more(self, gains: dict[int, U8], begins: I64) -> I64:
        """Appends the rounds of those who were retracted; returns where each stay's begin."""
        parts, length = [self._gains], len(self._gains) if self._gains is not None else 0
        for stay, more in gains.items():
            begins[stay], length = length, length + len(more)
            parts.append(more)
        if gains:
            self._gains = np.concatenate([part for part in parts if part is not None])
        return begins

    def _divide(
        self, segments: tuple[array[int], array[int], array[int]], there: npt.NDArray[np.bool_]
    ) -> None:
        """Takes in segments, and which stays are of one request; `there`: those whose first token counts."""
        number = np.cumsum(there) - 1
        stay, since, last = (np.frombuffer(column, dtype=np.int64) for column in segments)
        kept = there[stay]
        self.segments = Segments(number[stay[kept]], since[kept], last[kept])
        place = self.place
        order = np.argsort(place, kind="stable")
        same = place[order][1:] == place[order][:-1]
        self.opening = np.sort(order[np.concatenate([[True], ~same])])
        ends = order[np.concatenate([~same, [True]])]
        closing = np.zeros(int(place.max(initial=0)) + 1, dtype=np.int64)
        closing[place[ends]] = ends
        self.closing = closing[place[self.opening]]
        self.again, self.before = order[1:][same], order[:-1][same]
        by_stay = np.argsort(self.again)
        self.again, self.before = self.again[by_stay], self.before[by_stay]

    def tokens(self, stays: I64, rounds: I64 | int) -> I64:
        """Returns the tokens that the n-th round of some stays keeps."""
        if self._gains is None:
            return np.ones(len(stays), dtype=np.int64)
        kept: I64 = self._gains[self._begins[stays] + rounds].astype(np.int64)
        return kept

    def chunks(self) -> I64:
        """Returns the chunks of each request."""
        each: I64 = 1 + self.rounds
        if self.again is None:
            return each
        totals: I64 = np.bincount(self.place, weights=each)[self.place[self.opening]].astype(np.int64)
        return totals

    def ends_in(self, at: I64) -> I64:
        """Returns the iteration of each stay's last chunk; `at`: that of each decode batch."""
        decode = np.maximum(self.since + self.rounds - 1, 0)
        ends: I64 = np.where(self.rounds > 0, at[decode], self.first)
        return ends
