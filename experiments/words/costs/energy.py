"""Whether drafting saves energy, and up to which load, in a sentence a choice."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.costs.ratio import X_PLAIN
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.answer import Compared
from specfleet.experiments.words.values import text

LOW, MIDDLE, HIGH = X_PLAIN
FROM = (
    "What a GPU draws is measured for decoding on an H200 alone, and assumed for the rest: the range is over "
    "all of it (docs/metrics.md)."
)
"""Behind the sentences, once."""


def energy_said(groups: Sequence[Compared], least_gain: float) -> list[str]:
    """Returns a sentence for each choice, and where it comes from; nothing without a baseline or energy.

    Args:
        groups: points over a load, each with its baseline.
        least_gain: what a ratio must differ from 1 by to count.
    """
    said = [
        sentence
        for group in groups
        for label in dict.fromkeys(map(group.label, group.others))
        if (sentence := _of(group, label, least_gain))
    ]
    return [*said, FROM] if said else []


def _of(group: Compared, label: str, least_gain: float) -> str:
    rows = [row for row in group.others if group.label(row) == label and is_number(row.get(MIDDLE))]
    if not rows:
        return ""
    rows.sort(key=lambda row: number(row, group.load) if group.load else 0.0)
    where = f"{group.where}: " if group.where else ""
    told = ", ".join(f"{_ratio(row)}{_at(row, group.load)}" for row in rows)
    kinds = {
        "saves energy": [row for row in rows if number(row, HIGH) < 1.0 - least_gain],
        "costs energy": [row for row in rows if number(row, LOW) > 1.0 + least_gain],
    }
    known = [row for mine in kinds.values() for row in mine]
    kinds["is not settled"] = [row for row in rows if row not in known]
    verdict = "; ".join(
        f"{name}{' at ' + ', '.join(text(row[group.load]) for row in mine) if group.load else ''}"
        for name, mine in kinds.items()
        if mine
    )
    return f"Energy, {where}{label}: {told} of the baseline's joules a token; it {verdict}."


def _ratio(row: Row) -> str:
    return f"{number(row, MIDDLE):.2f} ({number(row, LOW):.2f} to {number(row, HIGH):.2f})"


def _at(row: Row, load: str | None) -> str:
    return f" at {text(row[load])}" if load else ""
