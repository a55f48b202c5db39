"""`specfleet calibrate`: fits kernel scale and host time to a user's own benchmark results.

A result's mean ITL is the mean step. In a simulation of the same load a step is `scale x kernels + host step
+ host sequence x sequences`, so what is fitted is linear in three numbers; the batches change little with
them, and two more rounds of simulation settle the rest. Acceptance by position is pooled over the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specfleet.experiments.validate.points import MeasuredPoint, scenario
from specfleet.experiments.validate.sample import levelled_requests, matched
from specfleet.hardware.stepcost import TERMS, StepCost, StepShape
from specfleet.sim.metrics.sums import step_gaps
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.acceptance import survival_table
from specfleet.sim.speculation.spread import pooled_length

F64 = npt.NDArray[np.float64]

NUMBERS = ("scale", "step", "sequence")
"""What can be fitted: kernel time's factor, host seconds a step, host seconds a sequence in it."""

_MEANING = {
    "scale": "the scale of kernel time",
    "step": "host time per step",
    "sequence": "host time per sequence",
}
_FAR_ENOUGH = {
    "scale": "measure where kernels take another share of the step: a larger max_concurrency or another K",
    "step": "measure at a small batch too (max_concurrency 1)",
    "sequence": "measure at two loads far apart (max_concurrency 1 and 64)",
}
_ROUNDS = 3
_NOISE = 0.01
"""Repeatability of a measured mean step: 1 % (the same server on the same prompts)."""

_TOLERABLE = 0.10
"""A number is identified if that noise leaves it, in terms of the step, within 10 %."""


class Unidentified(ValueError):  # noqa: N818 - it says what the points are
    """The results cannot tell the numbers apart; the message says which, why and what to measure."""


@dataclass(frozen=True)
class Numbers:
    """The calibrated numbers: factor on kernel time, host seconds a step and a sequence."""

    scale: float
    step_s: float
    sequence_s: float

    def array(self) -> F64:
        """Returns them in the order of `NUMBERS`."""
        return np.array([self.scale, self.step_s, self.sequence_s])


@dataclass(frozen=True)
class Calibration:
    """What a calibration found.

    Args:
        numbers: fitted, the rest as the engine profile has them.
        fitted: names of those that were fitted.
        at_zero: of them, those that came out below zero and were set to it.
        errors_pct, before_pct, left_out_pct: error of each result's mean step after, before, and
            predicted by a fit to the other results, percent.
        by_position: pooled acceptance, or ().
        asynchronous: which of the profile's two host times it is.
    """

    numbers: Numbers
    fitted: tuple[str, ...]
    at_zero: tuple[str, ...]
    errors_pct: F64
    before_pct: F64
    left_out_pct: F64
    by_position: tuple[float, ...]
    asynchronous: bool


@dataclass(frozen=True)
class Calibrated:
    """A step cost with kernel time scaled and host time replaced."""

    base: StepCost
    own: Numbers
    numbers: Numbers

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        sequences = shape.decode_sequences + shape.prefill_sequences
        kernels = self.base.seconds(shape) - self.own.step_s - self.own.sequence_s * sequences
        return self.numbers.scale * kernels + self.numbers.step_s + self.numbers.sequence_s * sequences

    def terms(self, columns: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, F64]:
        """Seconds by term, a row a step."""
        sequences = columns["decode_sequences"] + columns["prefill_sequences"]
        terms: dict[str, F64] = {
            name: self.numbers.scale * value for name, value in self.base.terms(columns).items()
        }
        terms["host"] = self.numbers.step_s + self.numbers.sequence_s * sequences.astype(np.float64)
        return terms

    def summary(self) -> str:
        """What is priced."""
        return self.base.summary()


def own_numbers(point: MeasuredPoint) -> Numbers:
    """Returns what the engine profile says before calibration."""
    profile = point.placement.profile
    if point.placement.async_scheduling:
        return Numbers(1.0, profile.host_async_s, profile.host_async_s_per_request)
    return Numbers(1.0, profile.host_sync_s, profile.host_sync_s_per_request)


