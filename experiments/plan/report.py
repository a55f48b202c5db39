"""What `specfleet plan` prints: the answer, why, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from specfleet.experiments.plan.capacity import interval, mean
from specfleet.experiments.plan.neighbours import CANNOT, COSTS_MORE, Neighbour
from specfleet.experiments.plan.numbers import memory, money, shifts
from specfleet.experiments.plan.planned import Planned, replicas_of
from specfleet.experiments.plan.search import Entry
from specfleet.experiments.plan.seen import TrialFigures, worst
from specfleet.experiments.plan.sensitivity import Changed
from specfleet.experiments.plan.speculation import HOTTEST, crossover, fall_back_temperature, gains
from specfleet.experiments.plan.trials import limits_of
from specfleet.experiments.run.gains import judge
from specfleet.experiments.words.backing import backing_of_points
from specfleet.experiments.words.table import Column, table_text
from specfleet.sim.statistics.verdict import LEAST_GAIN

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
        *_candidate_lines(this),
        "",
        *trust(this),
    ]
    return "\n".join(parts)


def deployment(this: Planned) -> str:
    """Returns what to buy in words: `4 replicas of 2 x h100-sxm fp8, eagle3 K = 3`."""
    assert this.winner is not None and this.winner.high is not None
    bought = this.winner.high + this.plan.spare_replicas
    spare = f", {this.plan.spare_replicas} of them spare" if this.plan.spare_replicas else ""
    return f"{replicas_of(bought, this.winner.candidate)}{spare}"


def answer(this: Planned) -> str:
    """Returns the answer in a few sentences, the uncertain first."""
    doubt = doubts(this)
    if this.winner is None:
        return doubt or "No candidate meets the SLO."
    said = {
        "cost": "Cheapest that is sure to meet the SLO" if doubt else "Cheapest",
        "headroom": "Most room to the SLO on what you own",
        "throughput": "Largest rate at the SLO on what you own",
    }[this.plan.objective]
    return " ".join(filter(None, [doubt, f"{said} {_cheapest(this)}"]))


def doubts(this: Planned) -> str:
    """Returns what is not settled, and what would settle it; empty where all is."""
    if this.settled:
        return ""
    sure = [entry for entry in (this.winner, *this.even) if entry is not None]
    named = [_priced(this, entry, n) for entry, n in this.cheaper]
    named += [_priced(this, entry, entry.shown) for entry in sure]
    text = f"Not settled {'between' if len(named) > 1 else 'is'} {_listed(named)}."
    if this.cheaper:
        entry, n = this.cheaper[0]
        looked = n if n in entry.tried else entry.unsettled[0]
        judged = entry.tried[looked].judged
        which = "the first" if len(named) > 1 else "it"
        shown = f"{judged.ratio:.2f} of {judged.limit}, {judged.why}"
        with_ = "" if looked == n else f"{_replicas(looked)}: "
        text += f" Whether {which} meets the SLO is open: {with_}{shown}."
    if this.even:
        text += " Which of those that cost the same is better is not told apart."
    return f"{text} {_more(this)}"


def _replicas(n: int) -> str:
    return f"{n} replica{'s' if n > 1 else ''}"


def _priced(this: Planned, entry: Entry, replicas: int) -> str:
    bought = replicas + this.plan.spare_replicas
    return f"{replicas_of(bought, entry.candidate)} (${entry.candidate.replica_usd * bought:.2f}/h)"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, ["; ".join(names[:-1]), names[-1]]))


def _more(this: Planned) -> str:
    """Returns what would settle it."""
    if this.lengths is not None:
        most = this.lengths.most
        return f"Longer simulations may tell (run.at_most, now {most:,} requests), or a look at both."
    if this.traffic.recorded or this.experiment.workload.phases is not None:
        return "A longer trace or more replications would tell."
    return "Leave workload.num_prompts out, and the simulations go on until it is settled."


def _cheapest(this: Planned) -> str:
    assert this.winner is not None and this.winner.high is not None
    mine = this.winner.candidate
    bought = this.winner.high + this.plan.spare_replicas
    cost = money(this, mine, bought, this.runs[mine.id], this.traffic.rate)
    text = (
        f"for {this.traffic.rate:g} requests/s: {deployment(this)} ({cost.gpus} "
        f"GPU{'s' if cost.gpus > 1 else ''}, ${cost.per_hour_usd:.2f}/h, "
        f"${cost.per_million_output_usd:.2f} per million output tokens, "
        f"${cost.per_million_total_usd:.2f} per million in all)."
    )
    if this.plan.objective != "cost":
        rate = "" if this.capacity is None else f" Up to {mine_rate(this):.1f} requests/s"
        return f"{text} {this.winner.ratio:.2f} of {this.winner.limit}.{rate} in all."
    return f"{text} {_rival(this)}"


def mine_rate(this: Planned) -> float:
    """Returns the largest rate at the SLO of all replicas that are needed, requests/s."""
    assert this.winner is not None and this.winner.high is not None and this.capacity is not None
    return this.capacity.rate * this.winner.high


def _rival(this: Planned) -> str:
    """Returns what the other side of the question would cost."""
    assert this.winner is not None and this.winner.high is not None
    drafts = bool(this.winner.candidate.k)
    side = "Without drafting" if drafts else "With drafting"
    rival = this.rival
    if not any(bool(entry.candidate.k) != drafts for entry in this.entries):
        return "Nothing else was to choose from." if drafts else "No way to draft was to choose from."
    if rival is None or rival.high is None:
        return f"{side} no candidate meets the SLO."
    cost = rival.candidate.replica_usd * (rival.high + this.plan.spare_replicas)
    mine = this.winner.candidate.replica_usd * (this.winner.high + this.plan.spare_replicas)
    return (
        f"{side} the cheapest is {rival.high + this.plan.spare_replicas} x ({rival.candidate.id}) at "
        f"${cost:.2f}/h, {100 * (cost / mine - 1):.0f} % more."
    )


def _load_lines(this: Planned) -> Iterator[str]:
    """Latencies, goodput, the largest load, cost and memory."""
    assert this.winner is not None and this.winner.high is not None and this.capacity is not None
    mine, replicas = this.winner.candidate, this.winner.high
    runs, at = this.runs[mine.id], this.capacity
    single = this.traffic.rate / replicas
    asked = "" if this.prompts is None else f", {runs[0]['completed']:,.0f} requests"
    seeds = "" if len(runs) == 1 else f" x {len(runs)} seeds"
    yield f"One replica at its share, {single:.3g} requests/s (95 % intervals{asked}{seeds}):"
    rows = []
    for key in ("p99_ttft_ms", "p99_tpot_ms", "mean_tpot_ms"):
        value, low, high = interval(runs, key)
        rows.append([_named(key), f"{value:.1f}", f"ms{_bounds(low, high)}{_of_limit(this, key)}"])
    goodput = mean(runs, "request_goodput")
    offered = mean(runs, "offered_rate")
    per_gpu = goodput / mine.tensor_parallel_size
    said = f"requests/s of {offered:.2f} offered, {per_gpu:.3f} per GPU"
    rows.append(["goodput", f"{goodput:.2f}", said])
    yield table_text(NUMBERS, rows, indent=2, gap=1)
    yield from _taken(this)
    yield (
        f"Largest load of one replica at the SLO: {at.rate:.2f}{_plus_minus(at.rate_ci95)} "
        f"requests/s, or {at.concurrency} requests in flight of a closed loop. What stops it: {at.limit}, "
        f"from {at.resource}."
    )
    if this.whole:
        ttft, tpot = mean(this.whole, "p99_ttft_ms"), mean(this.whole, "p99_tpot_ms")
        ratio, limit = worst(this.whole)
        yield (
            f"The whole deployment behind {mine.config.deployment.router}: P99 TTFT "
            f"{ttft:.0f} ms, P99 TPOT {tpot:.1f} ms, {ratio:.2f} of {limit}."
        )
    spare = money(this, mine, replicas + 1, runs, this.traffic.rate)
    yield f"N + 1: {replicas + 1} replicas, {spare.gpus} GPUs, ${spare.per_hour_usd:.2f}/h."
    kv = memory(this, mine)
    yield (
        f"KV cache: {kv.tokens:,} tokens, {100 * kv.peak_usage:.0f} % used at the peak, room for "
        f"{kv.full_requests:.1f} requests of full length, {kv.preemptions_per_hour:.0f} preemptions/h."
    )
    for shift in shifts(this):
        yield f"  from {shift.hour:05.2f} h: {shift.rate:.3g} requests/s, {shift.replicas} replicas"


def _taken(this: Planned) -> Iterator[str]:
    """Says which limits are kept by what is far below them alone."""
    assert this.winner is not None and this.winner.high is not None
    reply = this.confirmed or this.winner.tried[this.winner.high]
    names = [_named(key) if key.count("_") == 2 else key for key in reply.judged.taken]
    if names:
        yield (
            f"Too few requests to see values near the limit on {_listed(names)}: that it is kept is "
            "concluded from P90 and the median, which lie far below."
        )


def _named(key: str) -> str:
    statistic, latency, _ = key.split("_")
    return f"{statistic.replace('p', 'P')} {latency.upper()}"


def _plus_minus(half: float) -> str:
    return "" if math.isnan(half) else f" +- {half:.2f}"


def _bounds(low: float, high: float) -> str:
    """Returns an interval; that there is none where too little was seen."""
    return " (too few requests to bound it)" if math.isnan(low) else f" ({low:.1f} to {high:.1f})"


def _of_limit(this: Planned, key: str) -> str:
    """Returns what is allowed, where a figure has a limit."""
    slo = this.experiment.slo
    limit = slo.percentile_limits_ms.get(key) if slo else None
    return "" if limit is None else f", {limit:g} allowed"


def speculation_lines(this: Planned) -> Iterator[str]:
    """Speculate or not: gains, best K by load, crossover, break-even."""
    drafting, plain = this.drafting, this.plain
    assert this.winner is not None
    if drafting is None or plain is None:
        yield "Speculate or not: nothing to compare."
        return
    said = "yes" if this.winner.candidate.k else "no"
    yield f"Speculate: {said}. {drafting.method} K = {drafting.k} against plain at the planned load:"
    for name, found in gains(this.runs[drafting.id], this.runs[plain.id]).items():
        if found is not None:
            bounded = math.isfinite(found.high) and found.low > 0.0
            bounds = f" ({found.low:.2f} to {found.high:.2f})" if bounded else ""
            verdict = judge(found, LEAST_GAIN)
            told = bounded and (found.enough or verdict != "not settled")
            why = "" if told else ", too few requests to bound it"
            yield f"  {name} {found.value:.2f}x{bounds}: {verdict}{why}"
    if this.loads:
        best = ", ".join(f"{load.concurrency}: {load.by_throughput}" for load in this.loads)
        yield f"  best K by requests in flight of a replica (throughput): {best}"
        best = ", ".join(f"{load.concurrency}: {load.by_p99}" for load in this.loads)
        yield f"  best K by requests in flight of a replica (P99 TPOT): {best}"
        yield f"  {_crossovers(this, drafting.k)}"
    if this.break_even is not None:
        yield f"  {break_even_line(this)}"
    yield "  drafts are chains (vLLM V1 verifies no trees); " + temperature_line(this)


def _crossovers(this: Planned, k: int) -> str:
    words = []
    for metric, name in (("output_throughput", "throughput"), ("p99_tpot_ms", "P99 TPOT")):
        at = crossover(this.loads, k, metric)
        if at is None:
            words.append(f"on {name} at every load up to {this.loads[-1].concurrency}")
        else:
            words.append(f"on {name} up to about {at:.0f} in flight" if at else f"on {name} at no load")
    return f"K = {k} pays {' and '.join(words)}"


def break_even_line(this: Planned) -> str:
    """Returns where drafting stops paying, and the gate."""
    found, drafting = this.break_even, this.drafting
    assert found is not None and drafting is not None
    if found.factor is None:
        return "at the stated acceptance it does not pay on mean and P99 TPOT both: leave it off"
    gate = (
        f"switch off below {found.gate_length:.2f} tokens a round (conditional acceptance "
        f"{found.gate_conditional:.2f}: break-even + 0.1)"
    )
    if not found.factor:
        return f"it pays even with hardly a draft accepted; {gate}"
    return (
        f"break-even at {found.acceptance_length:.2f} tokens a round ({100 * found.factor:.0f} % of the "
        f"stated conditional acceptance); {gate}"
    )


def temperature_line(this: Planned) -> str:
    """Returns up to which temperature to draft, as far as it is known."""
    found, drafting = this.break_even, this.drafting
    if found is None or drafting is None or found.factor is None:
        return "temperature: nothing to fall back from"
    above = fall_back_temperature(drafting, found, this.runs[drafting.id][0])
    if above == math.inf:
        return f"by the file's temperature law it pays up to a temperature of {HOTTEST:g}"
    if above is not None:
        return f"fall back to plain at temperatures from {above:g} (by the file's temperature law)"
    return (
        "fall back to plain above the temperature at which your measured acceptance length falls below "
        f"{found.gate_length:.2f} (the file has no temperature law)"
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
    return f"{n.replicas} x ({what}) at ${n.cost:.2f}/h: {n.verdict}, {n.ratio:.2f} of {n.limit}"


def _change_lines(this: Planned) -> Iterator[str]:
    yield "If it turns out differently:"
    assert this.winner is not None
    mine = this.winner.candidate.id
    yield table_text(NAMED_SENTENCES, [[c.name, _then(c, mine)] for c in this.changed], indent=2)


HOLDS: dict[str, str] = {
    "met": "the plan holds",
    "missed": "the plan does not hold",
    "not settled": "it is not settled whether the plan holds",
}


def _then(c: Changed, planned: str) -> str:
    """Returns whether the plan holds under a change, and what is cheapest then."""
    holds = f"{HOLDS[c.verdict]} ({c.ratio:.2f} of {c.limit})"
    if c.verdict == "met":
        return holds
    if c.best is None:
        return f"{holds}; none of the shortlist is sure to meet the SLO"
    if c.best.id == planned:
        return f"{holds}; same engine, {_replicas(c.best_replicas)}, ${c.best_cost:.2f}/h"
    return f"{holds}; sure then: {c.best_replicas} x ({c.best.id}), ${c.best_cost:.2f}/h"


def status(this: Planned, entry: Entry) -> str:
    """Returns what is known of a candidate that can be had, in words."""
    if entry.bound.rate == 0.0:
        return f"cannot meet the SLO at any load: {entry.bound.limit}"
    n = entry.shown
    cost = entry.candidate.replica_usd * (n + this.plan.spare_replicas)
    many = _replicas(n)
    if entry.known:
        return f"${cost:.2f}/h: {many} meet{'' if n > 1 else 's'} it, {entry.ratio:.2f} of {entry.limit}"
    if entry.unsettled:
        looked = entry.unsettled[0]
        judged, least = entry.tried[looked].judged, "" if looked == n else "at least "
        shown = f"{judged.ratio:.2f} of {judged.limit}"
        return f"{least}${cost:.2f}/h: not settled with {_replicas(looked)}, {shown}"
    why = f"{entry.low} fail{'s' if entry.low == 1 else ''}" if entry.tried else "closed form"
    return f"at least ${cost:.2f}/h: {many} or more ({why})"


def _candidate_lines(this: Planned) -> Iterator[str]:
    refused = [c for c in this.every if c.refusal]
    spare = this.plan.spare_replicas
    ordered = sorted(this.entries, key=lambda e: (e.candidate.replica_usd * (e.shown + spare), e.ratio))
    yield f"{len(this.every)} candidates, {len(refused)} cannot be had. The cheapest:"
    yield _entry_table(this, ordered[:SHOWN_CANDIDATES])
    yield from _refusals(this)


def _entry_table(this: Planned, entries: Sequence[Entry]) -> str:
    return table_text(NAMED_SENTENCES, [[e.candidate.id, status(this, e)] for e in entries], indent=2)


def _refusals(this: Planned) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for candidate in this.every:
        if candidate.refusal:
            engine = f"{candidate.tensor_parallel_size} x {candidate.gpu} {candidate.weights}"
            by_reason.setdefault(candidate.refusal, []).append(engine)
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
