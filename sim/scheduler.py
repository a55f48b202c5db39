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

import numpy as np

from specfleet.sim.columns.crowd import ColumnCrowd
from specfleet.sim.columns.head import ColumnBatch
from specfleet.sim.columns.receiving import ReceivingCrowd
from specfleet.sim.config import EngineConfig
from specfleet.sim.crowd import schedule
from specfleet.sim.errors import Breach
from specfleet.sim.kvcache import KVCache, PrefixCache
from specfleet.sim.laws.names import BLOCKS, ENDS_ONCE, LIMITS
from specfleet.sim.rules import I64, SchedulerRules, last_output, leaves_drafts_unused
from specfleet.sim.sequence import FINISHED, RUNNING, AskedTokens, Batch, Head, Sequence
from specfleet.sim.speculation.policy import Plan, Policy, minds_order, plan_of


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
        self.rules = SchedulerRules.of(config)
        self.kv = _kv_cache(config, self.rules)
        make = ReceivingCrowd if config.receives_kv else ColumnCrowd
        self.crowd = make(config, self.rules, self.kv, policy is not None)
        unsuited = config.async_scheduling and (minds_order(policy) or config.trims_drafts_to_max_tokens)
        if unsuited or config.pipeline_parallel_size > 1 or config.hands_kv_over:
            self.crowd.usable = False
        self.waiting = self.crowd.waiting
        self._arrivals = 0
        self._kept: dict[int, Sequence] = {}

    @property
    def running(self) -> list[Sequence]:
        """Sequences that have been admitted, in that order."""
        self.crowd.refresh()
        return self.crowd.running

    def __len__(self) -> int:
        """Unfinished sequences."""
        return len(self.crowd.running) + len(self.waiting)

    def add(self, sequence: Sequence, computed_tokens: int = 0) -> None:
        """Puts a sequence into the waiting queue.

        Args:
            sequence: not yet known here.
            computed_tokens: tokens whose KV arrives with it.
        """
        sequence.arrival = self._arrivals
        sequence.num_computed_tokens = computed_tokens
        self._arrivals += 1
        self.crowd.enter(sequence)

    @property
    def waits_for_others(self) -> bool:
        """Whether those who wait may do so for what comes from elsewhere: KV, or that KV is taken."""
        return bool(self._kept) or self.crowd.awaits_kv

    def release(self, request_id: int) -> None:
        """The KV of a request that has ended was taken: its blocks are free."""
        self.kv.free(self._kept.pop(request_id))

    def arrived(self, request_id: int) -> None:
        """The KV of a prompt has come: all but its last token is computed."""
        assert isinstance(self.crowd, ReceivingCrowd)
        self.crowd.arrived(request_id)

    @property
    def num_running(self) -> int:
        """Sequences that have been admitted."""
        return len(self.crowd.running)

    def rest(self) -> None:
        """Learns that there is nothing to do: vLLM keeps nothing that an idle time would change."""

    def refusal(self, request: Sequence | AskedTokens) -> str | None:
        """Returns why a request could never be served here, or None.

        At its end it may hold prompt, output and the drafts of the steps in flight.
        """
        config, total = self.config, request.prompt_tokens + request.max_tokens
        if total > config.max_model_len:
            return f"prompt + max_tokens = {total} exceeds max_model_len {config.max_model_len}"
        rules, drafts = self.rules, config.num_speculative_tokens
        most, budget, slots = rules.most_slots(total), config.max_num_batched_tokens, rules.draft_slots
        at_once, what = (
            (request.prompt_tokens, "a prompt of")
            if rules.reserves_max_tokens
            else (total, "prompt + max_tokens =")
        )  # who is thrown out computes its output again
        if not config.enable_chunked_prefill and at_once + slots > budget:
            more = f" and {slots} draft slots" if slots else ""
            return f"without chunked prefill, {what} {at_once}{more} exceed a step of {budget}"
        if rules.row_charge(drafts) + slots > budget:
            return f"1 + {drafts} drafts and the drafter's slots exceed a step of {budget} tokens"
        if most > config.usable_tokens:
            return (
                f"prompt + max_tokens and drafts need {most} KV tokens, the pool has {config.usable_tokens}"
            )
        return None

    def take_over(self, running: Rows[Sequence], waiting: Rows[Sequence]) -> None:
        """Starts with sequences in the middle of their lives, each in its order and with its blocks."""
        self.crowd.running = list(running)
        for sequence in waiting:
            self.waiting.add(sequence)
        self.kv.hold(sum(sequence.num_blocks for sequence in running))

    def abort(self, request_ids: Rows[int]) -> list[Sequence]:
        """Drops sequences and frees their blocks at once, as vLLM's `finish_requests` does: what they have in
        flight is in vain, and what is cached of them stays so. Returns those that were here."""
        wanted = set(request_ids)
        here = {one.id: one for one in (*self.crowd.running, *self.waiting) if one.id in wanted}
        gone = [here[number] for number in dict.fromkeys(request_ids) if number in here]
        for sequence in gone:
            if sequence.state == RUNNING:
                self.crowd.remove(sequence)
            self.kv.free(sequence)
            sequence.state = FINISHED
        if gone:
            self.waiting.discard(gone)
        return gone

    def schedule(self, now: float = 0.0) -> Batch:
        """Decides one step: running sequences first, then waiting ones. Computed tokens advance at once.

        Args:
            now: the engine's time, for the policy alone; no decision here depends on it.
        """
        batch = self.crowd.begin()
        schedule(self.crowd)
        whole = self._whole(batch)
        if self.policy is not None:
            self._hand_out(batch, plan_of(self.policy, whole, len(self.waiting), now))
        self._advance(batch, batch.planned_drafts)
        if isinstance(whole, ColumnBatch):
            whole.decided()
        if whole.rows:
            self.crowd.flying.append((batch, batch.head))
        batch.head = None
        return whole

    def _whole(self, batch: Batch) -> Batch:
        """Returns a step with the rows that are columns."""
        crowd = self.crowd
        return (
            batch
            if batch.head is None
            else ColumnBatch(batch.head, batch, crowd.refresh, crowd.columns.notes)
        )

    def _hand_out(self, batch: Batch, planned: Plan | I64) -> None:
        """Notes the drafts that a policy wants after a step."""
        head, rows = batch.head, len(batch.sequences)
        if isinstance(planned, int):
            batch.planned_drafts = [planned] * rows
        else:
            first = head.n if head is not None else 0
            rest = planned[first:]
            batch.planned_drafts = rest if isinstance(rest, list) else rest.tolist()
        if head is not None:
            several = None if isinstance(planned, int) else np.array(planned[: head.n], dtype=np.int64)
            head.planned = planned if isinstance(planned, int) else several

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
        if batch.head is not None:
            unused = self._advance_head(batch.head, unused)
        rows = zip(batch.sequences, batch.num_tokens, batch.num_drafts, wanted, strict=False)
        for sequence, tokens, drafts, following in rows if batch.sequences else ():
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
                sequence.next_decode_step = self.crowd.steps + self.config.decode_stagger
        batch.total_tokens = sum(batch.num_tokens)
        batch.skips_drafts = unused
        if self.rules.drafter_positions:
            self._check_drafter(batch)

    def _advance_head(self, head: Head, unused: bool) -> bool:
        """As `_advance`, for rows that are columns; returns whether all drafts after them are in vain."""
        columns, which = self.crowd.columns, slice(head.n) if head.places is None else head.places
        if unused:
            unused = self._head_unused(head)
        if not columns.ahead:
            columns.in_flight = head.drafts
        else:
            columns.assumed[which] += head.drafts + 1
            planned = self.rules.num_speculative_tokens if head.planned is None else head.planned
            columns.drafts[which] = planned
            columns.each = planned if isinstance(planned, int) and head.places is None else None
        return unused

    def _head_unused(self, head: Head) -> bool:
        """Whether no draft proposed after the rows that are columns could be used."""
        columns, first = self.crowd.columns, 0 if head.places is None else head.places.item(0)
        flies = columns.assumed.item(first) > 0
        if not leaves_drafts_unused(columns.written.item(first), int(flies), columns.most.item(first)):
            return False
        which = slice(head.n) if head.places is None else head.places
        in_flight = (columns.assumed[which] > 0).astype(np.int64) if columns.ahead else 0
        return bool(leaves_drafts_unused(columns.written[which], in_flight, columns.most[which]).all())

    def _check_drafter(self, batch: Batch) -> None:
        """Notes whether the drafter's positions suffice; if not, the drafts it leaves behind are void.

        vLLM zeroes the drafts of such a step; the next step still verifies them.
        """
        longest = max((sequence.num_computed_tokens for sequence in batch.sequences), default=0)
        if batch.head is not None:
            longest = max(longest, int(batch.head.ends.max()))
        batch.drafter_too_short = self.rules.outgrows_drafter(longest)
        for sequence in batch.sequences:
            sequence.drafts_are_void = batch.drafter_too_short
        self.crowd.columns.void = batch.drafter_too_short

    def commit(self, batch: Batch, sampled: Rows[int]) -> Outcome:
        """Takes the output of the oldest batch in: rejections, new tokens, ends.

        Args:
            batch: the oldest batch not yet committed.
            sampled: tokens each row sampled: 1 + accepted drafts, 0 where it samples nothing.

        Returns:
            What was kept, and who finished.
        """
        head = batch.head
        if head is None:
            return self.commit_rows(batch, list(sampled))
        head.new = np.array(sampled[: head.n], dtype=np.int64)
        outcome = self.commit_rows(batch, list(sampled[head.n :]))
        return Outcome(head.kept.tolist() + outcome.kept, outcome.finished)

    def commit_rows(self, batch: Batch, sampled: list[int]) -> Outcome:
        """As `commit`, where rows that are columns have their tokens already.

        Args:
            batch: the oldest batch not yet committed.
            sampled: of the other rows; those of rows that are listed by now are put in front.

        Returns:
            What was kept of the other rows, and who finished.
        """
        kept: list[int] = []
        crowd, head, batch = self.crowd, batch.head, batch.tail
        if crowd.flying and crowd.flying[0][0] is batch:
            crowd.flying.popleft()
        for sequence, place in crowd.pending.items():
            crowd.columns.refresh(sequence, place)
        finished = [] if head is None else self._commit_head(head)
        if head is not None and head.listed:
            sampled[:0] = head.listed
        registers = self.config.enable_prefix_caching
        rows = zip(batch.sequences, batch.num_tokens, batch.num_drafts, sampled, strict=True)
        for sequence, tokens, drafts, new in rows:
            in_flight = sequence.num_in_flight_tokens - tokens
            sequence.num_in_flight_tokens = in_flight
            fresh = True
            if sequence.num_stale_tokens:
                sequence.num_stale_tokens -= tokens
                fresh = False
            if fresh and drafts and new:  # also of who is gone: the step behind reads what it really has
                sequence.num_computed_tokens -= drafts + 1 - new
            if not new:
                kept.append(0)
                continue
            left = self._left_of(sequence)
            ends = new >= left
            if ends and fresh:  # also of who is gone
                sequence.num_computed_tokens -= new - left
            if sequence.state == FINISHED:
                kept.append(0)
                continue
            new = min(new, left)
            placeholders = sequence.num_output_placeholders
            if fresh and placeholders:
                sequence.num_output_placeholders = placeholders - 1 - drafts
            sequence.num_tokens += new
            kept.append(new)
            if registers and fresh and (placeholders or self.rules.num_speculative_tokens):
                self.kv.register(sequence, sequence.num_computed_tokens - in_flight)
            if ends:
                if self.config.hands_kv_over:
                    self._kept[sequence.id] = sequence
                else:
                    self.kv.free(sequence)
                sequence.state = FINISHED
                finished.append(sequence)
        self._land(head.left if head is not None else [], finished)
        return Outcome(kept, finished)

    def _left_of(self, sequence: Sequence) -> int:
        """Returns the output tokens that a sequence has to write still."""
        positions = self.config.max_model_len - sequence.prompt_tokens
        written = sequence.num_tokens - sequence.prompt_tokens
        return last_output(sequence.max_tokens, sequence.stop_at, positions) - written

    def _land(self, left: list[int], finished: list[Sequence]) -> None:
        """Takes over what rows of those brought who had just come aboard, and lets who ended go.

        Args:
            left: places of rows that are columns and ended. finished: all who ended, those first.
        """
        crowd, gone = self.crowd, list(left)
        listed = [sequence for sequence in finished[len(left) :] if sequence not in crowd.pending]
        for sequence, place in crowd.pending.items():
            if sequence.state == FINISHED:
                gone.append(place)
            else:
                crowd.columns.reload(sequence, place)
        crowd.pending.clear()
        if gone:
            crowd.drop(gone)
        if listed:
            self._forget(listed)

    def _commit_head(self, head: Head) -> list[Sequence]:
        """As `commit_rows`, for the rows that are columns; returns who finished."""
        crowd, columns, n = self.crowd, self.crowd.columns, head.n
        columns.grow(head.new, head.drafts)
        written, last = columns.written[:n], columns.last[:n]
        ended = (written >= last).nonzero()[0]
        head.kept = head.new
        if isinstance(head.planned, np.ndarray) and not columns.ahead:
            columns.drafts[:n] = head.planned  # before those who go on move up
        if len(ended):
            surplus = written[ended] - last[ended]
            head.kept = head.new.copy()
            head.kept[ended] -= surplus
            written[ended] -= surplus
            columns.context[ended] -= surplus
        if not len(ended):
            return []
        head.left = ended.tolist()
        finished = [head.members[place] for place in head.left]
        for sequence, place in zip(finished, head.left, strict=True):
            crowd.leave(sequence, place)
            self.kv.free(sequence)
            sequence.state = FINISHED
        return finished

    def propose(self, batch: Batch, drafts: Rows[int]) -> None:
        """Hands over the drafts proposed after a committed batch, a count a row (synchronous engines)."""
        head = batch.head
        if head is not None:
            self.propose_head(head.of_those_left(np.array(drafts[: head.n], dtype=np.int64)))
            batch, drafts = batch.tail, drafts[head.n :]
        for sequence, count in zip(batch.sequences, drafts, strict=True):
            if sequence.state == RUNNING:
                sequence.num_drafts = 0 if sequence.is_prefill_chunk else count

    def propose_head(self, drafts: int | I64) -> None:
        """As `propose`, for those aboard, a number a row that goes on, or one for all."""
        columns = self.crowd.columns
        columns.drafts[: columns.n] = drafts
        columns.each = drafts if isinstance(drafts, int) else None

    def _forget(self, finished: list[Sequence]) -> None:
        """Removes ended sequences from the running list and, where they had been preempted, the queue."""
        crowd, before = self.crowd, len(self.crowd.running)
        crowd.running = [sequence for sequence in crowd.running if sequence.state != FINISHED]
        if before - len(crowd.running) == len(finished):
            return
        self.waiting.discard(finished)

    def check(self) -> None:
        """Proves that blocks add up and that no sequence is where it should not be.

        Raises:
            Breach: with the figures.
        """
        self.kv.check([*self.running, *self.waiting, *self._kept.values()])
        seats = self.config.max_num_seqs
        if len(self.running) > seats:
            raise Breach(LIMITS, f"{len(self.running)} sequences run, of {seats}", self.running[seats].id)
        for sequence in self.running:
            if sequence.state != RUNNING:
                raise Breach(ENDS_ONCE, f"it runs in state {sequence.state}", sequence.id)
            if sequence.num_computed_tokens > sequence.slots:
                said = f"{sequence.num_computed_tokens} tokens computed, blocks for {sequence.slots}"
                raise Breach(BLOCKS, said, sequence.id)


def _kv_cache(config: EngineConfig, rules: SchedulerRules) -> KVCache:
    """Builds the pool the configuration asks for."""
    blocks, size = config.num_gpu_blocks, config.block_size
    if not config.enable_prefix_caching:
        return KVCache(blocks, size)
    return PrefixCache(blocks, size, rules.hash_lookahead, rules.drops_last_hit)
