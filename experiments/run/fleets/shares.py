"""A simulation whose requests are forgotten, spread over processes: shares of its replicas, put together.

The number of processes says how many shares a piece has, never what a share is: the bytes are the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from specfleet.experiments.load.rules.report import held_because
from specfleet.experiments.point.build import source
from specfleet.experiments.point.built import Built, build
from specfleet.experiments.run.analysis import StepTotals
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.calendar.slots import Full
from specfleet.sim.errors import Unsuited
from specfleet.sim.metrics.summary import Summary
from specfleet.sim.recorder import Columns
from specfleet.sim.router import ROUTERS, Blind
from specfleet.sim.summarise import Forgetful, shares_of, summarise, together

Shares = list[tuple[Summary, StepTotals]]
"""What some shares of a fleet did, in order."""


def shares_in(config: Experiment, every_turn: bool) -> int:
    """Returns in how many shares a point may be simulated apart; 1 where it is simulated as a whole."""
    if config.report.requests == "all" or every_turn or held_because(config) is not None:
        return 1
    if not issubclass(ROUTERS[config.deployment.routing.then], Blind):
        return 1  # an arrival looks at all replicas
    return len(shares_of(config.deployment.replicas))


def pieces(shares: int, most: int) -> list[range]:
    """Returns the shares of each of at most so many pieces, which are about alike."""
    count = max(min(shares, most), 1)
    return [range(low, high) for low, high in pairwise(shares * at // count for at in range(count + 1))]


def simulated(config: Experiment, seed: int, which: range) -> Shares | None:
    """Simulates some shares of a point's replicas; None where its requests cannot be forgotten."""
    built = build(config)
    run = Forgetful.of(built.scenario, source(config, seed), seed, built.slo)
    found: Shares = []
    try:
        for replicas in [run.shares[share] for share in which]:
            totals = StepTotals.of(built.scenario, built.plain_cost)
            found.append((run.share(replicas, totals.add), totals))
    except (Unsuited, Full):
        return None
    return found


def put_together(parts: Sequence[Shares]) -> tuple[Summary, StepTotals]:
    """Returns the figures and the steps of a run from those of all its shares, in order.

    Raises:
        Breach: a law does not hold of the whole.
    """
    shares = [share for part in parts for share in part]
    totals = merged([steps for _, steps in shares])
    return together([summary for summary, _ in shares]), totals


def merged(steps: Sequence[StepTotals]) -> StepTotals:
    """Returns the sums over the steps of all shares; the first becomes them."""
    first, *others = steps
    for other in others:
        first.take(other)
    return first


def summed_up(config: Experiment, built: Built, seed: int, every_turn: bool) -> tuple[Summary, StepTotals]:
    """Simulates a point here and returns its figures and its steps; raises as `sim.summarise.summarise`."""
    made: list[StepTotals] = []

    def begin() -> Callable[[Columns], None]:
        made.append(StepTotals.of(built.scenario, built.plain_cost))
        return made[-1].add

    summary = summarise(built.scenario, source(config, seed), seed, built.slo, begin, every_turn=every_turn)
    return summary, merged(made[-summary.shares :])
