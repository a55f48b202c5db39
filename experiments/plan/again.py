"""The figures of a plan drawn again, from what its folder holds; nothing is simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specfleet.experiments.plan.asking import Item, Laboratory, Result
from specfleet.experiments.plan.figures import draw_plan
from specfleet.experiments.plan.planner import ASKED, Planner
from specfleet.experiments.run.files import FolderFault
from specfleet.experiments.run.folder import located, manifest_of
from specfleet.experiments.run.processes import Workers
from specfleet.experiments.schema.faults import UserError


class _Kept(Laboratory):
    """Simulations that were made; others are a fault of the folder."""

    def _missing(
        self,
        keys: Sequence[str],
        items: Sequence[Item],
        known: dict[str, Result],
        read: Callable[[str], Result],
    ) -> dict[str, Item]:
        missing = super()._missing(keys, items, known, read)
        if missing:
            what = "a simulation of the plan, or was made of other files or with another release"
            raise FolderFault(self.folder, f"lacks {what}; go on with plan --resume")
        return missing


def drawn_again(folder: Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Draws the figures of a finished plan again; returns the paths.

    Raises:
        FolderFault: the folder does not hold all of the plan.
        UserError: no candidate meets the limits, so there is nothing to draw.
    """
    place = located(folder)
    manifest: Mapping[str, object] = manifest_of(place) or {}
    if manifest.get("whole") is not True or not (place / ASKED).is_file():
        raise FolderFault(place, f"is no finished plan with its {ASKED}; go on with plan --resume")
    planner = Planner(place / ASKED, (), place)
    planned = planner.made_in(_Kept(place / "simulations", Workers(1)), lambda _: None)
    if planned.winner is None:
        raise UserError(f"{folder}: nothing meets the SLO, so there are no figures")
    return draw_plan(planned, place, formats)
