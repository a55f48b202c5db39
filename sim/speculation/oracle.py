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
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.kernels import Array
from specfleet.hardware.stepcost import StepCost, StepShape
from specfleet.sim.scenario import Scenario
from specfleet.sim.sequence import Batch, Sequence

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


class Oracle:
    """Drafts exactly what will be accepted.

    Where nothing will be, it drafts nothing and passes that verification over, as a policy that had drafted
    would have lost it.

    Args:
        k: largest K.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self._passed_over: deque[list[Sequence]] = deque()
        self._ahead: dict[int, int] = {}
        self._written: dict[int, int] = {}

    def plan(self, batch: Batch, waiting: int, now: float) -> list[int]:
        """Returns what each row's next verification will accept; 0 for a row that samples nothing yet."""
        passed: list[Sequence] = []
        plan = []
        rows = zip(batch.sequences, batch.num_tokens, batch.num_drafts, strict=True)
        for sequence in batch.resumed:  # what was in flight is lost
            self._written.pop(sequence.id, None)
        for sequence, tokens, drafts in rows:
            known = sequence.num_tokens + sequence.num_output_placeholders
            if sequence.num_computed_tokens + tokens < known:
                plan.append(0)
                continue
            drafts = 0 if sequence.id in batch.void else drafts
            written = sequence.num_output_tokens + sequence.num_output_placeholders + 1 + drafts
            useful = max(min(sequence.max_tokens, sequence.stop_at) - written - 1, 0)
            if getattr(sequence, "by_output_position", False):
                plan.append(min(self._leap(sequence, drafts), useful))
                continue
            accepted: bytes = getattr(sequence, "accepted", b"")
            ahead = self._ahead.get(sequence.id, 0)
            turn = getattr(sequence, "verifications", 0) + ahead + (drafts > 0)
            luck = min(accepted[turn], self.k, useful) if turn < len(accepted) else 0
            if not luck:
                passed.append(sequence)
                self._ahead[sequence.id] = ahead + 1
            plan.append(luck)
        if plan:  # an empty batch is not run, and nobody hears of it
            self._passed_over.append(passed)
        return plan

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """Passes over what was not worth a draft: the step that follows this batch has no verification.

        The luck of one is taken out of the request's life, so that its next verification has the next one's.
        """
        for sequence in self._passed_over.popleft():
            luck: bytes = getattr(sequence, "accepted", b"")
            passed = getattr(sequence, "verifications", 0)
            sequence.accepted = luck[:passed] + luck[passed + 1 :]  # type: ignore[attr-defined]
            self._ahead[sequence.id] -= 1

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
