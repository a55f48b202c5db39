"""What became of requests that their clients gave up, in a sentence a point."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.values import named


def patience_said(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """Returns a sentence a point, and over whom latencies are; nothing where no client gives up."""
    told = [row for row in rows if is_number(row.get("gave_up"))]
    if not told:
        return []
    said = [_said(row, axes) for row in told]
    if any(number(row, "gave_up") for row in told):
        said.append(
            "Latencies are of requests that were served; goodput and SLO attainment count those given up as "
            "missed."
        )
    return said


def _said(row: Row, axes: Sequence[str]) -> str:
    name = ", ".join(named(axis, row[axis]) for axis in axes) or "Clients"
    gone = number(row, "gave_up")
    again = number(row, "client_retries")
    retried = f"; {again:,.0f} attempts were sent again" if again else ""
    if not gone and not again:
        return f"{name}: no client gave up."
    return (
        f"{name}: {gone:,.0f} requests were given up ({number(row, 'gave_up_share'):.1%}), "
        f"{number(row, 'gave_up_unanswered'):,.0f} of them without a token{retried}; "
        f"{number(row, 'wasted_tokens'):,.0f} output tokens were thrown away, and "
        f"{number(row, 'wasted_seat_share'):.1%} of the time in running seats."
    )
