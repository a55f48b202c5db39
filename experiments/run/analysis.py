"""What a step's time went into, and what speculation added to it, from the recorded iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from specfleet.hardware.stepcost import TERMS, StepCost, StepShape
from specfleet.sim.metrics.latency import BLOCK, DECODE_PARTS, split_in_pieces, without_drafts
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.recorder import FINISHED, Columns
from specfleet.sim.simulation import RunResult, Scenario
from specfleet.sim.speculation.oracle import foreseen

F64 = npt.NDArray[np.float64]
Shapes = dict[str, npt.NDArray[np.int64]]
Terms = dict[str, F64]
Rows = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]


def decode_shapes(iterations: Columns) -> Shapes:
    """Returns the step shapes of the iterations in which somebody decodes, as integer columns."""
    chosen = iterations["decode_sequences"] > 0
    return {name: iterations[name][chosen].astype(np.int64) for name in StepShape._fields}


class StepTotals:
    """Sums over a run's steps, from which `step_split` and `overheads` follow.

    Args:
        cost: prices a step.
        plain_cost: prices the same engine without a drafter; None: overheads are not asked for.

    Attributes:
        busy_s: seconds of all steps by term, those in which nobody decodes included.
        tokens: that they brought.
        from_s, to_s: begin of the first and end of the last; inf and 0 without any.
    """

    def __init__(self, cost: StepCost, plain_cost: StepCost | None = None) -> None:
        self._cost, self._plain_cost = cost, plain_cost
        self._steps = self._decoding = 0
        self._terms = dict.fromkeys(TERMS, 0.0)
        self.busy_s = dict.fromkeys(TERMS, 0.0)
        self.tokens, self.from_s, self.to_s = 0, np.inf, 0.0
        # seconds of a plain step, of verification and of drafting: without a prompt chunk, and of all steps
        self._pure, self._all = np.zeros(3), np.zeros(3)
        self._any_pure = False
        self._rebuilds = False

    @classmethod
    def of(cls, scenario: Scenario, plain_cost: StepCost) -> StepTotals:
        """Returns sums over no steps yet; `plain_cost` prices the engine without its drafter."""
        found = cls(foreseen(scenario).cost, plain_cost if scenario.engine.num_speculative_tokens else None)
        found._rebuilds = scenario.engine.rebuilds_drafter_kv
        return found

    def add(self, iterations: Columns) -> None:
        """Takes in iterations (columns as `RunResult.iterations`)."""
        if not len(iterations["start_s"]):
            return
        decoding = iterations["decode_sequences"] > 0
        if "output_tokens" in iterations:  # iterations whose requests are forgotten do not say it
            self.tokens += int(iterations["output_tokens"].sum(dtype=np.int64))
        self.from_s = min(self.from_s, float(iterations["start_s"].min()))
        self.to_s = max(self.to_s, float(iterations["end_s"].max()))
        before = sum(self.busy_s.values())
        self._add_steps(iterations, decoding)
        if self._rebuilds:  # passes of the drafter over prompts are in no shape
            took = float((iterations["end_s"] - iterations["start_s"]).sum())
            more = max(took - (sum(self.busy_s.values()) - before), 0.0)
            self.busy_s["drafter"] += more
            self._terms["drafter"] += more

    def _add_steps(self, iterations: Columns, decoding: Chosen) -> None:
        """Takes in what steps are priced at."""
        self._add_prompts(iterations, ~decoding)
        if not decoding.any():
            return
        self._steps += int(np.count_nonzero(decoding))
        self._decoding += int(iterations["decode_sequences"].sum(dtype=np.int64))
        terms, plain = self._priced(iterations, decoding)
        for name in TERMS:
            self._terms[name] += float(terms[name].sum())
            self.busy_s[name] += float(terms[name].sum())
        if plain is not None:
            pure = iterations["prefill_sequences"][decoding] == 0
            self._any_pure |= bool(pure.any())
            self._all += self._sides(terms, plain)
            self._pure += self._sides(
                *({name: side[name][pure] for name in TERMS} for side in (terms, plain))
            )

    def _add_prompts(self, iterations: Columns, chosen: Chosen) -> None:
        """Takes in the time of steps in which nobody decodes."""
        for start in range(0, len(chosen), BLOCK):
            here = np.flatnonzero(chosen[start : start + BLOCK]) + start
            if len(here):
                shapes = {name: iterations[name][here].astype(np.int64) for name in StepShape._fields}
                for name, seconds in self._cost.terms(shapes).items():
                    self.busy_s[name] += float(seconds.sum())

    def take(self, other: StepTotals) -> None:
        """Takes in the steps of other engines, whose prices may be others. Overheads are of each alone."""
        self._steps += other._steps
        self._decoding += other._decoding
        for name in TERMS:
            self._terms[name] += other._terms[name]
            self.busy_s[name] += other.busy_s[name]
        self.tokens += other.tokens
        self.from_s, self.to_s = min(self.from_s, other.from_s), max(self.to_s, other.to_s)
        self._pure += other._pure
        self._all += other._all
        self._any_pure |= other._any_pure

    def _priced(self, iterations: Columns, chosen: Chosen) -> tuple[Terms, Terms | None]:
        """Returns the terms of the chosen steps, and of the same without drafts, priced a block at a time."""
        steps = int(np.count_nonzero(chosen))
        terms = {name: np.empty(steps) for name in TERMS}
        plain = None if self._plain_cost is None else {name: np.empty(steps) for name in TERMS}
        done = 0
        for start in range(0, len(chosen), BLOCK):
            block = slice(start, start + BLOCK)
            shapes = decode_shapes({name: iterations[name][block] for name in StepShape._fields})
            found = self._cost.terms(shapes)
            less = None if self._plain_cost is None else self._plain_cost.terms(without_drafts(shapes))
            here = slice(done, done + len(shapes["tokens"]))
            for name in TERMS:
                terms[name][here] = found[name]
                if plain is not None and less is not None:
                    plain[name][here] = less[name]
            done = here.stop
        return terms, plain

    def _sides(self, terms: Terms, plain: Terms) -> F64:
        verify = sum(float(terms[name].sum()) for name in TERMS if name != "drafter")
        return np.array([sum(float(plain[name].sum()) for name in TERMS), verify, terms["drafter"].sum()])

    def split(self) -> dict[str, float]:
        """Returns the mean milliseconds of a decoding step by term, keyed `step_TERM_ms`, and `step_ms`."""
        if not self._steps:
            return {}
        split = {f"step_{name}_ms": 1e3 * seconds / self._steps for name, seconds in self._terms.items()}
        return split | {"step_ms": sum(split.values())}

    def overheads(self, accepted: int, verifications: int) -> dict[str, float]:
        """Returns the two sides of the trade, each relative to the plain step at the same batch and context.

        Over the steps without a prompt chunk, or all of them where there are none: a prompt chunk costs the
        same with and without drafts, and would hide what verification adds.

        `verify_overhead`: the step without drafting, over the plain step, minus 1. `draft_overhead`: what
        the drafter adds, over the plain step. `tokens_per_step`: tokens a sequence gets from a step in
        which it decodes; equal to the acceptance length where every step drafts. `gain` is
        `tokens_per_step / (1 + verify_overhead + draft_overhead)`: what a decoding step gains. Under load
        the user gains less, since prompts take their share of the time whatever is drafted.

        `proposed_share`: of the rounds in which a sequence decodes, those that verify drafts; below 1 where
        the drafter finds nothing to propose, or is off.

        Args:
            accepted: drafts accepted in the run.
            verifications: rounds with drafts in the run.
        """
        if not self._steps or self._plain_cost is None:
            return {}
        plain, verified, drafted = (self._pure if self._any_pure else self._all).tolist()
        verify, draft = verified / plain - 1.0, drafted / plain
        per_step = 1.0 + accepted / self._decoding
        return {
            "verify_overhead": verify,
            "draft_overhead": draft,
            "tokens_per_step": per_step,
            "gain": per_step / (1.0 + verify + draft),
            "proposed_share": verifications / self._decoding,
        }


QUANTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
NEIGHBOURS = 0.005
"""Requests within this share of the ranks around a quantile stand for it (at least three)."""


TpotSplit = dict[str, dict[str, float]]


def tpot_split(result: RunResult, plain_cost: StepCost) -> TpotSplit:
    """Returns what the TPOT of the median, P90 and P99 request consists of, milliseconds a token.

    Each is the mean over the requests ranked around the quantile; the parts of `sim.metrics.latency` that
    belong to decoding add up to `tpot_ms`, which is on the engine's clock (without the order in which
    the client handles the chunks of a step).
    """
    return tpot_splits(result, plain_cost, ())[0]


def tpot_splits(
    result: RunResult, plain_cost: StepCost, class_names: Sequence[str]
) -> tuple[TpotSplit, dict[str, TpotSplit]]:
    """Returns `tpot_split` of all requests, and of those of each traffic class where there are several."""
    requests = result.requests
    several = (requests["status"] == FINISHED) & (requests["counted"] == 1) & (requests["output_tokens"] > 1)
    if not several.any():
        return {}, {}
    of_class = {name: requests["class_id"] == i for i, name in enumerate(class_names)}
    groups = [several, *(several & mine for mine in of_class.values() if len(of_class) > 1)]
    near = [_near(requests, np.flatnonzero(group)) for group in groups]
    all_requests, *each = _splits(result, plain_cost, near)
    return all_requests, dict(zip(of_class, each, strict=False))


def _tpot_s(requests: Columns, rows: Rows) -> F64:
    """Returns the time a token of some requests on the engine's clock."""
    steps = (requests["output_tokens"][rows] - 1).astype(np.float64)
    return np.asarray((requests["finished_s"][rows] - requests["first_token_s"][rows]) / steps)


