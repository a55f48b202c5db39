"""What the searches of `specfleet breakeven` say together: break-even over seeds, closed forms, best K."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from specfleet.experiments.breakeven.cell import Found
from specfleet.experiments.breakeven.question import DRAFTS, Breakeven
from specfleet.experiments.breakeven.search import AT, QUESTIONS, speedup
from specfleet.experiments.point.build import placement
from specfleet.experiments.run.explain import price, with_drafts
from specfleet.experiments.run.gains import GOODPUT, MEAN_TPOT, P99_TPOT, THROUGHPUT
from specfleet.experiments.run.results import Row, half_width_95, is_number
from specfleet.sim.speculation.theory import needed_conditional, needed_draft_rate

F64 = npt.NDArray[np.float64]
Schedule = list[tuple[int, int, int]]
RATIOS = {"throughput": THROUGHPUT, "mean TPOT": MEAN_TPOT, "P99 TPOT": P99_TPOT, "goodput": GOODPUT}
"""Question -> the column of a run's summary that has its ratio to plain decoding."""


@dataclass(frozen=True)
class Threshold:
    """Break-even of one load, K and question.

    Attributes:
        load, k, question: which.
        statuses: how many seeds say what, as in `breakeven.search`.
        alphas: break-even conditional acceptance of each seed that has one.
        length: acceptance length at break-even, mean over those seeds; None without any.
        crossings: the most often a seed's speedup passes 1.
        own_speedup: at the file's own acceptance; None without a figure.
        end: break-even, mean over seeds, at the other end of the range of spreads, where that is not given;
            None without a range, or where some seed has none there.
        end_status: what all seeds say there, or `mixed`; empty without a range.
        verdict: on the file's own acceptance: `pays`, `does not` or `not settled`; None: it is not asked.
    """

    load: float
    k: int
    question: str
    statuses: Counter[str]
    alphas: tuple[float, ...]
    length: float | None
    crossings: int
    own_speedup: float | None
    end: float | None = None
    end_status: str = ""
    verdict: str | None = None

    @property
    def alpha(self) -> float | None:
        """Mean over seeds, where every seed has a break-even; else None."""
        return sum(self.alphas) / len(self.alphas) if set(self.statuses) == {AT} else None

    @property
    def half_width(self) -> float:
        """Of the 95 % interval over seeds (Student's t); NaN for one seed or no common break-even."""
        return half_width_95(self.alphas) if self.alpha is not None else math.nan

    @property
    def status(self) -> str:
        """What all seeds say, or `mixed`."""
        return next(iter(self.statuses)) if len(self.statuses) == 1 else "mixed"


@dataclass(frozen=True)
class ClosedForm:
    """Break-even without queues, prompts and luck: one decoding step at the plain run's batch and context.

    Attributes:
        batch, context: sequences, and cached tokens of each.
        cost: a round over a plain step.
        conditional: a with (1 - a^(K+1))/(1 - a) = cost; None where K + 1 tokens are not enough.
        draft_rate: r with 1 + K r = cost.
    """

    batch: int
    context: int
    cost: float
    conditional: float | None
    draft_rate: float


@dataclass(frozen=True)
class Best:
    """The best K at one load.

    Attributes:
        load: which.
        k: 0 where no K is known to pay.
        speedup: at that K.
        batch: requests scheduled in a step at that K, mean over steps and seeds.
        unsettled: those K, better than it if anything, of which it is not settled whether they pay.
    """

    load: float
    k: int
    speedup: float
    batch: float
    unsettled: tuple[int, ...] = ()


def of_seeds(this: Breakeven, load: float, k: int) -> list[tuple[Found, Found]]:
    """Returns, for each seed with both, the search and its plain run."""
    pairs = ((this.found.get((load, k, s)), this.found.get((load, 0, s))) for s in this.seeds)
    return [(mine, plain) for mine, plain in pairs if mine is not None and plain is not None]


