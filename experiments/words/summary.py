"""The table of a run's points, and that of its traffic classes: which columns, and what gives way first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.band import banded
from specfleet.experiments.words.names import noun
from specfleet.experiments.words.table import Cells, Column, table_fits, table_text
from specfleet.experiments.words.values import named, text


@dataclass(frozen=True)
class Figure:
    """A column of the summary as it is printed.

    Attributes:
        key: of the metric.
        heading: stands above it.
        form: what a number becomes.
        rank: how early it gives way in a narrow terminal; 0 never.
        name: what it is called where the heading alone does not say it.
    """

    key: str
    heading: str
    form: str
    rank: int = 0
    name: str = ""

    @property
    def column(self) -> Column:
        """As the printer of tables takes it."""
        return Column(self.heading, self.form, rank=self.rank, name=self.name)


FIGURES = (
    Figure("output_throughput", "output tok/s", "{:,.0f}"),
    Figure("speedup_output_throughput", "x plain", "{:.2f}", 1, "throughput, x plain"),
    Figure("mean_ttft_ms", "TTFT ms", "{:,.0f}", 5),
    Figure("p99_ttft_ms", "P99", "{:,.0f}", 3, "P99 TTFT"),
    Figure("mean_client_queue_time_ms", "queued ms", "{:,.0f}", 4, "client queue ms"),
    Figure("p99_client_queue_time_ms", "P99", "{:,.0f}", 3, "P99 client queue"),
    Figure("mean_tpot_ms", "TPOT ms", "{:.1f}"),
    Figure("p99_tpot_ms", "P99", "{:.1f}", 0, "P99 TPOT"),
    Figure("speedup_p99_tpot", "x plain", "{:.2f}", 1, "P99 TPOT, x plain"),
    Figure("p99_itl_ms", "P99 ITL", "{:,.0f}", 7),
    Figure("acceptance_length", "acc. length", "{:.2f}", 6),
    Figure("proposed_share", "propose", "{:.0%}", 2),
    Figure("verify_overhead", "verify", "{:+.0%}", 4),
    Figure("draft_overhead", "draft", "{:+.0%}", 8),
    Figure("mean_batch", "batch", "{:.1f}", 9),
    Figure("slo_attainment", "SLO met", "{:.1%}", 2),
    Figure("offered_per_s", "offered/s", "{:.2f}", 2),
    Figure("served_per_s", "served/s", "{:.2f}", 2),
    Figure("preemptions", "preempted", "{:,.0f}", 2),
    Figure("rejected", "refused", "{:,.0f}", 2),
    Figure("drafter_off_share", "drafter off", "{:.1%}", 2),
)
"""In this order; a column none of whose rows has a value is left out."""

RARE = ("preemptions", "rejected", "drafter_off_share")
"""Shown only where some point has a value above zero."""

SELDOM = 0.95
"""Below this share of rounds with drafts look-up often found nothing, or the drafter was off: the column is
shown. A drafter that proposes in every round has a little less than all, for a last token has no drafts."""

CLASS_FIGURES = (
    Figure("completed", "requests", "{:,.0f}"),
    Figure("mean_ttft_ms", "TTFT ms", "{:,.0f}", 4),
    Figure("p99_ttft_ms", "P99", "{:,.0f}", 3, "P99 TTFT"),
    Figure("mean_tpot_ms", "TPOT ms", "{:.1f}"),
    Figure("p99_tpot_ms", "P99", "{:.1f}", 0, "P99 TPOT"),
    Figure("speedup", "x plain", "{:.2f}", 1, "P99 TPOT, x plain"),
    Figure("slo_attainment", "SLO met", "{:.1%}", 1),
    Figure("p99_e2el_ms", "P99 E2E", "{:,.0f}", 5),
    Figure("acceptance_length", "acc. length", "{:.2f}", 2),
)
"""Of one traffic class."""

POOL_FIGURES = (
    Figure("requests", "requests", "{:,.0f}"),
    Figure("output_throughput", "output tok/s", "{:,.0f}"),
    Figure("mean_ttft_ms", "TTFT ms", "{:,.0f}", 5),
    Figure("p99_ttft_ms", "P99", "{:,.0f}", 4, "P99 TTFT"),
    Figure("mean_tpot_ms", "TPOT ms", "{:.1f}"),
    Figure("p99_tpot_ms", "P99", "{:.1f}", 0, "P99 TPOT"),
    Figure("acceptance_length", "acc. length", "{:.2f}", 3),
    Figure("slo_attainment", "SLO met", "{:.1%}", 1),
    Figure("gpu_busy", "busy", "{:.0%}", 6),
    Figure("peak_kv_usage", "KV peak", "{:.0%}", 7),
    Figure("gpu_hours", "GPU-h", "{:.3g}", 2),
    Figure("cost_usd", "$", "{:,.2f}", 8, "cost $"),
)
"""Of one pool."""


def figures_shown(rows: Sequence[Row]) -> list[Figure]:
    """Returns the columns that these rows have something for."""
    shown = []
    for figure in FIGURES:
        values = [number(row, figure.key) for row in rows if is_number(row.get(figure.key))]
        rare = figure.key in RARE and not any(value > 0 for value in values)
        every = figure.key == "proposed_share" and all(value >= SELDOM for value in values)
        if figure.key == "rejected" and any(number(row, "gave_up") > 0 for row in rows if "gave_up" in row):
            figure = replace(figure, heading="not served")  # clients that left are among them
        if values and not rare and not every:
            shown.append(figure)
    return shown


def summary_table(rows: Sequence[Row], axes: Sequence[str], lines: str | None) -> str:
    """Returns the summary as a table of plain text, a gap between the values of the axis `lines`.

    Where the terminal has no room, axes but the first that has numbers become lines above their rows.
    """
    shown = figures_shown(rows)
    mine = ordered(rows, lines)
    cells = [[_cell(row, figure) for figure in shown] for row in mine]
    return grouped(mine, cells, [figure.column for figure in shown], axes, lines)


def class_table(rows: Sequence[Row], axes: Sequence[str], lines: str | None) -> str | None:
    """Returns a row a point and traffic class; None without classes."""
    return _by_name(rows, axes, lines, "class", classes_of(rows), CLASS_FIGURES, "By traffic class:")


def pool_table(rows: Sequence[Row], axes: Sequence[str], lines: str | None) -> str | None:
    """Returns a row a point and pool; None where all replicas are alike."""
    return _by_name(rows, axes, lines, "pool", pools_of(rows), POOL_FIGURES, "By pool:")


def _by_name(
    rows: Sequence[Row],
    axes: Sequence[str],
    lines: str | None,
    kind: str,
    names: Sequence[str],
    figures: Sequence[Figure],
    head: str,
) -> str | None:
    """Returns a row a point and name of one kind; None without names."""
    if not names:
        return None
    mine, cells = [], []
    for row in ordered(rows, lines):
        for name in names:
            values = [of_named(row, kind, name, figure.key) for figure in figures]
            if any(value is not None for value in values):
                mine.append(row)
                cells.append([name, *values])
    kept = [i for i in range(len(figures)) if any(values[i + 1] is not None for values in cells)]
    columns = [Column(kind, left=True), *(figures[i].column for i in kept)]
    chosen = [[values[0], *(values[i + 1] for i in kept)] for values in cells]
    return f"{head}\n\n" + grouped(mine, chosen, columns, axes, lines)


def classes_of(rows: Sequence[Row]) -> list[str]:
    """Returns the names of the traffic classes of these points; none where all requests are of one."""
    return _names_of(rows, "class")


def pools_of(rows: Sequence[Row]) -> list[str]:
    """Returns the names of the pools of these points; none where all replicas are alike."""
    return _names_of(rows, "pool")


def _names_of(rows: Sequence[Row], kind: str) -> list[str]:
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith(f"{kind}:"))
    return list(dict.fromkeys(key.split(":")[1] for key in keys))


def of_named(row: Row, kind: str, name: str, figure: str) -> float | None:
    """Returns a figure of a `class` or a `pool` at a point; None without it."""
    ratio = figure == "speedup"
    key = f"speedup:{kind}:{name}:p99_tpot_ms" if ratio else f"{kind}:{name}:{figure}"
    return number(row, key) if is_number(row.get(key)) else None


def ordered(rows: Sequence[Row], lines: str | None) -> list[Row]:
    """Returns the rows with those together that share a value of the axis `lines`."""
    if not lines:
        return list(rows)
    first: dict[str, list[Row]] = {}
    for row in rows:
        first.setdefault(_shown(row[lines]), []).append(row)
    return [row for together in first.values() for row in together]


def grouped(
    rows: Sequence[Row],
    cells: Sequence[Sequence[object]],
    columns: Sequence[Column],
    axes: Sequence[str],
    lines: str | None,
) -> str:
    """Returns a table with the values of the axes beside the cells; or above them, where that is too wide."""
    headings = ["K" if axis.endswith("num_speculative_tokens") else axis.rpartition(".")[2] for axis in axes]
    whole: list[Cells] = []
    for row, values, before in zip(rows, cells, [None, *rows], strict=False):
        if lines and before is not None and row[lines] != before[lines]:
            whole.append([])
        whole.append([*(text(row.get(axis, "")) for axis in axes), *values])
    first = [*map(Column, headings), *columns]
    if not axes or table_fits(first, whole):
        return table_text(first, whole)
    kept = next((a for a in axes if a != lines and all(is_number(row.get(a)) for row in rows)), None)
    above = [axis for axis in axes if axis != kept]
    heading = noun(kept) if kept else ""
    narrow: list[Cells] = []
    said = ""
    for row, values in zip(rows, cells, strict=True):
        group = ", ".join(named(axis, row.get(axis, "")) for axis in above)
        if group != said:
            narrow += [*([[]] if narrow else []), group]
        said = group
        narrow.append([text(row.get(kept, "")) if kept else "", *values])
    return table_text([Column(heading), *columns], narrow)


def _shown(value: object) -> str:
    """A value of an axis as a key: numbers that are equal have one."""
    return repr(float(value)) if isinstance(value, int | float) else repr(value)


def _cell(row: Row, figure: Figure) -> str | None:
    if not is_number(row.get(figure.key)):
        return None
    if figure.key in ("verify_overhead", "draft_overhead") and "gain" not in row:
        return None
    return banded(row, figure.key, figure.form.format)
