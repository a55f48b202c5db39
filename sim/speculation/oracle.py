"""The oracle: what drafting could gain at most, if it knew the future and cost nothing. A bound, no policy.

It drafts exactly what will be accepted, and its step has the price of the same rows without drafts: no
drafter runs, no draft is verified. So each of its steps takes no longer than any policy's step with these
rows, and after n steps a request has at least the tokens that it has after n steps of any policy: those have
n + sum over v <= n verifications of min(luck, drafts), and the oracle leaves nothing that luck offers.
What follows is a bound of the time in which all requests end, so of throughput. It is none of single
latencies: requests that end sooner let others in sooner, whose prompts stand in the way. Nor where prompts
must fit a step whole (no chunked prefill), or where ends are unforeseen and steps asynchronous: how prompts
fall into steps, and whether a step behind an end is wasted, is not drafting's, and costs or spares a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.kernels import Array
from specfleet.hardware.stepcost import StepCost, StepShape
from specfleet.sim.rules import I64
from specfleet.sim.scenario import Scenario
from specfleet.sim.sequence import Batch, Sequence
from specfleet.sim.speculation.policy import ById, Columnwise, FromRequest

BOUNDED = ("output_throughput", "request_throughput", "total_token_throughput")
"""Figures that no policy has better than the oracle."""

_OF_DRAFTS = ("tokens", "logit_rows", "draft_tokens", "kv_tokens", "kv_tokens_in_window")
"""Fields of a step's shape in which each draft counts as one."""


@dataclass(frozen=True)
class FreeDrafts:
    """Prices of steps as if nothing were drafted.

    Args:
        cost: what a step costs that drafts.
    """

    cost: StepCost

    def seconds(self, shape: StepShape) -> float:
        """Seconds of the step without its drafts."""
        drafts = shape.draft_tokens
        without = {name: max(getattr(shape, name) - drafts, 0) for name in _OF_DRAFTS}
        return self.cost.seconds(shape._replace(**without, draft_passes=0))

    def terms(self, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, Array]:
        """The same for columns of steps, by term."""
        drafts = columns["draft_tokens"]
        without = {name: np.maximum(columns[name] - drafts, 0) for name in _OF_DRAFTS}
        return self.cost.terms({**columns, **without, "draft_passes": np.zeros_like(drafts)})

    def summary(self) -> str:
        """What is priced."""
        return f"{self.cost.summary()}\nnote: drafts are free, as the oracle has them"


def foreseen(scenario: Scenario) -> Scenario:
    """Returns the scenario with free drafts if an oracle chooses them, else as it is."""
    chosen = scenario.policy is not None and scenario.policy.name == "oracle"
    if not chosen or isinstance(scenario.cost, FreeDrafts):
        return scenario
    return replace(scenario, cost=FreeDrafts(scenario.cost))


class Oracle(Columnwise):
    """Drafts exactly what will be accepted.

    Where nothing will be, it drafts nothing and passes that verification over, as a policy that had drafted
    would have lost it.

    Args:
        k: largest K.
    """

    moves_luck = True

    def __init__(self, k: int) -> None:
        self.k = k
        self._passed_over: deque[I64] = deque()
        self._ahead = ById(0)
        self._written: dict[int, int] = {}
        self._most = FromRequest(lambda request: min(request.max_tokens, request.stop_at))
        self._by_place = FromRequest(lambda request: bool(getattr(request, "by_output_position", False)))

    def plan_rows(self, batch: Batch, waiting: int, now: float) -> I64:
        """Returns what each row's next verification will accept; 0 for a row that samples nothing yet."""
        ids, drafts, samples = batch.ids(), batch.drafts(), batch.will_sample()
        if not len(ids):  # an empty batch is not run, and nobody hears of it
            return ids
        for sequence in batch.resumed:  # what was in flight is lost
            self._written.pop(sequence.id, None)
        self._ahead.cover(ids)
        useful = np.maximum(self._most.of(batch) - (batch.assumed() + 1 + drafts) - 1, 0)
        by_place = np.flatnonzero(samples & (self._by_place.of(batch) > 0))
        luck = np.minimum(np.minimum(batch.luck_after(self._ahead.of[ids] + (drafts > 0)), self.k), useful)
        passed = samples & (luck == 0)
        passed[by_place] = False
        self._ahead.of[ids] += passed
        self._passed_over.append(np.flatnonzero(passed))
        plan: I64 = np.where(samples, luck, 0)
        if len(by_place):
            sequences = batch.sequences
            for row in by_place.tolist():
                plan[row] = min(self._leap(sequences[row], int(drafts[row])), int(useful[row]))
        return plan

    def observe_rows(self, batch: Batch, sampled: I64, seconds: float) -> None:
        """Passes over what was not worth a draft: the step that follows this batch has no verification.

        The luck of one is taken out of the request's life, so that its next verification has the next one's.
        """
        rows = self._passed_over.popleft()
        batch.skip_luck(rows)
        self._ahead.of[batch.ids()[rows]] -= 1

    def _leap(self, sequence: Sequence, drafts: int) -> int:
        """Returns the drafts that lead furthest in two rounds, where luck belongs to output positions.

        The round that has the greatest reach is the first of a shortest way to the end.
        """
        at = max(self._written.get(sequence.id, 0), sequence.num_output_tokens)
        after = at + 1 + (min(drafts, self._luck(sequence, at)) if drafts else 0)
        self._written[sequence.id] = after
        most, end = self._luck(sequence, after), len(getattr(sequence, "accepted", b"")) - 1
        if after + 1 + most >= end:
            return most
        return max(range(most + 1), key=lambda j: (j + self._luck(sequence, after + 1 + j), j))

    def _luck(self, sequence: Sequence, position: int) -> int:
        """Returns the drafts that a round at an output position accepts at most."""
        accepted: bytes = getattr(sequence, "accepted", b"")
        proposals: bytes | None = getattr(sequence, "proposals", None)
        if position >= len(accepted):
            return 0
        if proposals is not None and not (position < len(proposals) and proposals[position]):
            return 0
        return min(accepted[position], self.k)
