"""A run's folder: reading it back, and the summary over replications.

    results/NAME/  experiment.yaml  resolved.yaml  manifest.json  summary.csv  plots/
                   points/ID/{requests.csv, bench.json, engine.json, _SUCCESS}

`read_results(RUN)` gives pandas DataFrames.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from specfleet.experiments.load.sweep import Point, with_ends
from specfleet.experiments.run.band import bands
from specfleet.experiments.run.cells import cell_text, text_cell
from specfleet.experiments.run.costs.ratio import energy_against, scaling_against
from specfleet.experiments.run.files import WHOLE, FolderFault, read_object, read_table
from specfleet.experiments.run.folder import check_whole, folders_of, located, manifest_of, stale
from specfleet.experiments.run.gains import columns, of_replications
from specfleet.experiments.run.judged import Requests
from specfleet.experiments.run.known import AT_MOST, NOT_KNOWN, loose
from specfleet.sim.statistics.verdict import LEAST_GAIN

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, object]
"""A point: its axes' values under their dotted keys, and its figures."""

STUDENT_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom (standard table)."""

KEPT = 4_096
"""Simulations whose figures are kept while rows are made, for those that are compared with them."""
NOT_SUMMARISED = (
    "latencies",
    "queue_times",
    "refusals",
    "replicas",
    "pools",
    "tpot_split",
    "spec_decode_per_position_acceptance_rates",
)
SPEEDUPS = {
    "speedup_output_throughput": ("output_throughput", 1),
    "speedup_mean_tpot": ("mean_tpot_ms", -1),
    "speedup_p99_tpot": ("p99_tpot_ms", -1),
}
"""Ratio to the baseline: (metric, +1 where more is better, -1 where less is)."""
TASK_SPEEDUPS = {
    "speedup_mean_task": ("mean_task_s", -1),
    "speedup_p99_task": ("p99_task_s", -1),
    "speedup_mean_task_model": ("mean_task_model_s", -1),
}
"""Ratios to the baseline, as `SPEEDUPS`, where requests are turns of sessions."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether a cell holds a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def as_number(value: object) -> float:
    """Returns a cell that holds a number, which need not be finite.

    Raises:
        TypeError: if it holds something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def number(row: Mapping[str, object], key: str) -> float:
    """Returns the cell `key` of a row.

    Raises:
        KeyError: if there is none.
        TypeError: if it holds no number.
    """
    return as_number(row[key])


def half_width_95(values: Sequence[float]) -> float:
    """Returns the half width of the 95 % interval of a mean; NaN for a single value."""
    n = len(values)
    if n < 2:
        return math.nan
    mean = sum(values) / n
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    t = STUDENT_T_95[min(n - 2, len(STUDENT_T_95) - 1)]
    return t * deviation / math.sqrt(n)


def point_figures(folder: Path) -> Mapping[str, object]:
    """Returns the figures of one finished (point, seed) folder."""
    return {**read_object(folder / "bench.json"), **read_object(folder / "engine.json")}


def summarise(
    points: Sequence[Point],
    seeds: Sequence[int],
    folder: Path,
    baseline: Mapping[str, object] | None,
    least_gain: float = LEAST_GAIN,
) -> list[Row]:
    """Returns a row a point: axes, means over seeds, 95 % half widths, and ratios to the baseline.

    Ratios are taken seed by seed, on the same requests and the same luck, and then averaged. A
    point none of whose seeds finished is left out. Intervals and verdicts of ratios, and what an
    open loop offered and served, come from the requests, where they were kept. Where the spread between
    requests is not known, P99 is a band (`run.band`).
    """
    read, figures, others = Requests(folder), _Figures(folder), Baselines(points, baseline)
    found = {
        (point.id, seed)
        for point in with_ends(points)
        for seed in seeds
        if (folder / "points" / f"{point.id},seed={seed}" / WHOLE).exists()
    }

    def traffic(point: Point) -> Row:
        return read.traffic(point, [seed for seed in seeds if (point.id, seed) in found])

    rows: list[Row] = []
    for point in points:
        finished = [seed for seed in seeds if (point.id, seed) in found]
        if not finished:
            continue
        mine = [figures.of(point.id, seed) for seed in finished]
        row: Row = {"point": point.id, **point.axes, "replications": len(mine), **means(mine)}
        came = traffic(point)
        row |= came | _known(read, point, finished, came.get("state"))
        other = others.of(point)
        if other is not None and other is not point:
            traffic(other)

        def ratios(one: Point, plain: Point, row: Row = row) -> Row:
            both = [seed for seed in seeds if (one.id, seed) in found and (plain.id, seed) in found]
            pairs = [(figures.of(one.id, seed), figures.of(plain.id, seed)) for seed in both]
            row = row | speedups(pairs, least_gain)
            return row | read.gains(one, plain, both, row, least_gain)

        if other is not None:
            row = ratios(point, other)
        ends = []
        for end in point.ends:
            if all((end.id, seed) in found for seed in finished):
                at = means([figures.of(end.id, seed) for seed in finished])
                ends.append(at if other is None else at | ratios(end, other.at_end_of(end), at))
        billed = [seed for seed in finished if _all_there(point, seed, found)]
        whole = row | bands(row, ends) | (read.bill(point, billed, least_gain) if billed else {})
        rows.append({sys.intern(key): value for key, value in whole.items()})
    return rows


class _Figures:
    """The figures of a run's simulations, read when asked for; the last ones are kept.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.of = lru_cache(maxsize=KEPT)(self._read)

    def _read(self, point: str, seed: int) -> Mapping[str, object]:
        return point_figures(self._folder / "points" / f"{point},seed={seed}")


