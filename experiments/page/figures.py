"""Which figures a run's page has, and what each says; the script in `assets` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specfleet.experiments.figures.answer import P99, asked_first
from specfleet.experiments.figures.data import Shown
from specfleet.experiments.figures.steps import GAIN, PARTS
from specfleet.experiments.figures.style import interval_note
from specfleet.experiments.page.data import LATENCIES, STATISTICS, Finished
from specfleet.experiments.page.html import Html, tag
from specfleet.experiments.run.gains import P99_TPOT
from specfleet.experiments.run.results import is_number
from specfleet.experiments.words.names import noun
from specfleet.experiments.words.tail import WORDS, read_split
from specfleet.experiments.words.values import named
from specfleet.experiments.words.verdict import QUESTIONS

Figure = dict[str, object]

SPLIT_PARTS = (
    ("decode_ms", "plain steps, at mean acceptance", "#0072B2", ""),
    ("low_acceptance_ms", WORDS["low_acceptance_ms"], "#CC79A7", "dots"),
    ("others_prefill_ms", WORDS["others_prefill_ms"], "#E69F00", ""),
    ("verify_ms", WORDS["verify_ms"], "#D55E00", "cross"),
    ("draft_ms", WORDS["draft_ms"], "#FFFFFF", "slant"),
    ("host_ms", WORDS["host_ms"], "#666666", ""),
    ("paused_ms", WORDS["paused_ms"], "#BBBBBB", ""),
)
"""Part of a request's time per token, its name, colour and hatch."""

_HATCHES = {"": "", "xxxx": "cross", "//////": "slant"}
"""matplotlib's hatches of a step's parts -> the page's patterns."""


STEP_NOTE = (
    "Both relative to the plain step at the same batch and context. A step gains while tokens (circles) lie "
    "above time (triangles); numbers on top are the gain, tokens over time."
)
SIDES_NOTE = (
    "Circles: tokens of a step. Triangles: its time all told, prompts and all, over plain decoding's; "
    "numbers on top, tokens over time, are the ratio of the whole run. Dashed: what drafting and "
    "verification add to a step of the same batch."
)


def figures_of(run: Finished) -> list[Figure]:
    """Returns the figures there is something to draw for."""
    given = run.shown
    return [*_against_load(run, given), *_steps(run, given), *_tails(run)]


def _against_load(run: Finished, given: Shown) -> Iterator[Figure]:
    if given.along is None:
        return
    load = noun(given.along)
    yield from _answer(run, given)
    yield from _speedup(run, given)
    over = given.x if given.x != given.along else None
    across = noun(over) if over else load
    throughput = _there(run, ["output_throughput", "request_goodput"])
    yield {
        "id": "throughput",
        "over": over,
        "title": f"Throughput against {across}",
        "note": "Goodput counts only requests that meet the SLO." if "request_goodput" in throughput else "",
        "kind": "lines",
        "keys": throughput,
    }
    yield {
        "id": "latency",
        "over": over,
        "title": f"Latency against {across}",
        "note": "ITL is the time between streamed chunks; with speculation a chunk holds several tokens, so "
        "judge speed by TPOT and pauses by ITL. A grey line is the SLO.",
        "kind": "lines",
        "keys": [f"{{s}}_{latency}_ms" for latency in LATENCIES if _there(run, [f"p99_{latency}_ms"])],
    }
    if tasks := _there(run, ["mean_task_s", "p99_task_s", "mean_task_model_s"]):
        yield {
            "id": "tasks",
            "over": over,
            "title": f"Time of a task against {across}",
            "note": "A task is a session: its answers, and between them what its user thinks and its tools "
            "take.",
            "kind": "lines",
            "keys": tasks,
        }
    pair = ["output_throughput_per_user", "output_throughput_per_gpu"]
    if _there(run, pair) == pair:
        yield {
            "id": "tradeoff",
            "title": "Speed for each user against throughput of each GPU",
            "note": f"Up and right is better; a point is a {load}.",
            "kind": "pairs",
            "keys": pair,
        }
    yield from _further(run, given, over)


def _answer(run: Finished, given: Shown) -> Iterator[Figure]:
    """The gain and P99, and where each stops paying: what the reader came for."""
    gain = next((found for part in run.slices if (found := asked_first(part.shown))), None)
    if gain is None or given.along in given.baseline or not _there(run, [P99]):
        return
    base = ", ".join(named(key, value) for key, value in given.baseline.items())
    yield {
        "id": "both",
        "title": f"Where the gain over {base} ends, and what P99 does",
        "note": "Above 1 is better. Below, by line: full where it pays, pale from the last load at which it "
        "pays to the first at which it does not, and where it is not settled; empty where it does not.",
        "kind": "answer",
        "keys": [gain, P99],
        "questions": [gain, P99_TPOT],
        "strips": [f"Where it pays on {QUESTIONS[gain]}", f"Where it pays on {QUESTIONS[P99_TPOT]}"],
        "reference": 1,
    }


