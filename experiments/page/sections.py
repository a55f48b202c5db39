"""The sections of a run's page: answer, tables, what is backed, configuration, versions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from specfleet.experiments.page.answer import (
    energy,
    handover,
    headline,
    highest_load,
    interruption,
    slice_answer,
    verdict_rows,
    within_slo,
)
from specfleet.experiments.page.data import Finished, splits_at
from specfleet.experiments.page.figures import SPLIT_PARTS
from specfleet.experiments.page.html import Html, TableCell, folded, listed, section, table, tag
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.backing import backing
from specfleet.experiments.words.band import assumed, banded
from specfleet.experiments.words.claims import Verdict, judge
from specfleet.experiments.words.costs.outages import failures_said
from specfleet.experiments.words.costs.patience import patience_said
from specfleet.experiments.words.costs.scaling import scaling_said
from specfleet.experiments.words.names import noun
from specfleet.experiments.words.pace import stepped_sentences
from specfleet.experiments.words.saturation import saturation
from specfleet.experiments.words.summary import (
    CLASS_FIGURES,
    POOL_FIGURES,
    Figure,
    classes_of,
    figures_shown,
    of_named,
    pools_of,
)
from specfleet.experiments.words.tail import Split, tail_sentence
from specfleet.experiments.words.tasks import figures_of, of_each
from specfleet.experiments.words.values import text

WORDS = {
    "TTFT": "time to first token: from sending a request to its first streamed chunk, queueing included",
    "TPOT": "time per output token: (end to end - TTFT) / (output tokens - 1), one value a request",
    "ITL": "time between streamed chunks; a chunk holds all tokens of one step",
    "end-to-end latency": "from sending a request to its last chunk",
    "P99": "99 of 100 requests are at least as fast",
    "K": "tokens drafted per step (num_speculative_tokens); K = 0 is plain decoding without a drafter",
    "acceptance length": "1 + accepted drafts / verifications",
    "verify, draft": "time that verification and drafting add, relative to the plain step at the same batch",
    "SLO met": "share of requests that meet all limits of `slo`",
    "goodput": "requests per second that meet the SLO",
}
"""What the page's words mean; docs/metrics.md has all of them."""


def answer(run: Finished) -> Html:
    """The answer in one sentence, then by line and question, then the claim."""
    lead = tag("p", _unbroken(headline(run)), class_="lead")
    slo = within_slo(run)
    if interruption(run) is not None:
        return tag("section", lead, id="answer", aria_label="Answer")
    crowded = (tag("p", _unbroken(said)) for said in saturation(run.rows, run.shown.axes, run.shown.along))
    met = tag("p", _unbroken(slo)) if slo else None
    joules = (tag("p", _unbroken(said)) for said in energy(run))
    handed = (tag("p", _unbroken(said)) for said in handover(run))
    left = (tag("p", _unbroken(said)) for said in _gone(run))
    parts = [lead, *crowded, met, *_verdicts(run), *left, *joules, *handed, *_claim(run)]
    return tag("section", *parts, id="answer", aria_label="Answer")


def _gone(run: Finished) -> list[str]:
    """Replicas that came, went and failed, and requests that were given up: as the printed answer says it."""
    rows, axes = run.rows, run.shown.axes
    scaled = scaling_said(rows, axes, run.shown.baseline)
    return [*scaled, *failures_said(rows, axes), *patience_said(rows, axes)]


def _unbroken(said: str) -> str:
    """`K = 3` stays on one line."""
    return said.replace(" = ", "\u00a0=\u00a0")


def _verdicts(run: Finished) -> Iterator[Html]:
    many = len(run.slices) > 1
    for part in run.slices:
        asked, rows = verdict_rows(part)
        if not rows:
            continue
        axis, load = noun(next(iter(part.shown.baseline))), noun(str(part.shown.along))
        title = f"Up to which {load} it pays" + (f", {part.name}" if many else "")
        cells = [[TableCell(name), *(TableCell(said) for said in answers)] for name, answers in rows]
        found = table(title, [axis, *(f"on {question}" for question in asked)], cells)
        yield folded(part.name, tag("p", _unbroken(slice_answer(run, part))), found) if many else found


def _claim(run: Finished) -> Iterator[Html]:
    claim = run.experiment.claim if run.experiment else None
    if claim is None:
        return
    verdicts = judge(claim, run.typed())
    word = "Reproduced" if all(verdict.holds for verdict in verdicts) else "Not reproduced"
    rows = [_expectation(verdict) for verdict in verdicts]
    said = tag("p", tag("strong", f"{word}: "), claim.statement, tag("small", f" ({claim.source})"))
    found = table("What was expected", ["", "expectation", "found", "expected"], rows)
    yield tag("div", tag("h2", "Claim"), said, found, id="claim", class_="claim")


