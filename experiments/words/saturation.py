"""Whether what is offered is served: saturated, near the limit, or not yet full when the run ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specfleet.experiments.point.ceiling import STEPS
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.answer import load_axis
from specfleet.experiments.words.band import more
from specfleet.experiments.words.names import noun
from specfleet.experiments.words.values import named, rounded, text


def saturation(rows: Sequence[Row], axes: Sequence[str], x: str | None) -> list[str]:
    """Returns a sentence for each line of an open loop that is saturated, near its limit or still filling.

    Args:
        rows: a row a point; those of closed loops have nothing to say.
        axes: the keys that are swept.
        x: what lies horizontally in the figures.
    """
    told = [row for row in rows if is_number(row.get("offered_per_s"))]
    if not told:
        return []
    load = load_axis(told, axes, x, {})
    others = [key for key in axes if key != load]
    lines: dict[str, list[Row]] = {}
    for row in told:
        lines.setdefault(", ".join(named(key, row[key]) for key in others), []).append(row)
    if load is not None:
        lines = {label: sorted(mine, key=lambda row: number(row, load)) for label, mine in lines.items()}
    return [sentence for label, mine in lines.items() for sentence in _of_line(label, mine, load)]


def _of_line(label: str, rows: Sequence[Row], load: str | None) -> Iterator[str]:
    who = f"{label}: " if label else ""
    saturated = [row for row in rows if row.get("state") == "saturated"]
    filling = [row for row in rows if row.get("state") == "still filling"]
    near = [row for row in rows if row not in saturated and _share(row) > 1.0 / (1.0 + STEPS)]
    if saturated:
        row = saturated[0]
        lasting = len(saturated) == len([r for r in rows if not load or number(r, load) >= number(row, load)])
        where = ""
        if load is not None:
            loads = [text(row[load])] if lasting else [text(row[load]) for row in saturated]
            where = (
                f" {'from' if lasting else 'at'} {noun(load)} {', '.join(loads)}{' on' if lasting else ''}"
            )
        yield (
            f"Saturated{where}, {who}{_offered(row)} and {rounded(number(row, 'served_per_s'))} served"
            f"{_most(row)}. {_then(row)}"
        )
    if near:
        yield f"Near its limit{_at(near[0], load)}, {who}{_offered(near[0])}{_most(near[0])}."
    if filling:
        yield (
            f"Still filling when the run ended{_at(filling[0], load)}: {who}its latencies hold "
            f"only with {more(filling)}."
        )


def _share(row: Row) -> float:
    """What is offered, as a share of the capacity by closed form."""
    top = row.get("capacity_per_s")
    return number(row, "offered_per_s") / number(row, "capacity_per_s") if is_number(top) and top else 0.0


def _at(row: Row, load: str | None) -> str:
    return f" at {noun(load)} {text(row[load])}" if load is not None else ""


def _then(row: Row) -> str:
    """What becomes of those who are not served."""
    given_up = (row.get(f"gateway_{how}") for how in ("rejected", "timed_out"))
    away = sum(count for count in given_up if is_number(count))
    if away > 0.0:
        return f"The gateway gave {away:,.0f} requests up, so the others wait no longer for it."
    left = row.get("gave_up")
    if is_number(left) and number(row, "gave_up"):
        return f"Clients gave {number(row, 'gave_up'):,.0f} requests up, so the others wait no longer for it."
    return "Its latencies grow as long as the run lasts."


def _offered(row: Row) -> str:
    return f"{rounded(number(row, 'offered_per_s'))} requests/s are offered"


def _most(row: Row) -> str:
    """The capacity by closed form, and what binds it."""
    if not is_number(row.get("capacity_per_s")):
        return ""
    top = number(row, "capacity_per_s")
    low, high = top / (1.0 + STEPS), top / (1.0 - STEPS)
    return (
        f"; by closed form at most {rounded(top)} ({rounded(low)} to {rounded(high)} if steps take "
        f"{STEPS:.0%} more or less), bound by {row.get('binds')}"
    )
