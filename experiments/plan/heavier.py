"""Whether load may come that is heavier than any that was simulated: read off the requests, not simulated.

A few runs may happen to have missed the rare long burst, or the rare enormous request, that decides P99, and
nothing in what they show tells. But requests are drawn before they are simulated, and drawing costs little:
so many more are drawn, and a queue in closed form says under how heavy a load each would come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from specfleet.experiments.plan.traffic import Trial
from specfleet.experiments.point.bounds import SLACK, Bound
from specfleet.workloads.requests import RequestTable

F64 = npt.NDArray[np.float64]

FURTHER = 3
"""Times as many requests as were simulated are looked at."""
HEAVIER = 1.1
"""Times the heaviest load simulated, from which a load counts as heavier."""
BUSIEST = 0.95
"""Utilisation of the queue, at most."""


def backlog(table: RequestTable, bound: Bound) -> F64:
    """Returns what each request finds before it, itself included, in the work of a mean request.

    Args:
        table: with its arrivals.
        bound: of the engine: a queue with one server that serves so many mean requests a second, of which
            prompts take so much.
    """
    prompt, output = (np.asarray(x, dtype=np.float64) for x in (table.prompt_tokens, table.output_tokens))
    share = bound.prompt_share
    work = share * prompt / prompt.mean() + (1.0 - share) * output / output.mean()
    between = np.diff(table.arrival_s)
    rate = max(bound.rate / SLACK, 1.0 / (BUSIEST * max(float(between.mean()), 1e-12)))
    walk = np.concatenate([[0.0], np.cumsum(work[:-1] - rate * between)])
    return np.asarray(walk - np.minimum.accumulate(walk) + work)


def heavier(
    trials: Callable[[int], Sequence[Trial]], parts: int, bound: Bound, further: int = FURTHER
) -> float:
    """Returns the share of further requests that come under a heavier load than any that was simulated.

    Args:
        trials: the simulations of a part, one a seed.
        parts: that were simulated; those after them were not.
        bound: see `backlog`.
        further: parts looked at for each that was simulated.
    """
    most = max(backlog(trial.table(), bound).max() for part in range(parts) for trial in trials(part))
    later = [backlog(t.table(), bound) for part in range(parts, (1 + further) * parts) for t in trials(part)]
    return float((np.concatenate(later) > HEAVIER * most).mean())
