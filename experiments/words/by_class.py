"""The answer by traffic class, in one sentence: who gains in P99 TPOT and who loses."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.results import Row, number
from specfleet.experiments.words.answer import Compared, best_reach, chosen
from specfleet.experiments.words.names import noun
from specfleet.experiments.words.summary import classes_of
from specfleet.experiments.words.verdict import interval, judged


def class_answer(groups: Sequence[Compared]) -> str:
    """Returns what each traffic class has of it; empty where there is one, or settings are several."""
    if len(groups) != 1:
        return ""
    (group,) = groups
    told = [_told(group, name) for name in classes_of(group.rows)]
    said = [each for each in told if each]
    if not said:
        return ""
    where = "" if group.load else f", {group.label(chosen(group))}"
    return f"By class{where}, P99 TPOT: {'; '.join(said)}."


def _told(group: Compared, name: str) -> str:
    question = f"speedup:class:{name}:p99_tpot_ms"
    if group.load is None:
        return _gained(chosen(group), name, question)
    found = best_reach(group, question)
    if found is None:
        return ""
    if found.throughout:
        return f"{name} gains at every {noun(group.load)} tested"
    return f"for {name} it {found.sentence()} ({noun(group.load)})"


def _gained(row: Row, name: str, question: str) -> str:
    """One class at one point."""
    verdict, bounds = judged(row, question), interval(row, question)
    if verdict is None:
        return ""
    ratio = number(row, question)
    if verdict == "not settled":
        said = f", {bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else ""
        return f"{name} is not settled ({ratio:.2f} times{said})"
    if verdict == "pays":
        return f"{name} gains {ratio:.2f} times"
    lost = bounds is not None and bounds[1] < 1.0
    return f"{name} loses ({ratio:.2f} times)" if lost else f"{name} gains nothing ({ratio:.2f} times)"