def _near(requests: Columns, rows: Rows) -> dict[str, Rows]:
    """Returns which of some requests stand for each quantile of their TPOT; empty without requests."""
    order = np.argsort(_tpot_s(requests, rows), kind="stable")
    found = {}
    for name, share in QUANTILES.items() if len(rows) else ():
        centre, reach = share * (len(order) - 1), max(NEIGHBOURS * len(order), 1.0)
        found[name] = rows[order[max(int(np.ceil(centre - reach)), 0) : int(np.floor(centre + reach)) + 1]]
    return found


def _splits(result: RunResult, plain_cost: StepCost, groups: Sequence[Mapping[str, Rows]]) -> list[TpotSplit]:
    """Returns the split of each group of requests; all requests are split, some after others."""
    asked = [
        (rows, {part: np.zeros(len(rows)) for part in DECODE_PARTS}) for g in groups for rows in g.values()
    ]
    for ids, split in split_in_pieces(result, plain_cost):
        for rows, parts in asked:
            here = np.flatnonzero((rows >= ids[0]) & (rows <= ids[-1]))
            places = np.searchsorted(ids, rows[here])
            for part, seconds in parts.items():
                seconds[here] = split[part][places]
    found, filled = [], iter(asked)
    for group in groups:
        said: TpotSplit = {}
        for name, (rows, parts) in zip(group, filled, strict=False):
            steps = (result.requests["output_tokens"][rows] - 1).astype(np.float64)
            each_s = {f"{part[:-2]}_ms": seconds / steps for part, seconds in parts.items()}
            each_s["tpot_ms"] = _tpot_s(result.requests, rows)
            said[name] = {part: float(1e3 * np.mean(seconds)) for part, seconds in each_s.items()}
        found.append(said)
    return found


