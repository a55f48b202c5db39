"""What `specfleet breakeven` prints, and the files it writes."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from specfleet import __version__
from specfleet.experiments.breakeven.answers import (
    RATIOS,
    Best,
    Threshold,
    answers,
    best,
    closed_form,
    own_alpha,
    own_speedup,
    rows,
    schedule,
)
from specfleet.experiments.breakeven.cell import assumed
from specfleet.experiments.breakeven.chance import chance_lines, chances
from specfleet.experiments.breakeven.question import CONCURRENCY, DRAFTS, MOST_SEARCHED, Breakeven
from specfleet.experiments.breakeven.search import ALWAYS, AT, EQUAL, NEVER, UNMET, speedup
from specfleet.experiments.breakeven.search import QUESTIONS as ASKED
from specfleet.experiments.point.build import acceptance_specs
from specfleet.experiments.run.cells import text_cell
from specfleet.experiments.run.columnfiles import write_json
from specfleet.experiments.run.files import write_whole
from specfleet.experiments.run.known import AT_MOST
from specfleet.experiments.run.results import is_number, number
from specfleet.experiments.words.acceptance import BOTH_RIGHT
from specfleet.experiments.words.answer import compared, lead, load_said
from specfleet.experiments.words.band import BANDS, has_bands, settling
from specfleet.experiments.words.run import in_words
from specfleet.experiments.words.table import table_text
from specfleet.experiments.words.verdict import questions as asked_of
from specfleet.sim.speculation.acceptance import QUANTITIES, AcceptanceSpec

SAID = {
    ALWAYS: "pays even when no draft is accepted",
    NEVER: "does not pay even when every draft is accepted",
    EQUAL: "makes no difference at any acceptance",
    UNMET: "has no request within the SLO, with or without drafts",
}
SHORT = {ALWAYS: "always", NEVER: "never", EQUAL: "no effect", UNMET: "SLO unmet", AT: "at"}

COLUMNS = (
    "load", "K", "question", "status", "conditional_acceptance", "conditional_acceptance_ci95",
    "lowest_seed", "highest_seed", "acceptance_length", "draft_acceptance_rate", "crossings",
    "closed_form_round_cost", "closed_form_conditional_acceptance", "closed_form_draft_acceptance_rate",
    "own_conditional_acceptance", "own_speedup", "own_speedup_low", "own_speedup_high", "own_verdict",
    "conditional_acceptance_other_end",
)  # fmt: skip
"""Of breakeven.csv; `draft_acceptance_rate` is accepted/drafted at break-even, the other end is that of the
range of spreads between requests."""


def breakeven_text(this: Breakeven) -> str:
    """Returns everything printed on stdout."""
    found = answers(this)
    questions = list(dict.fromkeys(answer.question for answer in found))
    spread = ", ".join(sorted({_spread(spec) for spec in _specs(this)}))
    n = len(this.seeds)
    seeds = "one seed, so without a range (replications=2 gives one)"
    if n > 1:
        seeds = f"mean of {n} seeds [lowest highest]"
    parts = [
        *_own_verdicts(this),
        *(["\n".join(chance)] if (chance := list(chance_lines(this, found, load_name(this)))) else []),
        "Conditional acceptance a from which drafting pays against K = 0, on the same requests and luck: "
        f"{seeds}, {this.simulations} simulations. a is a mean over requests, {spread}.",
        break_even_table(this, found, questions),
        f"length: tokens a verification at break-even on {(questions or ['throughput'])[0]}, 1 + K x "
        "accepted/drafted, as engines log it. Closed forms: one decoding step at the plain run's batch and "
        f"context, costing `round` plain steps. {BOTH_RIGHT}",
    ]
    if extremes := list(_extremes(this, found)):
        parts.append("\n".join(extremes))
    parts.append("\n".join(_best_text(this, questions)))
    parts += list(_caveats(this, found))
    return "\n\n".join(parts)


def _own_verdicts(this: Breakeven) -> Iterator[str]:
    """Whether it pays at the file's own acceptance: yes or no first, then K by K, then what settles it."""
    lines = verdict_lines(this)
    if not lines:
        return
    yield lines[0]
    if len(lines) > 1:
        yield "\n".join(lines[1:])


