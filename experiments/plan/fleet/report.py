"""What a plan prints of other traffic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specfleet.experiments.plan.fleet.scaled import AtTraffic
from specfleet.experiments.plan.seen import of_limit
from specfleet.experiments.words.table import Column, table_text
from specfleet.experiments.words.values import rounded

NAMED = 3
"""Of those that may be cheaper, named at most."""
TRAFFIC = (
    Column("traffic"),
    Column("requests/s"),
    Column("cheapest", left=True),
    Column("$/h", "{:.2f}"),
    Column("of the limit", left=True),
    Column("against the plan", left=True),
)


def traffic_lines(found: Sequence[AtTraffic], most: int | None) -> Iterator[str]:
    """Yields the table of other traffic; nothing where nobody asked for it.

    Args:
        found: the plan at 1 among them.
        most: requests of the longest simulation behind it; None: as the file says.
    """
    if len(found) < 2:
        return
    how = "" if most is None else f", simulations of up to {most:,} requests"
    yield f"At other traffic (every engine with the K it did best with here{how}, not confirmed again):"
    yield table_text(TRAFFIC, [_row(each) for each in found], indent=2)
    for each in found:
        if each.cheaper:
            listed = [f"{replicas} x ({name})" for name, replicas in each.cheaper[:NAMED]]
            more = len(each.cheaper) - len(listed)
            named = "; ".join([*listed, *([f"and {more} more"] if more else [])])
            yield f"  at {each.factor:g} x it is not settled whether something cheaper would do: {named}"


def _row(at: AtTraffic) -> list[object]:
    first = [f"{at.factor:g} x", rounded(at.rate)]
    if at.candidate is None:
        return [*first, "nothing that the plan may buy meets the SLO", None, "", ""]
    against = "the plan" if at.factor == 1.0 else "; ".join(at.changes) or "the same engine"
    return [*first, f"{at.replicas} x ({at.candidate.id})", at.cost, of_limit(at), against]
