"""Where how much requests differ is not known: whether a plan holds over all spreads that there may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specfleet.experiments.load.sweep import at_ends
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.search import CENT, Entry, Search
from specfleet.experiments.plan.seen import Judged, TrialFigures, of_limit
from specfleet.experiments.run.band import SPREAD
from specfleet.experiments.schema.blocks.acceptance import processes
from specfleet.experiments.schema.blocks.experiment import Experiment


@dataclass(frozen=True)
class AtEnd:
    """What replicas show at another end of the range of spreads than the one that is planned with.

    Attributes:
        spread: that end in words.
        judged: whether they meet the SLO there.
        runs: a run a seed.
    """

    spread: str
    judged: Judged
    runs: list[TrialFigures]


def over_the_band(search: Search, candidate: Candidate, replicas: int) -> list[AtEnd]:
    """Returns what replicas show at the other ends; empty where the spread is given or nothing drafted."""
    found = at_ends(candidate.config) if candidate.k else []
    asked = [(replace(candidate, config=config), replicas) for _, config in found]
    replies = search.ask(asked)
    return [
        AtEnd(_in_words(config), reply.judged, reply.runs)
        for (_, config), reply in zip(found, replies, strict=True)
    ]


def _in_words(config: Experiment) -> str:
    spreads = {process.concentration for process in processes(config.acceptance).values()}
    if spreads == {math.inf}:
        return "all requests alike"
    return f"a spread (concentration) of {', '.join(f'{spread:g}' for spread in sorted(spreads))}"


def doubted(entry: Entry, ends: Sequence[AtEnd]) -> bool:
    """Notes in an entry that its replicas are not sure: at some end they miss the SLO, or it is not settled.

    Returns:
        Whether that is so; the entry has no replicas then that are enough.
    """
    against = next((end for end in ends if end.judged.verdict != "met"), None)
    if against is None or entry.high is None:
        return False
    _open(entry, entry.high, against, entry.low)
    entry.high = None
    return True


def reconsider(search: Search, entries: Sequence[Entry], winner: Entry | None) -> None:
    """Notes which of those found too few that are cheaper than the winner may do at another end."""
    limit = math.inf if winner is None or winner.high is None else search.cost(winner, winner.high) - CENT
    for entry in entries:
        n = entry.low
        reply = entry.tried.get(n)
        if reply is None or reply.judged.verdict != "missed" or search.cost(entry, n) >= limit:
            continue
        for end in over_the_band(search, entry.candidate, n):
            if end.judged.verdict != "missed":
                _open(entry, n, end, n - 1)


def _open(entry: Entry, n: int, end: AtEnd, low: int) -> None:
    """Notes that whether so many replicas meet the SLO depends on the spread."""
    reply, there = entry.tried[n], end.judged
    why = f"it depends on {SPREAD}: with {end.spread} {of_limit(there)}, {there.verdict}"
    judged = replace(reply.judged, verdict="not settled", why=why, by_spread=True)
    entry.tried[n] = replace(reply, judged=judged)
    entry.low, entry.ratio, entry.limit = low, judged.ratio, judged.limit
