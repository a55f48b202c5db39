"""The answer in words: up to which load each line pays against the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specfleet.experiments.run.results import Row, as_number, number
from specfleet.experiments.words.values import text as named

QUESTIONS = {
    "speedup_output_throughput": "throughput",
    "speedup_mean_tpot": "mean TPOT",
    "speedup_p99_tpot": "P99 TPOT",
}


def questions(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the columns of ratios to the baseline and what each asks; those of traffic classes last."""
    found = dict(QUESTIONS)
    for key in dict.fromkeys(key for row in rows for key in row):
        if key.startswith("speedup:class:") and not key.endswith("_ci95"):
            _, _, name, figure = key.split(":")
            found[key] = f"{'mean' if figure.startswith('mean') else 'P99'} TPOT of {name}"
    return found


@dataclass(frozen=True)
class Crossing:
    """Where one line's ratio to the baseline crosses 1.

    Attributes:
        last_paying: the last tested x up to which the ratio never fell below 1; None if it starts below.
        crosses_at: x at which it falls below 1, interpolated on a logarithmic axis; None if it never does.
        pays_again_from: a later tested x at which it is above 1 again, or None.
        close: the ratio at the first losing point is within its 95 % interval of 1.
    """

    last_paying: float | None
    crosses_at: float | None
    pays_again_from: float | None = None
    close: bool = False


def crossing(xs: Sequence[float], ratios: Sequence[float], half_widths: Sequence[float]) -> Crossing:
    """Finds where `ratios`, tested at increasing `xs`, first falls below 1."""
    losing = next((i for i, ratio in enumerate(ratios) if ratio < 1.0), None)
    if losing is None:
        return Crossing(xs[-1], None)
    again = next((x for x, ratio in zip(xs[losing:], ratios[losing:], strict=True) if ratio >= 1.0), None)
    width = half_widths[losing]
    close = not math.isnan(width) and 1.0 - ratios[losing] <= width
    if losing == 0:
        return Crossing(None, None, again, close)
    before, after = ratios[losing - 1], ratios[losing]
    share = (before - 1.0) / (before - after)
    low, high = xs[losing - 1], xs[losing]
    if low > 0:
        at = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        at = low + share * (high - low)
    return Crossing(low, at, again, close)


def crossing_sentence(found: Crossing, last_tested: float) -> str:
    """Says a crossing in words."""
    if found.last_paying is None and found.pays_again_from is not None:
        text = f"pays only from {found.pays_again_from:g}"
    elif found.last_paying is None:
        text = "does not pay at any load tested"
    elif found.crosses_at is None:
        return f"pays up to {last_tested:g}"
    else:
        text = f"pays up to {found.last_paying:g}, stops at about {_rounded(found.crosses_at)}"
        if found.pays_again_from is not None:
            text += f" (pays again from {found.pays_again_from:g})"
    if found.close:
        text += " (within the noise of these replications)"
    return text


def _rounded(x: float) -> str:
    return f"{x:.0f}" if x >= 10 else f"{x:.2g}"


def verdicts(
    rows: Sequence[Row], x: str, lines: str, baseline: object
) -> list[tuple[object, dict[str, Crossing]]]:
    """Returns, for each value of the axis `lines` but the baseline, its crossing by question."""
    values = list({repr(row[lines]): row[lines] for row in rows}.values())
    found = []
    for value in values:
        if value == baseline:
            continue
        mine = sorted((row for row in rows if row[lines] == value), key=lambda row: number(row, x))
        answers = {}
        for question in questions(rows):
            usable = [row for row in mine if question in row]
            if usable:
                answers[question] = crossing(
                    [number(row, x) for row in usable],
                    [number(row, question) for row in usable],
                    [as_number(row.get(f"{question}_ci95", math.nan)) for row in usable],
                )
        if answers:
            found.append((value, answers))
    return found


def in_words(rows: Sequence[Row], x: str, lines: str, baseline: object) -> list[str]:
    """Returns a sentence a line and question; none where the loads are not numbers or are the lines."""
    if x == lines or not all(isinstance(row.get(x), int | float) for row in rows):
        return []
    last = max(number(row, x) for row in rows)
    name, load = lines.rpartition(".")[2], x.rpartition(".")[2]
    label = "K" if name == "num_speculative_tokens" else name
    text = []
    for value, answers in verdicts(rows, x, lines, baseline):
        asked = questions(rows)
        said = "; ".join(f"on {asked[q]} it {crossing_sentence(c, last)}" for q, c in answers.items())
        text.append(f"{label} = {named(value)}: {said} ({load}).")
    return text
