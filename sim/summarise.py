"""Runs whose requests are not kept: figures alone, in memory that does not grow with their number.

Requests are made, fed to the lanes of the fast path and forgotten portion by portion. That needs an open
loop behind a router that asks replicas nothing, or for the number of requests inside. Behind one that asks
nothing large fleets are simulated in shares: each meets all requests
and keeps those of its replicas, so that memory goes with the replicas of a share, and shares may run in
processes of their own; the figures are the same ones. Everything else is simulated as a whole and then summed
up, which says so in `Summary.whole`, up to `FITS` requests.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.slots import Full
from specfleet.sim.calendar.stream import Shelf, Watcher
from specfleet.sim.calendar.trajectories import BLOCK
from specfleet.sim.config import Slo
from specfleet.sim.errors import SimulationError, Unsuited
from specfleet.sim.forgetful.counted import CountedStreams
from specfleet.sim.forgetful.fed import FedStream
from specfleet.sim.forgetful.outline import Outline
from specfleet.sim.forgetful.senders import Senders
from specfleet.sim.laws.everywhere import check_counts_alike
from specfleet.sim.metrics.summary import Summary
from specfleet.sim.router import ROUTERS, Blind, Counting
from specfleet.sim.scenario import RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.sim.source import FITS, Source, Table
from specfleet.workloads.requests import RequestTable

PORTION = 1 << 14
"""Requests made at once, at least `EACH` a replica, or `EACH_COUNTED` where all are simulated together."""
EACH, EACH_COUNTED = 256, 64
PLACES = 1 << 20
"""Most requests waiting and running at a time, over all replicas."""
SHARE = 128
"""Replicas that are simulated together at most: half a megabyte each."""


def summarise(
    scenario: Scenario,
    source: Source | RequestTable,
    seed: int,
    slo: Slo | None = None,
    watch: Callable[[], Watcher] | None = None,
    portion: int | None = None,
    every_turn: bool = False,
) -> Summary:
    """Simulates requests and returns the figures of the run; nothing is kept a request or an iteration.

    Args:
        scenario: the configuration.
        source: the requests.
        seed: of acceptance luck and random routing, as `simulate`.
        slo: limits of a request for the goodput.
        watch: makes what is shown the iterations of a share once, in portions, a replica at a time; the last
            `Summary.shares` that were made were shown all, any before them what was begun in vain.
        portion: requests made at once; the figures do not depend on it.
        every_turn: as in `simulate`; all requests are held in memory for that, and the counts compared.

    Raises:
        SimulationError: the run would have to be held as a whole, and is too large for that; or as
            `simulate`.
    """
    if scenario.pools:
        raise SimulationError("figures alone are kept of equal replicas: simulate several pools as a whole")
    run = Forgetful.of(scenario, source, seed, slo, portion)
    reason, summary = run.outline.reason, None
    if reason is None:
        try:
            made = (run.share(replicas, watch() if watch else None) for replicas in run.shares)
            summary = together(made)
        except Unsuited as unsuited:
            reason = str(unsuited)
        except Full:
            reason = f"more than {PLACES} requests wait: the load is above what the engines can serve"
    if summary is not None and not every_turn:
        return summary
    result = _held(scenario, run.source, seed, reason or "laws are checked after every turn", every_turn)
    whole = run.summary()
    whole.add(result)
    if summary is not None:
        check_counts_alike(summary.counts(), whole.counts())
        return summary
    whole.whole = reason
    if watch is not None:
        watch()(result.iterations)
    return whole


@dataclass(frozen=True)
class Forgetful:
    """A run that keeps no request, about to begin.

    Attributes:
        scenario, source, seed, slo: as in `summarise`.
        size: requests made at once.
        outline: of all of them.
    """

    scenario: Scenario
    source: Source
    seed: int
    slo: Slo | None
    size: int
    outline: Outline

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        source: Source | RequestTable,
        seed: int,
        slo: Slo | None,
        portion: int | None = None,
    ) -> Forgetful:
        """Reads all requests once; arguments as in `summarise`."""
        given: Source = Table(source) if isinstance(source, RequestTable) else source
        each = EACH if issubclass(ROUTERS[scenario.deployment.router], Blind) else EACH_COUNTED
        size = portion or max(PORTION, each * scenario.deployment.replicas)
        return cls(scenario, given, seed, slo, size, Outline.of(scenario, given, size, seed))

    @property
    def shares(self) -> list[range]:
        """The replicas that are simulated together."""
        replicas = self.scenario.deployment.replicas
        return [range(replicas)] if self.outline.counted else shares_of(replicas)

    def summary(self) -> Summary:
        """Returns a summary of nothing yet."""
        return Summary(self.scenario, self.slo, self.outline.class_names)

    def share(self, replicas: range, watch: Watcher | None = None) -> Summary:
        """Simulates some replicas, whose requests are fed to them portion after portion.

        Args:
            replicas: of `shares`.
            watch: is shown their iterations.

        Raises:
            Unsuited, Full: the run has to be done another way.
        """
        plan, summary, alone = self.outline.plan, self.summary(), len(self.shares) == 1
        counted = self.outline.counted
        if not alone:
            gc.collect()  # the lanes of the share before point at each other, and are large
        if plan is None:
            raise Unsuited(str(self.outline.reason))
        rules = Footprints.of(plan.config, plan.longest_tokens)
        if rules is None:
            raise Unsuited("counts that do not fit in one integer")
        short = plan.never_short(rules)
        most = PLACES if counted else PLACES // self.scenario.deployment.replicas
        places = min(most, len(self.source) + BLOCK) // BLOCK * BLOCK + 2 * BLOCK
        senders = Senders(plan, summary, refuses=replicas.start == 0)
        if counted:
            self._count(Shelf.of(plan, rules, short, places, summary, len(replicas)), senders, watch)
            return summary
        shelves = {one: Shelf.of(plan, rules, short, places, summary) for one in replicas}
        streams = {one: FedStream(shelf, one, watch) for one, shelf in shelves.items()}
        for table in self.source.portions(self.size):
            requests = senders.send(table)
            for mine, stream in zip(
                _each(senders.replicas(requests), replicas), streams.values(), strict=True
            ):
                stream.feed({name: column[mine] for name, column in requests.items()})
                stream.run()
            if alone:
                summary.close(min(stream.quiet_until_s for stream in streams.values()))
        for stream in streams.values():
            stream.feed({name: column[:0] for name, column in requests.items()}, last=True)
            stream.run(last=True)
        summary.refusals = senders.refusals
        summary.rounds_by_accepted = _sums([shelf.rounds_by_accepted for shelf in shelves.values()])
        return summary

    def _count(self, shelf: Shelf, senders: Senders, watch: Watcher | None) -> None:
        """Simulates all replicas behind a router that counts who is inside; arguments as made in `share`."""
        router, summary = senders.router, shelf.summary
        assert isinstance(router, Counting)
        fleet = CountedStreams(shelf, range(self.scenario.deployment.replicas), router, watch)
        for table in self.source.portions(self.size):
            requests = senders.send(table)
            fleet.feed(requests)
            summary.close(fleet.quiet_until_s)
        fleet.feed({name: column[:0] for name, column in requests.items()}, last=True)
        summary.refusals = senders.refusals
        summary.rounds_by_accepted = _sums([shelf.rounds_by_accepted])


def shares_of(replicas: int) -> list[range]:
    """Returns the replicas of a fleet that are simulated together, whatever the number of processes."""
    count = -(-replicas // SHARE)
    bounds = [replicas * share // count for share in range(count + 1)]
    return [range(low, high) for low, high in pairwise(bounds)]


def together(shares: Iterable[Summary]) -> Summary:
    """Returns the summary of a run, whose laws are checked, from those of its shares, the first of which
    becomes it.

    Raises:
        Breach: a law does not hold.
    """
    first, *others = shares
    for other in others:
        first.merge(other)
    first.check()
    return first


def _each(chosen: npt.NDArray[np.int64], replicas: range) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the requests of each of some replicas, in order of arrival, by the replica of every request."""
    here = np.flatnonzero((chosen >= replicas.start) & (chosen < replicas.stop))
    local = (chosen[here] - replicas.start).astype(np.int16)  # which numpy sorts by radix
    order = here[np.argsort(local, kind="stable")]
    ends = np.cumsum(np.bincount(local, minlength=len(replicas)))
    for low, high in pairwise([0, *ends.tolist()]):
        yield order[low:high]


def _held(scenario: Scenario, given: Source, seed: int, reason: str, every_turn: bool) -> RunResult:
    """Simulates requests that are held in memory together, and why they are.

    Raises:
        SimulationError: they are too many for that.
    """
    if len(given) > FITS:
        raise SimulationError(
            f"{len(given)} requests are too many to be held together (at most {FITS}), and they cannot be "
            f"forgotten one by one: {reason}"
        )
    return simulate(scenario, next(iter(given.portions(len(given)))), seed, every_turn=every_turn)


def _sums(rows: Sequence[npt.NDArray[np.int64]]) -> tuple[int, ...]:
    return tuple(int(value) for value in np.sum(rows, axis=0))
