"""Measured points read, predicted and scored."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from specfleet.experiments.run.processes import Workers
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.schema.faults import Fault, InputFaults
from specfleet.experiments.validate.bench import read_benches
from specfleet.experiments.validate.columns import SERVED
from specfleet.experiments.validate.free import Variant, variants
from specfleet.experiments.validate.points import Readout
from specfleet.experiments.validate.profiles import FOLDER
from specfleet.experiments.validate.runs import Scored, in_mode, predict_all
from specfleet.experiments.validate.score import block, by_load, campaign_group, groups, model_group, ratios
from specfleet.experiments.validate.tables import read_csv

PUBLISHED = FOLDER / "published.csv"
"""The shipped table of published points."""


@dataclass(frozen=True)
class Validation:
    """Predictions for measured points, and what could not be scored.

    Args:
        scored: points with their predictions.
        skipped: reasons with counts.
        errors: unknown names, and points that cannot be simulated, with counts.
        why: rows that are not scored, each with the reason.
        variants: the drafting rows without matching and with other spreads, where asked for.
    """

    scored: list[Scored]
    skipped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    why: dict[str, str] = field(default_factory=dict)
    variants: Sequence[Variant] = ()

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
            "not_scored": self.why,
            "errors": [{"error": error, "n": n} for error, n in sorted(self.errors.items())],
            "variants": [asdict(one) for one in self.variants],
        }


def read_points(
    paths: Sequence[Path], serve: Path | None, frozen: bool, format_: str | None = None
) -> Readout:
    """Reads CSV files and results of other tools.

    Args:
        paths: CSV with known columns, or results that `tools` reads; none reads the shipped table.
        serve: the server's arguments for results.
        frozen: published constants instead of those found for a machine.
        format_: of the results; None tells it from what each file holds.

    Raises:
        InputFaults: for a file of another kind, or a result without `serve`.
    """
    readout = Readout()
    tables = [path for path in paths if format_ is None and _is_table(path)]
    results = [path for path in paths if path not in tables]
    if results and serve is None:
        message = "a benchmark result says nothing about the server; add --serve ARGS.yaml"
        raise InputFaults([Fault(str(path), 0, "", message) for path in results])
    if results and serve is not None:
        benches = read_benches(results, serve, format_)
        readout.points += benches.points
        readout.said += benches.said
    for path in tables if paths else (PUBLISHED,):
        try:
            found = read_csv(path, frozen)
        except (ValueError, csv.Error) as error:
            raise InputFaults([Fault(str(path), 0, "", str(error))]) from None
        readout.points += found.points
        readout.skipped += found.skipped
        readout.errors += found.errors
        readout.why |= found.why
    return readout


def _is_table(path: Path) -> bool:
    """Whether a file is a table of measured points: by its name, or by its header."""
    if path.suffix.lower() == ".csv":
        return True
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            header = file.readline(10_000).strip().split(",")
    except (OSError, ValueError):
        return False
    return SERVED in header or {"target_model", "gpu"} <= set(header)


def validate(
    readout: Readout,
    *,
    seeds: int,
    jobs: int | Workers,
    mode: str,
    method: str | None,
    reporter: Reporter,
    free: bool = False,
) -> Validation:
    """Predicts every point and gathers what could not be.

    Args:
        readout: the measurements.
        seeds: simulations a point.
        jobs: processes, or those to work in.
        mode: acceptance "given" by each row, or "predicted" from the others.
        method: "simulate", "closed_form" or None for each kind's own.
        reporter: told of every finished point.
        free: also without matching, and with other spreads between requests.
    """
    points, lost = in_mode(readout.points, mode)
    skipped, errors, why = readout.skipped.copy(), readout.errors.copy(), dict(readout.why)
    if lost:
        skipped["no other row of this drafter and data set to predict acceptance from"] += lost
    reporter.total = len(points)
    with reporter:
        found = predict_all(points, seeds, method, jobs, reporter.finished)
    for one in found:
        if one.failure:
            errors[one.failure] += 1
            why[one.point.name] = one.failure
    others = (
        variants(points, found, seeds=seeds, method=method, jobs=jobs, quiet=reporter.quiet) if free else ()
    )
    return Validation([one for one in found if not one.failure], skipped, errors, why, others)
