"""When a client has the chunks of requests that come and go: the rank of a chunk within its step.

The client handles the chunks of a step one after another, in the order of the running list. A request that
was preempted stands in it several times, so its last chunk may have to wait for requests behind it. No chunk
comes before the first of its request (`ClientConfig`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specfleet.sim.calendar.luck import I64
from specfleet.sim.config import ClientConfig
from specfleet.sim.metrics.summary import Summary
from specfleet.sim.recorder import Columns


@dataclass(frozen=True, slots=True)
class Later:
    """A stay after a preemption.

    Attributes:
        newcomers: requests that had come before it; index: among the stays after a preemption.
        place: of the request. first, last: iterations of its first and last chunk.
    """

    newcomers: int
    index: int
    place: int
    first: int
    last: int


class Ranks:
    """The places of chunks within their steps, for stays that come in the order of the running list."""

    LAYERS = 128

    def __init__(self) -> None:
        self._alive: I64 = np.zeros(0, dtype=np.int64)

    def of(self, first: I64, last: I64) -> tuple[I64, I64]:
        """Returns the places (from 1) of each stay's first and last chunk: behind the earlier ones there."""
        ranks = np.ones((2, len(first)), dtype=np.int64)
        for low in range(0, len(first), self.LAYERS):
            part = slice(low, low + self.LAYERS)
            begun, over = first[part], last[part]
            # nobody from here on begins before the first of them
            alive = self._alive[np.searchsorted(self._alive, begun[0]) :]
            earlier = np.tri(len(over), k=-1, dtype=np.bool_)
            for row, there in enumerate((begun, over)):
                still = earlier & (over[None, :] >= there[:, None])
                ranks[row, part] += still.sum(axis=1) + len(alive) - np.searchsorted(alive, there)
            self._alive = np.sort(np.concatenate([alive, over]))
        return ranks[0], ranks[1]


@dataclass(slots=True)
class Waiting:
    """A request that is over but for the rank of its last chunk; `stays` of it are still to be ranked."""

    columns: Columns
    first_rank: int
    stays: int


class ChunkTimes:
    """Tells a summary of requests when their client has their first and last chunk.

    Args:
        client: its delays.
        summary: takes in the requests.

    Attributes:
        waiting: requests that wait for others, by place.
    """

    def __init__(self, client: ClientConfig, summary: Summary) -> None:
        self._client, self._summary = client, summary
        self._ranks = Ranks() if client.chunk_s else None
        self._later: list[Later] = []
        self._over = 0
        self.waiting: dict[int, Waiting] = {}

    def add(self, places: I64, columns: Columns, first: I64, last: I64, later: list[Later]) -> None:
        """Takes requests that are over, in order of arrival.

        Args:
            places: theirs.
            columns: all but the chunks' times.
            first, last: iterations of the first and last chunk of their first stay.
            later: their other stays.
        """
        self._over += len(places)
        if self._ranks is None:
            self._send(columns, None, None)
            return
        self._later += later
        due = [stay for stay in self._later if stay.newcomers <= self._over]
        due.sort(key=lambda stay: (stay.newcomers, stay.index))
        self._later = [stay for stay in self._later if stay.newcomers > self._over]
        of_first, of_last = self._ranked(self._ranks, first, last, due)
        n = len(places)
        alone = ~np.isin(places, [stay.place for stay in later])
        mine = {name: values[alone] for name, values in columns.items()}
        self._send(mine, of_first[:n][alone], of_last[:n][alone])
        for i in np.flatnonzero(~alone).tolist():
            place = int(places[i])
            row = {name: values[i : i + 1] for name, values in columns.items()}
            self.waiting[place] = Waiting(row, int(of_first[i]), sum(s.place == place for s in later))
        for stay, rank in zip(due, of_last[n:].tolist(), strict=True):
            request = self.waiting[stay.place]
            request.stays -= 1
            if not request.stays:
                self._send(request.columns, np.array([request.first_rank]), np.array([rank]))
                del self.waiting[stay.place]

    def _ranked(self, ranks: Ranks, first: I64, last: I64, due: list[Later]) -> tuple[I64, I64]:
        """Returns the ranks of first stays, and of those later ones that follow them in the running list."""
        number = np.arange(self._over - len(first) + 1, self._over + 1)
        more = np.array([(stay.newcomers, stay.first, stay.last) for stay in due], dtype=np.int64).reshape(
            -1, 3
        )
        order = np.argsort(np.concatenate([number, more[:, 0]]), kind="stable")
        begun, ended = np.concatenate([first, more[:, 1]]), np.concatenate([last, more[:, 2]])
        of_first, of_last = np.empty((2, len(order)), dtype=np.int64)
        of_first[order], of_last[order] = ranks.of(begun[order], ended[order])
        return of_first, of_last

    def _send(self, columns: Columns, first_rank: I64 | None, last_rank: I64 | None) -> None:
        client = self._client
        for name, engine, rank in (
            ("first_chunk_s", "first_token_s", first_rank),
            ("last_chunk_s", "finished_s", last_rank),
        ):
            seen = columns[engine] + client.receive_s
            columns[name] = seen if rank is None else seen + client.chunk_s * rank
        if last_rank is not None:
            columns["last_chunk_s"] = np.maximum(columns["last_chunk_s"], columns["first_chunk_s"])
        self._summary.add_requests(columns)
