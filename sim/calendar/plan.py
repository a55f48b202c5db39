"""What the calendar needs to know of a run before it begins."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.drafts.own import drafting_of
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.luck import Luck
from specfleet.sim.calendar.plans import ByBatchSize, Plans, plans_of
from specfleet.sim.config import SglangConfig
from specfleet.sim.engine import Engine
from specfleet.sim.recorder import Recorder
from specfleet.sim.router import ROUTERS, Blind
from specfleet.sim.rules import SchedulerRules
from specfleet.sim.scenario import Scenario
from specfleet.sim.sequence import Sequence
from specfleet.sim.sglang.rules import CLIP_MAX_NEW_TOKENS, SglangRules
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.policies import make_policy
from specfleet.sim.speculation.policies_learning import AdaptiveVerification, Bandit, SloBudget
from specfleet.sim.speculation.policy import OneForAll, Policy
from specfleet.workloads.requests import RequestTable

ROW_BY_ROW = (SloBudget, AdaptiveVerification, Bandit)
"""Policies by which what a row drafts depends on the other rows of its step, or on the time; and one that
goes from one K to another so often that nobody is worth drawing ahead."""


class CalendarRun:
    """A run that has not begun, as the calendar sees it.

    Args:
        scenario: the configuration.
        table: the requests.
        seed: of luck and random routing.
        lives: luck of the requests; None without speculation.
        rows: the requests that may come here, where that is not all of them.

    Attributes:
        served: rows that are not refused, in row order.
        refused: the other rows.
        drafting: decides the drafts of single requests, where that is known before they run.
    """

    def __init__(
        self,
        scenario: Scenario,
        table: RequestTable,
        seed: int,
        lives: Lives | None,
        rows: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.scenario, self.table, self.seed = scenario, table, seed
        self.config = scenario.engine
        self.engine = Engine(self.config, scenario.cost, Recorder(0, 1))
        if self.config.sglang is not None:
            fits = table.prompt_tokens < SglangRules.of(self.config).max_req_input_len
        else:
            total = table.prompt_tokens + table.max_tokens
            fits = total <= self._longest(int(total.max(initial=2)))
            rules = SchedulerRules.of(self.config)
            if rules.reserves_max_tokens and not rules.chunks_prompts:
                fits &= table.prompt_tokens + rules.draft_slots <= rules.max_num_batched_tokens
        self.served = np.flatnonzero(fits) if rows is None else rows[fits[rows]]
        self.refused = np.flatnonzero(~fits) if rows is None else rows[~fits[rows]]
        self.lives = lives
        self.luck: Luck | None = None
        k = self.config.num_speculative_tokens
        if k and lives is not None and lives.by_class:
            first = next(iter(lives.by_class.values()))
            other = lives.by_class.get("", first)  # a class without requests may have none
            each = [lives.by_class.get(name, other) for name in table.class_names]
            draw = partial(lives.accepted, ahead=self.config.async_scheduling)
            asked = lives.bounds, lives.chain, draw
            self.luck = Luck(table.class_id, each, k, seed, *asked, table.luck_id)
        self.policy = self.make_policy()
        ahead, is_vllm = self.config.async_scheduling, self.config.sglang is None
        self.drafting = drafting_of(self.policy, self.luck, lives, table, ahead) if is_vllm else None

    def make_policy(self) -> Policy | None:
        """Returns the policy of one more engine; None is always K."""
        scenario, k = self.scenario, self.config.num_speculative_tokens
        return make_policy(scenario.policy, k, scenario.cost) if k else None

    def plans(self) -> Plans | None:
        """Returns the plans of one more engine; None for always K, and if it looks at requests."""
        return plans_of(self.make_policy(), self.config.max_num_seqs)

    def sglang_follows(self, sglang: SglangConfig) -> bool:
        """Whether SGLang's lanes can follow the policy: K goes by batch size and queue alone, luck is
        a number a round, and requests are not looked at one by one.
        """
        if self.policy is None:
            return True
        apart = self.shared or sglang.enable_priority_scheduling
        apart = apart or (sglang.ignore_eos and not self.config.enable_prefix_caching)
        apart = apart or int(self.table.max_tokens.max(initial=0)) > CLIP_MAX_NEW_TOKENS
        if apart or self.luck is None or not (self.luck.every_step and self.luck.by_rounds):
            return False
        return isinstance(self.plans(), ByBatchSize)

    @property
    def by_rows(self) -> bool:
        """Whether its lanes have to look at every row in every step (`rows/`)."""
        policy, luck, config = self.policy, self.luck, self.config
        if luck is None or config.sglang is not None or not (luck.every_step and luck.by_rounds):
            return False
        if config.receives_kv or config.rebuilds_drafter_kv or self.over_budget or self.outgrows_drafter:
            return False
        most = config.num_speculative_tokens
        return type(policy) in ROW_BY_ROW and getattr(policy, "k", most + 1) <= most

    @property
    def looks_at_requests(self) -> bool:
        """Whether the policy does not choose one number of drafts for all."""
        return self.policy is not None and self.plans() is None

    @property
    def sglang_window(self) -> int:
        """The sliding window under SGLang's rules, tokens; 0: nobody outgrows it."""
        window = self.config.sliding_window if self.config.sglang is not None else 0
        return window if window < self.longest_tokens + 2 * (1 + self.config.num_speculative_tokens) else 0

    @property
    def verifies_in_vain(self) -> bool:
        """Whether rows whose look-ups found nothing are verified all the same, and are no verifications: in
        SGLang without overlap and without a policy."""
        vain = self.config.sglang is not None and not self.config.async_scheduling and self.policy is None
        return vain and self.luck is not None and self.luck.by_rounds and not self.luck.every_step

    @property
    def reads_kv(self) -> bool:
        """Whether the policy looks at the KV tokens of the batch."""
        return isinstance(self.policy, OneForAll) and self.policy.reads_kv

    def _longest(self, most: int) -> int:
        """Returns the largest prompt + max_tokens that is not refused, however short the prompt."""
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

    @property
    def longest_tokens(self) -> int:
        """Prompt and output of the longest request that is served."""
        return int((self.table.prompt_tokens + self.table.output_tokens)[self.served].max(initial=0))

    @property
    def shared(self) -> bool:
        """Whether prompts may be found in a prefix cache."""
        begin_alike = self.table.segment_offset is not None or self.repeats is not None
        return self.config.enable_prefix_caching and begin_alike

    def rules(self) -> Footprints | None:
        """Returns what the engine makes of a sequence; None where its counts do not fit the packing."""
        return Footprints.of(self.config, self.longest_tokens, self.reads_kv, self.shared)

    @property
    def outgrows_drafter(self) -> bool:
        """Whether somebody may have more tokens than the drafter has positions for, with K drafts."""
        limit, most = self.config.drafter_positions, 3 * (self.config.num_speculative_tokens + 1)
        return bool(limit) and self.config.sglang is None and self.longest_tokens + most > limit

    @property
    def reaches(self) -> bool:
        """Whether that is seen to on the calendar, where K drafts are void from then on, for a while."""
        chosen = self.luck is not None and self.drafting is None and not self.looks_at_requests
        return chosen and self.outgrows_drafter

    @property
    def alone(self) -> bool:
        """Whether each replica's requests are known before anything runs."""
        deployment = self.scenario.deployment
        blind = deployment.replicas == 1 or issubclass(ROUTERS[deployment.router], Blind)
        return blind and not self.waits_for_answers

    @property
    def waits_for_answers(self) -> bool:
        """Whether an answer lets another request go (a cap on requests in flight, or the next turn), or who
        waits for one may give up."""
        capped = self.scenario.load.max_concurrency is not None
        return capped or self.table.think_s is not None or self.patient

    @property
    def patient(self) -> bool:
        """Whether clients may give up."""
        return bool(self.scenario.load.patience)

    @property
    def repeats(self) -> npt.NDArray[np.bool_] | None:
        """Whether the client of each request may send it again; None where none does."""
        patience = self.scenario.load.patience
        configs = [patience.get(name, patience.get("")) for name in self.table.class_names]
        again = np.array([config is not None and config.retries > 0 for config in configs])
        return again[self.table.class_id] if again.any() else None

    @property
    def ranks(self) -> bool:
        """Whether priorities only say who is let in next: nobody is thrown out or stepped in their order."""
        if self.config.sglang is not None or self.may_step or self.patient:
            return False
        rules = self.rules()
        return rules is not None and self.never_short(rules)

    @property
    def may_step(self) -> bool:
        """Whether a step may come up that the calendar cannot take."""
        if self.drafting is not None:
            return False
        return self.reaches or self.policy is not None or self.over_budget

    @property
    def over_budget(self) -> bool:
        """Whether the rows of all who may run together could need more than the budget of a step."""
        config, slots = self.config, 0
        if config.speculative and config.charges_draft_slots:
            slots = config.speculative.draft_slots
        rows = min(config.max_num_seqs, len(self.served))
        return rows * (1 + config.num_speculative_tokens + slots) > config.max_num_batched_tokens

    def never_short(self, rules: Footprints) -> bool:
        """Whether the pool holds the largest requests together, or they reserve it: nobody is preempted."""
        if self.config.reserves_max_tokens:
            return True
        rows = self.served
        tokens = self.table.prompt_tokens[rows] + self.table.output_tokens[rows]
        slots = tokens + 2 * rules.query + rules.lookahead
        slots = self.config.kv_layout.held_each(slots) if self.config.kv_layout else slots
        blocks = slots // rules.block_size + 1
        most = min(self.config.max_num_seqs, len(rows))
        if self.config.receives_kv:  # whose KV is on its way has no seat, and blocks
            most = len(rows)
        return int(np.sort(blocks)[len(rows) - most :].sum()) <= self.config.usable_blocks
