"""How the energy of a run, and its replicas that follow the load, compare with another's."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from specfleet.hardware.power.draw import IDLE_SHARE, KINDS, SHARES, Kind

ENERGY = "energy_j_per_output_token"
FIRST, STARTING_TTFT = "first_scale_out_s", "starting_p99_ttft_ms"
LATER, HOURS, TAIL = "scale_out_later_s", "gpu_hours_x_plain", "starting_p99_ttft_x_plain"
"""Against the baseline, seed by seed; a row has `_low` and `_high` of each."""
X_PLAIN = ("energy_x_plain_low", "energy_x_plain", "energy_x_plain_high")


def energy_against(pairs: Sequence[tuple[Mapping[str, object], Mapping[str, object]]]) -> dict[str, object]:
    """Returns the joules an output token of a point over its baseline's, with their range: mean over seeds.

    Args:
        pairs: figures of both, a pair a seed; nothing is returned where one of them has no energy.
    """
    found = [energy_ratio(mine, plain) for mine, plain in pairs]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return {}
    return {
        name: sum(each) / len(known) for name, each in zip(X_PLAIN, zip(*known, strict=True), strict=True)
    }


def energy_ratio(
    mine: Mapping[str, object], plain: Mapping[str, object]
) -> tuple[float, float, float] | None:
    """Returns the joules an output token of one run over another's: low, middle, high; None of runs without.

    What a GPU draws in each kind of time is not known well, but it is the same in both: the range is over all
    corners of `SHARES`.

    Args:
        mine, plain: figures of `energy_of`.
    """
    sides = []
    for figures in (mine, plain):
        kinds = {kind: _number(figures, f"gpu_{kind}_share") for kind in KINDS}
        if not _number(figures, ENERGY) > 0.0:
            return None
        sides.append((kinds, _number(figures, ENERGY)))

    def drawn(kinds: Mapping[Kind, float], shares: Mapping[Kind, float]) -> float:
        return IDLE_SHARE + (1.0 - IDLE_SHARE) * sum(shares[kind] * kinds[kind] for kind in KINDS)

    middle = {kind: SHARES[kind].middle for kind in KINDS}
    ratio = sides[0][1] / sides[1][1]

    def at(shares: Mapping[Kind, float]) -> float:
        mine_at, plain_at = (drawn(kinds, shares) / drawn(kinds, middle) for kinds, _ in sides)
        return ratio * mine_at / plain_at

    ends = itertools.product(*((SHARES[kind].low, SHARES[kind].high) for kind in KINDS))
    corners = [at(dict(zip(KINDS, corner, strict=True))) for corner in ends]
    return min(corners), ratio, max(corners)


def _number(figures: Mapping[str, object], key: str) -> float:
    value = figures.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def scaling_against(
    pairs: Sequence[tuple[Mapping[str, object], Mapping[str, object]]],
) -> dict[str, float]:
    """Returns the least and the most, over seeds, of what a point does against its baseline.

    How much later the first replica is ordered, seconds; GPU-hours and P99 TTFT while replicas start, as
    ratios. A figure that a seed lacks is left out: there nothing was ordered.

    Args:
        pairs: figures of both, a pair a seed.
    """
    found: dict[str, list[float]] = {LATER: [], HOURS: [], TAIL: []}
    for mine, plain in pairs:
        for name, key in ((LATER, FIRST), (HOURS, "gpu_hours"), (TAIL, STARTING_TTFT)):
            a, b = mine.get(key), plain.get(key)
            if isinstance(a, int | float) and isinstance(b, int | float):
                found[name].append(a - b if name == LATER else a / b)
    ends = (("low", min), ("high", max))
    return {f"{name}_{end}": least(each) for name, each in found.items() if each for end, least in ends}
