"""Requests of a lane that come and go: places in blocks, used again when their requests are forgotten.

The loop knows a request by its place and meets places in order of arrival. So nothing in it changes if a
place is given to another request later. It remembers the last block it looked at; that one is never given
out again under its eyes, because a request is over only when iterations have followed its end, and with all
before it, so that a later one has been looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.luck import I64, Luck
from specfleet.sim.calendar.trajectories import BLOCK, NOT_YET, Trajectories
from specfleet.sim.speculation.acceptance import Acceptance, Chain
from specfleet.workloads.requests import RequestTable

T = TypeVar("T")
NO_RANK = (0.0, 0.0)
"""Ranks of a request where acceptance does not go with length."""
COLUMNS: Mapping[str, type[np.generic]] = {
    "row": np.int64,
    "luck_id": np.int64,
    "prompt_tokens": np.int64,
    "output_tokens": np.int64,
    "max_tokens": np.int64,
    "class_id": np.int32,
    "temperature": np.float64,
    "sent_s": np.float64,
    "arrived_s": np.float64,
}
"""What is known of a request before it runs; `row` is its id, `luck_id` the key of its luck."""
Requests = Mapping[str, npt.NDArray[Any]]
"""Columns of requests, a row each."""


class Queue(dict[int, T]):
    """A list of which the front may be forgotten: indices and length go on counting."""

    def __init__(self) -> None:
        super().__init__()
        self._length = 0

    def __len__(self) -> int:
        """Entries that were ever put in."""
        return self._length

    def append(self, value: T) -> None:
        """Puts a value at the end."""
        self[self._length] = value
        self._length += 1

    def extend(self, values: Sequence[T]) -> None:
        """Puts values at the end."""
        self.update(zip(range(self._length, self._length + len(values)), values, strict=True))
        self._length += len(values)

    def forget(self, keys: Iterable[int]) -> None:
        """Drops entries that nobody asks for any more."""
        for key in keys:
            del self[key]


class Full(Exception):  # noqa: N818 - as `Unsuited`: another way has to be found
    """More requests are waiting or running than there are places for."""


@dataclass(frozen=True, slots=True)
class Home:
    """A block of places that is in use: its number, and how many of its places are."""

    number: int
    used: int


class Slots:
    """The columns of the requests that are in a lane or on their way to it, by place.

    Args:
        capacity: most places; memory is taken only for those in use, the lowest first.

    Attributes:
        blocks: that were ever in use.
    """

    def __init__(self, capacity: int) -> None:
        self.columns = {name: np.zeros(capacity, dtype=kind) for name, kind in COLUMNS.items()}
        self._left: dict[int, int] = {}
        self._free: list[int] = []
        self.blocks = 0

    def take(self, requests: Requests, low: int) -> Home:
        """Gives a block of places to up to `BLOCK` of `requests`, from index `low` on.

        What is left of a block is filled with requests that are over at once.

        Raises:
            Full: there is none left.
        """
        used = min(BLOCK, len(requests["row"]) - low)
        home = Home(self._number(), used)
        first = home.number * BLOCK
        for name, column in self.columns.items():
            column[first : first + used] = requests[name][low : low + used]
            column[first + used : first + BLOCK] = column[first + used - 1]
        self.columns["prompt_tokens"][first + used : first + BLOCK] = 1
        self.columns["output_tokens"][first + used : first + BLOCK] = 1
        self._left[home.number] = used
        return home

    def _number(self) -> int:
        """Returns the lowest free block."""
        if self._free:
            return heappop(self._free)
        if (self.blocks + 1) * BLOCK > len(self.columns["row"]):
            raise Full
        self.blocks += 1
        return self.blocks - 1

    def forget(self, places: I64) -> None:
        """Forgets requests; a block of which none is left is free again."""
        for number, count in zip(*np.unique(places // BLOCK, return_counts=True), strict=True):
            self._left[int(number)] -= int(count)
            if not self._left[int(number)]:
                del self._left[int(number)]
                heappush(self._free, int(number))


class _OfBlock:
    """A column for the requests of the block that is being drawn, asked for by their ids."""

    def __init__(self) -> None:
        self.values: I64 = np.zeros(0, dtype=np.int64)

    def __getitem__(self, ids: I64) -> I64:
        return self.values


class SlotLives(Trajectories):
    """`Trajectories` of requests in `Slots`.

    Args:
        slots: the requests.
        longest: a table that holds the request with the longest output.
        rules: of the engine.
        luck: of the drafts, for the classes of the run; None without speculation.
        processes: acceptance of each class.
        keeps_footprints: somebody may be preempted.
    """

    def __init__(
        self,
        slots: Slots,
        longest: RequestTable,
        rules: Footprints,
        luck: Luck | None,
        processes: Sequence[Acceptance],
        keeps_footprints: bool,
    ) -> None:
        self._columns = slots.columns
        self._classes = _OfBlock()
        self._low = 0
        if luck is not None:
            luck = Luck(
                self._classes,  # type: ignore[arg-type]
                processes,
                luck.k,
                luck.seed,
                self._bounds(processes),
                self._chain(processes),
                luck.accepted,
            )
        super().__init__(longest, slots.columns["row"], rules, luck, keeps_footprints)

    def _requests(self, low: int) -> tuple[I64, I64, I64, I64]:
        part = slice(low, low + BLOCK)
        columns = self._columns
        self._low = low
        self._classes.values = columns["class_id"][part]
        return (
            columns["luck_id"][part],
            columns["prompt_tokens"][part],
            columns["output_tokens"][part],
            columns["max_tokens"][part],
        )

    def _bounds(self, processes: Sequence[Acceptance]) -> Callable[[int], npt.NDArray[Any]]:
        """Returns what says what one request of the block that is being drawn is drawn against."""

        def bounds(row: int) -> npt.NDArray[Any]:
            columns, place = self._columns, self._place(row)
            process = processes[int(columns["class_id"][place])]
            prompt, temperature = int(columns["prompt_tokens"][place]), float(columns["temperature"][place])
            return process.bounds(row, prompt, temperature, NO_RANK)

        return bounds

    def _chain(self, processes: Sequence[Acceptance]) -> Callable[[int], Chain]:
        """Returns what says when one request of the block that is being drawn finds drafts."""

        def chain(row: int) -> Chain:
            process = processes[int(self._columns["class_id"][self._place(row)])]
            found = process.chain(process.level(row, NO_RANK))
            assert found is not None
            return found

        return chain

    def _place(self, row: int) -> int:
        """Where a request of the block that is being drawn stands, by the key of its luck."""
        return self._low + int((self._columns["luck_id"][self._low : self._low + BLOCK] == row).argmax())

    def is_settled_each(self, places: I64) -> npt.NDArray[np.bool_]:
        """Returns whether each place's request has its first token, and its block is booked."""
        settled: npt.NDArray[np.bool_] = self.first[places] != NOT_YET
        if self._blocks:
            settled &= ~np.isin(places // BLOCK, list(self._blocks))
        return settled

    def begin(self, home: Home, now: int) -> None:
        """Makes the places of a block ready for new requests, in iteration `now`."""
        low = home.number * BLOCK
        self.first[low : low + home.used] = NOT_YET
        self.first[low + home.used : low + BLOCK] = now
