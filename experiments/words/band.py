"""A P99 figure whose spread between requests is not known, as a band; and what settles a verdict on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specfleet.experiments.load.rules.acceptance import ASKED
from specfleet.experiments.run.band import LEAST, MOST, SPREAD, UNSETTLED_BY
from specfleet.experiments.run.known import AT_MOST
from specfleet.experiments.run.results import Row, is_number, number

STATE_IT = "state the spread between requests (acceptance.concentration), or measure it (specfleet calibrate)"
SETTLE_SPREAD = f"What is not settled by {SPREAD}: {STATE_IT}."
BANDS = (
    "P99 is a band, from requests as different as were ever measured to all alike: their spread "
    f"(acceptance.concentration) is not given. {STATE_IT[0].upper()}{STATE_IT[1:]}."
)


def assumed(notices: Sequence[str]) -> list[str]:
    """Returns notices for a page whose answer has asked for the spread: no second time."""
    return [notice.removesuffix(ASKED) for notice in notices]


def banded(row: Row, key: str, shown: Callable[[float], str]) -> str:
    """Returns a figure as text, or from its least to its most where these are not shown alike.

    Args:
        row: a point.
        key: a column that holds a number.
        shown: a number as text.
    """
    if is_number(row.get(key + LEAST)) and is_number(row.get(key + MOST)):
        ends = [shown(number(row, key + end)) for end in (LEAST, MOST)]
        if ends[0] != ends[1]:
            return "-".join(ends)
    return shown(number(row, key))


def has_bands(rows: Sequence[Row]) -> bool:
    """Whether P99 is a band at some point."""
    return any(key.endswith(LEAST) and is_number(row[key]) for row in rows for key in row)


def by_spread(row: Row, question: str) -> bool:
    """Whether a verdict is open because it depends on the spread between requests."""
    return bool(row.get(question + UNSETTLED_BY))


def settling(rows: Sequence[Row], questions: Sequence[str]) -> list[str]:
    """Returns what settles the verdicts that are not settled: more requests, the spread, or both."""
    open_yet = [
        by_spread(row, question)
        for row in rows
        for question in questions
        if row.get(f"{question}_verdict") == "not settled"
    ]
    settle = f"What is not settled, {more(rows)} or replications settle."
    found = [settle] if not all(open_yet) else []
    return found + ([SETTLE_SPREAD] if any(open_yet) else [])


def more(rows: Sequence[Row]) -> str:
    """Returns the key to raise for more requests: the file's number of them, or the most it goes on for."""
    key = "run.at_most" if any(is_number(row.get(AT_MOST)) for row in rows) else "workload.num_prompts"
    return f"more requests ({key})"
