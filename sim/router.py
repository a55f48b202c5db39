"""Picks a replica for a request that has just arrived. A router sees counts, never the future."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.luck import ROUTE, bits_each, bits_once

I64 = npt.NDArray[np.int64]


class Candidate(Protocol):
    """What a router may ask a replica."""

    @property
    def outstanding(self) -> int:
        """Requests sent there whose end has not been seen yet."""
        ...


Replicas: TypeAlias = Sequence[Candidate]


class Router(Protocol):
    """Chooses among replicas."""

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns the index of the replica that gets the request."""
        ...


@runtime_checkable
class Blind(Protocol):
    """A router that asks replicas nothing, so that its choices are known before anything runs."""

    def picks(self, request_ids: I64, replicas: int) -> I64:
        """Returns the replicas of the next requests: what `pick` would say of one after the other."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A router that asks replicas for the number of requests outstanding, and for nothing else."""

    def choose(self, request_id: int, outstanding: Sequence[int]) -> int:
        """Returns the index of the replica that gets the request, by the number outstanding at each."""
        ...


class RoundRobin:
    """One after another."""

    def __init__(self, seed: int) -> None:
        self._next = 0

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns the replica whose turn it is."""
        self._next += 1
        return (self._next - 1) % len(replicas)

    def picks(self, request_ids: I64, replicas: int) -> I64:
        """Returns the replicas whose turns they are."""
        first, self._next = self._next, self._next + len(request_ids)
        return np.arange(first, self._next) % replicas


class Random:
    """Uniformly, by a hash of seed and request id, so that nothing else moves the choice."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns a replica that depends on the request alone."""
        return bits_once(self._seed, request_id, ROUTE) % len(replicas)

    def picks(self, request_ids: I64, replicas: int) -> I64:
        """Returns replicas that depend on each request alone."""
        return (bits_each(self._seed, request_ids, ROUTE) % np.uint64(replicas)).astype(np.int64)


class LeastOutstanding:
    """The replica with the fewest requests outstanding; the lowest number on a tie."""

    def __init__(self, seed: int) -> None:
        pass

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns the least loaded replica."""
        return self.choose(request_id, [replica.outstanding for replica in replicas])

    def choose(self, request_id: int, outstanding: Sequence[int]) -> int:
        """Returns the least loaded of replicas with so many requests outstanding."""
        return outstanding.index(min(outstanding))


ROUTERS: dict[str, type[RoundRobin | Random | LeastOutstanding]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_outstanding": LeastOutstanding,
}
