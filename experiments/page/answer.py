"""The answer of a run in one sentence, and the same by line and question."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specfleet.experiments.figures.data import Line, Shown
from specfleet.experiments.figures.style import noun
from specfleet.experiments.page.data import Finished, Slice, point_name
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.values import named
from specfleet.experiments.words.verdict import Crossing, crossing, crossing_sentence, questions

THROUGHPUT, TAIL = "speedup_output_throughput", "speedup_p99_tpot"
MOST_NAMED = 4
"""Lines named one by one in a sentence; of more, how many."""


def headline(run: Finished) -> str:
    """Returns the run's answer in one sentence."""
    if len(run.slices) == 1 or not _asks(run.shown):
        return slice_answer(run.slices[0]) if len(run.slices) == 1 else _highest(run)
    answers = [_throughout(part) for part in run.slices]
    many = len(answers)
    what = ", ".join(noun(key) for key in _others(run.shown))
    return (
        f"Over {many} settings ({what}), {_subject(run.shown)} pays on throughput at every "
        f"{noun(str(run.shown.along))} tested in {sum(a for a, _ in answers)} of {many}, and on P99 TPOT in "
        f"{sum(b for _, b in answers)} of {many}."
    )


def slice_answer(part: Slice) -> str:
    """Returns the answer of one slice in one sentence."""
    given = part.shown
    if not _asks(given):
        return _over_points(given) or _best(given)
    return f"{_on_throughput(given)}; {_on_the_tail(given)}."


