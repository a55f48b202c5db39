"""Continuous batching as vLLM V1 decides it: who runs, how many tokens, who is preempted.

There is no prefill or decode phase. Each sequence has known tokens (prompt and output), perhaps
drafts to verify, and computed tokens; a step hands out tokens until computed catches up with
known, within a budget. The semantics follow vLLM 0.33.0, whose recorded decisions
`tests/conformance` replays; older builds differ in the switches of `EngineConfig`.

The scheduler knows no clock, no price and no luck. `schedule()` never looks at `stop_at`: where a
stop token will fall is known to `commit()` alone.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from itertools import repeat
from typing import NamedTuple

from specfleet.sim.config import EngineConfig
from specfleet.sim.kvcache import NO_HIT, Hit, KVCache, PrefixCache
from specfleet.sim.sequence import FINISHED, NEVER, PREEMPTED, RUNNING, WAITING, Batch, Sequence
from specfleet.sim.speculation.policy import Policy
from specfleet.sim.waiting import FcfsQueue, PriorityQueue


class Outcome(NamedTuple):
    """What a committed step led to.

    Attributes:
        kept: output tokens kept by each row; surplus past the end is dropped.
        finished: sequences that ended, in row order.
    """

    kept: list[int]
    finished: list[Sequence]


class Scheduler:
    """vLLM V1's scheduler for one engine.

    Args:
        config: limits and rules.
        policy: chooses the drafts proposed after each step; None is always K.
    """

    def __init__(self, config: EngineConfig, policy: Policy | None = None) -> None:
        self.config = config
        self.policy = policy
        self.kv = _kv_cache(config)
        self.running: list[Sequence] = []
        self.waiting: FcfsQueue | PriorityQueue = (
            PriorityQueue() if config.policy == "priority" else FcfsQueue()
        )
        speculative = config.speculative
        self.num_spec_tokens = config.num_speculative_tokens
        self.lookahead = speculative.num_lookahead_tokens if speculative else 0
        self.draft_slots = speculative.draft_slots if speculative else 0
        self.watermark_blocks = int(config.watermark * config.num_gpu_blocks)
        limit = speculative.drafter_max_model_len if speculative else None
        self._drafter_limit = limit if limit is not None and limit < config.max_model_len else None
        self._arrivals = 0

    def __len__(self) -> int:
        """Unfinished sequences."""
        return len(self.running) + len(self.waiting)

    def add(self, sequence: Sequence, computed_tokens: int = 0) -> None:
        """Puts a sequence into the waiting queue.

        Args:
            sequence: not yet known here.
            computed_tokens: tokens whose KV arrives with it.
        """
        sequence.arrival = self._arrivals
        sequence.num_computed_tokens = computed_tokens
        self._arrivals += 1
        self.waiting.add(sequence)

    def take_over(self, running: Rows[Sequence], waiting: Rows[Sequence]) -> None:
        """Starts with sequences in the middle of their lives, each in its order and with its blocks."""
        self.running = list(running)
        for sequence in waiting:
            self.waiting.add(sequence)
        self.kv.hold(sum(sequence.num_blocks for sequence in running))

    def abort(self, request_id: int) -> bool:
        """Drops a sequence and frees its blocks; False if it is not here."""
        for sequence in [*self.running, *self.waiting]:
            if sequence.id == request_id:
                self.kv.free(sequence)
                sequence.state = FINISHED
                self._forget([sequence])
                return True
        return False

    def schedule(self, now: float = 0.0) -> Batch:
        """Decides one step: running sequences first, then waiting ones. Computed tokens advance at once.

        Args:
            now: the engine's time, for the policy alone; no decision here depends on it.
        """
        batch = Batch()
        cap = self._long_prefill_cap()
        budget = self._schedule_running(batch, self.config.max_num_batched_tokens, cap)
        if self.waiting and not batch.preempted:
            self._schedule_waiting(batch, budget, cap)
        if self.policy is None:
            self._advance(batch, None)
        else:
            planned = self.policy.plan(batch, len(self.waiting), now)
            rows = len(batch.sequences)
            batch.planned_drafts = [planned] * rows if isinstance(planned, int) else planned
            self._advance(batch, batch.planned_drafts)
        return batch

    def _long_prefill_cap(self) -> int:
        """Most tokens of one sequence in this step (`NEVER` when the cap is off)."""
        cap = self.config.long_prefill_token_threshold
        present = max(len(self), 1)
        if cap <= 0 or (present <= 1 and self.config.spares_lone_long_prefill):
            return NEVER
        if self.config.long_prefill_token_threshold_adaptive:
            cap = max(cap, self.config.max_num_batched_tokens // present)
        return cap

    def _schedule_running(self, batch: Batch, budget: int, cap: int) -> int:
        """Gives running sequences their tokens, in admission order; returns the budget left.

        Drafts are part of the gap, so they come out of the budget first come, first served: the
        tail of the list loses drafts first, then everything.
        """
        running, config, draft_slots = self.running, self.config, self.draft_slots
        index = 0
        while index < len(running) and budget > draft_slots:
            sequence = running[index]
            computed, placeholders = sequence.num_computed_tokens, sequence.num_output_placeholders
            limit = sequence.prompt_tokens + sequence.max_tokens
            if placeholders and computed + 2 - placeholders >= limit:
                index += 1  # the step in flight is sure to reach max_tokens
                continue
            known = sequence.num_tokens + placeholders
            tokens = known + sequence.num_drafts - computed
            most = min(cap, budget - draft_slots, config.max_model_len - 1 - computed)
            if config.trims_drafts_to_max_tokens:
                most = min(most, limit - 1 - computed)
            if tokens > most:
                tokens = most
            if tokens <= 0:
                index += 1
                continue
            slots = computed + tokens + self.lookahead
            if slots > sequence.slots:
                slots = min(slots, config.max_model_len)
                index, budget, fits = self._make_room(batch, sequence, slots, index, budget)
                if not fits:
                    if config.policy == "priority":
                        continue  # it preempted itself; those after it are more important
                    break
            if config.enable_prefix_caching:
                self.kv.register(sequence, min(computed + tokens, sequence.num_tokens))
            drafts = 0
            if sequence.num_drafts:
                drafts = min(sequence.num_drafts, max(computed + tokens - known, 0))
                sequence.num_drafts = 0
                if drafts and sequence.drafts_are_void:
                    batch.void.add(sequence.id)
            batch.place(sequence, tokens, drafts)
            budget -= tokens + draft_slots
            index += 1
        return budget

    def _make_room(
        self, batch: Batch, sequence: Sequence, slots: int, index: int, budget: int
    ) -> tuple[int, int, bool]:
        """Grows `sequence` to `slots`, preempting until it fits; returns (index, budget, fits).

        The victim is the last running sequence, or under the priority policy the least important
        and youngest, which may stand before `index` and already have its row.
        """
        running, by_priority = self.running, self.config.policy == "priority"
        while not self.kv.grow(sequence, slots):
            if by_priority:
                victim = max(running, key=lambda s: (s.priority, s.arrival))
                position = running.index(victim)
                del running[position]
                index -= position < index
                restored = batch.withdraw(victim)
                if restored is not None:
                    budget += restored + self.draft_slots
            else:
                victim = running.pop()
            self._preempt(victim)
            batch.preempted.append(victim)
            if victim is sequence:
                return index, budget, False
        return index, budget, True

    def _preempt(self, victim: Sequence) -> None:
        """Throws a running sequence out: blocks go, computed tokens restart at 0, outputs are kept."""
        self.kv.free(victim)
        victim.state = PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_drafts = 0
        victim.num_stale_tokens = victim.num_in_flight_tokens  # output in flight is still delivered
        victim.num_output_placeholders = 0
        victim.num_preemptions += 1
        self.waiting.put_back(victim)

    def _schedule_waiting(self, batch: Batch, budget: int, cap: int) -> None:
        """Admits waiting sequences while slots, budget and blocks last; the head blocks those behind it."""
        config, num_running_rows = self.config, len(batch.sequences)
        skipped: list[Sequence] = []
        while self.waiting and budget > self.draft_slots and len(self.running) < config.max_num_seqs:
            sequence = self.waiting.head()
            if sequence.num_stale_tokens:
                skipped.append(self.waiting.pop())  # its output in flight has to come back first
                continue
            hit = self.kv.lookup(sequence) if sequence.num_computed_tokens == 0 else NO_HIT
            computed = sequence.num_computed_tokens + hit.tokens
            tokens = sequence.num_tokens - computed
            room = budget - self.draft_slots
            pads = (
                tokens == 1 and cap > self.num_spec_tokens and self._pads(batch, computed, num_running_rows)
            )
            if pads:
                tokens += self.num_spec_tokens
                if tokens > room:
                    break
            tokens = min(tokens, cap)
            if tokens > room:
                if not config.enable_chunked_prefill:
                    break
                tokens = room
            if not self._allocate_first(sequence, hit, computed + tokens):
                break
            self._admit(batch, self.waiting.pop(), computed, tokens, self.num_spec_tokens if pads else 0)
            if hit.tokens:
                batch.cached.append((sequence, hit.tokens))
            budget -= tokens + self.draft_slots
        if skipped:
            self.waiting.put_back_all(skipped)

    def _pads(self, batch: Batch, computed: int, num_running_rows: int) -> bool:
        """Whether an admission with one token left takes K placeholder drafts, to keep the batch uniform.

        Not beside a running prefill chunk, not as the only row of a fresh engine, not at the end of
        the model's positions, not where K changes while running.
        """
        return (
            self.num_spec_tokens > 0
            and self.policy is None
            and self.config.pads_one_token_admission
            and (num_running_rows > 0 or computed > 0)
            and computed + self.num_spec_tokens + 2 <= self.config.max_model_len
            and not any(sequence.is_prefill_chunk for sequence in batch.sequences[:num_running_rows])
        )

    def _allocate_first(self, sequence: Sequence, hit: Hit, end: int) -> bool:
        """Gives a waiting sequence blocks up to `end` tokens and the drafter's lookahead, if they fit."""
        config = self.config
        ahead = self.lookahead if config.lookahead_at_admission else 0
        slots = min(end + ahead, config.max_model_len)
        reserve = min(sequence.num_tokens, config.max_model_len) if config.scheduler_reserve_full_isl else 0
        watermark = self.watermark_blocks if self.running else 0
        return self.kv.admit(sequence, hit, slots, reserve, watermark)

    def _admit(self, batch: Batch, sequence: Sequence, computed: int, tokens: int, drafts: int) -> None:
        """Moves a sequence from waiting to running and places its row (`drafts` are placeholders)."""
        (batch.new if sequence.state == WAITING else batch.resumed).append(sequence)
        sequence.state = RUNNING
        sequence.num_computed_tokens = computed
        sequence.is_prefill_chunk = True
        self.running.append(sequence)
        if self.config.enable_prefix_caching:
            self.kv.register(sequence, min(computed + tokens, sequence.num_tokens))
        batch.place(sequence, tokens, drafts)
        if drafts:
            batch.padded.append(sequence)
            batch.void.add(sequence.id)

    def _advance(self, batch: Batch, planned: list[int] | None) -> None:
        """Advances computed tokens optimistically and, asynchronously, assumes every draft accepted.

        Args:
            batch: just decided.
            planned: drafts the policy wants of each row next; None is K.
        """
        asynchronous, drafts_next = self.config.async_scheduling, self.num_spec_tokens
        samples = batch.samples
        wanted = iter(planned) if planned is not None else repeat(drafts_next)
        unused = self.config.skips_unused_drafts and self.lookahead > 0
        rows = zip(batch.sequences, batch.num_tokens, batch.num_drafts, wanted, strict=False)
        for sequence, tokens, drafts, following in rows:
            if unused:
                unused = sequence.drafts_unused_after(tokens)
            computed = sequence.num_computed_tokens + tokens
            sequence.num_computed_tokens = computed
            sequence.num_in_flight_tokens += tokens
            chunk = computed < sequence.num_tokens + sequence.num_output_placeholders
            if sequence.is_prefill_chunk:
                batch.prompts = True
            sequence.is_prefill_chunk = chunk
            samples.append(not chunk)
            if asynchronous and not chunk:
                sequence.num_output_placeholders += 1 + drafts
                sequence.num_drafts = following
        batch.total_tokens = sum(batch.num_tokens)
        batch.skips_drafts = unused
        if self._drafter_limit is not None:
            self._check_drafter(batch, self._drafter_limit)

    def _check_drafter(self, batch: Batch, limit: int) -> None:
        """Notes whether the drafter's positions suffice; if not, the drafts it leaves behind are void.

        vLLM zeroes the drafts of such a step; the next step still verifies them.
        """
        longest = max((sequence.num_computed_tokens for sequence in batch.sequences), default=0)
        batch.drafter_too_short = longest + self.num_spec_tokens > limit
        for sequence in batch.sequences:
            sequence.drafts_are_void = batch.drafter_too_short

    def commit(self, batch: Batch, sampled: Rows[int]) -> Outcome:
        """Takes the output of the oldest batch in: rejections, new tokens, ends.

        Args:
            batch: the oldest batch not yet committed.
            sampled: tokens each row sampled: 1 + accepted drafts, 0 where it samples nothing.

        Returns:
            What was kept, and who finished.
        """
        kept: list[int] = []
        finished: list[Sequence] = []
        registers = self.config.enable_prefix_caching
        rows = zip(batch.sequences, batch.num_tokens, batch.num_drafts, sampled, strict=True)
        for sequence, tokens, drafts, new in rows:
            in_flight = sequence.num_in_flight_tokens - tokens
            sequence.num_in_flight_tokens = in_flight
            fresh = True
            if sequence.num_stale_tokens:
                sequence.num_stale_tokens -= tokens
                fresh = False
            if not new or sequence.state == FINISHED:
                kept.append(0)
                continue
            placeholders = sequence.num_output_placeholders
            if fresh:
                sequence.num_computed_tokens -= drafts + 1 - new if drafts else 0
                if placeholders:
                    sequence.num_output_placeholders = placeholders - 1 - drafts
            left = min(
                sequence.max_tokens, sequence.stop_at, self.config.max_model_len - sequence.prompt_tokens
            )
            left -= sequence.num_tokens - sequence.prompt_tokens
            ends = new >= left
            if ends:
                if fresh:
                    sequence.num_computed_tokens -= new - left
                new = left
            sequence.num_tokens += new
            kept.append(new)
            if registers and fresh and (placeholders or self.num_spec_tokens):
                self.kv.register(sequence, sequence.num_computed_tokens - in_flight)
            if ends:
                self.kv.free(sequence)
                sequence.state = FINISHED
                finished.append(sequence)
        if finished:
            self._forget(finished)
        return Outcome(kept, finished)

    def propose(self, batch: Batch, drafts: Rows[int]) -> None:
        """Hands over the drafts proposed after a committed batch, a count a row (synchronous engines)."""
        for sequence, count in zip(batch.sequences, drafts, strict=True):
            if sequence.state == RUNNING:
                sequence.num_drafts = 0 if sequence.is_prefill_chunk else count

    def _forget(self, finished: list[Sequence]) -> None:
        """Removes ended sequences from the running list and, where they had been preempted, the queue."""
        if len(finished) == 1 and finished[0] in self.running:
            self.running.remove(finished[0])
            return
        self.running = [sequence for sequence in self.running if sequence.state != FINISHED]
        self.waiting.discard(finished)

    def check(self) -> None:
        """Proves that blocks add up and that no sequence is where it should not be.

        Raises:
            AssertionError: with the figures.
        """
        self.kv.check([*self.running, *self.waiting])
        assert len(self.running) <= self.config.max_num_seqs, "more sequences run than max_num_seqs"
        for sequence in self.running:
            assert sequence.state == RUNNING, f"request {sequence.id} runs in state {sequence.state}"
            assert sequence.num_computed_tokens <= sequence.slots, f"request {sequence.id} outgrew its blocks"


def _kv_cache(config: EngineConfig) -> KVCache:
    """Builds the pool the configuration asks for."""
    if not config.enable_prefix_caching:
        return KVCache(config.num_gpu_blocks, config.block_size)
    covers_next = config.uses_eagle and config.prefix_hash_covers_next_token
    return PrefixCache(
        config.num_gpu_blocks,
        config.block_size,
        hash_lookahead_tokens=1 if covers_next else 0,
        drops_last_block=config.uses_eagle and not config.prefix_hash_covers_next_token,
    )
