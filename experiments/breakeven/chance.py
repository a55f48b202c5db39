"""With what chance a K pays whose acceptance is predicted, and which count would tell most.

Break-even is an acceptance length; the prediction is a law of it. The chance is that of a length above it, on
the searches' requests: those of luck and queues are in the intervals of the verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specfleet.experiments.breakeven.answers import Threshold, of_seeds
from specfleet.experiments.breakeven.question import Breakeven
from specfleet.experiments.breakeven.search import ALWAYS, AT, NEVER
from specfleet.experiments.load.rules.acceptance import predicted
from specfleet.experiments.point.beyond import Beyond
from specfleet.experiments.schema.blocks.acceptance import processes
from specfleet.experiments.words.chance import chance_said, next_count


@dataclass(frozen=True)
class Chance:
    """Of one load, K and question.

    Attributes:
        load, k, question: which.
        chance: that the predicted acceptance is enough.
        needed: acceptance length at break-even; None where none or any acceptance is.
    """

    load: float
    k: int
    question: str
    chance: float
    needed: float | None


def predictions(this: Breakeven) -> dict[int, Beyond]:
    """Returns the prediction at each K that the acceptance was not measured at; of one class alone."""
    found = {}
    for k in this.drafts:
        config = this.configs[this.loads[0], k]
        given = list(processes(config.acceptance).values())
        if len(given) == 1 and (one := predicted(given[0], config)) is not None:
            found[k] = one
    return found


def chances(this: Breakeven, found: Sequence[Threshold]) -> list[Chance]:
    """Returns the chance of each break-even of a predicted K; left out where seeds disagree."""
    told = predictions(this)
    out = []
    for one in found:
        law = told.get(one.k)
        if law is None or one.status not in (AT, ALWAYS, NEVER):
            continue
        if one.status == AT and one.length is not None:
            out.append(Chance(one.load, one.k, one.question, _reached(this, one, law), one.length))
        elif one.status != AT:
            out.append(Chance(one.load, one.k, one.question, float(one.status == ALWAYS), None))
    return out


def _reached(this: Breakeven, one: Threshold, law: Beyond) -> float:
    """The chance of the break-even's length, as a share of what these requests accept on average."""
    lengths = [mine.own["acceptance_length"] or 1.0 for mine, _ in of_seeds(this, one.load, one.k)]
    drawn, needed = sum(lengths) / len(lengths), one.length or 1.0
    if drawn <= 1.0:
        return float(needed <= 1.0)
    return law.reaches(1.0 + (needed - 1.0) * (law.length.value - 1.0) / (drawn - 1.0))


def chance_lines(this: Breakeven, found: Sequence[Threshold], load_name: str) -> Iterator[str]:
    """Yields a sentence a predicted K, and what to count next."""
    told = predictions(this)
    every = chances(this, found)
    for k, law in told.items():
        mine = [one for one in every if one.k == k]
        length = law.length
        yield (
            f"K = {k}: acceptance is predicted from K = {law.measured_at_k}, {length.value:.2f} tokens a "
            f"round, 90 % interval {length.low:.2f} to {length.high:.2f}. By that alone, on the "
            "requests simulated:"
        )
        for question in dict.fromkeys(one.question for one in mine):
            loads = ", ".join(
                f"with {chance_said(one.chance)} at {one.load:g}" for one in mine if one.question == question
            )
            yield f"  on {question} it pays {loads} ({load_name})"
    open_yet = sorted({one.k for one in every if 0.02 < one.chance < 0.98})
    if told:
        yield next_count(next(iter(told.values())).depth, open_yet)
