"""Picks a replica for a request that has just arrived. A router sees counts, never the future."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specfleet.sim.speculation.luck import ROUTE, bits_once


class Candidate(Protocol):
    """What a router may ask a replica."""

    @property
    def outstanding(self) -> int:
        """Requests sent there whose end has not been seen yet."""
        ...


class Router(Protocol):
    """Chooses among replicas."""

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns the index of the replica that gets the request."""
        ...


class RoundRobin:
    """One after another."""

    def __init__(self, seed: int) -> None:
        self._next = 0

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns the replica whose turn it is."""
        chosen = self._next % len(replicas)
        self._next += 1
        return chosen


class Random:
    """Uniformly, by a hash of seed and request id, so that nothing else moves the choice."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns a replica that depends on the request alone."""
        return bits_once(self._seed, request_id, ROUTE) % len(replicas)


class LeastOutstanding:
    """The replica with the fewest requests outstanding; the lowest number on a tie."""

    def __init__(self, seed: int) -> None:
        pass

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns the least loaded replica."""
        return min(range(len(replicas)), key=lambda index: (replicas[index].outstanding, index))


ROUTERS: dict[str, type[RoundRobin | Random | LeastOutstanding]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_outstanding": LeastOutstanding,
}
