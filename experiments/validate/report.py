"""The scores of a validation as text."""

from __future__ import annotations

from collections.abc import Mapping

from specfleet.experiments.validate.points import METRICS, SPEEDUP
from specfleet.experiments.validate.score import (
    Block,
    Errors,
    block,
    by_load,
    campaign_group,
    groups,
    model_group,
    ratios,
    server_group,
)
from specfleet.experiments.validate.validation import Validation
from specfleet.experiments.words.table import Column, table_text

_SHOWN = ("tpot_mean_ms", "tpot_p99_ms", "itl_mean_ms", "ttft_mean_ms", "output_throughput", SPEEDUP)
_VARIANT_METRICS = ("tpot_mean_ms", "tpot_p99_ms", "ttft_mean_ms", "output_throughput")
_CLOSED_METRICS = ("output_throughput", SPEEDUP)
_WORST = 5
METRIC_WIDTH, NUMBER_WIDTH = 22, 6
"""So that the tables of all rows and by load line up."""

RATIO_COLUMNS = (
    Column("against the plain server", left=True),
    Column("n"),
    Column("mean", "{:.1f} %"),
    Column("worst", "{:.1f} %"),
    Column("itself", "{:.1f} %"),
    Column("worst", "{:.1f} %"),
    Column(left=True),
)


def validation_text(result: Validation) -> str:
    """Returns tables: overall and by load, ratios, groups, worst rows; assumptions and what was left out."""
    scored = result.scored
    lines = [f"{len(scored)} rows scored. Absolute errors in percent; ttft_steps in steps.", ""]
    for title, errors in (
        ("all", block(scored)),
        ("c <= 64", block(by_load(scored, high=False))),
        ("c > 64", block(by_load(scored, high=True))),
        ("start and end only (MT-Bench, c >= 32), not in the above", block(scored, transient=True)),
    ):
        if errors:
            lines += [*_table(title, errors), ""]
    lines += _variant_lines(result)
    lines += _ratio_lines(result)
    lines += _closed_lines(result)
    lines += _group_lines("model x GPU x method x K x concurrency", groups(scored, model_group))
    lines += _group_lines("campaign x method x data set", groups(scored, campaign_group))
    lines += _worst_lines(result)
    assumed = sorted({text for one in scored for text in one.point.assumptions})
    lines += [f"assumed: {text}" for text in assumed]
    lines += [f"skipped {n}: {reason}" for reason, n in sorted(result.skipped.items())]
    lines += [f"error in {n}: {error}" for error, n in sorted(result.errors.items())]
    return "\n".join(lines).rstrip()


def _table(title: str, errors: Block) -> list[str]:
    """Returns one line a metric; a long title stands above."""
    above, heading = ([title], "") if len(title) > METRIC_WIDTH else ([], title)
    statistics = [Column(name, width=NUMBER_WIDTH) for name in ("n", "median", "mean", "P90", "worst")]
    rows = []
    for metric in METRICS:
        if metric in errors:
            e = errors[metric]
            digits = 2 if metric == "ttft_steps" else 1
            values = (e["median_abs_pct"], e["mean_abs_pct"], e["p90_abs_pct"], e["worst_abs_pct"])
            rows.append([metric, e["n"], *(f"{value:.{digits}f}" for value in values)])
    return [*above, table_text([Column(heading, left=True, width=METRIC_WIDTH), *statistics], rows)]


def _variant_lines(result: Validation) -> list[str]:
    """Returns the drafting rows matched and free, by what spread they are given; nothing unless asked for."""
    if not result.variants:
        return []
    rows: list[list[object]] = []
    for one in result.variants:
        errors = [one.errors.get(metric) for metric in _VARIANT_METRICS]
        counts = max(int(found["n"]) for found in errors if found is not None)
        rows.append([one.sample, one.spread, counts, *map(_cell, errors)])
    columns = (Column("drafting rows", left=True), Column("spread between requests", left=True), "n")
    return [table_text((*columns, *_VARIANT_METRICS), rows), ""]


def _ratio_lines(result: Validation) -> list[str]:
    """Returns errors of ratios to the plain server, and of the figure itself in the same rows."""
    found = ratios(result.scored)
    if not found:
        return []
    rows = [
        [
            metric,
            r["n"],
            r["mean_abs_pct"],
            r["worst_abs_pct"],
            r["itself_mean_abs_pct"],
            r["itself_worst_abs_pct"],
            f"{r['slowdowns_right']} of {r['slowdowns']} slow-downs beyond 3 % seen",
        ]
        for metric, r in found.items()
    ]
    return [table_text(RATIO_COLUMNS, rows), ""]


def _closed_lines(result: Validation) -> list[str]:
    """Returns throughput and gains of rows that are priced in closed form, by what served them, with bias."""
    found = [one for one in result.scored if one.point.closed_form]
    rows: list[list[object]] = []
    for group in groups(found, server_group):
        errors = [group.get(metric) for metric in _CLOSED_METRICS]
        counts = [int(one["n"]) for one in errors if isinstance(one, dict)]
        if counts:
            rows.append([", ".join(_group(group).values()), max(counts), *map(_biased, errors)])
    if not rows:
        return []
    title = Column("in closed form: mean (worst), bias", left=True)
    return [table_text((title, "n", *_CLOSED_METRICS), sorted(rows, key=str)), ""]


def _biased(errors: object) -> str:
    return f"{_cell(errors)} {errors['bias_pct']:+.1f}" if isinstance(errors, dict) else "-"


def _group_lines(title: str, found: list[dict[str, object]]) -> list[str]:
    """Returns mean errors of each group, the largest in brackets."""
    if not found:
        return []
    names = [", ".join(str(v) for v in _group(g).values() if v) for g in found]
    shown = [metric for metric in _SHOWN if any(metric in g for g in found)]
    rows = []
    for name, group in sorted(zip(names, found, strict=True), key=lambda pair: pair[0]):
        cells = [_cell(group.get(metric)) for metric in shown]
        counts = [int(e["n"]) for metric in shown if isinstance(e := group.get(metric), dict)]
        rows.append([name, max(counts, default=0), *cells])
    return [table_text([Column(title, left=True), "n", *shown], rows), ""]


def _group(group: Mapping[str, object]) -> dict[str, str]:
    named = group["group"]
    assert isinstance(named, dict)
    return named


def _cell(errors: object) -> str:
    if not isinstance(errors, dict):
        return "-"
    typed: Errors = errors  # type: ignore[assignment]
    return f"{typed['mean_abs_pct']:.1f} ({typed['worst_abs_pct']:.1f})"


def _worst_lines(result: Validation) -> list[str]:
    """Returns the rows with the largest error in mean TPOT."""
    errors = [(one, one.errors().get("tpot_mean_ms")) for one in result.scored]
    known = sorted(((one, e) for one, e in errors if e is not None), key=lambda pair: -abs(pair[1]))[:_WORST]
    lines = ["furthest off in mean TPOT"] if known else []
    for one, error in known:
        measured, said = one.point.measured["tpot_mean_ms"], one.predicted["tpot_mean_ms"]
        lines.append(
            f"  {one.point.name}: measured {measured:.2f} ms, predicted {said:.2f} ms ({error:+.1f} %)"
        )
    return [*lines, ""] if lines else []
