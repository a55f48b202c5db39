"""What a number of replicas that follows the load did, in a sentence a point; whether drafts delay it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specfleet.experiments.run.costs.paid import RATIO
from specfleet.experiments.run.costs.ratio import FIRST, HOURS, LATER, STARTING_TTFT, TAIL
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.values import named, on_average, same


def scaling_said(rows: Sequence[Row], axes: Sequence[str], baseline: Mapping[str, object]) -> list[str]:
    """Returns a sentence a point, and one a point that has a baseline; nothing where replicas are fixed."""
    mine = [row for row in rows if is_number(row.get("mean_replicas"))]
    said = [f"{_name(row, axes)}{_did(row)}{_by_pool(row)}." for row in mine]
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
    most = f"{peak:,.1f}".removesuffix(".0")
    paid = f"{mean:.2f} replicas paid for on average, {most} at most, {hours:.2f} GPU-hours"
    if not is_number(row.get(FIRST)):
        if number(row, "scale_outs"):
            return f"in some seeds replicas were added; {paid}"
        return paid if is_number(row.get(RATIO)) else f"no replica was added; {paid}"
    outs = on_average(number(row, "scale_outs"), "decision")
    tail = ""
    if is_number(row.get(STARTING_TTFT)):
        tail = f"; P99 TTFT while replicas start {number(row, STARTING_TTFT):,.0f} ms"
    return f"replicas added in {outs}, the first at {number(row, FIRST):g} s; {paid}{tail}"


def _by_pool(row: Row) -> str:
    """How many replicas each pool had, and what spot saves."""
    said = ""
    names = [key.split(":")[1] for key in row if key.endswith(":mean_replicas") and is_number(row[key])]
    each = [f"{name} {number(row, f'pool:{name}:mean_replicas'):.2f}" for name in names]
    if each:
        said += f"; replicas by pool: {', '.join(each)}"
    if is_number(row.get(RATIO)):
        dollars, ratio = number(row, "cost_usd"), number(row, RATIO)
        said += f"; ${dollars:,.2f}, {ratio:.0%} of what the same GPU-hours cost on demand"
    return said


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
    """Whether the next replica comes later than without, and what the tail does meanwhile: over all seeds."""
    name = _name(row, axes).removesuffix(": ")
    first, other = is_number(row.get(FIRST)), is_number(plain.get(FIRST))
    if number(row, "scale_outs") and not first:
        when = "adds replicas in some seeds only"
    elif number(plain, "scale_outs") and not other:
        when = f"{'adds replicas' if first else 'needs no further replica'}, the baseline in some seeds"
    elif not first or not other:
        when = "needs no further replica, the baseline does" if other else "needs as few replicas"
        when = when if not first else "adds replicas, the baseline does not"
    else:
        when = f"orders the next replica {_later(*_ends(row, LATER))}"
    hours = _share(*_ends(row, HOURS))
    fixed = is_number(row.get(RATIO)) and not number(row, "scale_outs") and not number(plain, "scale_outs")
    needs = "" if fixed else f" {when}, and"
    said = f"Against the baseline {name}{needs} pays for {hours} of its GPU-hours"
    if is_number(row.get(f"{TAIL}_low")):
        low, high = _ends(row, TAIL)
        said += f"; meanwhile P99 TTFT is {_share(low, high)} of its"
        if low < 1.0 < high:
            said += ", which is not settled"
    seeds = round(number(row, "replications"))
    if seeds == 1:
        return f"{said}. That is one seed: orders and tails may differ with another (replications)."
    return f"{said} (least and most of {seeds} seeds)."


def _ends(row: Row, name: str) -> tuple[float, float]:
    return number(row, f"{name}_low"), number(row, f"{name}_high")


def _later(low: float, high: float) -> str:
    if low == high == 0.0:
        return "at the same decision"
    if low == high:
        return f"{abs(low):g} s {'later' if low > 0 else 'earlier'}"
    if low >= 0.0:
        return f"{low:g} to {high:g} s later"
    return f"{-high:g} to {-low:g} s earlier" if high <= 0.0 else f"{-low:g} s earlier to {high:g} s later"


def _share(low: float, high: float) -> str:
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
