"""What `specfleet compare` prints: the differences of two runs, and which of them are settled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specfleet.experiments.run.compare import Difference, compare
from specfleet.experiments.run.folder import located
from specfleet.experiments.words.band import SETTLE_SPREAD
from specfleet.experiments.words.table import Column, table_text

IDENTICAL = "Identical: every request took the same time in both runs"

BAND = "how much requests differ (acceptance.concentration) is not given, and both ends of its range count."

COLUMNS = (
    Column("figure", left=True),
    Column("A", "{:.2f}"),
    Column("B", "{:.2f}"),
    Column("B - A", "{:+.2f}"),
    Column("95 % interval"),
    Column("B / A", "{:.3f}", rank=1),
    Column(left=True),
)


def compare_text(a: Path, b: Path) -> str:
    """Returns the differences as a table a point, each marked where it is not settled."""
    found = compare(a, b)
    parts = [f"A = {located(a)}\nB = {located(b)}"]
    if all(difference.identical for difference in found):
        return f"{parts[0]}\n\n{IDENTICAL} ({_pairs(found)})."
    for point in dict.fromkeys(difference.point for difference in found):
        mine = [difference for difference in found if difference.point == point]
        table = table_text(COLUMNS, [_row(difference) for difference in mine])
        pairs = f"{mine[0].pairs:,} pair{'' if mine[0].pairs == 1 else 's'} of requests"
        parts.append(f"{point}: {pairs}\n{table}")
    if any(difference.band for difference in found):
        parts.append(f"P99 from its least to its most: {BAND}")
    if any(difference.by_spread for difference in found):
        parts.append(SETTLE_SPREAD)
    return "\n\n".join(parts)


def _pairs(found: Sequence[Difference]) -> str:
    pairs = {difference.point: difference.pairs for difference in found}
    points = f" at {len(pairs)} points" if len(pairs) > 1 else ""
    return f"{sum(pairs.values()):,} pairs of requests{points}"


def _row(d: Difference) -> list[object]:
    interval = f"[{d.low:+.2f}, {d.high:+.2f}]" if d.bounded else d.interval
    change: object = d.difference
    if d.band is not None and f"{d.band[0]:+.2f}" != f"{d.band[1]:+.2f}":
        change = f"{d.band[0]:+.2f} to {d.band[1]:+.2f}"
    return [d.name, d.a, d.b, change, interval, d.b / d.a if d.a else None, *_mark(d)]


def _mark(d: Difference) -> list[str]:
    if d.by_spread:
        return ["not settled (spread)"]
    return [] if d.settled else ["identical" if d.identical else "not settled"]
