"""Continuous batching as vLLM V1 decides it: who runs, how many tokens, who is preempted.

There is no prefill or decode phase. Each sequence has known tokens (prompt and output), perhaps
drafts to verify, and computed tokens; a step hands out tokens until computed catches up with
known, within a budget. The semantics follow vLLM 0.33.0, whose recorded decisions
`tests/conformance` replays; older builds differ in the switches of `EngineConfig`.

The scheduler knows no clock, no price and no luck. `schedule()` never looks at `stop_at`: where a
stop token will fall is known to `commit()` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from itertools import repeat
from typing import NamedTuple

from specfleet.sim.config import EngineConfig
from specfleet.sim.kvcache import NO_HIT, Hit, KVCache, PrefixCache
from specfleet.sim.rules import SchedulerRules, reaches_max_tokens
from specfleet.sim.sequence import FINISHED, PREEMPTED, RUNNING, WAITING, Batch, Sequence
from specfleet.sim.speculation.policy import Policy
from specfleet.sim.step import Candidate, Step
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
        self.running: list[Sequence] = []
        self.waiting: FcfsQueue | PriorityQueue = (
            PriorityQueue() if config.policy == "priority" else FcfsQueue()
        )
        self.rules = rules = SchedulerRules.of(config)
        self.kv = _kv_cache(config, rules)
        self.step = Step(rules)
        speculative = config.speculative
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
        batch, step, rules = Batch(), self.step, self.rules
        cap = rules.long_prefill_cap(self.config, len(self))
        step.begin(rules.max_num_batched_tokens, 0, 0, 0, cap)
        self._schedule_running(batch, step)
        if self.waiting and not batch.preempted:
            self._schedule_waiting(batch, step)
        if self.policy is None:
            self._advance(batch, None)
        else:
            planned = self.policy.plan(batch, len(self.waiting), now)
            rows = len(batch.sequences)
            batch.planned_drafts = [planned] * rows if isinstance(planned, int) else planned
            self._advance(batch, batch.planned_drafts)
        return batch

    def _schedule_running(self, batch: Batch, step: Step) -> None:
        """Gives running sequences their tokens, in admission order.

        Drafts are part of the gap, so they come out of the budget first come, first served: the
        tail of the list loses drafts first, then everything.
        """
        running, rules, config, kv = self.running, self.rules, self.config, self.kv
        budget, cap, piece, draft_slots = step.tokens, step.cap, rules.piece, rules.draft_slots
        lookahead, trims, caches = (
            rules.lookahead,
            config.trims_drafts_to_max_tokens,
            config.enable_prefix_caching,
        )
        index = 0
        while index < len(running) and budget > draft_slots:
            sequence = running[index]
            computed, placeholders = sequence.num_computed_tokens, sequence.num_output_placeholders
            if placeholders and reaches_max_tokens(sequence.num_output_tokens, 1, sequence.max_tokens):
                index += 1
                continue
            known = sequence.num_tokens + placeholders
            tokens = piece(known + sequence.num_drafts - computed, computed, budget, cap)
            if trims:
                tokens = min(tokens, sequence.prompt_tokens + sequence.max_tokens - 1 - computed)
            if tokens <= 0:
                index += 1
                continue
            end = computed + tokens
            if end + lookahead > sequence.slots:
                index, budget, fits = self._make_room(batch, sequence, rules.slots(end), index, budget)
                if not fits:
                    if config.policy == "priority":
                        continue  # it preempted itself; those after it are more important
                    break
            if caches:
                kv.register(sequence, min(end, sequence.num_tokens))
            drafts = 0
            if sequence.num_drafts:
                drafts = min(sequence.num_drafts, max(end - known, 0))
                sequence.num_drafts = 0
                if drafts and sequence.drafts_are_void:
                    batch.void.add(sequence.id)
            batch.place(sequence, tokens, drafts)
            budget -= tokens + draft_slots
            index += 1
        step.tokens = budget

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
                    budget += restored + self.rules.draft_slots
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

    def _schedule_waiting(self, batch: Batch, step: Step) -> None:
        """Lets in who waits while seats, budget and blocks last.

        Placeholder drafts keep a batch uniform: there are none beside a running prefill chunk, nor where
        a policy changes K.
        """
        skipped: list[Sequence] = []
        step.rows = len(batch.sequences)
        step.seats = self.rules.max_num_seqs - len(self.running)
        step.free_blocks = self.kv.free_blocks
        if self.rules.placeholders and self.policy is None:
            step.pads = not any(row.is_prefill_chunk for row in batch.sequences)
        waiting = self._in_turn(skipped)
        for (sequence, hit), tokens, blocks, drafts in step.admissions(waiting, bool(self.running)):
            self.waiting.pop()
            self.kv.take(sequence, hit, blocks)
            computed = sequence.num_computed_tokens + hit.tokens
            self._admit(batch, sequence, computed, tokens, drafts)
            if hit.tokens:
                batch.cached.append((sequence, hit.tokens))
        if skipped:
            self.waiting.put_back_all(skipped)

    def _in_turn(self, skipped: list[Sequence]) -> Iterator[Candidate[tuple[Sequence, Hit]]]:
        """Yields the head of the queue, again and again; passes over who has output in flight."""
        while self.waiting:
            sequence = self.waiting.head()
            if sequence.num_stale_tokens:
                skipped.append(self.waiting.pop())
                continue
            hit = self.kv.lookup(sequence) if sequence.num_computed_tokens == 0 else NO_HIT
            computed = sequence.num_computed_tokens + hit.tokens
            yield (sequence, hit), sequence.num_tokens, computed, len(hit.blocks), self.kv.idle(hit)

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
        asynchronous, drafts_next = self.config.async_scheduling, self.rules.num_speculative_tokens
        samples = batch.samples
        wanted = iter(planned) if planned is not None else repeat(drafts_next)
        unused = self.rules.skips_unused_drafts
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
        batch.drafter_too_short = longest + self.rules.num_speculative_tokens > limit
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
            if registers and fresh and (placeholders or self.rules.num_speculative_tokens):
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


def _kv_cache(config: EngineConfig, rules: SchedulerRules) -> KVCache:
    """Builds the pool the configuration asks for."""
    blocks, size = config.num_gpu_blocks, config.block_size
    if not config.enable_prefix_caching:
        return KVCache(blocks, size)
    return PrefixCache(blocks, size, rules.hash_lookahead, rules.drops_last_hit)
