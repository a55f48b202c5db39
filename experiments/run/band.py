"""P99 where how much requests differ is not known: a band over the spreads that it may be.

The point is simulated at the ends of its `acceptance.concentration_range` too, on the same requests and
luck. What its P99 figures were there bounds them, and a verdict on P99 holds only where it is the same at
every end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specfleet.experiments.run.gains import GOODPUT

LEAST, MOST, UNSETTLED_BY = "_least", "_most", "_unsettled_by"
SPREAD = "the spread between requests"
"""What leaves a verdict open that differs from end to end."""


def is_tail(key: str) -> bool:
    """Whether a column is a P99 figure or a ratio of them or of goodputs, and not what stands beside one."""
    beside = ("_ci95", "_low", "_high", "_verdict", LEAST, MOST, UNSETTLED_BY)
    tail = "p99" in key or key.startswith(GOODPUT)
    return tail and not key.endswith((*beside, "_interval"))


def bands(row: Mapping[str, object], ends: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Returns what the ends add to a point's row: each P99 figure from its least to its most, and of ratios
    the interval and the verdict that hold over all of them.

    Args:
        row: the point's figures, ratios, intervals and verdicts.
        ends: the same columns at the ends, as far as they were simulated.
    """
    added: dict[str, object] = {}
    for key in [key for key in row if is_tail(key)]:
        values = [one[key] for one in (row, *ends) if isinstance(one.get(key), int | float)]
        if len(values) > 1:
            added |= {key + LEAST: min(values), key + MOST: max(values)}  # type: ignore[type-var]
            if f"{key}_verdict" in row:
                added |= _verdict(key, [row, *ends])
    return added


def _verdict(key: str, at: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The interval and the verdict of a ratio over all ends."""
    verdicts = [one.get(f"{key}_verdict") for one in at]
    found: dict[str, object] = {}
    for end, widest in (("_low", min), ("_high", max)):
        bounds = [one[key + end] for one in at if isinstance(one.get(key + end), int | float)]
        if len(bounds) == len(at):
            found[key + end] = widest(bounds)  # type: ignore[type-var]
    if len(set(verdicts)) > 1:
        found |= {f"{key}_verdict": "not settled", key + UNSETTLED_BY: SPREAD}
    return found
