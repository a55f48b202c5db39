"""Links that transfers share: each replica sends through one and receives through one.

A transfer is a fluid. What it may move at a time is what is *ready*; more of it may become ready at a rate,
while it is being made. Links share their bytes a second among the transfers under way by max-min fairness:
nobody gets more while somebody who could use it gets less, and no link idles that could be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol


class Alarm(Protocol):
    """A clock that can be asked to call."""

    def at(self, time_s: float, then: Callable[[float], None]) -> None:
        """Calls `then` with the time, at `time_s`."""
        ...


class Transfer:
    """One transfer.

    Args:
        row: whose it is.
        source: the replica that sends.
        number: of those before it.

    Attributes:
        target: the replica that receives; known when it is `open`.
        open: the target takes bytes.
        ready: bytes that can be sent now. inflow: bytes a second that become ready.
        rate: bytes a second that it gets of the links.
        closed: nothing more will become ready.
        moved: bytes that have arrived.
    """

    __slots__ = ("closed", "inflow", "moved", "number", "open", "rate", "ready", "row", "source", "target")

    def __init__(self, row: int, source: int, number: int = 0) -> None:
        self.row, self.source, self.target, self.number = row, source, -1, number
        self.open = self.closed = False
        self.ready = self.inflow = self.rate = self.moved = 0.0

    @property
    def empties_in(self) -> float:
        """Seconds until everything that is ready has been sent, at the present rates."""
        if not self.ready or self.rate <= self.inflow:
            return inf
        return 0.0 if self.rate == inf else self.ready / (self.rate - self.inflow)


class Network:
    """The links of all replicas, and the transfers on them.

    Args:
        alarm: the clock.
        bytes_per_s: of each replica's link, either way.
        done: learns that a transfer has ended: its row, and when.
    """

    def __init__(
        self, alarm: Alarm, bytes_per_s: Sequence[float], done: Callable[[int, float], None]
    ) -> None:
        self._alarm, self._bytes_per_s, self._done = alarm, bytes_per_s, done
        self._flows: dict[int, Transfer] = {}
        self._stirred: dict[int, Transfer] = {}
        self._begun = 0
        self._now = 0.0
        self._due_s, self._emptied = inf, list[Transfer]()
        self._turn = 0

    def begin(self, row: int, source: int) -> None:
        """A transfer is to come, of which nothing is ready yet."""
        self._flows[row] = Transfer(row, source, self._begun)
        self._begun += 1

    def flow(self, row: int) -> Transfer:
        """Returns a transfer that has not ended."""
        return self._flows[row]

    def open(self, row: int, target: int, now: float) -> None:
        """The receiver is ready."""
        flow = self._stir(row, now)
        flow.target, flow.open = target, True
        self._share(now)

    def put(self, row: int, count: float, now: float) -> None:
        """So many bytes more are ready at `now`."""
        self._stir(row, now).ready += count
        self._share(now)

    def pour(self, row: int, rate: float, now: float) -> None:
        """From `now` on, so many bytes a second become ready."""
        self._stir(row, now).inflow = rate
        self._share(now)

    def close(self, row: int, now: float) -> None:
        """Nothing more will become ready: the transfer ends when all that is has been sent."""
        self._stir(row, now).closed = True
        self._share(now)

    def _stir(self, row: int, now: float) -> Transfer:
        """Moves bytes until `now`; returns a transfer of which something is about to change.

        Those of which nothing is known yet, prompts that wait, are none of the others' business.
        """
        self._advance(now)
        found = self._stirred.get(row)
        if found is None:
            found = self._stirred[row] = self._flows[row]
            ordered = sorted(self._stirred.values(), key=lambda flow: flow.number)
            self._stirred = {flow.row: flow for flow in ordered}
        return found

    def _advance(self, now: float) -> None:
        """Moves bytes until `now`."""
        seconds = now - self._now
        if seconds > 0.0:
            for flow in self._stirred.values():
                if flow.inflow or flow.rate:
                    flow.moved += flow.rate * seconds
                    flow.ready = max(flow.ready + (flow.inflow - flow.rate) * seconds, 0.0)
        self._now = now
        if now >= self._due_s:
            for flow in self._emptied:
                if flow.rate == inf:
                    flow.moved += flow.ready
                flow.ready = 0.0
            self._due_s, self._emptied = inf, []

    def _share(self, now: float) -> None:
        """Ends transfers that are through, shares the links anew, and asks to be called when that changes."""
        stirred = self._stirred
        ended = [flow for flow in stirred.values() if flow.closed and flow.open and not flow.ready]
        for flow in ended:
            del self._flows[flow.row], stirred[flow.row]
        share([flow for flow in stirred.values() if flow.open], self._bytes_per_s)
        times = [(flow.empties_in, flow) for flow in stirred.values()]
        least = min((seconds for seconds, _ in times), default=inf)
        self._turn += 1
        self._due_s, self._emptied = now + least, [flow for seconds, flow in times if seconds == least]
        if least < inf:
            turn = self._turn
            self._alarm.at(self._due_s, lambda then: self._changes(then) if turn == self._turn else None)
        for flow in ended:
            self._done(flow.row, now)

    def _changes(self, now: float) -> None:
        self._advance(now)
        self._share(now)


def share(flows: Sequence[Transfer], bytes_per_s: Sequence[float]) -> None:
    """Sets the rates of transfers under way, max-min fair.

    A transfer with nothing ready needs no more than becomes ready. Of all links the one that has least for
    each of its transfers decides about them; then the others share what is left.

    Args:
        flows: that the receiver takes.
        bytes_per_s: of each replica's link, either way.
    """
    waiting = []
    for flow in flows:
        flow.rate = 0.0
        if flow.ready or flow.inflow:
            waiting.append(flow)
    left: dict[tuple[str, int], float] = {}
    for flow in waiting:
        left["out", flow.source] = bytes_per_s[flow.source]
        left["in", flow.target] = bytes_per_s[flow.target]
    while waiting:
        users: dict[tuple[str, int], int] = {}
        for flow in waiting:
            for link in (("out", flow.source), ("in", flow.target)):
                users[link] = users.get(link, 0) + 1
        link, least = min(
            ((link, left[link] / count) for link, count in users.items()), key=lambda one: one[1]
        )
        sated = [flow for flow in waiting if not flow.ready and flow.inflow <= least]
        decided = sated or [flow for flow in waiting if link in (("out", flow.source), ("in", flow.target))]
        for flow in decided:
            flow.rate = flow.inflow if sated else least
            for of in (("out", flow.source), ("in", flow.target)):
                left[of] = left[of] if left[of] == inf else max(left[of] - flow.rate, 0.0)
        waiting = [flow for flow in waiting if flow not in decided]