def _all_there(point: Point, seed: int, found: Container[tuple[str, int]]) -> bool:
    """Whether all that a point's bill is made of is finished at a seed."""
    return all((one.id, seed) in found for one in (point, *point.switched_off.values()))


def _known(read: Requests, point: Point, seeds: Sequence[int], state: object) -> Row:
    """Returns, of a point that goes on until it is settled, which figures are not known as well as asked.

    Of a saturated one none is asked, as in `growth.looked`: its latencies are as long as its run.
    """
    runs = read.runs(point, seeds) if point.config.workload.goes_on else None
    if runs is None:
        return {}
    found = [] if state == "saturated" else loose(runs, point.config.run.precision)
    return {NOT_KNOWN: ", ".join(each.said for each in found), AT_MOST: point.config.run.at_most}


def means(figures: Sequence[Mapping[str, object]]) -> Row:
    """Returns the mean over seeds of each figure that is a number, with the half width of its interval."""
    row: Row = {}
    for key in figures[0]:
        numbers = [float(v) for one in figures if isinstance(v := one.get(key), int | float)]
        if key not in (*NOT_SUMMARISED, "date", "label") and len(numbers) == len(figures):
            row[key] = sum(numbers) / len(numbers)
            row[f"{key}_ci95"] = half_width_95(numbers)
    return row


class Baselines:
    """What each point of a grid is compared with.

    Args:
        points: of the grid.
        baseline: axis -> the value that the others are compared with; None or empty where nothing is.
    """

    def __init__(self, points: Sequence[Point], baseline: Mapping[str, object] | None) -> None:
        self._baseline = baseline or {}
        backwards = reversed(points if self._baseline else ())
        self._at = {_hashable(point.axes): point for point in backwards}

    def of(self, point: Point) -> Point | None:
        """Returns the first point that has the axes of `point` with the baseline's values in place."""
        return self._at.get(_hashable({**point.axes, **self._baseline})) if self._baseline else None