def _expectation(verdict: Verdict) -> list[TableCell]:
    holds = "holds" if verdict.holds else "does not hold"
    expected = verdict.expected.replace("expected ", "")
    return [
        TableCell(holds),
        TableCell(verdict.what),
        TableCell(verdict.found),
        TableCell(f"{expected}; {verdict.mark}" if verdict.mark else expected),
    ]


def points_table(rows: Sequence[Row], axes: Sequence[str], leading: Mapping[int, str] | None = None) -> Html:
    """Returns all points as a table.

    Args:
        rows: one a point.
        axes: their keys, the first columns.
        leading: a further first column by position, such as the run; None for none.
    """
    shown = figures_shown(rows)
    named_axes = [noun(axis) for axis in axes]
    first = ["run"] if leading is not None else []
    headings = [*first, *named_axes, *(figure.name or figure.heading for figure in shown)]
    body = []
    for place, row in enumerate(rows):
        cells = [TableCell(leading[place])] if leading is not None else []
        cells += [axis_cell(row.get(axis)) for axis in axes]
        cells += [_figure_cell(row, figure) for figure in shown]
        body.append(cells)
    caption = "All points; select a heading to sort" if len(rows) > 1 else "The point"
    return table(caption, headings, body, row_headings=len(first) + len(axes))


def classes_table(rows: Sequence[Row], axes: Sequence[str]) -> Html | None:
    """Returns a row a point and traffic class; None where all requests are of one class."""
    return _named_table(rows, axes, "class", classes_of(rows), CLASS_FIGURES, "By traffic class")


def pools_table(rows: Sequence[Row], axes: Sequence[str]) -> Html | None:
    """Returns a row a point and pool; None where all replicas are alike."""
    return _named_table(rows, axes, "pool", pools_of(rows), POOL_FIGURES, "By pool")


def tasks_table(rows: Sequence[Row], axes: Sequence[str]) -> Html | None:
    """Returns a row a point with what its sessions took and cost; None where requests are no sessions."""
    every = [(row, *one) for row in rows for one in of_each(row)]
    shown = figures_of([mine for _, _, mine in every])
    if not any(figure.key == "tasks" for figure in shown):
        return None
    cells = [
        [
            *(axis_cell(row.get(axis)) for axis in axes),
            *map(TableCell, name),
            *(_figure_cell(mine, figure) for figure in shown),
        ]
        for row, name, mine in every
    ]
    by_class = ["class"] * len(every[0][1])
    named = (figure.name or figure.heading for figure in shown)
    caption = "By task, from the first turn of a session to its last answer"
    return table(
        caption, [*map(noun, axes), *by_class, *named], cells, row_headings=len(axes) + len(by_class)
    )


def _named_table(
    rows: Sequence[Row],
    axes: Sequence[str],
    kind: str,
    names: Sequence[str],
    figures: Sequence[Figure],
    caption: str,
) -> Html | None:
    """Returns a row a point and name of one kind; None without names."""
    if not names:
        return None
    values = {
        (place, name): [of_named(row, kind, name, figure.key) for figure in figures]
        for place, row in enumerate(rows)
        for name in names
    }
    kept = [i for i in range(len(figures)) if any(mine[i] is not None for mine in values.values())]
    body = []
    for (place, name), mine in values.items():
        shown = [(figures[i].form, mine[i]) for i in kept]
        cells = [
            TableCell("", math.nan) if value is None else TableCell(form.format(value), value)
            for form, value in shown
        ]
        body.append([*(axis_cell(rows[place].get(axis)) for axis in axes), TableCell(name), *cells])
    named = (figures[i].name or figures[i].heading for i in kept)
    return table(caption, [*map(noun, axes), kind, *named], body, row_headings=len(axes) + 1)


def axis_cell(value: object) -> TableCell:
    """A cell with an axis' value."""
    return TableCell(text(value), float(value) if is_number(value) else None)


def _figure_cell(row: Row, figure: Figure) -> TableCell:
    value = row.get(figure.key)
    if not is_number(value) or (figure.key in ("verify_overhead", "draft_overhead") and "gain" not in row):
        return TableCell("", math.nan)
    return TableCell(banded(row, figure.key, figure.form.format), number(row, figure.key))


