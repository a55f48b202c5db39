"""What `specfleet run` prints: the table, the answer in words, and what is backed by measurement."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.results import Row, is_number
from specfleet.experiments.run.run import Run
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.experiments.words.answer import Compared, compared, lead, load_said, not_asked
from specfleet.experiments.words.backing import backing
from specfleet.experiments.words.band import BANDS, has_bands, settling
from specfleet.experiments.words.by_class import bill_sentences, bill_table, class_answer
from specfleet.experiments.words.claims import claim_text, judge
from specfleet.experiments.words.costs.energy import energy_said
from specfleet.experiments.words.costs.handover import apart_said, handover_said
from specfleet.experiments.words.costs.outages import failures_said
from specfleet.experiments.words.costs.patience import patience_said
from specfleet.experiments.words.costs.scaling import scaling_said
from specfleet.experiments.words.known import known_sentences
from specfleet.experiments.words.saturation import saturation
from specfleet.experiments.words.summary import class_table, pool_table, summary_table
from specfleet.experiments.words.tail import at_highest_load
from specfleet.experiments.words.tasks import task_table
from specfleet.experiments.words.verdict import questions, reach
from specfleet.sim.speculation.spec import UNFIT_FOR_TAILS


def _number(row: Row, key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def run_text(run: Run, rows: Sequence[Row]) -> str:
    """Returns everything a run prints on stdout: the answer first, and none where points are missing."""
    experiment = run.loaded.experiment
    axes = list(experiment.sweep.axes)
    baseline, x, lines = experiment.report.baseline, experiment.report.x, experiment.report.lines
    table = summary_table(rows, axes, lines)
    if (missing := interruption(run)) is not None:
        return "\n".join([missing, "", shortened(table)])
    groups = compared(rows, axes, x, baseline or {})
    parts = [first, *filter(None, [class_answer(groups)]), ""] if (first := _answer(run, groups)) else []
    if crowded := saturation(rows, axes, x):
        parts += [*crowded, ""]
    known = known_sentences(rows, axes, experiment.run.precision)
    parts += [table, *([BANDS] if has_bands(rows) else []), *known, ""]
    if by_class := class_table(rows, axes, lines):
        parts += [by_class, ""]
    if bill := bill_table(rows, axes, lines):
        parts += [bill, "", *bill_sentences(rows, axes), ""]
    if pools := pool_table(rows, axes, lines):
        parts += [pools, ""]
    if by_task := task_table(rows, axes, lines):
        parts += [by_task, ""]
    if said := [sentence for group in groups for sentence in in_words(group)]:
        unsettled = any("not settled" in sentence for sentence in said)
        parts += [*said, *(settling(rows, list(questions(rows))) if unsettled else []), ""]
    if scaled := scaling_said(rows, axes, baseline or {}):
        parts += [*scaled, ""]
    if failed := failures_said(rows, axes):
        parts += [*failed, ""]
    if impatient := patience_said(rows, axes):
        parts += [*impatient, ""]
    if handed := [*apart_said(rows, axes), *handover_said(rows, axes)]:
        parts += [*handed, ""]
    if "energy_x_plain" in experiment.report.y or any(
        key.startswith("energy_j") for key in experiment.report.y
    ):
        parts += [*energy_said(groups, experiment.report.least_gain), ""]
    by_line = baseline and x and lines and lines in baseline and x != lines
    if x and lines and by_line and all(is_number(row.get(x)) for row in rows):
        parts += [*at_highest_load(run.folder, list(rows), x, lines, axes), ""]
    if experiment.claim is not None:
        parts += [*claim_text(experiment.claim, rows), ""]
    if warned := _warnings(run, rows):
        parts += [*(f"Warning: {sentence}" for sentence in warned), ""]
    return "\n".join([*map(shortened, parts), *backing(run.points, rows)])


MOST_LINES = 400
"""Of a table on stdout."""


def shortened(table: str) -> str:
    """A table of at most so many lines; what is left out is in summary.csv."""
    lines = table.split("\n")
    if len(lines) <= MOST_LINES:
        return table
    left = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], f"(and {left:,} more lines: summary.csv has every point)"])


def run_facts(run: Run, rows: Sequence[Row]) -> dict[str, object]:
    """Returns what a run says as plain values, the answer first: null where points are missing.

    `points` are the rows of summary.csv. Where it was not interrupted, `verdicts` are sentences by choice and
    `claim_reproduced` is null without a claim.
    """
    experiment = run.loaded.experiment
    axes = list(experiment.sweep.axes)
    groups = compared(rows, axes, experiment.report.x, experiment.report.baseline or {})
    missing = interruption(run)
    found: dict[str, object] = {
        "answer": _answer(run, groups) or None if missing is None else None,
        "interrupted": missing,
        "name": experiment.name,
        "folder": str(run.folder),
        "seeds": list(run.seeds),
        "axes": axes,
        "notices": list(run.loaded.notices),
        "failures": dict(run.failures),
        "points": list(rows),
    }
    if missing is not None:
        return found
    claim = experiment.claim
    return found | {
        "answer_by_class": class_answer(groups) or None,
        "bill": bill_sentences(rows, axes),
        "verdicts": [sentence for group in groups for sentence in in_words(group)],
        "requests": known_sentences(rows, axes, experiment.run.precision),
        "saturation": saturation(rows, axes, experiment.report.x),
        "scaling": scaling_said(rows, axes, experiment.report.baseline or {}),
        "failures": failures_said(rows, axes),
        "patience": patience_said(rows, axes),
        "handover": [*apart_said(rows, axes), *handover_said(rows, axes)],
        "energy": energy_said(groups, experiment.report.least_gain),
        "claim_reproduced": None if claim is None else all(v.holds for v in judge(claim, rows)),
        "warnings": _warnings(run, rows),
        "backing": backing(run.points, rows),
    }


def _answer(run: Run, groups: Sequence[Compared]) -> str:
    experiment = run.loaded.experiment
    return lead(groups, load_said(experiment)) or not_asked(experiment)


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


def _warnings(run: Run, rows: Sequence[Row]) -> list[str]:
    said = []
    off = max(_number(row, "drafter_off_share") for row in rows)
    if off > 0:
        said.append(
            f"in up to {off:.0%} of a point's steps the longest sequence was past the drafter's "
            "max_model_len, so the drafter did not run (vllm-0.33 drafts at any length with a head)."
        )
    refused = sum(_number(row, "rejected") for row in rows)
    if refused:
        said.append(f"{refused:,.0f} requests were refused or given up; engine.json of the point says why.")
    pools = [pool for point in run.points for pool in pool_experiments(point.config).values()]
    configs = [pool.serve.speculative_config for pool in pools]
    if any(config is not None and config.rejection_sample_method == "synthetic" for config in configs):
        said.append(f"{UNFIT_FOR_TAILS}.")
    return said
