"""`specfleet compare RUN --measured FILE...`: a user's own results beside what a run predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specfleet.experiments.figures.data import Line, Shown, read
from specfleet.experiments.figures.measured import (
    METRICS,
    MeasuredResult,
    has_load,
    line_of,
    measured,
    predicted,
)
from specfleet.experiments.figures.style import save, styled
from specfleet.experiments.run.folder import located
from specfleet.experiments.schema.faults import UserError
from specfleet.experiments.tools.read import read_tool, read_tools
from specfleet.experiments.tools.result import ToolResult
from specfleet.experiments.words.names import name_and_unit, noun
from specfleet.experiments.words.table import Column, table_text
from specfleet.experiments.words.values import text

COLUMNS = (
    Column("figure", left=True),
    Column("measured", "{:,.2f}"),
    Column("predicted", "{:,.2f}"),
    Column("off by", "{:+.1%}"),
    Column(left=True),
)


def read_measured(path: Path, format_: str | None = None) -> list[MeasuredResult]:
    """Returns the measured results of a file of any tool whose output can be read.

    Args:
        path: of the file.
        format_: a name in `tools.read.FORMATS`; None tells it from what the file holds.

    Raises:
        InputFaults: for a file that is none.
    """
    return [_of(one) for one in read_tool(path, format_).results]


def _of(result: ToolResult) -> MeasuredResult:
    rate = None if result.request_rate in ("", "inf") else float(result.request_rate)
    return MeasuredResult(
        name=result.name,
        figures={key: result.numbers[key] for key in METRICS if result.numbers.get(key, 0.0) > 0.0},
        max_concurrency=result.max_concurrency,
        request_rate=rate,
        drafts=result.drafts,
        notes=result.notes,
    )


def measured_command(run: Path, files: Sequence[Path], format_: str | None = None) -> tuple[str, list[Path]]:
    """Draws results over a run's curves into its `plots/`.

    Returns:
        How each file was read, a table a result, and the paths of the figure.

    Raises:
        FileNotFoundError, FolderFault, InputFaults, UserError: for what cannot be read, or compared.
    """
    readings = read_tools(files, format_)
    results = [_of(one) for reading in readings for one in reading.results]
    shown = read(run)
    if not has_load(shown):
        raise UserError(
            f"{run} is not swept over a load, and a measured result lies at one; sweep "
            "workload.max_concurrency or workload.request_rate"
        )
    parts = ["\n".join(reading.said() for reading in readings)]
    parts += [text for one in results for text in _texts(shown, one)]
    with styled():
        figure = measured(shown, results)
        drawn = save(figure, located(run) / "plots", "measured", shown.formats) if figure is not None else []
    return "\n\n".join(parts), drawn


def _texts(shown: Shown, one: MeasuredResult) -> list[str]:
    """Returns a table of a result beside the line of its K, or beside every line where it does not say K."""
    along = str(shown.along)
    load = one.load(along)
    if load is None:
        return [f"{one.name}: states no {noun(along)}, over which the run is swept; it is not compared."]
    drafts = "drafts not stated" if one.drafts is None else f"K = {one.drafts}"
    head = f"{one.name}: {noun(along)} {text(load)}, {drafts}"
    line = line_of(shown, one)
    lines = [line] if line is not None else list(shown.lines) if one.drafts is None else []
    if not lines:
        return [f"{head}: the run has no such line; it is drawn, and not compared."]
    notes = "".join(f"\nNote: {note}." for note in one.notes)
    tables = []
    for beside in lines:
        named = f", beside {beside.label}" if line is None and beside.label else ""
        tables.append(f"{head}{named}\n{_table(beside, along, load, one)}{notes}")
    return tables


def _table(line: Line, along: str, load: float, one: MeasuredResult) -> str:
    rows: list[list[object]] = []
    between = False
    for key in METRICS:
        if key not in one.figures:
            continue
        name, unit = name_and_unit(key)
        found = predicted(line, along, load, key)
        if found is None:
            rows.append([f"{name} ({unit})", one.figures[key], None, None, "outside what was run"])
            continue
        between |= not found[1]
        rows.append([f"{name} ({unit})", one.figures[key], found[0], found[0] / one.figures[key] - 1.0])
    note = f"\nPredicted between the two {noun(along)} values next to it." if between else ""
    return f"{table_text(COLUMNS, rows)}{note}"