def answers(this: Breakeven) -> list[Threshold]:
    """Returns the answers, load by load, K by K.

    Left out is what has no figure (goodput without an SLO), and the throughput of open loops that serve all
    that comes, drafting or not: whatever is accepted, the ratio is 1 but for chance.
    """
    found = (
        _answer(this, load, k, question) for load in this.loads for k in this.drafts for question in QUESTIONS
    )
    return [answer for answer in found if answer is not None]


def _answer(this: Breakeven, load: float, k: int, question: str) -> Threshold | None:
    pairs = [pair for pair in of_seeds(this, load, k) if question in pair[0].roots]
    said = verdict(this, load, k, question)
    served_alike = question == "throughput" and said is None and (load, k) in this.verdicts
    if not pairs or served_alike:
        return None
    roots = [mine.roots[question] for mine, _ in pairs]
    lengths = [
        float(np.interp(root.alpha, mine.alphas, column(mine, "acceptance_length")))
        for (mine, _), root in zip(pairs, roots, strict=True)
        if root.alpha is not None
    ]
    return Threshold(
        load=load,
        k=k,
        question=question,
        statuses=Counter(root.status for root in roots),
        alphas=tuple(root.alpha for root in roots if root.alpha is not None),
        length=sum(lengths) / len(lengths) if lengths else None,
        crossings=max(root.crossings for root in roots),
        own_speedup=own_speedup(this, load, k, question),
        **_at_end(this, load, k, question),
        verdict=said,
    )


class _AtEnd(TypedDict, total=False):
    """Fields of a threshold."""

    end: float | None
    end_status: str


def _at_end(this: Breakeven, load: float, k: int, question: str) -> _AtEnd:
    """What the searches found at the end of the range of spreads."""
    found = [end for seed in this.seeds for end in this.ends.get((load, k, seed), [])]
    roots = [end.roots[question] for end in found if question in end.roots]
    if not roots:
        return {}
    statuses = {root.status for root in roots}
    alphas = [root.alpha for root in roots if root.alpha is not None]
    end = sum(alphas) / len(alphas) if statuses == {AT} else None
    return {"end": end, "end_status": statuses.pop() if len(statuses) == 1 else "mixed"}


def verdict(this: Breakeven, load: float, k: int, question: str) -> str | None:
    """Returns the verdict on the file's own acceptance; None where the question is not asked."""
    found = this.verdicts.get((load, k))
    said = found.row.get(f"{RATIOS[question]}_verdict") if found else None
    return str(said) if said else None


def rows(this: Breakeven) -> list[Row]:
    """Returns a row a load and K, plain runs among them, as in the summary of a run."""
    found: list[Row] = []
    for load in this.loads:
        mine = {k: this.verdicts[load, k] for k in this.drafts if (load, k) in this.verdicts}
        for k, each in mine.items():
            if k == min(mine):
                found.append({"point": f"{load:g} 0", this.axis: load, DRAFTS: 0, **each.plain})
            counted: Row = {"point": f"{load:g} {k}", "num_prompts": each.requests}
            found.append({**counted, this.axis: load, DRAFTS: k, **each.row})
    return found


def own_speedup(this: Breakeven, load: float, k: int, question: str) -> float | None:
    """Returns the speedup at the file's own acceptance: the ratio that is judged, else the searches' own."""
    judged = this.verdicts.get((load, k))
    if judged is not None and is_number(value := judged.row.get(RATIOS[question])):
        return value
    ratios = [speedup(question, mine.own, plain.own) for mine, plain in of_seeds(this, load, k)]
    known = [ratio for ratio in ratios if ratio is not None]
    return sum(known) / len(known) if known else None


def column(found: Found, metric: str) -> F64:
    """Returns a metric at each conditional acceptance that was simulated; NaN where there is none."""
    return np.array([math.nan if (value := f[metric]) is None else value for f in found.figures])


