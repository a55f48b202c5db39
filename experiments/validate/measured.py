"""`specfleet compare RUN --measured FILE...`: a user's own results beside what a run predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specfleet.experiments.figures.data import Shown, read
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
from specfleet.experiments.schema.faults import Fault, InputFaults, UserError
from specfleet.experiments.validate.bench import read_result
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


def read_measured(path: Path) -> MeasuredResult:
    """Returns a measured result of any tool whose output can be read: now `vllm bench serve`'s JSON.

    Raises:
        InputFaults: for a file that is none.
    """
    found = read_result(path)
    numbers = found.numbers
    rate = None if found.request_rate in ("inf", "None") else float(found.request_rate)
    k: int | None = len(found.per_position_acceptance_rates)
    if not k and numbers.get("spec_decode_num_drafts"):
        tokens = numbers.get("spec_decode_draft_tokens")
        k = round(tokens / numbers["spec_decode_num_drafts"]) if tokens else None
    elif not k and "spec_decode_acceptance_length" in numbers:
        k = None
    return MeasuredResult(
        name=path.name,
        figures={key: numbers[key] for key in METRICS if key in numbers and numbers[key] > 0.0},
        max_concurrency=numbers.get("max_concurrency"),
        request_rate=rate,
        drafts=k,
    )


def measured_command(run: Path, files: Sequence[Path]) -> tuple[str, list[Path]]:
    """Draws results over a run's curves into its `plots/`.

    Returns:
        A table a file, and the paths of the figure.

    Raises:
        FileNotFoundError, FolderFault, InputFaults, UserError: for what cannot be read, or compared.
    """
    results: list[MeasuredResult] = []
    faults: list[Fault] = []
    for path in files:
        try:
            results.append(read_measured(path))
        except InputFaults as found:
            faults += found.faults
    if faults:
        raise InputFaults(faults)
    shown = read(run)
    if not has_load(shown):
        raise UserError(
            f"{run} is not swept over a load, and a measured result lies at one; sweep "
            "workload.max_concurrency or workload.request_rate"
        )
    parts = [_text(shown, one) for one in results]
    with styled():
        figure = measured(shown, results)
        drawn = save(figure, located(run) / "plots", "measured") if figure is not None else []
    return "\n\n".join(parts), drawn


def _text(shown: Shown, one: MeasuredResult) -> str:
    along = str(shown.along)
    load, line = one.load(along), line_of(shown, one)
    if load is None:
        return f"{one.name}: states no {noun(along)}, over which the run is swept; it is not compared."
    drafts = "drafts of a length it does not say" if one.drafts is None else f"K = {one.drafts}"
    head = f"{one.name}: {noun(along)} {text(load)}, {drafts}"
    if line is None:
        return f"{head}: the run has no such line; it is drawn, and not compared."
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
    return f"{head}\n{table_text(COLUMNS, rows)}{note}"