def _speedup(run: Finished, given: Shown) -> Iterator[Figure]:
    ratios = _there(run, ["speedup_output_throughput", "speedup_mean_tpot", "speedup_p99_tpot"])
    if given.baseline and ratios:
        base = ", ".join(named(key, value) for key, value in given.baseline.items())
        yield {
            "id": "speedup",
            "title": f"Does it pay? Speedup over {base}",
            "note": "Above 1 is better. Ratios are taken seed by seed on the same requests and luck.",
            "kind": "lines",
            "keys": ratios,
            "reference": 1,
        }


def _further(run: Finished, given: Shown, over: str | None) -> Iterator[Figure]:
    """The other metrics that `report.y` asks for, and those of traffic classes."""
    covered = {"output_throughput", *(f"{s}_{latency}_ms" for s in STATISTICS for latency in LATENCIES)}
    asked = _there(run, [key for key in given.y if key not in covered])
    keys = list(dict.fromkeys(key for row in run.rows for key in row if key.startswith("class:")))
    classes = [key for key in keys if key.endswith((":mean_tpot_ms", ":p99_tpot_ms"))]
    for name, title, chosen in (
        ("further", "Further figures", asked),
        ("classes", "By traffic class", classes),
    ):
        if chosen:
            yield {"id": name, "over": over, "title": title, "note": "", "kind": "lines", "keys": chosen}


def _steps(run: Finished, given: Shown) -> Iterator[Figure]:
    whole = next((found for part in run.slices if (found := asked_first(part.shown))), None)
    if given.along is not None and _there(run, GAIN):
        yield {
            "id": "sides",
            "title": "The two sides: tokens a step yields against the time it takes",
            "note": SIDES_NOTE if whole else STEP_NOTE,
            "kind": "sides",
            "keys": [*GAIN, *([whole] if whole else [])],
            "whole": whole,
        }
    terms = [f"step_{term}_ms" for term, *_ in PARTS]
    if _there(run, terms):
        yield {
            "id": "step",
            "title": "Where a step's time goes",
            "note": "Mean over the steps in which somebody decodes; those that also read prompts are among "
            "them.",
            "kind": "stack",
            "keys": terms,
            "parts": [
                {"key": f"step_{term}_ms", "name": name, "colour": colour, "hatch": _HATCHES[hatch]}
                for term, name, colour, hatch in PARTS
            ],
        }


def _tails(run: Finished) -> Iterator[Figure]:
    if any("point" in row and read_split(run.folder, str(row["point"])) for row in run.rows):
        yield {
            "id": "tail-parts",
            "title": "Time per token of the median, P90 and P99 request",
            "note": "Parts add up to the request's TPOT on the engine's clock. Left of zero: more drafts "
            "accepted than on average.",
            "kind": "split",
            "keys": [],
            "parts": [
                {"key": key, "name": name, "colour": colour, "hatch": hatch}
                for key, name, colour, hatch in SPLIT_PARTS
            ],
        }


def interval_text(run: Finished) -> Html | None:
    """Says what the error bars are; None where there are none."""
    said = interval_note(run.shown)
    paired = " Those of ratios are paired by request." if said and run.shown.baseline else ""
    return tag("p", *said, paired, class_="intervals") if said else None


def _there(run: Finished, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if any(is_number(row.get(key)) for row in run.rows)]


def frame(figure: Figure) -> Html:
    """Returns the place of a figure: caption, panels, and its values as a table, which the script fills."""
    name, note = str(figure["id"]), str(figure["note"])
    caption = tag("figcaption", tag("h3", str(figure["title"])), tag("p", note) if note else None)
    values = tag("details", tag("summary", "Values as a table"), tag("div", class_="values"))
    return tag(
        "figure", caption, tag("div", class_="keys"), tag("div", class_="panels"), values, id=f"fig-{name}"
    )


def controls(run: Finished) -> Html:
    """Returns the switches of all figures; the script fills in the lines."""
    settings = None
    if len(run.slices) > 1:
        options = [tag("option", part.name, value=str(i)) for i, part in enumerate(run.slices)]
        settings = tag("label", "Setting ", tag("select", *options, id="slice"))
    statistics = [
        tag(
            "label", tag("input", type="radio", name="statistic", value=key, checked=key == "p99"), " " + name
        )
        for key, name in STATISTICS.items()
    ]
    reset = tag("button", "Show all", type="button", id="show-all")
    choices = tag("div", tag("span", id="lines"), reset, class_="choices")
    legend = noun(run.lines_key) if run.lines_key else "Lines"
    lines = tag("fieldset", tag("legend", legend), choices) if len(run.shown.lines) > 1 else None
    latency = tag("fieldset", tag("legend", "Latency"), tag("div", *statistics, class_="choices"))
    return tag("form", lines, latency if run.shown.along else None, settings, id="controls", hidden=True)
