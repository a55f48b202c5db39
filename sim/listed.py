"""The running sequences of an engine, listed one by one."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.sim.config import EngineConfig
from specfleet.sim.kvcache import NO_HIT, Hit, KVCache
from specfleet.sim.rules import SchedulerRules, reaches_max_tokens
from specfleet.sim.sequence import PREEMPTED, RUNNING, WAITING, Batch, Sequence
from specfleet.sim.step import Candidate, Step
from specfleet.sim.waiting import FcfsQueue, PriorityQueue

Found = tuple[Sequence, Hit]
"""A sequence that waits, and what it finds in the prefix cache."""


class ListedCrowd:
    """Those who run, as `sim.crowd.Crowd`: any policy, drafts that differ from row to row.

    Args:
        config: limits and switches.
        rules: the same as integers.
        kv: the blocks.
        k_varies: a policy chooses the drafts, so that none are filled up.

    Attributes:
        step: what the present step has to give and gave. batch: its rows.
        running: in the order of admission. waiting: the queue.
        passed_over: heads of the queue that could not be looked at in this step.
        steps: steps decided, the present one and empty ones included.
    """

    def __init__(self, config: EngineConfig, rules: SchedulerRules, kv: KVCache, k_varies: bool) -> None:
        self.config = config
        self.rules = rules
        self.kv = kv
        self.k_varies = k_varies
        self.step = Step(rules)
        self.batch = Batch()
        self.running: list[Sequence] = []
        self.waiting: FcfsQueue | PriorityQueue = (
            PriorityQueue() if config.policy == "priority" else FcfsQueue()
        )
        self.passed_over: list[Sequence] = []
        self.steps = 0

    @property
    def awaits_kv(self) -> bool:
        """Whether somebody waits for KV that comes from elsewhere."""
        return False

    def enter(self, sequence: Sequence) -> None:
        """A newcomer waits from now on."""
        self.waiting.add(sequence)

    def begin(self) -> Batch:
        """Starts the next step; returns its rows, none yet."""
        self.steps += 1
        present = len(self.running) + len(self.waiting)
        cap = self.rules.long_prefill_cap(self.config, present)
        self.step.begin(self.rules.max_num_batched_tokens, 0, 0, 0, cap)
        self.batch = Batch()
        return self.batch

    def end(self) -> None:
        """Ends the step: who was passed over goes back to the front of the queue."""
        if self.passed_over:
            self.waiting.put_back_all(self.passed_over)
            self.passed_over = []

    def serve(self) -> None:
        """Gives running sequences their tokens, in admission order.

        Drafts are part of the gap, so they come out of the budget first come, first served: the
        tail of the list loses drafts first, then everything.
        """
        self._close(self._serve_each(0, self.step.tokens))

    def _serve_each(self, index: int, budget: int) -> int:
        """Serves running sequences from a place in the list on; returns what is left of the budget."""
        running, rules, config, kv = self.running, self.rules, self.config, self.kv
        if index == len(running):
            return budget
        batch, step, piece, draft_slots = self.batch, self.step, self.rules.piece, self.rules.draft_slots
        trims, caches = config.trims_drafts_to_max_tokens, config.enable_prefix_caching
        cap, lookahead = step.cap, rules.lookahead
        layout = rules.layout is not None
        unit = rules.cut_unit
        staggered = config.decode_stagger > 1
        k = rules.num_speculative_tokens  # a decode row is whole where neither budget nor positions end
        whole, charge, longest = 1 + k if cap > k else 0, rules.row_charge(k), rules.max_model_len - 2 - k
        while index < len(running) and budget > draft_slots:
            sequence = running[index]
            computed, placeholders = sequence.num_computed_tokens, sequence.num_output_placeholders
            if placeholders and reaches_max_tokens(sequence.num_output_tokens, 1, sequence.max_tokens):
                index += 1
                continue
            if staggered and self.steps < sequence.next_decode_step:
                index += 1
                continue
            known = sequence.num_tokens + placeholders
            tokens = known + sequence.num_drafts - computed
            if tokens > whole or budget < charge or computed > longest:
                tokens = piece(tokens, computed, budget, cap)
                if unit > 1 and computed + tokens < known:
                    step.cut, tokens = True, rules.cut(tokens)
            if trims:
                tokens = min(tokens, sequence.prompt_tokens + sequence.max_tokens - 1 - computed)
            if tokens <= 0:
                index += 1
                continue
            end = computed + tokens
            if (rules.slots(end) if layout else end + lookahead) > sequence.slots:
                index, budget, fits = self._make_room(sequence, rules.slots(end), index, budget)
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
        return budget

    def _close(self, budget: int) -> None:
        """Says what is left for those who wait."""
        running, rules, kv, batch, step = self.running, self.rules, self.kv, self.batch, self.step
        step.tokens = budget
        step.rows = len(batch.sequences) + (batch.head.n if batch.head is not None else 0)
        step.seats, step.free_blocks = rules.max_num_seqs - len(running), kv.free_blocks
        step.given = budget, step.seats, step.free_blocks
        step.preempted, step.beside = bool(batch.preempted), bool(running)
        if rules.placeholders and not self.k_varies and self.waiting:
            step.pads = not any(row.is_prefill_chunk for row in batch.sequences)

    def _make_room(self, sequence: Sequence, slots: int, index: int, budget: int) -> tuple[int, int, bool]:
        """Grows `sequence` to `slots`, preempting until it fits; returns (index, budget, fits).

        The victim is the last running sequence, or under the priority policy the least important
        and youngest, which may stand before `index` and already have its row.
        """
        running, batch, by_priority = self.running, self.batch, self.config.policy == "priority"
        while not self.kv.grow(sequence, slots):
            if by_priority:
                victim = max(running, key=lambda s: (s.priority, s.arrival))
                position = running.index(victim)
                index -= position < index
                restored = self._withdraw(victim, position)
                if restored is not None:
                    budget += restored + self.rules.draft_slots
            else:
                victim, position = running[-1], len(running) - 1
            del running[position]
            self._preempt(victim, position)
            batch.preempted.append(victim)
            if victim is sequence:
                return index, budget, False
        return index, budget, True

    def _withdraw(self, victim: Sequence, position: int) -> int | None:
        """As `Batch.withdraw`, of the running sequence at a position."""
        return self.batch.withdraw(victim)

    def _preempt(self, victim: Sequence, position: int) -> None:
        """Throws out whoever ran at a position: blocks go, computed tokens restart at 0, outputs are kept."""
        self.kv.free(victim)
        victim.state = PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_drafts = 0
        victim.num_stale_tokens = victim.num_in_flight_tokens  # output in flight is still delivered
        victim.num_output_placeholders = 0
        victim.num_preemptions += 1
        self.waiting.put_back(victim)

    def remove(self, sequence: Sequence) -> None:
        """Lets somebody go who runs and has been aborted."""
        self.running.remove(sequence)

    def in_turn(self) -> Iterator[Candidate[Found]]:
        """Yields the head of the queue, again and again; passes over who has output in flight."""
        while self.waiting:
            sequence = self.waiting.head()
            if sequence.num_stale_tokens:
                self.passed_over.append(self.waiting.pop())
                continue
            hit = self.kv.lookup(sequence) if sequence.num_computed_tokens == 0 else NO_HIT
            computed = sequence.num_computed_tokens + hit.tokens
            least = self.rules.reserved(sequence.prompt_tokens + sequence.max_tokens)
            yield (sequence, hit), sequence.num_tokens, computed, len(hit.blocks), self.kv.idle(hit), least

    def _take(self, sequence: Sequence, hit: Hit, blocks: int) -> None:
        """Gives somebody who is let in its blocks."""
        self.kv.take(sequence, hit, blocks)

    def join(self, life: Found, tokens: int, blocks: int, drafts: int) -> None:
        """Moves the head of the queue to the running sequences and places its row."""
        (sequence, hit), batch = life, self.batch
        self.waiting.pop()
        self._take(sequence, hit, blocks)
        (batch.new if sequence.state == WAITING else batch.resumed).append(sequence)
        sequence.state = RUNNING
        sequence.num_computed_tokens += hit.tokens
        sequence.is_prefill_chunk = True
        self.running.append(sequence)
        if self.config.enable_prefix_caching:
            self.kv.register(sequence, min(sequence.num_computed_tokens + tokens, sequence.num_tokens))
        batch.place(sequence, tokens, drafts)
        if drafts:
            batch.padded.append(sequence)
            batch.void.add(sequence.id)
        if hit.tokens:
            batch.cached.append((sequence, hit.tokens))
