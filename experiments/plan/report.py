"""What `specfleet plan` prints: the answer, why, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from specfleet.experiments.plan.answer import answer, listed, so_many
from specfleet.experiments.plan.capacity import interval, mean
from specfleet.experiments.plan.drafts import speculation_lines
from specfleet.experiments.plan.fleet.apart import split_lines, why_apart
from specfleet.experiments.plan.fleet.report import day_lines, fleet_lines, traffic_lines
from specfleet.experiments.plan.fleet.scaled import LONGEST
from specfleet.experiments.plan.neighbours import CANNOT, COSTS_MORE, Neighbour
from specfleet.experiments.plan.numbers import NONE_LEFT, memory, one_more, shifts
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.search import Entry
from specfleet.experiments.plan.seen import TrialFigures, of_limit, worst
from specfleet.experiments.plan.sensitivity import Changed
from specfleet.experiments.plan.trials import limits_of
from specfleet.experiments.words.backing import backing_of_points
from specfleet.experiments.words.table import Column, table_text
from specfleet.experiments.words.values import rounded

SHOWN_CANDIDATES = 10
NAMED_SENTENCES = (Column(left=True), Column(left=True))
NUMBERS = (Column(left=True, width=12), Column(width=9), Column(left=True))


def plan_text(this: Planned) -> str:
    """Returns the printout of a plan."""
    if this.winner is None:
        return "\n".join([answer(this), "", *_nothing(this)])
    parts = [
        answer(this),
        "",
        *_load_lines(this),
        "",
        *speculation_lines(this),
        "",
        *_neighbour_lines(this),
        "",
        *_change_lines(this),
        "",
        *_fleet_lines(this),
        *_elsewhere_lines(this),
        *_candidate_lines(this),
        "",
        *trust(this),
    ]
    return "\n".join(parts)


def _load_lines(this: Planned) -> Iterator[str]:
    """Latencies, goodput, the largest load, cost and memory."""
    assert this.winner is not None and this.winner.high is not None and this.capacity is not None
    mine, replicas = this.winner.candidate, this.winner.high
    runs, at = this.runs[mine.id], this.capacity
    single = this.traffic.rate / replicas
    asked = "" if this.prompts is None else f", {runs[0]['completed']:,.0f} requests"
    seeds = "" if len(runs) == 1 else f" x {len(runs)} seeds"
    yield f"One replica at its share, {rounded(single)} requests/s (95 % intervals{asked}{seeds}):"
    rows = []
    slo = this.experiment.slo
    for key in ("p99_ttft_ms", "p99_tpot_ms", "mean_tpot_ms"):
        value, low, high = interval(runs, key)
        most = slo.percentile_limits_ms.get(key) if slo else None
        allowed = "" if most is None else f", {most:g} allowed"
        rows.append([_named(key), f"{value:.1f}", f"ms{_bounds(low, high, most)}{allowed}"])
    goodput = mean(runs, "request_goodput")
    offered = mean(runs, "offered_rate")
    per_gpu = goodput / mine.gpus
    said = f"requests/s of {offered:.2f} offered, {per_gpu:.3f} per GPU"
    rows.append(["goodput", f"{goodput:.2f}", said])
    yield table_text(NUMBERS, rows, indent=2, gap=1)
    yield from _taken(this)
    more = "more than " if at.more else ""
    yield (
        f"Largest load of one replica at the SLO: {more}{at.rate:.2f}{_plus_minus(at.rate_ci95)} "
        f"requests/s, or {at.concurrency} requests in flight of a closed loop. What stops it: {at.limit}, "
        f"from {at.resource}."
    )
    if this.whole:
        ttft, tpot = mean(this.whole, "p99_ttft_ms"), mean(this.whole, "p99_tpot_ms")
        ratio, limit = worst(this.whole)
        yield (
            f"The whole deployment behind {mine.config.deployment.routing.then}: P99 TTFT "
            f"{ttft:.0f} ms, P99 TPOT {tpot:.1f} ms, {ratio:.2f} of {limit}."
        )
    yield from _over_the_band(this)
    spare = one_more(this)
    yield (
        f"N + 1: {spare.replicas} replicas, {spare.gpus} GPUs, ${spare.per_hour_usd:.2f}/h."
        if spare
        else f"N + 1: {NONE_LEFT}."
    )
    kv = memory(this, mine)
    yield (
        f"KV cache: {kv.tokens:,} tokens, {100 * kv.peak_usage:.0f} % used at the peak, room for "
        f"{kv.full_requests:.1f} requests of full length, {kv.preemptions_per_hour:.0f} preemptions/h."
    )
    for shift in shifts(this):
        yield f"  from {shift.hour:05.2f} h: {rounded(shift.rate)} requests/s, {shift.replicas} replicas"


def _taken(this: Planned) -> Iterator[str]:
    """Says which limits are kept by what is far below them alone."""
    assert this.winner is not None and this.winner.high is not None
    reply = this.confirmed or this.winner.tried[this.winner.high]
    names = [_named(key) if key.count("_") == 2 else key for key in reply.judged.taken]
    if names:
        yield (
            f"Too few requests to see values near the limit on {listed(names)}: that it is kept is "
            "concluded from P90 and the median, which lie far below."
        )


def _named(key: str) -> str:
    statistic, latency, _ = key.split("_")
    return f"{statistic.replace('p', 'P')} {latency.upper()}"


def _plus_minus(half: float) -> str:
    return "" if math.isnan(half) or not half else f" +- {half:.2f}"


def _bounds(low: float, high: float, limit: float | None) -> str:
    """Returns an interval; where too little was seen for one, that a limit is kept is all that is known."""
    if math.isnan(low):
        return f" (too few requests to bound it{'' if limit is None else ' closer than by the limit'})"
    return f" ({low:.1f} to {high:.1f})"


def _over_the_band(this: Planned) -> Iterator[str]:
    """Says what the winner's P99 is where requests differ less, or more, than was planned with."""
    for end in this.ends:
        yield (
            "How much requests differ (acceptance.concentration) is not given. P99 TPOT is "
            f"{mean(end.runs, 'p99_tpot_ms'):.1f} ms with {end.spread}, {end.judged.ratio:.2f} of "
            f"{end.judged.limit}: the plan holds there too."
        )


