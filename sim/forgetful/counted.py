"""Lanes behind a router that counts who is inside: fed from arrival to arrival, their requests forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specfleet.sim.calendar.ends import Ends
from specfleet.sim.calendar.lanes import Sites
from specfleet.sim.calendar.slots import COLUMNS, Requests
from specfleet.sim.calendar.stream import Shelf, Stream, Watcher
from specfleet.sim.calendar.trajectories import BLOCK
from specfleet.sim.calendar.watch import Watch
from specfleet.sim.router import Counting

LONG = 1 << 13
"""Iterations after which a lane hands on what is over, in the middle of a portion, too."""


class CountedStream(Stream):
    """A lane to which requests are sent one by one, by who counts how many are inside.

    Args:
        shelf, number, replica, watch: as in `Stream`.

    Attributes:
        ends: of its requests, by iteration.
        sent: places of those sent there since what is over was handed on.
    """

    def __init__(self, shelf: Shelf, number: int, replica: int, watch: Watcher | None) -> None:
        self.ends = Watch(ranks=False)
        super().__init__(shelf, number, replica, watch, Ends(self.ends, stops=False, runs_ahead=True))
        self.sent: list[int] = []

    def rest(self, now: float) -> None:
        """Takes back what it ran ahead of a time, and hands on what is over."""
        self.lane.quiet.take_back(self.lane.at, now)
        self.lane.quiet.ran_ahead = None
        self.hand_on()

    def hand_on(self, last: bool = False) -> None:
        """As in `Stream`; nothing that is noted may be taken back."""
        self.take(np.array(self.sent, dtype=np.int64))
        self.sent.clear()
        super().hand_on(last)
        self.lane.crowd.lives.forget()

    @property
    def noted(self) -> int:
        """Iterations since what is over was handed on."""
        return len(self.lane.log.end_s)


class CountedStreams:
    """The lanes of a fleet behind a router that asks each for the number outstanding.

    They share places and lives, which are drawn in order of arrival, whoever gets the request.

    Args:
        shelf: what they share.
        replicas: their numbers in the cluster, 0 and on.
        router: chooses among them.
        watch: is shown their iterations.
    """

    def __init__(
        self, shelf: Shelf, replicas: Sequence[int], router: Counting, watch: Watcher | None = None
    ) -> None:
        self._shelf, self._router = shelf, router
        self._streams = [CountedStream(shelf, number, number, watch) for number in replicas]
        self._sites = Sites({stream.replica: (stream, stream.ends) for stream in self._streams})
        self._left = {name: np.zeros(0, dtype=kind) for name, kind in COLUMNS.items()}
        self._now = self._sent_s = 0.0

    def feed(self, requests: Requests, last: bool = False) -> None:
        """Takes requests in order of arrival and sends each where the router says; whole blocks of them, the
        rest waits for more. Then what is over is handed on.

        Raises:
            Full: more are waiting and running than there is room for.
            Unsuited: a lane met something that only `Engine` can do.
        """
        columns = {name: np.concatenate([self._left[name], requests[name]]) for name in COLUMNS}
        count = len(columns["row"])
        if count:
            self._sent_s = float(columns["sent_s"][-1])
        whole = count if last else count - count % BLOCK
        for low in range(0, whole, BLOCK):
            self._send(columns, low)
        self._left = {name: column[whole:].copy() for name, column in columns.items()}
        if last:
            self._sites.finish()
        for stream in self._streams:
            if not last:
                stream.rest(self._now)
                self._sites.rested(stream.replica)
            else:
                stream.hand_on(last=True)

    def _send(self, columns: Requests, low: int) -> None:
        """Sends a block of requests on, one by one."""
        shelf, sites, streams, choose = self._shelf, self._sites, self._streams, self._router.choose
        home, ledger = shelf.slots.take(columns, low), shelf.ledger
        first, part = home.number * BLOCK, slice(low, low + home.used)
        shelf.lives.begin(home, 0 if ledger is None else ledger.base[0])
        lane_of = None if ledger is None else ledger.lane_of
        if lane_of is not None:
            lane_of[first : first + BLOCK] = 0
        rows, times = columns["row"][part].tolist(), columns["arrived_s"][part].tolist()
        for place, (row, now) in enumerate(zip(rows, times, strict=True), first):
            sites.run_until(now)
            index = choose(row, sites.outstanding)
            if lane_of is not None:
                lane_of[place] = index
            sites.submit(index, place, now)
            streams[index].sent.append(place)
            if streams[index].noted > LONG:
                streams[index].rest(now)
        self._now = times[-1]

    @property
    def quiet_until_s(self) -> float:
        """Time before which nothing more is to come from here."""
        soonest = min(stream.quiet_until_s for stream in self._streams)
        return min(soonest, self._sent_s, *map(float, self._left["sent_s"][:1]))
