"""What became of requests that their clients gave up, in a sentence a point."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.costs.ends import ends_said
from specfleet.experiments.words.values import named


def patience_said(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """Returns a sentence a point, of many those of the ends, and over whom latencies are; nothing where no
    client gives up."""
    told = [row for row in rows if is_number(row.get("gave_up"))]
    if not told:
        return []
    said = ends_said(told, "gave_up_share", lambda row: _said(row, axes))
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
    retried = f"; {_were(again, 'attempt')} sent again" if again else ""
    also = ", by clients or with replicas," if is_number(row.get("failures")) else ""
    if not gone and not again:
        return f"{name}: no client gave up."
    return (
        f"{name}: {_were(gone, 'request')} given up ({number(row, 'gave_up_share'):.1%}), "
        f"{number(row, 'gave_up_unanswered'):,.0f} of them without a token{retried}; "
        f"{_were(number(row, 'wasted_tokens'), 'output token')} thrown away{also or ','} and "
        f"{number(row, 'wasted_seat_share'):.1%} of the time in running seats."
    )


def _were(number: float, noun: str) -> str:
    """Returns `1 request was`, or `12 requests were`."""
    said = f"{number:,.0f}"
    return f"{said} {noun} was" if said == "1" else f"{said} {noun}s were"
