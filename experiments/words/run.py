"""What `specfleet run` prints: the table, the answer in words, and what is backed by measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specfleet.experiments.run.results import Row, is_number
from specfleet.experiments.run.run import Run
from specfleet.experiments.words.answer import Compared, compared, lead, load_said, not_asked
from specfleet.experiments.words.backing import backing
from specfleet.experiments.words.band import BANDS, banded, has_bands, settling
from specfleet.experiments.words.claims import claim_text
from specfleet.experiments.words.saturation import saturation
from specfleet.experiments.words.table import Column, table_text
from specfleet.experiments.words.tail import at_highest_load
from specfleet.experiments.words.values import text
from specfleet.experiments.words.verdict import questions, reach
from specfleet.sim.speculation.spec import UNFIT_FOR_TAILS

COLUMNS = (
    ("output_throughput", "output tok/s", "{:,.0f}"),
    ("speedup_output_throughput", "x plain", "{:.2f}"),
    ("mean_ttft_ms", "TTFT ms", "{:,.0f}"),
    ("p99_ttft_ms", "P99", "{:,.0f}"),
    ("mean_tpot_ms", "TPOT ms", "{:.1f}"),
    ("p99_tpot_ms", "P99", "{:.1f}"),
    ("speedup_p99_tpot", "x plain", "{:.2f}"),
    ("p99_itl_ms", "P99 ITL", "{:,.0f}"),
    ("acceptance_length", "acc. length", "{:.2f}"),
    ("verify_overhead", "verify", "{:+.0%}"),
    ("draft_overhead", "draft", "{:+.0%}"),
    ("mean_batch", "batch", "{:.1f}"),
    ("slo_attainment", "SLO met", "{:.1%}"),
    ("offered_per_s", "offered/s", "{:.2f}"),
    ("served_per_s", "served/s", "{:.2f}"),
)
"""Metric, heading, format. A column none of whose rows has a value is left out."""

RARE_COLUMNS = (
    ("preemptions", "preempted", "{:,.0f}"),
    ("rejected", "refused", "{:,.0f}"),
    ("drafter_off_share", "drafter off", "{:.1%}"),
)
"""Shown only where some point has a value above zero."""


def summary_table(rows: Sequence[Row], axes: Sequence[str], lines: str | None) -> str:
    """Returns the summary as a table of plain text, a gap between the values of the axis `lines`."""
    shown = [column for column in COLUMNS if any(isinstance(row.get(column[0]), float) for row in rows)]
    shown += [column for column in RARE_COLUMNS if any(_number(row, column[0]) > 0 for row in rows)]
    headings = ["K" if axis.endswith("num_speculative_tokens") else axis.rpartition(".")[2] for axis in axes]
    columns = [*map(Column, headings), *(Column(heading, form) for _, heading, form in shown)]
    body: list[list[object]] = []
    ordered = sorted(rows, key=lambda row: _position(rows, row, lines)) if lines else list(rows)
    previous: object = None
    for row in ordered:
        if lines and previous is not None and row[lines] != previous:
            body.append([])
        previous = row[lines] if lines else None
        figures = [_cell(row, key, form) for key, _, form in shown]
        body.append([*(text(row.get(axis, "")) for axis in axes), *figures])
    return table_text(columns, body)


def _position(rows: Sequence[Row], row: Row, lines: str) -> int:
    values = [other[lines] for other in rows]
    return values.index(row[lines])


def _number(row: Row, key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _cell(row: Row, key: str, form: str) -> str | None:
    value = row.get(key)
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    if key in ("verify_overhead", "draft_overhead") and "gain" not in row:
        return None
    return banded(row, key, form.format)


def run_text(run: Run, rows: Sequence[Row]) -> str:
    """Returns everything a run prints on stdout: the answer first, and none where points are missing."""
    experiment = run.loaded.experiment
    axes = list(experiment.sweep.axes)
    baseline, x, lines = experiment.report.baseline, experiment.report.x, experiment.report.lines
    table = summary_table(rows, axes, lines)
    if (missing := interruption(run)) is not None:
        return "\n".join([missing, "", table])
    groups = compared(rows, axes, x, baseline or {})
    first = lead(groups, load_said(experiment)) or not_asked(experiment)
    parts = [first, ""] if first else []
    if crowded := saturation(rows, axes, x):
        parts += [*crowded, ""]
    parts += [table, *([BANDS] if has_bands(rows) else []), ""]
    if said := [sentence for group in groups for sentence in in_words(group)]:
        unsettled = any("not settled" in sentence for sentence in said)
        parts += [*said, *(settling(rows, list(questions(rows))) if unsettled else []), ""]
    by_line = baseline and x and lines and lines in baseline and x != lines
    if x and lines and by_line and all(is_number(row.get(x)) for row in rows):
        parts += [*at_highest_load(run.folder, list(rows), x, lines), ""]
    if experiment.claim is not None:
        parts += [*claim_text(experiment.claim, rows), ""]
    parts += _warnings(rows)
    configs = [point.config.serve.speculative_config for point in run.points]
    if any(config is not None and config.rejection_sample_method == "synthetic" for config in configs):
        parts += [f"Warning: {UNFIT_FOR_TAILS}.", ""]
    drafting = [p.config for p in run.points if p.config.serve.speculative_config is not None]
    config = drafting[0] if drafting else run.points[0].config
    prompts = [_number(r, "total_input_tokens") / max(_number(r, "completed"), 1.0) for r in rows]
    parts += backing(config, sum(prompts) / len(prompts))
    return "\n".join(parts)


def interruption(run: Run) -> str | None:
    """Says how much of a run is there, where it was interrupted; None where all of it was tried."""
    failed = {task for task, _ in run.failures}
    tasks = run.tasks
    whole = sum(task.done for task in tasks)
    if all(task.done or task.id in failed for task in tasks):
        return None
    return (
        f"Interrupted: {whole} of {len(tasks)} simulations are whole, and nothing is concluded from them; "
        "go on with --resume."
    )


def in_words(group: Compared) -> list[str]:
    """Returns a sentence a choice: where it pays on each question, over the load."""
    if group.load is None:
        return []
    where = f"{group.where}: " if group.where else ""
    asked = questions(group.rows)
    said = []
    for label in dict.fromkeys(map(group.label, group.others)):
        mine = [row for row in group.others if group.label(row) == label]
        reaches = {text: reach(mine, group.load, question) for question, text in asked.items()}
        told = [f"on {text} it {found.sentence()}" for text, found in reaches.items() if found is not None]
        if told:
            said.append(f"{where}{label}: {'; '.join(told)} ({group.load.rpartition('.')[2]}).")
    return said


def _warnings(rows: Sequence[Row]) -> list[str]:
    said = []
    off = max(_number(row, "drafter_off_share") for row in rows)
    if off > 0:
        said.append(
            f"Warning: in up to {off:.0%} of a point's steps the longest sequence was past the drafter's "
            "max_model_len, so the drafter did not run; speculative_config.max_model_len sets the limit."
        )
    refused = sum(_number(row, "rejected") for row in rows)
    if refused:
        said.append(
            f"Warning: {refused:.0f} requests could never fit and were refused; see engine.json of the point."
        )
    return [*said, ""] if said else []