def verdict_lines(this: Breakeven) -> list[str]:
    """Returns the sentences on the file's own acceptance, the answer first; none without a verdict."""
    found = rows(this)
    groups = compared(found, [this.axis, DRAFTS], this.axis, {DRAFTS: 0})
    first = lead(groups, load_said(this.loaded.experiment))
    if not first:
        return []
    said = [sentence for group in groups for sentence in in_words(group)]
    if any("not settled" in sentence for sentence in (first, *said)):
        said += settling(found, list(asked_of(found)))
    grown = [row for row in found if is_number(row.get(AT_MOST))]
    if grown:
        counts = sorted(int(number(row, "num_prompts")) for row in grown)
        span = f"{counts[0]:,}" if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,}"
        most = int(number(grown[0], AT_MOST))
        said.append(
            f"Simulations at the file's acceptance went on for {span} requests, of {most:,} at most "
            f"(run.at_most); searches have {MOST_SEARCHED:,} at most."
        )
    if has_bands(found):
        said.append(BANDS)
    return [first, *said]


def _specs(this: Breakeven) -> Iterator[AcceptanceSpec]:
    for config in this.configs.values():
        yield from acceptance_specs(config).values()


def _spread(spec: AcceptanceSpec) -> str:
    return "requests all alike" if math.isinf(spec.concentration) else f"concentration {spec.concentration:g}"


def break_even_table(this: Breakeven, found: Sequence[Threshold], questions: Sequence[str]) -> str:
    """Returns the break-even of every load and K, beside the closed forms and the file's own acceptance."""
    by_key = {(a.load, a.k, a.question): a for a in found}
    rows: list[list[str]] = []
    for k in this.drafts:
        if rows:
            rows.append([])
        for load in this.loads:
            mine = [by_key.get((load, k, question)) for question in questions]
            if not any(mine):
                continue
            form, own = closed_form(this, load, k), own_alpha(this, load, k)
            closed = ["", "", ""]
            if form is not None:
                a = "never" if form.conditional is None else f"{form.conditional:.2f}"
                closed = [f"{form.cost:.2f}", a, f"{max(form.draft_rate, 0.0):.2f}"]
            length = mine[0].length if mine and mine[0] else None
            ratio = own_speedup(this, load, k, questions[0])
            rows.append(
                [
                    f"{k}",
                    f"{load:g}",
                    *("" if answer is None else _cell(answer) for answer in mine),
                    "" if length is None else f"{length:.2f}",
                    *closed,
                    "" if own is None else f"{own:.2f}",
                    "" if ratio is None else f"{ratio:.2f}",
                ]
            )
    headings = ["K", load_name(this), *questions, "length", "round", "closed a", "closed r", "file's a"]
    return table_text([*headings, f"its {questions[0]} x plain"], rows, keys=2)


def load_name(this: Breakeven) -> str:
    """Returns what the load is called."""
    return "concurrency" if this.axis == CONCURRENCY else "requests/s"


def _cell(answer: Threshold) -> str:
    """A break-even; a band where the spread between requests is not known."""
    here = _at(answer)
    if answer.end is not None and answer.alpha is not None:
        low, high = sorted((answer.alpha, answer.end))
        return f"{low:.2f}-{high:.2f}" if f"{low:.2f}" != f"{high:.2f}" else here
    there = SHORT.get(answer.end_status, "mixed") if answer.end is None else f"{answer.end:.2f}"
    return f"{here} to {there}" if answer.end_status and there != here else here


def _at(answer: Threshold) -> str:
    if answer.alpha is not None:
        low, high = min(answer.alphas), max(answer.alphas)
        return f"{answer.alpha:.2f}" + (f" [{low:.2f} {high:.2f}]" if len(answer.alphas) > 1 else "")
    if answer.status != "mixed":
        return SHORT[answer.status]
    parts = [f"{count} {SHORT[s]}" for s, count in answer.statuses.items() if s != AT]
    alphas = ", ".join(f"{alpha:.2f}" for alpha in answer.alphas)
    return ", ".join([*([alphas] if alphas else []), *parts])


