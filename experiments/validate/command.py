"""`specfleet validate`: simulates measured benchmark points and scores the predictions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from specfleet.experiments.run.cluster.crew import crew
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.schema.faults import Fault, InputFaults
from specfleet.experiments.tools.read import check_format
from specfleet.experiments.validate.figures import draw_validation
from specfleet.experiments.validate.report import validation_text
from specfleet.experiments.validate.runs import METHODS
from specfleet.experiments.validate.score import block
from specfleet.experiments.validate.validation import Validation, read_points, validate
from specfleet.experiments.words.width import say

MODES = ("given", "predicted")


def validate_command(
    paths: Sequence[Path] = (),
    *,
    serve: Path | None = None,
    format_: str | None = None,
    seeds: int = 4,
    jobs: int | None = None,
    cluster: str | None = None,
    mode: str = "given",
    method: str | None = None,
    as_json: bool = False,
    max_mape: float | None = None,
    frozen: bool = False,
    free: bool = False,
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
    check_format(format_)
    readout = read_points(paths, serve, frozen, format_)
    for text in readout.said:
        print(text, file=sys.stderr)
    for error, n in sorted(readout.errors.items()):
        print(f"error: {n} row{'s' if n > 1 else ''}: {error}", file=sys.stderr)
    reporter = Reporter(len(readout.points), quiet)
    with crew(jobs, cluster, reporter.say) as workers:
        result = validate(
            readout, seeds=seeds, jobs=workers, mode=mode, method=method, reporter=reporter, free=free
        )
    for error, n in sorted((result.errors - readout.errors).items()):
        print(f"error: {n} row{'s' if n > 1 else ''}: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(result.json(), indent=1))
    else:
        say(validation_text(result))
    if figure is not None and result.scored:
        for path in draw_validation(result.scored, figure):
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
