"""How fast a run's steps were made: by the calendar, or stepped, which takes 2 to 25 times as long."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from specfleet.experiments.run.files import read_object
from specfleet.sim.disaggregation.config import STEPPED

LEAST_SHARE = 0.01
"""Share of a simulation's steps below which nothing is said."""


def stepped_sentences(folder: Path) -> list[str]:
    """Returns a sentence a reason for which simulations of a run were stepped, the commonest first.

    Args:
        folder: of the run; `engine.json` of each point and seed has `stepped`.
    """
    # prompts for others are stepped in any case, and are a small part of such a run
    shares: dict[str, list[float]] = {}
    found = sorted(folder.glob("points/*/engine.json"))
    for path in found:
        stepped = read_object(path).get("stepped")
        if isinstance(stepped, Mapping) and float(stepped["share"]) >= LEAST_SHARE:
            shares.setdefault(str(stepped["because"]), []).append(float(stepped["share"]))
    return [
        f"{len(mine)} of {len(found)} simulations were stepped in up to {max(mine):.0%} of their iterations, "
        f"which takes 2 to 25 times as long: {because or 'steps that the calendar cannot take'}."
        for because, mine in sorted(shares.items(), key=lambda entry: -len(entry[1]))
        if because != STEPPED
    ]