def _extremes(this: Breakeven, found: Sequence[Threshold]) -> Iterator[str]:
    """Sentences about loads where the answer is not an acceptance."""
    for k in this.drafts:
        for status, said in SAID.items():
            by_loads: dict[tuple[float, ...], list[str]] = {}
            for question in ASKED:
                loads = tuple(a.load for a in found if (a.k, a.question, a.status) == (k, question, status))
                by_loads.setdefault(loads, []).append(question)
            for loads, questions in by_loads.items():
                if loads:
                    at = ", ".join(f"{load:g}" for load in loads)
                    yield f"K = {k}, {load_name(this)} {at}: on {', '.join(questions)} it {said}."


def _best_text(this: Breakeven, questions: Sequence[str]) -> Iterator[str]:
    """The best K by question and load, and the lists for vLLM."""
    chosen = {question: best(this, question) for question in questions}
    rows = []
    for load in this.loads:
        cells = [next((one for one in chosen[q] if one.load == load), None) for q in questions]
        shown = ["" if one is None else _best_cell(one) for one in cells]
        batch = next((f"{one.batch:.0f}" for one in cells if one is not None), "")
        rows.append([f"{load:g}", batch, *shown])
    yield "Best K of those that pay at the file's acceptance, with its speedup (K with `?` may be better):"
    yield ""
    yield table_text([load_name(this), "batch", *questions], rows)
    yield ""
    yield "Ready for speculative_config (batch: requests in a step; parted between the loads tested):"
    by_list: dict[str, list[str]] = {}
    for question in (q for q in questions if any(one.k for one in chosen[q])):
        by_list.setdefault(ready_for(schedule_for(this, question)), []).append(question)
    for question in questions:
        if chosen[question] and not any(one.k for one in chosen[question]):
            yield f"  none by {question}: no K is known to pay at any load tested"
    for ready, agreed in by_list.items():
        yield f"  {ready}   by {', '.join(agreed)}"
    if any(one.k == 0 for ones in chosen.values() for one in ones):
        yield (
            "K = 0 is compared as no drafter at all; chosen from a list it keeps the drafter's memory and "
            "first pass."
        )


def _best_cell(one: Best) -> str:
    """Such as `3 (x1.22)`, and K that may be better: `1 (x1.05; 3?)`."""
    doubt = "".join(f"; {k}?" for k in one.unsettled)
    return f"{one.k} (x{one.speedup:.2f}{doubt})"


def ready_for(rows: Sequence[tuple[int, int, int]]) -> str:
    """Returns a batch-size schedule as fields of a speculative_config, the K that it needs at most first."""
    listed = [list(row) for row in rows]
    most = max(k for _, _, k in rows)
    return f'"num_speculative_tokens": {most}, "num_speculative_tokens_per_batch_size": {listed}'


def schedule_for(this: Breakeven, question: str) -> list[tuple[int, int, int]]:
    """Returns the batch-size schedule of the best K by one question."""
    most = max(config.serve.max_num_seqs or 1 for config in this.configs.values())
    return schedule(best(this, question), most)


def _caveats(this: Breakeven, found: Sequence[Threshold]) -> Iterator[str]:
    specs = list(_specs(this))
    if dropped := sorted({name for spec in specs for name in _dropped(spec)}):
        yield (
            f"The search knows one conditional acceptance and its spread: the file's {', '.join(dropped)} "
            "count only for its own acceptance."
        )
    if any(s.synthetic or math.isinf(s.concentration) for s in specs):
        yield "Requests are all alike here: do not read P99 TPOT or goodput from it."
    back_and_forth = [a for a in found if a.crossings > 1]
    if back_and_forth:
        at = "; ".join(f"K = {a.k}, {a.load:g}, {a.question}" for a in back_and_forth)
        yield f"The speedup passes 1 more than once, the last time counts: {at}."
    if any(a.question == "goodput" for a in found):
        return
    yield "No goodput: the file has no slo."