def verdict_rows(part: Slice) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Returns the questions and, by line, an answer to each; both empty where nothing is compared."""
    given = part.shown
    if not _asks(given):
        return [], []
    asked = {
        key: said for key, said in questions(given.rows).items() if any(key in row for row in given.rows)
    }
    last = max(_places(given.rows, given))
    found = []
    for line in _compared(given):
        answers = {key: _crossing(line.rows, given, key) for key in asked}
        found.append((line.label, [crossing_sentence(c, last) if c else "" for c in answers.values()]))
    return list(asked.values()), found


def within_slo(run: Finished) -> str | None:
    """Returns which point that meets the SLO has the most throughput; None without an SLO."""
    wanted = _attainment(run)
    if wanted is None or not any(is_number(row.get("slo_attainment")) for row in run.rows):
        return None
    limits = ", ".join(f"{name.upper()} {limit:,.0f} ms" for name, limit in run.shown.limits_ms.items())
    limits = f"the SLO ({limits} for {wanted:.4g} % of requests)" if limits else "the SLO"
    judged = [row for row in run.rows if is_number(row.get("slo_attainment"))]
    good = [row for row in judged if 100 * number(row, "slo_attainment") >= wanted]
    if not good:
        return f"No point meets {limits}."
    best = max(good, key=lambda row: number(row, "output_throughput"))
    return (
        f"Within {limits}, most throughput comes from {point_name(best, run.shown.axes)}: {_figures(best)}."
    )


def highest_load(given: Shown) -> float | None:
    """Returns the largest value of the horizontal axis, if it has numbers."""
    if given.along is None or not all(is_number(row[given.along]) for row in given.rows):
        return None
    return max(_places(given.rows, given))


def _attainment(run: Finished) -> float | None:
    """Per cent of requests that must meet the SLO."""
    slo = run.experiment.slo if run.experiment else None
    return None if slo is None else 100 * slo.attainment


def _asks(given: Shown) -> bool:
    """Whether lines are compared with a baseline line over a load of numbers."""
    return (
        given.along is not None
        and bool(given.baseline)
        and any(line.baseline for line in given.lines)
        and any(THROUGHPUT in row for line in _compared(given) for row in line.rows)
        and all(is_number(row[given.along]) for row in given.rows)
    )


def _compared(given: Shown) -> list[Line]:
    return [line for line in given.lines if not line.baseline]


def _places(rows: Sequence[Row], given: Shown) -> list[float]:
    return [number(row, str(given.along)) for row in rows]


def _crossing(rows: Sequence[Row], given: Shown, key: str) -> Crossing | None:
    usable = sorted((row for row in rows if key in row), key=lambda row: number(row, str(given.along)))
    if not usable:
        return None
    widths = [number(row, f"{key}_ci95") if f"{key}_ci95" in row else math.nan for row in usable]
    return crossing(_places(usable, given), [number(row, key) for row in usable], widths)


def _subject(given: Shown) -> str:
    """What is asked about: speculation, or another choice along the axis of the lines."""
    key = next(iter(given.baseline))
    if "speculative_config" in key:
        return "speculation"
    return f"a {noun(key)} other than {named(key, given.baseline[key]).rpartition(' = ')[2]}"


def _others(given: Shown) -> list[str]:
    lines = next(iter(given.baseline), None)
    return [key for key in given.axes if key not in (given.along, lines)]


def _best_by_load(given: Shown) -> list[tuple[float, str, Row]]:
    """The line with the highest throughput ratio at each load, in order of the load."""
    found: dict[float, list[tuple[str, Row]]] = {}
    for line in _compared(given):
        for row in line.rows:
            if THROUGHPUT in row:
                found.setdefault(number(row, str(given.along)), []).append((line.label, row))
    return [(load, *max(found[load], key=lambda pair: number(pair[1], THROUGHPUT))) for load in sorted(found)]


def _on_throughput(given: Shown) -> str:
    best = _best_by_load(given)
    load, subject = noun(str(given.along)), _subject(given)
    ends = dict.fromkeys((0, len(best) - 1))
    told = [f"{number(best[i][2], THROUGHPUT):.2f} times with {best[i][1]} at {best[i][0]:g}" for i in ends]
    gains = f"at best {' and '.join(told)}"
    found = crossing([x for x, *_ in best], [number(r, THROUGHPUT) for *_, r in best], [math.nan] * len(best))
    if found.crosses_at is None and found.last_paying is not None:
        return f"On throughput {subject} pays at every {load} tested, {gains}"
    return f"On throughput {subject} {crossing_sentence(found, best[-1][0])} ({load}), {gains}"


def _on_the_tail(given: Shown) -> str:
    """Which lines pay on P99 TPOT, and up to where."""
    lines = _compared(given)
    crossings = [(line, c) for line in lines if (c := _crossing(line.rows, given, TAIL))]
    whole = [line.label for line, c in crossings if _pays_throughout(c)]
    if not crossings:
        return "P99 TPOT is not compared"
    if len(whole) == len(crossings):
        return "on P99 TPOT it pays throughout as well"
    if len(crossings) > MOST_NAMED:
        return f"on P99 TPOT {len(whole)} of {len(crossings)} pay throughout"
    last = max(_places(given.rows, given))
    said = [f"{line.label} {crossing_sentence(c, last)}" for line, c in crossings]
    return f"on P99 TPOT {', '.join(said)}"


def _over_points(given: Shown) -> str | None:
    """At how many points it pays, where the horizontal axis has no numbers; None without a baseline."""
    lines = _compared(given)
    points = [(line.label, row) for line in lines for row in line.rows if THROUGHPUT in row]
    if not points or not given.baseline or not any(line.baseline for line in given.lines):
        return None
    label, row = max(points, key=lambda pair: number(pair[1], THROUGHPUT))
    place = named(str(given.along), row[str(given.along)])
    best = f"{number(row, THROUGHPUT):.2f} times with {label} at {place}"
    pays = [sum(number(row, key) >= 1 for _, row in points if key in row) for key in (THROUGHPUT, TAIL)]
    return (
        f"On throughput {_subject(given)} pays at {pays[0]} of {len(points)} points, at best {best}; "
        f"on P99 TPOT at {pays[1]}."
    )


def _pays_throughout(found: Crossing | None) -> bool:
    return found is not None and found.crosses_at is None and found.last_paying is not None


def _throughout(part: Slice) -> tuple[bool, bool]:
    """Whether some line pays at every load, on throughput and on P99 TPOT."""
    if not _asks(part.shown):
        return False, False
    lines = _compared(part.shown)
    throughput, tail = [
        any(_pays_throughout(_crossing(line.rows, part.shown, key)) for line in lines)
        for key in (THROUGHPUT, TAIL)
    ]
    return throughput, tail


def _best(given: Shown) -> str:
    """The point with the highest throughput; or what the only point comes to."""
    return _told(max(given.rows, key=lambda row: number(row, "output_throughput")), given)


def _highest(run: Finished) -> str:
    return _told(max(run.rows, key=lambda row: number(row, "output_throughput")), run.shown)


def _told(row: Row, given: Shown) -> str:
    if not given.axes:
        length = number(row, "acceptance_length") if "acceptance_length" in row else 1.0
        return f"{_figures(row)}{f', {length:.2f} tokens per verification' if length > 1 else ''}."
    return f"Highest throughput: {point_name(row, given.axes)}, with {_figures(row)}."


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _figures(row: Row) -> str:
    """A point's throughput and the latencies it has."""
    latencies = {"mean_tpot_ms": "mean TPOT", "p99_tpot_ms": "P99 TPOT", "p99_ttft_ms": "P99 TTFT"}
    said = [f"{word} {_ms(number(row, key))} ms" for key, word in latencies.items() if key in row]
    return ", ".join([f"{number(row, 'output_throughput'):,.0f} output tokens/s", *said])
