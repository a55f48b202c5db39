"""What a number of replicas that follows the load did, in a sentence a point; whether drafts delay it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specfleet.experiments.run.costs.paid import FIRST, STARTING_TTFT
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.values import counted, named, same


def scaling_said(rows: Sequence[Row], axes: Sequence[str], baseline: Mapping[str, object]) -> list[str]:
    """Returns a sentence a point, and one a point that has a baseline; nothing where replicas are fixed."""
    mine = [row for row in rows if is_number(row.get("mean_replicas"))]
    said = [f"{_name(row, axes)}{_did(row)}." for row in mine]
    for row in mine:
        plain = _baseline(row, mine, axes, baseline)
        if plain is not None and plain is not row:
            said.append(_against(row, plain, axes))
    return said


def _name(row: Row, axes: Sequence[str]) -> str:
    words = ", ".join(named(axis, row[axis]) for axis in axes)
    return f"{words}: " if words else "Replicas: "


def _did(row: Row) -> str:
    mean, peak, hours = (number(row, key) for key in ("mean_replicas", "peak_replicas", "gpu_hours"))
    paid = f"{mean:.2f} replicas paid for on average, {peak:g} at most, {hours:.2f} GPU-hours"
    if not is_number(row.get(FIRST)):
        return f"no replica was added; {paid}"
    outs = counted(round(number(row, "scale_outs")), "scale-out")
    tail = ""
    if is_number(row.get(STARTING_TTFT)):
        tail = f"; P99 TTFT while replicas start {number(row, STARTING_TTFT):,.0f} ms"
    return f"{outs}, the first at {number(row, FIRST):g} s; {paid}{tail}"


def _baseline(
    row: Row, rows: Sequence[Row], axes: Sequence[str], baseline: Mapping[str, object]
) -> Row | None:
    """The point that is as this one but for the axes of the baseline."""
    if not baseline:
        return None
    for other in rows:
        if all(same(other[axis], baseline.get(axis, row[axis])) for axis in axes):
            return other
    return None


def _against(row: Row, plain: Row, axes: Sequence[str]) -> str:
    """Whether the next replica comes later than without, and what the tail does meanwhile."""
    name = _name(row, axes).removesuffix(": ")
    first, other = is_number(row.get(FIRST)), is_number(plain.get(FIRST))
    if not first or not other:
        when = "needs no further replica, the baseline does" if other else "needs as few replicas"
        when = when if not first else "adds replicas, the baseline does not"
    else:
        later = number(row, FIRST) - number(plain, FIRST)
        when = f"orders the next replica {abs(later):g} s {'later' if later > 0 else 'earlier'}"
        when = when if later else "orders the next replica at the same decision"
    more = number(row, "gpu_hours") / number(plain, "gpu_hours") - 1.0
    hours = f"{abs(more):.0%} {'more' if more > 0 else 'fewer'} GPU-hours"
    hours = hours if abs(more) >= 0.005 else "as many GPU-hours"
    tail = ""
    if is_number(row.get(STARTING_TTFT)) and is_number(plain.get(STARTING_TTFT)):
        tail = (
            f"; meanwhile P99 TTFT is {number(row, STARTING_TTFT) / number(plain, STARTING_TTFT):.2f} of its"
        )
    return f"Against the baseline {name} {when}, and pays for {hours}{tail}."
