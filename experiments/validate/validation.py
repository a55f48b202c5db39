"""`specfleet validate`: simulates measured benchmark points and scores the predictions."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specfleet.experiments.run.processes import default_jobs
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.schema.faults import Fault, InputFaults
from specfleet.experiments.validate.bench import read_bench
from specfleet.experiments.validate.columns import read_csv
from specfleet.experiments.validate.points import Readout
from specfleet.experiments.validate.profiles import FOLDER
from specfleet.experiments.validate.report import report
from specfleet.experiments.validate.runs import METHODS, Scored, in_mode, predict_all
from specfleet.experiments.validate.score import block, by_load, campaign_group, groups, model_group, ratios

PUBLISHED = FOLDER / "published.csv"
"""The shipped table of published points."""

MODES = ("given", "predicted")


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
        except (ValueError, UnicodeDecodeError) as error:
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


def validate_command(
    paths: Sequence[Path] = (),
    *,
    serve: Path | None = None,
    seeds: int = 4,
    jobs: int | None = None,
    mode: str = "given",
    method: str | None = None,
    as_json: bool = False,
    max_mape: float | None = None,
    frozen: bool = False,
    figure: Path | None = None,
    quiet: bool = False,
) -> int:
    """Runs the command; results on stdout, progress and errors on stderr.

    Returns:
        0 done; 1 if the mean error of mean TPOT exceeds `max_mape` or a point could not be simulated;
        2 if rows name a model, GPU, drafter or engine that is not known.

    Raises:
        InputFaults: for a file that cannot be read or an option that is not known.
    """
    _check_options(mode, method, seeds)
    readout = read_points(paths, serve, frozen)
    for error, n in sorted(readout.errors.items()):
        print(f"error: {n} row{'s' if n > 1 else ''}: {error}", file=sys.stderr)
    result = validate(
        readout,
        seeds=seeds,
        jobs=jobs or default_jobs(),
        mode=mode,
        method=method,
        reporter=Reporter(len(readout.points), quiet),
    )
    for error, n in sorted((result.errors - readout.errors).items()):
        print(f"error: {n} row{'s' if n > 1 else ''}: {error}", file=sys.stderr)
    print(json.dumps(result.json(), indent=1) if as_json else report(result))
    if figure is not None and result.scored:
        from specfleet.experiments.validate.figure import draw

        for path in draw(result.scored, figure):
            print(f"figure: {path}", file=sys.stderr)
    if readout.errors:
        return 2
    return 1 if result.errors or not _within(result, max_mape) else 0


def _check_options(mode: str, method: str | None, seeds: int) -> None:
    faults = []
    if mode not in MODES:
        faults.append(Fault("command line", 0, "--mode", f"{mode!r} is unknown; use {' or '.join(MODES)}"))
    if method is not None and method not in METHODS:
        faults.append(
            Fault("command line", 0, "--method", f"{method!r} is unknown; use {' or '.join(METHODS)}")
        )
    if seeds < 1:
        faults.append(Fault("command line", 0, "--seeds", f"{seeds} is none; use 1 or more"))
    if faults:
        raise InputFaults(faults)


def _within(result: Validation, max_mape: float | None) -> bool:
    """Returns whether mean TPOT is as good as asked; nothing scored is not."""
    if max_mape is None:
        return True
    tpot = block(result.scored).get("tpot_mean_ms")
    if tpot is None:
        print("error: no row with a mean TPOT was scored", file=sys.stderr)
        return False
    if tpot["mean_abs_pct"] > max_mape:
        print(f"mean TPOT is off by {tpot['mean_abs_pct']:.2f} %, more than {max_mape:g} %", file=sys.stderr)
        return False
    return True
