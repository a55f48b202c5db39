"""Policies that choose how many drafts to make while running, and all of them by name.

K = 0 keeps the drafter loaded: an EAGLE head or draft model still runs one pass to keep its KV in step.
`Oracle` reads the future on purpose and says so: a bound (`oracle.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows

import numpy as np

from specfleet.hardware.stepcost import StepCost
from specfleet.sim.rules import I64
from specfleet.sim.sequence import Batch, Sequence
from specfleet.sim.speculation.oracle import Oracle
from specfleet.sim.speculation.policies_learning import (
    AcceptanceGate,
    AdaptiveTiers,
    AdaptiveVerification,
    Bandit,
    Goodput,
    SloBudget,
)
from specfleet.sim.speculation.policy import Columnwise, FromRequest, OneForAll, Policy, PolicySpec, Silent


class Static(OneForAll):
    """Always the same K.

    Args:
        k: drafts.
    """

    def __init__(self, k: int) -> None:
        self.k = k

    def choose(self, rows: int, kv_tokens: int, waiting: int) -> int:
        """Returns K."""
        return self.k


class BatchSizeSchedule(OneForAll):
    """vLLM's `num_speculative_tokens_per_batch_size`: K by the number of scheduled requests.

    Args:
        k: the K of the configuration, for batches below the first range.
        schedule: (lowest batch, highest batch, K) triples; a gap inherits the K before it.
    """

    def __init__(self, k: int, schedule: Rows[tuple[int, int, int]]) -> None:
        self.first = k
        self.schedule = sorted(schedule)

    def choose(self, rows: int, kv_tokens: int, waiting: int) -> int:
        """Returns the K of the range that holds the batch, or of the last range before it."""
        k = self.first
        for low, _, drafts in self.schedule:
            if rows < low:
                break
            k = drafts
        return k


class DisableAboveQueue(OneForAll):
    """No drafts while too many requests wait.

    Args:
        k: drafts otherwise.
        queue: requests waiting from which drafting stops.
    """

    def __init__(self, k: int, queue: int) -> None:
        self.k = k
        self.queue = queue

    def choose(self, rows: int, kv_tokens: int, waiting: int) -> int:
        """Returns K, or 0 while the queue is long."""
        return 0 if waiting >= self.queue else self.k


class EarlyStop(Silent, Columnwise):
    """Stops drafting for a request when its drafter expects the draft to be lost.

    Args:
        k: largest K.
        threshold: least survival a draft must be expected to have.
    """

    def __init__(self, k: int, threshold: float = 0.3) -> None:
        self.k = k
        self.threshold = threshold
        self._confident = FromRequest(self._drafts)

    def _drafts(self, request: Sequence) -> int:
        return self.drafts_of(getattr(request, "confidence", ()))

    def drafts_of(self, confidence: tuple[float, ...]) -> int:
        """Returns the drafts of a request whose drafter expects such survival by position."""
        return sum(1 for survival in confidence[: self.k] if survival >= self.threshold)

    def plan_rows(self, batch: Batch, waiting: int, now: float) -> I64:
        """Returns, row by row, the positions whose expected survival reaches the threshold."""
        return self._confident.of(batch)


class TemperatureGate(Silent, Columnwise):
    """No drafts for requests sampled too hot.

    Args:
        k: drafts otherwise.
        limit: highest temperature that drafts.
    """

    def __init__(self, k: int, limit: float = 1.0) -> None:
        self.k = k
        self.limit = limit
        self._cool = FromRequest(self._drafts)

    def _drafts(self, request: Sequence) -> int:
        return self.drafts_at(getattr(request, "temperature", 0.0))

    def drafts_at(self, temperature: float) -> int:
        """Returns the drafts of a request that is sampled at a temperature."""
        return self.k if temperature <= self.limit else 0

    def plan_rows(self, batch: Batch, waiting: int, now: float) -> I64:
        """Returns K for cool requests, 0 for hot ones."""
        return self._cool.of(batch)


class ByClass(Silent, Columnwise):
    """A K a traffic class, for life.

    Args:
        k: of classes that are not named, and the most of any.
        drafts: class -> K.
    """

    def __init__(self, k: int, drafts: Mapping[str, int]) -> None:
        self.k = k
        self.drafts = {name: min(own, k) for name, own in drafts.items()}
        self._own = FromRequest(self._drafts)

    def _drafts(self, request: Sequence) -> int:
        return self.drafts_of(getattr(request, "traffic_class", ""))

    def drafts_of(self, traffic_class: str) -> int:
        """Returns the K of a class."""
        return self.drafts.get(traffic_class, self.k)

    def plan_rows(self, batch: Batch, waiting: int, now: float) -> I64:
        """Returns the K of each row's class."""
        return self._own.of(batch)


class FirstRounds(Silent, Columnwise):
    """No drafts in the first rounds of a request, whose drafter has not seen its prompt.

    Args:
        k: drafts later.
        rounds: that bring one token each.
    """

    def __init__(self, k: int, rounds: int) -> None:
        self.k = k
        self.rounds = rounds

    def plan_rows(self, batch: Batch, waiting: int, now: float) -> I64:
        """Returns 0 for requests that have written less, K for others."""
        return np.where(batch.assumed() + 1 < self.rounds, 0, self.k)


FIRST_ROUNDS = "first_rounds"
"""Not a name for `draft_policy`: what `kv_transfer.drafter_kv: skipped` means."""

POLICIES: dict[str, Callable[..., Policy]] = {
    "static": Static,
    "batch_size": BatchSizeSchedule,
    "disable_above_queue": DisableAboveQueue,
    "goodput": Goodput,
    "adaptive_tiers": AdaptiveTiers,
    "early_stop": EarlyStop,
    "acceptance_gate": AcceptanceGate,
    "temperature_gate": TemperatureGate,
    "by_class": ByClass,
    "slo_budget": SloBudget,
    "adaptive_verification": AdaptiveVerification,
    "bandit": Bandit,
    "oracle": Oracle,
}

_NEVER_ASK = (
    Static,
    BatchSizeSchedule,
    DisableAboveQueue,
    Goodput,
    AdaptiveTiers,
    AcceptanceGate,
    TemperatureGate,
    ByClass,
    Bandit,
    Oracle,
    FirstRounds,
)


def _of_name(name: str) -> Callable[..., Policy]:
    return FirstRounds if name == FIRST_ROUNDS else POLICIES[name]


def asks_for_confidence(spec: PolicySpec | None) -> bool:
    """Whether a policy may ask what a request's drafter expects of its drafts; one of one's own may."""
    return spec is not None and _of_name(spec.name) not in _NEVER_ASK


def make_policy(spec: PolicySpec | None, k: int, cost: StepCost) -> Policy | None:
    """Returns a fresh policy for one engine; None for a static K, which needs no object.

    A policy whose constructor has a parameter `cost` is given the price of a step.

    Raises:
        TypeError: for a parameter the policy does not have.
    """
    if spec is None or (spec.name == "static" and not spec.parameters):
        return None
    made = _of_name(spec.name)
    extra: dict[str, object] = {"cost": cost} if "cost" in inspect.signature(made).parameters else {}
    return made(**{"k": k, **extra, **spec.parameters})
