"""The scores of a validation as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specfleet.experiments.validate.points import METRICS
from specfleet.experiments.validate.score import (
    Block,
    Errors,
    block,
    by_load,
    campaign_group,
    groups,
    model_group,
    ratios,
)

if TYPE_CHECKING:
    from specfleet.experiments.validate.validation import Validation

_SHOWN = ("tpot_mean_ms", "tpot_p99_ms", "itl_mean_ms", "ttft_mean_ms", "output_throughput")
_WORST = 5


def report(result: Validation) -> str:
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
    lines += _ratio_lines(result)
    lines += _group_lines("model x GPU x method x K x concurrency", groups(scored, model_group))
    lines += _group_lines("campaign x method x data set", groups(scored, campaign_group))
    lines += _worst_lines(result)
    assumed = sorted({text for one in scored for text in one.point.assumptions})
    lines += [f"assumed: {text}" for text in assumed]
    lines += [f"skipped {n}: {reason}" for reason, n in sorted(result.skipped.items())]
    lines += [f"error in {n}: {error}" for error, n in sorted(result.errors.items())]
    return "\n".join(lines).rstrip()


def _table(title: str, errors: Block) -> list[str]:
    """Returns one line a metric."""
    head = f"{title:<22} {'n':>5} {'median':>8} {'mean':>8} {'P90':>8} {'worst':>8}"
    rows = []
    for metric in METRICS:
        if metric in errors:
            e = errors[metric]
            digits = 2 if metric == "ttft_steps" else 1
            values = (e["median_abs_pct"], e["mean_abs_pct"], e["p90_abs_pct"], e["worst_abs_pct"])
            rows.append(f"{metric:<22} {e['n']:>5} " + " ".join(f"{v:>8.{digits}f}" for v in values))
    if len(title) > 22:
        return [title, head.replace(title, " " * 22), *rows]
    return [head, *rows]


def _ratio_lines(result: Validation) -> list[str]:
    """Returns ratios to the plain server."""
    found = ratios(result.scored)
    if not found:
        return []
    lines = ["against the plain server"]
    for metric, r in found.items():
        lines.append(
            f"{metric:<22} {r['n']:>5} mean {r['mean_abs_pct']:.1f} %, worst {r['worst_abs_pct']:.1f} %; "
            f"{r['slowdowns_right']} of {r['slowdowns']} slow-downs beyond 3 % seen"
        )
    return [*lines, ""]


def _group_lines(title: str, found: list[dict[str, object]]) -> list[str]:
    """Returns mean errors of each group, the largest in brackets."""
    if not found:
        return []
    names = [", ".join(str(v) for v in _group(g).values() if v) for g in found]
    width = max(len(title), *map(len, names))
    shown = [metric for metric in _SHOWN if any(metric in g for g in found)]
    lines = [f"{title:<{width}} {'n':>4} " + " ".join(f"{metric:>18}" for metric in shown)]
    for name, group in sorted(zip(names, found, strict=True), key=lambda pair: pair[0]):
        cells = [_cell(group.get(metric)) for metric in shown]
        counts = [int(e["n"]) for metric in shown if isinstance(e := group.get(metric), dict)]
        lines.append(f"{name:<{width}} {max(counts, default=0):>4} " + " ".join(f"{c:>18}" for c in cells))
    return [*lines, ""]


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