def _neighbour_lines(this: Planned) -> Iterator[str]:
    assert this.winner is not None
    if not this.neighbours:
        yield "All candidates were compared with all GPUs that the plan allows."
        return
    yield "Held against every candidate one step away, with as many replicas as the same money buys:"
    yield table_text(NAMED_SENTENCES, [[n.step, _beside(n)] for n in this.neighbours], indent=2)


def _beside(n: Neighbour) -> str:
    """Returns how a neighbour stands against the plan."""
    what = n.candidate.id
    if n.verdict == CANNOT:
        return f"{what}: cannot be had: {n.limit}"
    if n.verdict == COSTS_MORE:
        return f"{what}: ${n.cost:.2f}/h with one replica already"
    return f"{n.replicas} x ({what}) at ${n.cost:.2f}/h: {n.verdict}, {of_limit(n)}"


def _change_lines(this: Planned) -> Iterator[str]:
    yield "If it turns out differently:"
    assert this.winner is not None
    mine = this.winner.candidate.id
    yield table_text(NAMED_SENTENCES, [[c.name, _then(c, mine)] for c in this.changed], indent=2)


def _fleet_lines(this: Planned) -> Iterator[str]:
    """Routers and pools, the day, and a blank line; nothing where the plan lists none."""
    lines = [*fleet_lines(this.fleets, this.plan.spare_replicas), *split_lines(this.splits)]
    if this.winner is not None and this.splits:
        lines += why_apart(this.splits, _base(this), this.whole)
    lines += day_lines(this.day)
    yield from [*lines, ""] if lines else []


def _base(this: Planned) -> float:
    """Dollars an hour of the plan's equal replicas."""
    assert this.winner is not None and this.winner.high is not None
    return this.winner.candidate.replica_usd * (this.winner.high + this.plan.spare_replicas)


def _elsewhere_lines(this: Planned) -> Iterator[str]:
    """What would be bought at other traffic, and a blank line; nothing where nobody asked."""
    most = None if this.lengths is None else min(this.lengths.most, LONGEST)
    lines = list(traffic_lines(this.elsewhere, most))
    yield from [*lines, ""] if lines else []


HOLDS: dict[str, str] = {
    "met": "the plan holds",
    "missed": "the plan does not hold",
    "not settled": "it is not settled whether the plan holds",
}


