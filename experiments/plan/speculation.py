"""Speculate or not: gain at the planned load, best K by load, and where to switch off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specfleet.experiments.plan.asking import Laboratory
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.seen import TrialFigures, ratio
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.point.built import build
from specfleet.sim.speculation.acceptance import Acceptance
from specfleet.sim.speculation.theory import conditional_from_length, expected_tokens
from specfleet.sim.statistics.interval import Interval

LOADS = (1, 4, 16, 32, 64, 128, 256)
"""Requests in flight at which every K is tried."""

MARGIN = 0.1
"""Added to the break-even acceptance before switching off: a gate that flaps costs more than it saves."""

GAINS = {
    "mean TPOT": "mean_tpot_ms",
    "P50 TPOT": "p50_tpot_ms",
    "P99 TPOT": "p99_tpot_ms",
    "mean end to end": "mean_e2el_ms",
    "P99 TTFT": "p99_ttft_ms",
}
"""Figure -> latency."""

FACTORS = (0.05, 1.0)
"""Factors on the acceptance between which the break-even is looked for."""

TOLERANCE = 0.02


def gains(drafting: Sequence[TrialFigures], plain: Sequence[TrialFigures]) -> dict[str, Interval | None]:
    """Returns how many times better drafting is, paired by request; None without a figure.

    Seed by seed, as far as both have them. In an open loop what both serve in full both serve alike, so that
    throughput is no gain.
    """
    both = min(len(drafting), len(plain))
    return {name: ratio(drafting[:both], plain[:both], metric) for name, metric in GAINS.items()}


@dataclass(frozen=True)
class BestK:
    """The best K at one number of requests in flight.

    Attributes:
        concurrency: requests in flight.
        figures: K -> figures of one replica; 0 is plain decoding.
    """

    concurrency: int
    figures: Mapping[int, TrialFigures]

    @property
    def by_throughput(self) -> int:
        """K with most output tokens a second; the smaller of equals."""
        return max(self.figures, key=lambda k: (self.figures[k]["output_throughput"], -k))

    @property
    def by_p99(self) -> int:
        """K with the lowest P99 TPOT; the smaller of equals."""
        return min(self.figures, key=lambda k: (self.figures[k]["p99_tpot_ms"], k))


def best_by_load(
    laboratory: Laboratory, traffic: Traffic, ways: Sequence[Candidate], seed: int
) -> list[BestK]:
    """Simulates closed loops of one replica for every K.

    Args:
        laboratory: runs trials.
        traffic: its lengths.
        ways: the same engine with every K of one drafter, and plain.
        seed: of requests and luck, the same for all.
    """
    most = ways[0].config.serve.max_num_seqs or LOADS[-1]
    loads = [load for load in LOADS if load <= most]
    trials = [
        traffic.closed(way.config, load, seed, min(max(6 * load, 80), 640)) for load in loads for way in ways
    ]
    found = iter(laboratory.run(trials))
    return [BestK(load, {way.k: next(found) for way in ways}) for load in loads]


def crossover(loads: Sequence[BestK], k: int, metric: str = "output_throughput") -> float | None:
    """Returns the requests in flight at which K first stops paying on a metric.

    Linear in the logarithm between loads; None where it pays at every load, 0 where not even at the lowest.
    """
    sign = 1 if metric == "output_throughput" else -1
    ratios = [(load.figures[k][metric] / max(load.figures[0][metric], 1e-12)) ** sign for load in loads]
    first = next((i for i, ratio in enumerate(ratios) if ratio < 1.0), None)
    if first is None:
        return None
    if first == 0:
        return 0.0
    share = (ratios[first - 1] - 1.0) / (ratios[first - 1] - ratios[first])
    low, high = (math.log(loads[i].concurrency) for i in (first - 1, first))
    return math.exp(low + share * (high - low))


def schedule(loads: Sequence[BestK], most: int) -> list[list[int]]:
    """Returns vLLM's num_speculative_tokens_per_batch_size: [lowest, highest batch, K], best throughput.

    A K holds from halfway (in the logarithm) between two loads, the last one up to `most` sequences.
    """
    found: list[list[int]] = []
    lowest = 1
    for number, load in enumerate(loads):
        later = loads[number + 1].concurrency if number + 1 < len(loads) else None
        highest = most if later is None else max(int(math.sqrt(load.concurrency * later)), lowest)
        if found and found[-1][2] == load.by_throughput:
            found[-1][1] = highest
        else:
            found.append([lowest, highest, load.by_throughput])
        lowest = highest + 1
    return found


@dataclass(frozen=True)
class BreakEven:
    """The acceptance below which drafting loses at the planned load.

    Attributes:
        factor: on the file's conditional acceptance at break-even; 0 where it pays even near no acceptance,
            None where it does not pay as stated.
        acceptance_length: tokens a round at break-even.
        conditional: the conditional acceptance that gives this length, drafts alike; of a tree, in a chain as
            deep.
        gate_conditional: the same plus `MARGIN`: switch off below.
        gate_length: tokens a round at the gate.
    """

    factor: float | None
    acceptance_length: float
    conditional: float
    gate_conditional: float
    gate_length: float


def break_even(
    laboratory: Laboratory,
    traffic: Traffic,
    drafting: Candidate,
    plain: Candidate,
    replicas: int,
    seed: int,
    prompts: int | None = None,
) -> BreakEven:
    """Looks for the acceptance at the planned load on one seed at which mean and P99 TPOT both equal plain's.

    The larger of the two break-evens counts: below it one of them is worse than without drafts.
    """
    [base] = laboratory.run([traffic.trial(plain.config, replicas, seed, prompts)])
    lengths: dict[float, float] = {}

    def loss(factor: float) -> float:
        less = dataclasses.replace(traffic, acceptance_factor=traffic.acceptance_factor * factor)
        [run] = laboratory.run([less.trial(drafting.config, replicas, seed, prompts)])
        lengths[factor] = run["spec_decode_acceptance_length"] or 1.0
        return max(math.log(run[metric] / base[metric]) for metric in ("mean_tpot_ms", "p99_tpot_ms"))

    low, high = FACTORS
    factor: float | None = high
    if (gain := -loss(high)) < 0.0:
        factor = None
    elif (lost := loss(low)) <= 0.0:
        factor, high = 0.0, low
    else:
        factor = high = crossing(loss, low, lost, high, gain)
    length = min(max(lengths[high], 1.0), drafting.depth + 1.0)
    conditional = conditional_from_length(length, drafting.depth)
    gate = min(conditional + MARGIN, 1.0)
    return BreakEven(factor, length, conditional, gate, expected_tokens(gate, drafting.depth))


def crossing(loss: Callable[[float], float], low: float, lost: float, high: float, gain: float) -> float:
    """Returns a factor without a loss, at most `TOLERANCE` above one with a loss.

    Looks where a straight line through the ends of the bracket passes 0, half the tolerance further into its
    longer part, so that both ends come in; halfway where that has left more than half of it.

    Args:
        loss: falls with the factor.
        low, lost: a factor, and its loss.
        high, gain: a factor, and its gain, from 0.
    """
    before = math.inf
    while (width := high - low) > TOLERANCE:
        at = low + width * lost / (lost + gain)
        at += TOLERANCE / 2 if high - at > at - low else -TOLERANCE / 2
        at = min(max(at, low + TOLERANCE / 2), high - TOLERANCE / 2)
        at, before = ((low + high) / 2 if width > before / 2 else at), width
        found = loss(at)
        low, lost, high, gain = (at, found, high, gain) if found > 0.0 else (low, lost, at, -found)
    return high


HOTTEST = 2.0
"""Temperature up to which a law is followed."""


def fall_back_temperature(drafting: Candidate, found: BreakEven, run: TrialFigures) -> float | None:
    """Returns the temperature from which the acceptance is expected below the gate.

    Infinite where it stays above the gate up to `HOTTEST`; None where the file has no temperature law.

    The file's temperature law (`temperature_multiplier` or `overlap`) scales the conditional acceptance
    measured at the file's own temperature. The first traffic class that has a law counts.
    """
    stated = conditional_from_length(
        min(max(run["spec_decode_acceptance_length"], 1.0), drafting.depth + 1.0), drafting.depth
    )
    for spec in build(drafting.config).scenario.acceptance.values():
        if not spec.temperature_multiplier and spec.overlap is None:
            continue
        process = Acceptance(spec, drafting.k, 0)
        prompt, own = round(run["mean_input_tokens"]), drafting.config.workload.temperature
        base = process.factor(prompt, own)
        for step in range(int(HOTTEST / 0.05) + 1):
            temperature = round(0.05 * step, 2)
            if stated * process.factor(prompt, temperature) / base < found.gate_conditional:
                return temperature
        return math.inf
    return None
