"""The table of sessions: what a task takes and costs at each point."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.summary import Figure, classes_of, grouped, ordered
from specfleet.experiments.words.table import Column

FIGURES = (
    Figure("tasks", "tasks", "{:,.0f}", 5),
    Figure("task_turns", "turns", "{:.1f}", 4),
    Figure("task_input_tokens", "prompt tok", "{:,.0f}", 6, "prompt tokens"),
    Figure("task_found", "found", "{:.0%}", 3, "prompt tokens found in the cache"),
    Figure("task_output_tokens", "output tok", "{:,.0f}", 7, "output tokens"),
    Figure("mean_task_s", "task s", "{:,.1f}"),
    Figure("p99_task_s", "P99", "{:,.1f}", 1, "P99 of a task, s"),
    Figure("mean_task_model_s", "in answers", "{:,.1f}", 0, "of which in answers, s"),
    Figure("p99_task_model_s", "P99", "{:,.1f}", 2, "P99 in answers, s"),
    Figure("speedup_mean_task_model", "x plain", "{:.2f}", 1, "answers of a task, x plain"),
    Figure("task_throughput", "tasks/s", "{:.3f}", 3),
    Figure("gpu_s_per_task", "GPU s", "{:,.1f}", 2, "GPU seconds a task"),
    Figure("usd_per_1000_tasks", "$/1,000", "{:,.2f}", 0, "$ for 1,000 tasks"),
)
"""In this order; a column none of whose rows has a value is left out."""


def task_table(rows: Sequence[Row], axes: Sequence[str], lines: str | None) -> str | None:
    """Returns a row a point, and traffic class of sessions, with what these took; None without sessions."""
    if not any(is_number(row.get("tasks")) for row in rows):
        return None
    every = [(row, *one) for row in ordered(rows, lines) for one in of_each(row)]
    shown = figures_of([mine for _, _, mine in every])
    cells = [[*name, *(_cell(mine, figure) for figure in shown)] for _, name, mine in every]
    said = "By task, from the first turn of a session to its last answer:"
    columns = [Column("class", left=True)] * len(every[0][1]) + [figure.column for figure in shown]
    return f"{said}\n\n{grouped([row for row, _, _ in every], cells, columns, axes, lines)}"


def figures_of(rows: Sequence[Row]) -> list[Figure]:
    """Returns the figures of tasks that these rows have something for."""
    return [figure for figure in FIGURES if any(is_number(row.get(figure.key)) for row in rows)]


def of_each(row: Row) -> list[tuple[tuple[str, ...], Row]]:
    """Returns ((class,), what its tasks took) of each traffic class of sessions of a point.

    Where classes have none of their own that is ((), the point).
    """
    named = [name for name in classes_of([row]) if is_number(row.get(f"class:{name}:tasks"))]
    if not named:
        return [((), with_shares(row))]
    found: list[tuple[tuple[str, ...], Row]] = []
    for name in named:
        head = f"class:{name}:"
        mine: Row = {key.removeprefix(head): value for key, value in row.items() if key.startswith(head)}
        ratio = row.get(f"speedup:task:{name}")
        found.append(((name,), with_shares(mine | {"speedup_mean_task_model": ratio})))
    return found


def _cell(row: Row, figure: Figure) -> str | None:
    return figure.form.format(row[figure.key]) if is_number(row.get(figure.key)) else None


def with_shares(row: Row) -> Row:
    """Returns a row with the share of prompts that was found, and the price of a thousand tasks."""
    more: Row = {}
    if is_number(row.get("task_input_tokens")) and number(row, "task_input_tokens"):
        more["task_found"] = number(row, "task_cached_tokens") / number(row, "task_input_tokens")
    if is_number(row.get("usd_per_task")):
        more["usd_per_1000_tasks"] = 1e3 * number(row, "usd_per_task")
    return row | more