def _hashable(value: object) -> Hashable:
    """A value of axes as a key: equal for equal values."""
    if isinstance(value, Mapping):
        return frozenset((key, _hashable(child)) for key, child in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value if isinstance(value, Hashable) else repr(value)


def speedups(pairs: Sequence[tuple[Mapping[str, object], Mapping[str, object]]], least_gain: float) -> Row:
    """Returns the ratios to the baseline, seed by seed and then averaged, and what these alone settle.

    Args:
        pairs: the figures of a point and of the one that it is compared with, a pair a seed that both have.
        least_gain: what a ratio must exceed 1 by to count.
    """
    row: Row = {}
    by_class = [key for key in (pairs[0][0] if pairs else ()) if key.startswith("class:") and "tpot" in key]
    by_task = {name: of for name, of in TASK_SPEEDUPS.items() if pairs and all(of[0] in p[0] for p in pairs)}
    for key in pairs[0][0] if pairs else ():
        if (
            key.startswith("class:")
            and key.endswith(":mean_task_model_s")
            and all(key in p for _, p in pairs)
        ):
            by_task[f"speedup:task:{key.split(':')[1]}"] = (key, -1)
    speedups = SPEEDUPS | by_task | {f"speedup:{key}": (key, -1) for key in by_class}
    for name, (metric, sign) in speedups.items():
        ratios = []
        for mine, theirs in pairs:
            a, b = number(mine, metric), number(theirs, metric)
            if a > 0 and b > 0:
                ratios.append((a / b) ** sign)
        if ratios:
            row[name] = sum(ratios) / len(ratios)
            row[f"{name}_ci95"] = half_width_95(ratios)
            row |= columns(name, of_replications(ratios), least_gain)
    scaled = scaling_against(pairs) if any("mean_replicas" in mine for mine, _ in pairs) else {}
    return row | energy_against(pairs) | scaled


def write_summary(path: Path, rows: Sequence[Row]) -> None:
    """Writes summary.csv: the columns of all rows in order of appearance, empty where a row has none."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow([_cell(row.get(key)) for key in header])


def _value(cell: object) -> object:
    """Returns the value that `_cell` made a cell of."""
    return cell_text(cell) if isinstance(cell, str) else cell


def _cell(value: object) -> object:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.9g}"
    if isinstance(value, str):
        return text_cell(value)
    return "" if value is None else value


@dataclass(frozen=True)
class Results:
    """A finished run, as pandas reads it.

    Attributes:
        folder: the run's folder.
        manifest: versions, seeds, points, notices.
        summary: a row a point (`summary.csv`); axes are columns under their dotted keys.
        stale: what changed since the run was made, the release or a file it read, a sentence each.
    """

    folder: Path
    manifest: Mapping[str, object]
    summary: pd.DataFrame
    stale: tuple[str, ...] = ()

    @property
    def axes(self) -> list[str]:
        """The swept keys that the summary has as columns."""
        axes = self.manifest.get("axes")
        return [key for key in axes if key in self.summary.columns] if isinstance(axes, dict) else []

    @property
    def report(self) -> Mapping[str, object]:
        """The `report:` block; empty where the manifest has none."""
        report = self.manifest.get("report")
        return report if isinstance(report, dict) else {}

    @property
    def rows(self) -> list[Row]:
        """The rows of the summary; empty cells are left out, but None in the columns of axes."""
        axes, rows = self.axes, []
        for record in self.summary.to_dict("records"):
            cells = {
                str(key): None if isinstance(value, float) and math.isnan(value) else _value(value)
                for key, value in record.items()
            }
            rows.append({key: value for key, value in cells.items() if value is not None or key in axes})
        return rows

    def requests(self, point: str, seed: int | None = None) -> pd.DataFrame:
        """Returns the requests of a point, a row each, times in milliseconds.

        Args:
            point: the value of the summary's `point` column.
            seed: one replication; None gives all, with a column `seed`.

        Raises:
            FileNotFoundError: the run kept no requests (`report.requests: none`).
        """
        import pandas as pd

        frames = []
        for folder in self._folders(point, seed):
            if not (folder / "requests.csv").is_file():
                raise FileNotFoundError(
                    f"{folder} has no requests.csv: the run kept figures alone (report.requests: none); "
                    "run it with report.requests: all"
                )
            frame = read_table(folder / "requests.csv")
            frame["seed"] = int(folder.name.rpartition("seed=")[2])
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    def bench(self, point: str, seed: int | None = None) -> Mapping[str, object]:
        """Returns the `vllm bench serve` result of a point (its first seed if none is given)."""
        return read_object(self.folder_of(point, seed) / "bench.json")

    def folder_of(self, point: str, seed: int | None = None) -> Path:
        """Returns the folder of a point (of its first seed if none is given)."""
        return self._folders(point, seed)[0]

    def _folders(self, point: str, seed: int | None) -> list[Path]:
        pattern = f"{point},seed={'*' if seed is None else seed}"
        every = folders_of(self.folder, point)
        folders = [p for p in every if (seed is None or p.name == pattern) and (p / WHOLE).exists()]
        if not folders:
            names = ", ".join(map(str, self.summary["point"][:5]))
            raise KeyError(f"no finished point {pattern!r} in {self.folder}; there are {names}, ..")
        return folders


def read_results(run: Path | str, whole: bool = True) -> Results:
    """Reads a run's folder.

    Args:
        run: the folder, or one with numbered runs, of which the latest is read.
        whole: whether the run must be whole; else what was there at its last end is read.

    Raises:
        FileNotFoundError: if it is not the folder of a finished run.
        FolderFault: if the run is not whole, or a file in its folder was changed or damaged.
    """
    folder = located(Path(run))
    manifest = manifest_of(folder)
    if manifest is None:
        raise FileNotFoundError(
            f"{folder} has no manifest.json of a run; it is not the folder of a finished run"
        )
    if (kind := manifest.get("kind", "run")) != "run":
        raise FolderFault(folder, f"is a folder of `specfleet {kind}`, not of a run")
    check_whole(folder, manifest, whole)
    if not (folder / "summary.csv").is_file():
        raise FileNotFoundError(f"{folder} has no summary.csv; it is not the folder of a finished run")
    if not (folder / "summary.csv").read_text(encoding="utf-8", errors="replace").strip():
        raise FileNotFoundError(f"{folder} holds no finished point; see its manifest.json for the failures")
    return Results(folder, manifest, read_table(folder / "summary.csv"), tuple(stale(manifest)))
