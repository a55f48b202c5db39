"""The answer of a run in one sentence, and the same by line and question."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.figures.data import Shown
from specfleet.experiments.page.data import Finished, Slice, point_name
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.answer import Compared, compared, lead, load_said, not_asked
from specfleet.experiments.words.band import banded
from specfleet.experiments.words.by_class import class_answer
from specfleet.experiments.words.costs.energy import energy_said
from specfleet.experiments.words.costs.handover import apart_said, handover_said
from specfleet.experiments.words.verdict import judged, questions, reach
from specfleet.sim.statistics.verdict import LEAST_GAIN


def headline(run: Finished) -> str:
    """Returns the run's answer in one sentence; of a run that was interrupted, that it was."""
    if (missing := interruption(run)) is not None:
        return missing
    groups = [group for part in run.slices for group in _groups(part)]
    at = load_said(run.experiment) if run.experiment else ""
    if said := lead(groups, at):
        return " ".join(filter(None, [said, class_answer(groups)]))
    asks = not_asked(run.experiment) if run.experiment else ""
    told = _best(run.shown) if len(run.slices) == 1 else _highest(run)
    return f"{told} {asks}" if asks else told


def slice_answer(run: Finished, part: Slice) -> str:
    """Returns the answer of one slice in one sentence."""
    at = load_said(run.experiment) if run.experiment else ""
    return lead(_groups(part), at) or _best(part.shown)


def verdict_rows(part: Slice) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Returns the questions and, by line, an answer to each; both empty where nothing is compared."""
    groups = [group for group in _groups(part) if group.load is not None]
    if len(groups) != 1:
        return [], []
    (group,) = groups
    assert group.load is not None
    asked = {q: said for q, said in questions(group.rows).items() if any(judged(r, q) for r in group.others)}
    found = []
    for label in dict.fromkeys(map(group.label, group.others)):
        mine = [row for row in group.others if group.label(row) == label]
        reaches = [reach(mine, group.load, question) for question in asked]
        found.append((label, [each.sentence() if each else "" for each in reaches]))
    return list(asked.values()), found


def interruption(run: Finished) -> str | None:
    """Says how much of a run is there, where it was interrupted; None where all of it was tried."""
    points, seeds, failures = (run.manifest.get(key) for key in ("points", "seeds", "failures"))
    if not isinstance(points, list) or not isinstance(seeds, list):
        return None
    failed = len(failures) if isinstance(failures, dict) else 0
    tried = len(points) * len(seeds)
    whole = sum(int(number(row, "replications")) for row in run.rows if "replications" in row)
    if whole + failed >= tried:
        return None
    return (
        f"Interrupted: {whole} of {tried} simulations are whole, and nothing is concluded from them; "
        "go on with --resume."
    )


def energy(run: Finished) -> list[str]:
    """What drafting does to the energy of a token, by choice; nothing where points are compared with none."""
    least = run.experiment.report.least_gain if run.experiment else LEAST_GAIN
    return energy_said([group for part in run.slices for group in _groups(part)], least)


def handover(run: Finished) -> list[str]:
    """Where prefill and decode apart serve more, and where TTFTs went; nothing where no pool has a role."""
    return [*apart_said(run.rows, run.shown.axes), *handover_said(run.rows, run.shown.axes)]


def _groups(part: Slice) -> list[Compared]:
    given = part.shown
    rows = [row for row in given.rows if all(key in row for key in given.axes)]
    return compared(rows, given.axes, given.along, given.baseline)


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


def _places(rows: Sequence[Row], given: Shown) -> list[float]:
    return [number(row, str(given.along)) for row in rows]


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
    said = [f"{word} {banded(row, key, _ms)} ms" for key, word in latencies.items() if key in row]
    return ", ".join([f"{number(row, 'output_throughput'):,.0f} output tokens/s", *said])