def tail(run: Finished) -> tuple[list[str], Html] | None:
    """What drives the tail: a sentence a line at the highest load, and the split as a table; or None."""
    last = highest_load(run.shown)
    if last is None and run.shown.along is not None:
        return None
    load = f" at {noun(str(run.shown.along))} {last:g}" if last is not None else ""
    sentences: list[str] = []
    splits: list[tuple[str, Split]] = []
    for part in run.slices:
        prefix = f"{part.name}, " if len(run.slices) > 1 else ""
        for line, split in splits_at(run, part, last or 0.0):
            sentences.append(tail_sentence(f"{prefix}{line}{load}", split))
            splits.append((prefix + line, split))
    return (sentences, _split_table(f"Milliseconds per token{load}", splits)) if splits else None


def _split_table(caption: str, splits: Sequence[tuple[str, Split]]) -> Html:
    """The parts of each request's time per token; parts that are nowhere are left out."""
    used = [
        (key, name)
        for key, name, *_ in SPLIT_PARTS
        if any(abs(parts[key]) > 0.005 for _, split in splits for parts in split.values())
    ]
    rows = []
    for line, split in splits:
        for quantile, parts in split.items():
            values = [parts["tpot_ms"], *(parts[key] for key, _ in used)]
            request = "median" if quantile == "p50" else quantile.upper()
            rows.append([TableCell(line), TableCell(request), *(TableCell(f"{v:.2f}", v) for v in values)])
    return table(caption, ["line", "request", "TPOT", *(name for _, name in used)], rows, row_headings=2)


def trust(run: Finished) -> Html:
    """What is backed by measurement, what is not, and what the run warned of."""
    said = assumed([*map(str, _list(run.manifest.get("notices")))])
    failures = run.manifest.get("failures")
    failed = [f"{name}: {why}" for name, why in failures.items()] if isinstance(failures, dict) else []
    return section(
        "trust",
        "How far to trust it",
        listed(_backed(run), "backing"),
        *([tag("h3", "Assumed"), listed(said)] if said else []),
        *([tag("h3", "Failed points"), listed(failed)] if failed else []),
    )


def _backed(run: Finished) -> list[str]:
    if run.unread:
        return [f"What is backed cannot be said: resolved.yaml does not load any more ({run.unread})."]
    said = backing(run.points, run.rows)
    off = max(_value(row, "drafter_off_share") for row in run.rows)
    if off > 0:
        said.append(
            f"In up to {off:.0%} of a point's steps the longest sequence was past the drafter's "
            "max_model_len, so the drafter did not run."
        )
    refused = sum(_value(row, "rejected") for row in run.rows)
    told = f"{refused:,.0f} requests were refused or given up; engine.json of the point says why."
    return [*said, *([told] if refused else []), *stepped_sentences(run.folder)]


def _value(row: Row, key: str) -> float:
    return number(row, key) if is_number(row.get(key)) else 0.0


def configuration(run: Finished) -> Html:
    """The experiment as it was written, and with every default filled in."""
    files = {
        "resolved.yaml": "Resolved: every default filled in",
        "experiment.yaml": "As written",
    }
    shown = [
        folded(title, tag("pre", tag("code", path.read_text(encoding="utf-8")), tabindex="0"))
        for name, title in files.items()
        if (path := run.folder / name).is_file()
    ]
    changes = [*map(str, _list(run.manifest.get("overrides")))]
    changed = tag("p", "Changed on the command line: ", tag("code", " ".join(changes))) if changes else None
    return section("configuration", "Configuration", changed, *shown)


def versions(run: Finished) -> Html:
    """Versions, seeds and hashes."""
    manifest = run.manifest
    libraries = manifest.get("libraries")
    pairs = {
        "Specfleet": manifest.get("specfleet"),
        "Python": manifest.get("python"),
        **(libraries if isinstance(libraries, dict) else {}),
        "seeds": ", ".join(map(str, _list(manifest.get("seeds")))),
        "points": f"{len(run.rows)} of {len(_list(manifest.get('points')))}",
        "experiment.yaml, SHA-256": manifest.get("experiment_sha256"),
        "resolved.yaml, SHA-256": manifest.get("resolved_sha256"),
    }
    return section("versions", "Versions and seeds", definitions(pairs))


def definitions(pairs: Mapping[str, object]) -> Html:
    """Returns words and what they mean; those without a meaning are left out."""
    given = [(key, value) for key, value in pairs.items() if value is not None]
    return tag("dl", *(tag("div", tag("dt", key), tag("dd", str(value))) for key, value in given))


def words() -> Html:
    """What the page's words mean."""
    return section("words", "Words", definitions(WORDS))


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
