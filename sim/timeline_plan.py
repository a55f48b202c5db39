"""A cluster that has not run yet, as the fast path sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.sequence import Sequence
from sim.timeline_luck import Luck
from sim.timeline_trajectories import Rules

if TYPE_CHECKING:
    from sim.simulation import Cluster


class Plan:
    """A cluster that has not run yet, as the fast path sees it.

    Args:
        cluster: scenario, requests, seed and acceptance processes.

    Attributes:
        served: rows that are not refused, in row order.
        refused: the other rows.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.scenario, self.table, self.seed = cluster.scenario, cluster.table, cluster.seed
        self.config = self.scenario.engine
        self.engine = cluster.replicas[0].engine
        total = self.table.prompt_tokens + self.table.max_tokens
        fits = total <= self._longest(int(total.max(initial=2)))
        self.served = np.flatnonzero(fits)
        self.refused = np.flatnonzero(~fits)
        self.luck: Luck | None = None
        k = self.config.num_speculative_tokens
        if k and cluster.acceptance:
            each = [cluster.acceptance.get(name) or cluster.acceptance[""] for name in self.table.class_names]
            outputs = self.table.output_tokens
            self.luck = Luck(self.table.class_id, each, k, self.seed, cluster.accepted, outputs)

    def _longest(self, most: int) -> int:
        """Returns the largest prompt + max_tokens that is not refused: refusals depend on it alone."""
        refused = self.engine.refusal
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            if refused(Sequence(0, 1, middle - 1)) is None:
                low = middle
            else:
                high = middle - 1
        return low

    def refusals(self) -> dict[str, int]:
        """Returns the reasons with their counts, in order of appearance."""
        counts: dict[str, int] = {}
        for row in self.refused.tolist():
            request = Sequence(row, int(self.table.prompt_tokens[row]), int(self.table.max_tokens[row]))
            reason = self.engine.refusal(request)
            assert reason is not None
            counts[reason] = counts.get(reason, 0) + 1
        return counts

    def never_short(self, rules: Rules) -> bool:
        """Whether the pool holds the largest requests together, so that nobody is ever preempted."""
        rows = self.served
        tokens = self.table.prompt_tokens[rows] + self.table.output_tokens[rows]
        blocks = (tokens + 2 * rules.query + rules.lookahead) // rules.block_size + 1
        most = min(self.config.max_num_seqs, len(rows))
        return int(np.sort(blocks)[len(rows) - most :].sum()) <= self.config.usable_blocks

    def obstacle(self) -> str | None:
        """Returns what this run has that only `Engine` can do, or None."""
        config, table, scenario = self.config, self.table, self.scenario
        speculative, k = config.speculative, config.num_speculative_tokens
        if scenario.policy is not None and k:
            return "a policy that changes K"
        if config.sliding_window:
            return "layers with a sliding window"
        if config.policy != "fcfs":
            return "priority scheduling"
        if config.enable_prefix_caching and table.segment_offset is not None:
            return "prefix cache hits"
        if config.long_prefill_token_threshold > 0:
            return "long_prefill_token_threshold"
        if k and config.trims_drafts_to_max_tokens:
            return "drafts trimmed to max_tokens"
        if speculative is not None:
            if speculative.reroll_on_reject:
                return "reroll_on_reject"
            if speculative.draft_depth is not None:
                return "trees of drafts"
            limit = speculative.drafter_max_model_len
            if limit is not None and limit < config.max_model_len:
                return "drafter_max_model_len below max_model_len"
        if not len(self.served):
            return "no request is served"
        prompt, output = table.prompt_tokens[self.served], table.output_tokens[self.served]
        if k and config.pads_one_token_admission and (prompt == 1).any():
            return "prompts of one token"
        if int((prompt + output).max()) + 3 * (k + 1) > config.max_model_len:
            return "requests that reach max_model_len"
        if k and self.luck is None:
            return "no acceptance process"
        if self.luck is not None and not self.luck.every_step:
            return "drafts that are not proposed every step"
        return None