def speedups(this: Breakeven, load: float, k: int, question: str, alphas: F64) -> F64 | None:
    """Returns speedups at `alphas`, linear between what was simulated, mean over seeds; None without any."""
    curves = []
    for mine, plain in of_seeds(this, load, k):
        ratios = [speedup(question, figures, plain.own) for figures in mine.figures]
        if all(ratio is not None and math.isfinite(ratio) for ratio in ratios):
            curves.append(np.interp(alphas, mine.alphas, np.array(ratios, dtype=np.float64)))
    return np.mean(curves, axis=0) if curves else None


def own_alpha(this: Breakeven, load: float, k: int) -> float | None:
    """Returns the conditional acceptance that gives the file's own acceptance length on these requests."""
    values = []
    for mine, _ in of_seeds(this, load, k):
        lengths, own = column(mine, "acceptance_length"), mine.own["acceptance_length"]
        values.append(float(np.interp(own or 1.0, lengths, mine.alphas)))
    return sum(values) / len(values) if values else None


def closed_form(this: Breakeven, load: float, k: int) -> ClosedForm | None:
    """Returns the closed form at the batch and context of the plain run; None where nobody decodes."""
    plain = [this.found[load, 0, s].own for s in this.seeds if (load, 0, s) in this.found]
    batches = [b for f in plain if (b := f["batch"]) is not None]
    contexts = [c for f in plain if (c := f["context"]) is not None]
    if not batches or not contexts:
        return None
    serve = this.configs[load, k].serve
    place = placement(serve)
    room = place.max_num_batched_tokens // (1 + k)
    batch = min(max(round(sum(batches) / len(batches)), 1), place.max_num_seqs, room)
    context = max(round(sum(contexts) / len(contexts)) - 1, 1)
    plain_ms, ms = (
        price(with_drafts(place, drafts), serve.cost_model, batch, context).total_ms for drafts in (0, k)
    )
    cost = ms / plain_ms
    return ClosedForm(batch, context, cost, needed_conditional(cost, k), needed_draft_rate(cost, k))


def best(this: Breakeven, question: str) -> list[Best]:
    """Returns the best K of each load at the file's own acceptance: the largest ratio of those that pay.

    A load at which the question is not asked of any K (throughput of an open loop that keeps up) has none.
    """
    chosen = []
    for load in this.loads:
        ratios, open_yet = {0: 1.0}, {}
        for k in this.drafts:
            ratio, said = own_speedup(this, load, k, question), verdict(this, load, k, question)
            judged = (load, k) in this.verdicts
            if ratio is None or (judged and said is None):
                continue
            if said == "not settled":
                open_yet[k] = ratio
            ratios[k] = ratio if said == "pays" or not judged else 0.0
        k = max(ratios, key=lambda k: ratios[k])
        batches = [
            batch
            for seed in this.seeds
            if (load, k, seed) in this.found and (batch := this.found[load, k, seed].own["batch"]) is not None
        ]
        if len(ratios) > 1 and batches:
            above = tuple(each for each, ratio in open_yet.items() if ratio > ratios[k])
            chosen.append(Best(load, k, ratios[k], sum(batches) / len(batches), above))
    return chosen


def schedule(found: Sequence[Best], max_num_seqs: int) -> Schedule:
    """Returns [lowest batch, highest batch, K] ranges for vLLM: each load's K around its batch.

    Ranges part at the geometric mean of neighbouring batches; the last one ends at `max_num_seqs`. Where
    nothing was asked at any load there are none.
    """
    if not found:
        return []
    ordered = sorted(found, key=lambda one: one.batch)
    ranges: Schedule = []
    low = 1
    for here, after in zip(ordered, [*ordered[1:], None], strict=True):
        high = max_num_seqs if after is None else min(int(math.sqrt(here.batch * after.batch)), max_num_seqs)
        if high < low:
            continue
        if ranges and ranges[-1][2] == here.k:
            ranges[-1] = (ranges[-1][0], high, here.k)
        else:
            ranges.append((low, high, here.k))
        low = high + 1
    return ranges