def _then(c: Changed, planned: str) -> str:
    """Returns whether the plan holds under a change, and what is cheapest then."""
    holds = f"{HOLDS[c.verdict]} ({of_limit(c)})"
    if c.verdict == "met":
        return holds
    if c.best is None:
        return f"{holds}; none of the shortlist is sure to meet the SLO"
    if c.best.id == planned:
        return f"{holds}; same engine, {so_many(c.best_replicas)}, ${c.best_cost:.2f}/h"
    return f"{holds}; sure then: {c.best_replicas} x ({c.best.id}), ${c.best_cost:.2f}/h"


def status(this: Planned, entry: Entry) -> str:
    """Returns what is known of a candidate that can be had, in words."""
    if entry.bound.rate == 0.0:
        return f"cannot meet the SLO at any load: {entry.bound.limit}"
    n = entry.shown
    cost = entry.candidate.replica_usd * (n + this.plan.spare_replicas)
    many = so_many(n)
    if entry.known:
        return f"${cost:.2f}/h: {many} meet{'' if n > 1 else 's'} it, {of_limit(entry)}"
    if entry.unsettled:
        looked = entry.unsettled[0]
        judged, least = entry.tried[looked].judged, "" if looked == n else "at least "
        shown = of_limit(judged)
        return f"{least}${cost:.2f}/h: not settled with {so_many(looked)}, {shown}"
    why = f"{entry.low} fail{'s' if entry.low == 1 else ''}" if entry.tried else "closed form"
    return f"at least ${cost:.2f}/h: {many} or more ({why})"


def _candidate_lines(this: Planned) -> Iterator[str]:
    refused = [c for c in this.every if c.refusal]
    spare = this.plan.spare_replicas
    ordered = sorted(this.entries, key=lambda e: (e.candidate.replica_usd * (e.shown + spare), e.ratio))
    if this.plan.objective != "cost":
        ordered = sorted(this.entries, key=lambda e: e.ratio)
    first = "The cheapest" if this.plan.objective == "cost" else "Those with most room"
    yield f"{len(this.every)} candidates, {len(refused)} cannot be had. {first}:"
    yield _entry_table(this, ordered[:SHOWN_CANDIDATES])
    yield from _refusals(this)


def _entry_table(this: Planned, entries: Sequence[Entry]) -> str:
    return table_text(NAMED_SENTENCES, [[e.candidate.id, status(this, e)] for e in entries], indent=2)


def _refusals(this: Planned) -> Iterator[str]:
    """By reason; an engine that can be had otherwise is named with the way to draft that it has not."""
    by_reason: dict[str, list[str]] = {}
    there = {candidate.engine for candidate in this.every if not candidate.refusal}
    for candidate in this.every:
        if candidate.refusal:
            name = candidate.id if candidate.engine in there else candidate.engine
            by_reason.setdefault(candidate.refusal, []).append(name)
    for reason, names in by_reason.items():
        yield f"  not to be had: {', '.join(dict.fromkeys(names))}: {reason}"


def _nothing(this: Planned) -> Iterator[str]:
    yield from _attainable(this)
    yield _entry_table(this, this.entries)
    yield from _refusals(this)


def _attainable(this: Planned) -> Iterator[str]:
    """Says of each limit the best that any candidate can do, one request at a time."""
    slo = this.experiment.slo
    alone = [(c, this.alone[c.id]) for c in this.every if c.id in this.alone]
    if slo is None or not alone:
        return
    for key, allowed in limits_of(slo).items():
        found = [(worst([_only(run, key)])[0] * allowed.limit, c) for c, run in alone if key in run.limits]
        if not found:
            continue
        value, candidate = min(found, key=lambda each: each[0])
        unit, name = ("", key) if allowed.limit == 1.0 else (" ms", _named(key))
        if value > allowed.limit:
            yield (
                f"{name} is out of reach: with one request at a time the best is {value:.1f}{unit}, by "
                f"{candidate.id}; {allowed.limit:g} {'is' if unit else 'times its limits are'} allowed."
            )
        else:
            yield (
                f"{name}: with one request at a time {value:.1f}{unit} by {candidate.id}, {allowed.limit:g} "
                "allowed; the load is too much for what the plan may buy."
            )


def _only(run: TrialFigures, key: str) -> TrialFigures:
    """A run of which one limit is asked."""
    return TrialFigures({}, run.series, {key: run.limits[key]}, weights=run.weights)


def trust(this: Planned) -> list[str]:
    """Returns how far the answer lies from measured territory."""
    assert this.winner is not None
    mine = this.winner.candidate
    tokens = sum(mean(this.runs[mine.id], f"mean_{side}_tokens") for side in ("input", "output"))
    return backing_of_points([mine.config], tokens, 0.0)
