"""Measured points read, predicted and scored."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.schema.faults import Fault, InputFaults
from specfleet.experiments.validate.bench import read_bench
from specfleet.experiments.validate.columns import read_csv
from specfleet.experiments.validate.points import Readout
from specfleet.experiments.validate.profiles import FOLDER
from specfleet.experiments.validate.runs import Scored, in_mode, predict_all
from specfleet.experiments.validate.score import block, by_load, campaign_group, groups, model_group, ratios

PUBLISHED = FOLDER / "published.csv"
"""The shipped table of published points."""


@dataclass(frozen=True)
class Validation:
    """Predictions for measured points, and what could not be scored.

    Args:
        scored: points with their predictions.
        skipped: reasons with counts.
        errors: unknown names, and points that cannot be simulated, with counts.
    """

    scored: list[Scored]
    skipped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def json(self) -> dict[str, object]:
        """Returns the scores as `--json` prints them."""
        usable = self.scored
        return {
            "overall": block(usable),
            "c<=64": block(by_load(usable, high=False)),
            "c>64": block(by_load(usable, high=True)),
            "groups": groups(usable, model_group),
            "ratios": ratios(usable),
            "rows_scored": len(usable),
            "skipped": [{"reason": reason, "n": n} for reason, n in sorted(self.skipped.items())],
            "campaigns": groups(usable, campaign_group),
            "transient": block(usable, transient=True),
            "errors": [{"error": error, "n": n} for error, n in sorted(self.errors.items())],
        }


def read_points(paths: Sequence[Path], serve: Path | None, frozen: bool) -> Readout:
    """Reads CSV files and benchmark results.

    Args:
        paths: CSV with known columns, or JSON of `vllm bench serve`; none reads the shipped table.
        serve: the server's arguments for JSON results.
        frozen: published constants instead of those found for a machine.

    Raises:
        InputFaults: for a file of another kind, or JSON without `serve`.
    """
    readout = Readout()
    for path in paths or (PUBLISHED,):
        if path.suffix.lower() == ".json":
            if serve is None:
                message = "a benchmark result says nothing about the server; add --serve ARGS.yaml"
                raise InputFaults([Fault(str(path), 0, "", message)])
            readout.points.append(read_bench(path, serve))
            continue
        try:
            found = read_csv(path, frozen)
        except (ValueError, csv.Error) as error:
            raise InputFaults([Fault(str(path), 0, "", str(error))]) from None
        readout.points += found.points
        readout.skipped += found.skipped
        readout.errors += found.errors
    return readout


def validate(
    readout: Readout, *, seeds: int, jobs: int, mode: str, method: str | None, reporter: Reporter
) -> Validation:
    """Predicts every point and gathers what could not be.

    Args:
        readout: the measurements.
        seeds: simulations a point.
        jobs: processes.
        mode: acceptance "given" by each row, or "predicted" from the others.
        method: "simulate", "closed_form" or None for each kind's own.
        reporter: told of every finished point.
    """
    points, lost = in_mode(readout.points, mode)
    skipped, errors = readout.skipped.copy(), readout.errors.copy()
    if lost:
        skipped["no other row of this drafter and data set to predict acceptance from"] += lost
    reporter.total = len(points)
    with reporter:
        found = predict_all(points, seeds, method, jobs, reporter.finished)
    for one in found:
        if one.failure:
            errors[one.failure] += 1
    return Validation([one for one in found if not one.failure], skipped, errors)
