"""Lanes that are fed portion by portion: behind a router that asks nobody, each is alone."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.ends import Ends
from specfleet.sim.calendar.slots import COLUMNS, Requests
from specfleet.sim.calendar.stream import Shelf, Stream, Watcher
from specfleet.sim.calendar.trajectories import BLOCK


class FedStream(Stream):
    """A lane fed portion by portion, with places of its own: nothing but its requests moves it.

    Args:
        shelf: its own.
        replica: its number in the cluster.
        watch: as in `Stream`.
    """

    def __init__(self, shelf: Shelf, replica: int, watch: Watcher | None = None) -> None:
        super().__init__(shelf, 0, replica, watch, Ends(None, False))
        self._left: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in COLUMNS}
        self._until = self._sent_s = 0.0

    def feed(self, requests: Requests, last: bool = False) -> None:
        """Takes requests in order of arrival; whole blocks go to the lane, the rest waits for more.

        Raises:
            Full: more are waiting and running than there is room for.
        """
        for name in COLUMNS:
            self._left[name].append(requests[name])
        if len(requests["sent_s"]):
            self._sent_s = float(requests["sent_s"][-1])
        count = sum(map(len, self._left["row"]))
        if count < BLOCK and not last:
            return
        columns = {name: np.concatenate(parts) for name, parts in self._left.items()}
        whole = count if last else count - count % BLOCK
        for low in range(0, whole, BLOCK):
            home = self.slots.take(columns, low)
            self.lives.begin(home, self._window.until)
            first = home.number * BLOCK
            self._inbox.extend(range(first, first + home.used))
            self.take(np.arange(first, first + home.used))
        if whole:
            self._times.extend(columns["arrived_s"][:whole].tolist())
            self._until = float(columns["arrived_s"][whole - 1])
        self._left = {name: [column[whole:].copy()] for name, column in columns.items()}

    def run(self, last: bool = False) -> None:
        """Takes every turn before the last request fed arrives, or all, and hands on what is over.

        Raises:
            Unsuited: it met something that only `Engine` can do.
        """
        if last:
            with suppress(StopIteration):
                self.walk.send(inf)
        else:
            self.walk.send(self._until)
        self.hand_on(last)

    @property
    def quiet_until_s(self) -> float:
        """Time before which nothing more is to come from here."""
        left = [float(part[0]) for part in self._left["sent_s"] if len(part)]
        return min([super().quiet_until_s, self._sent_s, *left])
