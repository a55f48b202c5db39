"""The answer of a plan in a few sentences: what to buy, what it costs, and what is not settled."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.plan.fleet.report import chosen_sentence, day_sentence
from specfleet.experiments.plan.numbers import money
from specfleet.experiments.plan.owned import CLOSE
from specfleet.experiments.plan.planned import Planned, replicas_of
from specfleet.experiments.plan.search import Entry
from specfleet.experiments.plan.seen import of_limit
from specfleet.experiments.words.band import STATE_IT


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
    rate, sure = f"{this.traffic.rate:g} requests/s", " that is sure to meet the SLO" if doubt else ""
    said = {
        "cost": f"Cheapest{sure} for {rate}:",
        "headroom": f"Most room to the SLO on what you own, at {rate}:",
        "throughput": f"Largest rate at the SLO on what you own, {_largest(this):.1f} requests/s:",
    }[this.plan.objective]
    return " ".join(
        filter(None, [doubt, f"{said} {_cheapest(this)}", _other_fleet(this), day_sentence(this.day)])
    )


def _other_fleet(this: Planned) -> str:
    """What routers or pools make cheaper, or roomier; "" where nothing."""
    assert this.winner is not None and this.winner.high is not None
    mine, spare = this.winner.candidate, this.plan.spare_replicas
    cost = mine.replica_usd * (this.winner.high + spare)
    return chosen_sentence(this.fleets, cost, mine.config.deployment.routing.then, spare)


def doubts(this: Planned) -> str:
    """Returns what is not settled, and what would settle it; empty where all is."""
    if this.settled:
        return ""
    sure = [entry for entry in (this.winner, *this.even) if entry is not None]
    named = [_priced(this, entry, n) for entry, n in this.cheaper]
    named += [_priced(this, entry, entry.shown) for entry in sure]
    text = f"Not settled {'between' if len(named) > 1 else 'is'} {listed(named)}."
    if this.cheaper:
        entry, n = this.cheaper[0]
        looked = n if n in entry.tried else entry.unsettled[0]
        judged = entry.tried[looked].judged
        which = "the first" if len(named) > 1 else "it"
        shown = f"{of_limit(judged)}, {judged.why}"
        with_ = "" if looked == n else f"{so_many(looked)}: "
        text += f" Whether {which} meets the SLO is open: {with_}{shown}."
    if this.even:
        text += f" {_not_told_apart(this)}"
    return f"{text} {_more(this)}".rstrip()


def _not_told_apart(this: Planned) -> str:
    return {
        "cost": "Which of those that cost the same is better is not told apart.",
        "headroom": "Which of them has more room is not told apart.",
        "throughput": f"Their largest rates differ by less than {100 * (CLOSE - 1):.0f} %: take either.",
    }[this.plan.objective]


def so_many(n: int) -> str:
    return f"{n} replica{'s' if n > 1 else ''}"


def _priced(this: Planned, entry: Entry, n: int) -> str:
    bought = n + this.plan.spare_replicas
    return f"{replicas_of(bought, entry.candidate)} (${entry.candidate.replica_usd * bought:.2f}/h)"


def listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, ["; ".join(names[:-1]), names[-1]]))


def _more(this: Planned) -> str:
    """Returns what would settle it."""
    judged = [entry.tried[n].judged for entry, n in this.cheaper if n in entry.tried]
    said = f"{STATE_IT[0].upper()}{STATE_IT[1:]}." if any(each.by_spread for each in judged) else ""
    if this.plan.objective == "throughput" or (judged and all(each.by_spread for each in judged)):
        return said
    return " ".join(filter(None, [said, _longer(this)]))


def _longer(this: Planned) -> str:
    if this.lengths is not None:
        most = this.lengths.most
        return f"Longer simulations may tell (run.at_most, now {most:,} requests), or a look at both."
    if this.traffic.recorded or this.experiment.workload.changes:
        return "A longer trace or more replications would tell."
    return "Leave workload.num_prompts out, and the simulations go on until it is settled."


def _cheapest(this: Planned) -> str:
    assert this.winner is not None and this.winner.high is not None
    mine = this.winner.candidate
    bought = this.winner.high + this.plan.spare_replicas
    cost = money(this, mine, bought, this.runs[mine.id], this.traffic.rate)
    text = (
        f"{deployment(this)} ({cost.gpus} "
        f"GPU{'s' if cost.gpus > 1 else ''}, ${cost.per_hour_usd:.2f}/h, "
        f"${cost.per_million_output_usd:.2f} per million output tokens, "
        f"${cost.per_million_total_usd:.2f} per million in all)."
    )
    if this.plan.objective == "headroom":
        room = of_limit(this.winner)
        return f"{text} {room}. Up to {_largest(this):.1f} requests/s in all."
    if this.plan.objective == "throughput":
        at = f"At {this.traffic.rate:g} requests/s"
        return f"{text} {at} it has {of_limit(this.winner)}."
    return f"{text} {other_side(this)}"


def _largest(this: Planned) -> float:
    """Returns the largest rate at the SLO of all replicas that are needed, requests/s."""
    assert this.winner is not None and this.winner.high is not None and this.capacity is not None
    return this.capacity.rate * this.winner.high


def other_side(this: Planned) -> str:
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
    more = cost / mine - 1.0
    return (
        f"{side} the cheapest is {rival.high + this.plan.spare_replicas} x ({rival.candidate.id}) at "
        f"${cost:.2f}/h, {'which is as cheap' if abs(more) < 0.0005 else f'{100 * more:.3g} % more'}."
    )
