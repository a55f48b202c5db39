"""The command `specfleet calibrate`: reads results, prints how well they fit, writes profiles."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from specfleet.experiments.calibrate.fit import NUMBERS, Calibration, Unidentified, calibrate, mean_step_s
from specfleet.experiments.calibrate.spread import FittedSpread, fitted_spread
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.validate.bench import read_benches
from specfleet.experiments.validate.points import MeasuredPoint
from specfleet.experiments.words.table import Column, table_text
from specfleet.experiments.words.width import say

NUMBER_COLUMNS = (Column(left=True, width=24), Column(width=9), Column(left=True))
RESULT_COLUMNS = (
    Column("result", left=True),
    Column("step ms", "{:.2f}"),
    Column("before", "{:+.1f}%"),
    Column("fitted", "{:+.1f}%"),
    Column("left out", "{:+.1f}%"),
)


def calibrate_command(
    paths: Sequence[Path],
    *,
    serve: Path,
    out: Path = Path("calibrated.yaml"),
    fit: str = ",".join(NUMBERS),
    format_: str | None = None,
) -> int:
    """Runs the command; the report on stdout.

    Args:
        paths: results that `tools` reads, of one machine.
        serve: an experiment file with the server's arguments under `serve:`.
        out: the engine profile to write; the acceptance goes beside it as NAME.acceptance.yaml.
        fit: comma-separated names out of `NUMBERS`.
        format_: of the results; None tells it from what each file holds.

    Returns:
        0 done; 1 if the results cannot identify the numbers.

    Raises:
        InputFaults: for files or options that are wrong.
    """
    names = tuple(dict.fromkeys(name.strip() for name in fit.split(",") if name.strip()))
    if not names or set(names) - set(NUMBERS):
        message = f"{fit!r} names none to fit; use some of {','.join(NUMBERS)}"
        raise InputFaults([Fault(COMMAND_LINE, 0, "--fit", message)])
    benches = read_benches(paths, serve, format_)
    for text in benches.said:
        print(text, file=sys.stderr)
    points = benches.points
    try:
        found = calibrate(points, [name for name in NUMBERS if name in names])
    except Unidentified as reason:
        print(f"cannot calibrate: {reason}", file=sys.stderr)
        return 1
    spread = fitted_spread(points)
    say(calibration_text(points, found, spread))
    written = [out]
    out.write_text(profile_yaml(points[0], found), encoding="utf-8")
    if found.by_position:
        written.append(out.with_name(f"{out.stem}.acceptance.yaml"))
        written[-1].write_text(acceptance_yaml(points, found, spread), encoding="utf-8")
    for path in written:
        print(f"wrote {path}")
    print(f"use it as serve.engine: {out}")
    return 0


def calibration_text(
    points: Sequence[MeasuredPoint], found: Calibration, spread: FittedSpread | None = None
) -> str:
    """Returns the numbers, and measured and fitted steps side by side."""
    n = found.numbers
    kind = "asynchronous" if found.asynchronous else "synchronous"
    numbers = [
        ["scale of kernel time", f"{n.scale:.3f}", _note("scale", found).lstrip()],
        ["host per step", f"{1e3 * n.step_s:.3f}", f"ms{_note('step', found)} ({kind} scheduling)"],
        ["host per sequence", f"{1e6 * n.sequence_s:.1f}", f"us{_note('sequence', found)}"],
    ]
    lines = [table_text(NUMBER_COLUMNS, numbers, gap=1)]
    if found.by_position:
        lines.append("acceptance by position   " + ", ".join(f"{rate:.3f}" for rate in found.by_position))
    if spread is not None:
        lines.append(f"spread between requests  {spread}, by P99 / mean TPOT of {spread.results} results")
    errors = (found.before_pct, found.errors_pct, found.left_out_pct)
    rows = [
        [point.name, 1e3 * mean_step_s(point), *(error[row] for error in errors)]
        for row, point in enumerate(points)
    ]
    means = [np.abs(error).mean() for error in errors]
    lines += [
        "",
        table_text(RESULT_COLUMNS, rows),
        f"mean error {means[0]:.1f} % before, {means[1]:.1f} % fitted, "
        f"{means[2]:.1f} % when left out (worst {np.abs(found.left_out_pct).max():.1f} %)",
        *dict.fromkeys(f"note: {text}" for point in points for text in point.assumptions),
    ]
    return "\n".join(lines)


def _note(name: str, found: Calibration) -> str:
    if name in found.at_zero:
        return " (would be below zero)"
    return "" if name in found.fitted else " (not fitted)"


def profile_yaml(point: MeasuredPoint, found: Calibration) -> str:
    """Returns the engine profile: its base with the calibrated numbers, and where they come from."""
    n = found.numbers
    prefix = "host_async_s" if found.asynchronous else "host_sync_s"
    error = float(np.abs(found.left_out_pct).mean())
    profile = {
        "base": point.placement.profile.name,
        "name": f"{point.placement.profile.name}-calibrated",
        "kernel_time_scale": round(n.scale, 4),
        prefix: float(f"{n.step_s:.4g}"),
        f"{prefix}_per_request": float(f"{n.sequence_s:.4g}"),
        "source": {
            "calibration": f"{', '.join(found.fitted)} fitted to {len(found.errors_pct)} results of "
            f"{point.placement.model.name} on {point.placement.accelerator.name}; "
            f"mean leave-one-out error {error:.1f} %"
        },
    }
    return yaml.safe_dump(profile, sort_keys=False, allow_unicode=True, width=110)


def acceptance_yaml(points: Sequence[MeasuredPoint], found: Calibration, spread: FittedSpread | None) -> str:
    """Returns the `acceptance:` block of an experiment; without a fitted spread P99 will be a band."""
    block = {
        "by_position": [round(rate, 4) for rate in found.by_position],
        **(spread.block() if spread is not None else {}),
        "source": f"pooled over {len(points)} benchmark results",
    }
    return yaml.safe_dump(block, sort_keys=False, width=110)