def mean_step_s(point: MeasuredPoint) -> float:
    """Returns the measured mean step: mean ITL, else mean TPOT times the acceptance length; medians else.

    Raises:
        Unidentified: for a result with none of them.
    """
    measured = point.measured
    length = measured.get("acceptance_length") or 1.0
    if point.acceptance is not None and "acceptance_length" not in measured:
        length = pooled_length(survival_table(point.acceptance, point.k))
    for which in ("mean", "median"):
        if f"itl_{which}_ms" in measured:
            return measured[f"itl_{which}_ms"] / 1e3
        if f"tpot_{which}_ms" in measured:
            return measured[f"tpot_{which}_ms"] * length / 1e3
    raise Unidentified(
        f"{point.name} has neither ITL nor TPOT, so no step; measure requests of several tokens"
    )


def simulated_step(point: MeasuredPoint, numbers: Numbers) -> F64:
    """Returns (kernel seconds, 1, sequences) of the mean pause between chunks in a simulation, shape `(3,)`.

    With all three as they are simulated, their product with `numbers` is the simulated mean ITL. Pauses
    that are no single step (preemption) are left as a share of kernel time.
    """
    built, table = scenario(point), levelled_requests(point.workload, 0)
    acceptance = {}
    if point.acceptance is not None:
        acceptance = {"": matched(point.acceptance, point.k, table, 0)}
    base, own = built.cost, own_numbers(point)
    cost = Calibrated(base, own, numbers)
    result = simulate(replace(built, cost=cost, acceptance=acceptance), table, 0)
    rows = result.iterations
    shapes = {name: rows[name].astype(np.int64) for name in StepShape._fields}
    terms = base.terms(shapes)
    kernels = sum((terms[name] for name in TERMS if name != "host"), np.zeros(len(rows["end_s"])))
    sequences = (shapes["decode_sequences"] + shapes["prefill_sequences"]).astype(np.float64)
    weights = rows["gaps_by_tokens"].sum(axis=1).astype(np.float64)
    steps = np.array([kernels @ weights, weights.sum(), sequences @ weights]) / weights.sum()
    return _with_pauses(result, steps, numbers, weights)


def _with_pauses(result: RunResult, steps: F64, numbers: Numbers, weights: F64) -> F64:
    """Returns the mean step stretched to the mean pause, which waits and preemption lengthen."""
    gaps = np.where(weights > 0, step_gaps(result.iterations), 0.0)
    odd = np.asarray(result.odd_gaps["gap_s"], dtype=np.float64)
    pause = (gaps @ weights + odd.sum()) / (weights.sum() + len(odd))
    more = pause - steps @ numbers.array()
    return np.array([steps[0] + more / numbers.scale, steps[1], steps[2]])


def calibrate(points: Sequence[MeasuredPoint], fit: Sequence[str] = NUMBERS) -> Calibration:
    """Fits the numbers named in `fit` to the results' mean steps, relative errors alike.

    Args:
        points: results of one server configuration, or of several that differ in K.
        fit: names out of `NUMBERS`; the others keep the engine profile's values.

    Raises:
        Unidentified: if the results cannot tell the numbers apart, or mix both kinds of scheduling.
    """
    modes = {point.placement.async_scheduling for point in points}
    if len(modes) > 1:
        raise Unidentified(
            "some results ran with asynchronous scheduling, some without, and each has its own host time; "
            "calibrate them one after the other"
        )
    for point in points:
        place = point.placement
        if place.data_parallel_size > 1 or place.pipeline_parallel_size > 1:
            raise Unidentified(
                f"{point.name} ran on ranks that step together, or on stages: its steps are not one engine's;"
                " give results of one rank and one stage"
            )
    if len(points) < len(fit) + 1:
        raise Unidentified(
            f"{len(points)} result{'s' * (len(points) != 1)} cannot fit {_listed(fit)} and leave one out; "
            f"give at least {len(fit) + 1} at different loads, or fit fewer (--fit {fit[0]})"
        )
    measured = np.array([mean_step_s(point) for point in points])
    own = own_numbers(points[0])
    numbers = own
    before: F64 | None = None
    for _ in range(_ROUNDS):
        design = np.array([simulated_step(point, numbers) for point in points])
        if before is None:
            before = 100.0 * (design @ own.array() / measured - 1.0)
        refuse_unidentified(design, measured, fit)
        numbers, at_zero = solve(design, measured, own, fit)
    assert before is not None
    left_out = []
    for index in range(len(points)):
        others = np.arange(len(points)) != index
        without, _ = solve(design[others], measured[others], own, fit)
        left_out.append(100.0 * (design[index] @ without.array() / measured[index] - 1.0))
    return Calibration(
        numbers=numbers,
        fitted=tuple(fit),
        at_zero=at_zero,
        errors_pct=100.0 * (design @ numbers.array() / measured - 1.0),
        before_pct=before,
        left_out_pct=np.array(left_out),
        by_position=pooled_by_position(points),
        asynchronous=modes.pop(),
    )