def _dropped(spec: AcceptanceSpec) -> Iterator[str]:
    """Names what a file says of its acceptance beyond a quantity and what the search keeps."""
    kept = assumed(spec, 0.5)
    for field in dataclasses.fields(spec):
        if field.name in (*QUANTITIES, "measured_at_k", "source"):
            continue
        if getattr(spec, field.name) != getattr(kept, field.name):
            yield field.name


def write_breakeven(this: Breakeven) -> None:
    """Writes breakeven.csv and breakeven.json into the folder."""
    found = answers(this)
    rows = [_row(this, answer) for answer in found]
    write_whole(this.folder / "breakeven.csv", partial(_write_rows, rows=rows))
    write_whole(this.folder / "breakeven.json", partial(write_json, content=breakeven_facts(this)))


def breakeven_facts(this: Breakeven) -> dict[str, object]:
    """Returns everything that was found as plain values."""
    found = answers(this)
    rows = [_row(this, answer) for answer in found]
    questions = list(dict.fromkeys(answer.question for answer in found))
    return {
        "answer": next(iter(lines := verdict_lines(this)), None),
        "verdicts": lines[1:],
        "specfleet": __version__,
        "name": this.loaded.experiment.name,
        "overrides": list(this.overrides),
        "seeds": list(this.seeds),
        "tolerance": this.tolerance,
        "least_gain": this.loaded.experiment.report.least_gain,
        "load": this.axis,
        "simulations": this.simulations,
        "notices": list(this.loaded.notices),
        "failures": dict(this.failures),
        "break_even": [
            {**row, "by_seed": list(answer.alphas), "statuses": dict(answer.statuses)}
            for row, answer in zip(rows, found, strict=True)
        ],
        "chances": [dataclasses.asdict(one) for one in chances(this, found)],
        "best_k": {
            question: [{"load": b.load, "K": b.k, "speedup": b.speedup, "batch": b.batch} for b in chosen]
            for question in questions
            if (chosen := best(this, question))
        },
        "num_speculative_tokens_per_batch_size": {q: schedule_for(this, q) for q in questions},
        "curves": list(_curves(this, questions)),
    }


def _write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([_csv_cell(row[key]) for key in COLUMNS])


def _row(this: Breakeven, answer: Threshold) -> dict[str, object]:
    form = closed_form(this, answer.load, answer.k)
    width = answer.half_width
    values = (
        answer.load,
        answer.k,
        answer.question,
        answer.status,
        answer.alpha,
        None if math.isnan(width) else width,
        min(answer.alphas, default=None),
        max(answer.alphas, default=None),
        answer.length,
        None if answer.length is None else (answer.length - 1.0) / answer.k,
        answer.crossings,
        form.cost if form else None,
        form.conditional if form else None,
        form.draft_rate if form else None,
        own_alpha(this, answer.load, answer.k),
        answer.own_speedup,
        *_own(this, answer),
        answer.end,
    )
    return dict(zip(COLUMNS, values, strict=True))


def _own(this: Breakeven, answer: Threshold) -> tuple[object, ...]:
    """The interval of the speedup at the file's own acceptance, and the verdict."""
    judged = this.verdicts.get((answer.load, answer.k))
    name = RATIOS[answer.question]
    low, high = (judged.row.get(name + end) if judged else None for end in ("_low", "_high"))
    return low, high, answer.verdict


def _csv_cell(value: object) -> object:
    if isinstance(value, str):
        return text_cell(value)
    return f"{value:.9g}" if isinstance(value, float) else "" if value is None else value


def _curves(this: Breakeven, questions: Sequence[str]) -> Iterator[dict[str, object]]:
    """Everything simulated, a curve a load, K and seed."""
    for (load, k, seed), found in sorted(this.found.items()):
        if not k:
            continue
        plain = this.found[load, 0, seed].own
        yield {
            "load": load,
            "K": k,
            "seed": seed,
            "conditional_acceptance": list(found.alphas),
            "acceptance_length": [f["acceptance_length"] for f in found.figures],
            "speedup": {q: [speedup(q, f, plain) for f in found.figures] for q in questions},
            "own": {"acceptance_length": found.own["acceptance_length"]}
            | {q: speedup(q, found.own, plain) for q in questions},
        }
