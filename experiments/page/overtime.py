"""Figures over time, as they are drawn: replicas that follow the load, and replicas that fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from specfleet.experiments.figures.failures import failures
from specfleet.experiments.figures.scaling import scaling
from specfleet.experiments.figures.style import SVG, save, styled
from specfleet.experiments.page.data import Finished
from specfleet.experiments.page.html import Html, picture
from specfleet.experiments.run.results import is_number

MADE = {
    "mean_replicas": ("replicas over time", scaling),
    "failures": ("around failures of replicas", failures),
}
"""By the figure that points have where there is something to draw: the picture's name, and its maker."""


def over_time(run: Finished) -> list[Html]:
    """Returns pictures of a run's replicas over time; none where they neither follow the load nor fail."""
    shown = replace(run.shown, folder=run.folder)
    found: list[Html] = []
    made = [MADE[key] for key in MADE if any(is_number(row.get(key)) for row in run.rows)]
    if not made:
        return found  # and matplotlib is not imported
    with styled(), TemporaryDirectory() as folder:
        for name, make in made:
            if (figure := make(shown)) is not None:
                (path,) = save(figure, Path(folder), name, [SVG])
                found.append(picture(path))
    return found
