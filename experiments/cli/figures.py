"""The commands that draw what a folder holds: plot and report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specfleet.experiments.cli.base import plain_errors

if TYPE_CHECKING:
    from specfleet.experiments.run.processes import Workers


class FileFormat(StrEnum):
    """Of a figure's file."""

    PNG = "png"
    SVG = "svg"


Folder = Annotated[Path, typer.Argument(metavar="RUN", help="results/NAME, its latest, or results/NAME/2.")]
Formats = Annotated[
    list[FileFormat] | None,
    typer.Option("--format", help="png or svg; repeat for both (default: the file's report.formats)."),
]


def draw(folder: Path, workers: Workers | None = None, formats: Sequence[str] | None = None) -> list[Path]:
    """Draws the figures of a finished run; returns the paths."""
    from specfleet.experiments.figures.run import draw_run

    return draw_run(folder, workers, formats)


def say_stale(*runs: Path) -> None:
    """Says on stderr what changed since the runs were made."""
    from specfleet.experiments.run.results import read_results

    for run in runs:
        found = read_results(run)
        for said in found.stale:
            print(f"note: {found.folder}: {said}", file=sys.stderr)


def plot(run: Folder, format_: Formats = None) -> None:
    """Draw the figures of a finished run, break-even search or plan again, from what its folder holds."""
    from specfleet.experiments.page.study import kind_of

    with plain_errors():
        if kind_of(run) == "run":
            say_stale(run)
        for path in _draw_again(run, [str(one) for one in format_ or ()] or None):
            print(path)


def report(
    run: Folder,
    out: Annotated[Path | None, typer.Option("--out", help="The page (default: RUN/report.html).")] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also draw the figures, of a run made with --no-plots.")
    ] = False,
) -> None:
    """Write a finished run, a plan or a break-even search as one self-contained HTML page."""
    from specfleet.experiments.page.study import kind_of, write_study
    from specfleet.experiments.page.write import write_report

    with plain_errors():
        is_run = kind_of(run) == "run"
        if is_run:
            say_stale(run)
        drawn = _draw_again(run) if figures else []
        for path in (write_report(run, out) if is_run else write_study(run, out), *drawn):
            print(path)


def _draw_again(run: Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Draws the figures of a run, a plan or a break-even search from what its folder holds."""
    from specfleet.experiments.page.study import kind_of

    kind = kind_of(run)
    if kind == "breakeven":
        from specfleet.experiments.breakeven.figures import drawn_again

        return drawn_again(run, formats)
    if kind == "plan":
        from specfleet.experiments.plan.again import drawn_again as plan_drawn_again

        return plan_drawn_again(run, formats)
    return draw(run, formats=formats)