RESAMPLES = 400


def intervals(result: RunResult) -> dict[str, list[float]]:
    """Returns 95 % intervals of P99 TTFT and TPOT within one run, milliseconds, by bootstrap over requests.

    Requests that share steps are not independent, so these are lower bounds of the width; replications
    with other seeds give the whole of it.
    """
    counted = Counted.of(result.requests)
    rng = np.random.Generator(np.random.Philox(key=np.array([result.seed, 99], dtype=np.uint64)))
    found = {}
    for name, values in (
        ("p99_ttft_ms", counted.ttft_s),
        ("p99_tpot_ms", counted.tpot_s[counted.tpot_s > 0.0]),
    ):
        if len(values) < 20:
            continue
        low, high = np.percentile(resampled(values, 0.99, RESAMPLES, rng), [2.5, 97.5])
        found[f"{name}_interval"] = [float(1e3 * low), float(1e3 * high)]
    return found


def resampled(values: F64, share: float, times: int, rng: np.random.Generator) -> F64:
    """Returns a quantile of `times` resamples of `values`, without making the resamples.

    A resample's quantile lies between two neighbours in its order. Of n uniform draws in order, the spacings
    are n + 1 exponentials over their sum, so the place of each neighbour among the sorted values is drawn
    from its exact law: three draws a resample instead of n.

    Args:
        values: at least two.
        share: of the quantile, below 1; interpolated as `np.percentile` does.
        times: resamples.
        rng: draws the places.
    """
    n = len(values)
    place = share * (n - 1)
    before = int(place)
    first = rng.standard_gamma(before + 1.0, times)
    second = first + rng.standard_exponential(times)
    whole = second + rng.standard_gamma(n - before - 1.0, times)
    order = np.sort(values)
    low, high = (order[np.minimum((n * at / whole).astype(np.int64), n - 1)] for at in (first, second))
    return np.asarray(low + (place - before) * (high - low))
