"""What `specfleet results list` prints."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.listing import Listed
from specfleet.experiments.words.table import Column, table_text

COLUMNS = (
    Column("run", left=True),
    Column("of", left=True),
    Column("begun", left=True),
    Column("simulations"),
    Column("state", left=True),
    Column("differs from the number before it", left=True),
)
MANY = 3
"""Differences that are named; of more, how many."""


def listing_text(found: Sequence[Listed]) -> str:
    """Returns a row a folder."""
    return table_text(COLUMNS, [_row(one) for one in found]) if found else "nothing yet"


def _row(one: Listed) -> list[object]:
    run = one.name if one.number is None else f"{one.name}/{one.number}"
    made = f"{one.simulations[0]} of {one.simulations[1]}" if one.simulations else ""
    named = ", ".join(one.differs[:MANY])
    more = f", and {len(one.differs) - MANY} more" if len(one.differs) > MANY else ""
    return [run, one.kind, one.begun, made, one.state, f"{named}{more}"]
