"""Which of several deployments that cost the same answers soonest, as far as it can be told."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.plan.search import CENT, Entry, Search
from specfleet.experiments.plan.seen import ratio

SOONER = "mean_e2el_ms"
"""What decides between deployments that cost the same and meet the SLO: end to end, as it has the first token
and the others in it, and a mean, as it is known long before a percentile."""


def contest(search: Search, winner: Entry, entries: Sequence[Entry]) -> tuple[Entry, list[Entry]]:
    """Returns the one that answers soonest of those as cheap as the winner, and those not told apart from it.

    Those of which it is not settled whether they meet the SLO count too, unless they answer later.

    Args:
        search: has the costs.
        winner: meets the SLO with `high` replicas.
        entries: all of them.
    """
    as_dear = [e for e in entries if abs(search.cost(e, e.shown) - search.cost(winner)) < CENT]
    tied = [entry for entry in as_dear if entry.known]
    open_ = [entry for entry in as_dear if not entry.known and entry.shown in entry.tried]
    best = winner
    for other in tied:
        found = _sooner(best, other)
        if found < 0:
            best = other
    even = [other for other in tied if other is not best and not _sooner(best, other)]
    return best, even + [other for other in open_ if _sooner(best, other) <= 0]


def _sooner(a: Entry, b: Entry) -> int:
    """Returns 1 where the first answers sooner, -1 where the second does, 0 where it is not told apart."""
    if a is b:
        return 0
    mine, theirs = (entry.tried[entry.shown].runs for entry in (a, b))
    both = min(len(mine), len(theirs))
    found = ratio(mine[:both], theirs[:both], SOONER)
    if found is None or not found.enough:
        return 0
    return 1 if found.low > 1.0 else -1 if found.high < 1.0 else 0