def solve(design: F64, measured: F64, own: Numbers, fit: Sequence[str]) -> tuple[Numbers, tuple[str, ...]]:
    """Returns least squares of the relative errors, numbers at least 0, and which were held there."""
    free = [name for name in NUMBERS if name in fit]
    values = own.array()
    at_zero: list[str] = []
    while free:
        columns = [NUMBERS.index(name) for name in free]
        fixed = [i for i in range(3) if i not in columns]
        rest = measured - design[:, fixed] @ values[fixed]
        found, *_ = np.linalg.lstsq(design[:, columns] / measured[:, None], rest / measured, rcond=None)
        values[columns] = found
        below = [name for name, value in zip(free, found, strict=True) if value < 0.0]
        if not below:
            break
        worst = min(below, key=lambda name: float(values[NUMBERS.index(name)]))
        values[NUMBERS.index(worst)] = 0.0
        free.remove(worst)
        at_zero.append(worst)
    return Numbers(*(float(value) for value in values)), tuple(at_zero)


def refuse_unidentified(design: F64, measured: F64, fit: Sequence[str]) -> None:
    """Raises Unidentified, naming the number, if 1 % of noise would leave one of them unknown.

    A number's uncertainty is taken as its share of the largest step in which it counts.
    """
    columns = [NUMBERS.index(name) for name in fit]
    scaled = design[:, columns] / measured[:, None]
    _, singular, rows = np.linalg.svd(scaled, full_matrices=False)
    least = 1e-9 * singular.max()
    spread = _NOISE * np.sqrt(((rows / np.maximum(singular, least)[:, None]) ** 2).sum(axis=0))
    shares = spread * scaled.max(axis=0)
    worst = int(np.argmax(shares))
    if shares[worst] <= _TOLERABLE:
        return
    name, sequences = fit[worst], design[:, 2]
    others = [other for other in fit if other != name]
    fewer = others
    if sequences.max() < 1.5 * sequences.min():
        fewer = others[:1]
        why = f"all results run about {sequences.mean():.0f} sequences a step, one load"
    else:
        why = "1 % of noise would move it by " + (
            f"{100 * shares[worst]:.0f} % of the step" if shares[worst] < 10 else "any amount"
        )
    raise Unidentified(
        f"these results do not identify {_MEANING[name]} beside {_listed(others) or 'nothing'}: {why}; "
        f"{_FAR_ENOUGH[name]}" + (f", or fit fewer (--fit {','.join(fewer)})" if fewer else "")
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(_MEANING[name] for name in names)


def pooled_by_position(points: Sequence[MeasuredPoint]) -> tuple[float, ...]:
    """Returns P(first i drafts accepted) over the results that draft so many, weighted by rounds."""
    drafting = [p for p in points if p.acceptance is not None and p.acceptance.by_position is not None]
    deepest = max((p.k for p in drafting), default=0)
    out: list[float] = []
    for position in range(deepest):
        rates = [
            (p.acceptance.by_position[position], p.rounds)
            for p in drafting
            if p.acceptance is not None and p.acceptance.by_position is not None and p.k > position
        ]
        mean = float(np.average([r for r, _ in rates], weights=[w for _, w in rates]))
        out.append(min(mean, out[-1]) if out else mean)
    return tuple(out)
