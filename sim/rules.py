"""The scheduler's arithmetic, once: what token counts mean in budget, KV blocks and drafter passes.

The rules are vLLM V1's, switched by `EngineConfig`. `Scheduler` applies them to sequences one by one, the
calendar (`sim.calendar`) to whole lives drawn in advance; neither counts for itself. What a step has to
give, and who is let in, is in `step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from specfleet.sim.config import EngineConfig
from specfleet.sim.kvlayout import KvLayout

I64 = npt.NDArray[np.int64]
NEVER = 1 << 62
"""A token count that no request reaches."""


def blocks_for(tokens: int, block_size: int) -> int:
    """Returns the KV blocks that so many tokens take."""
    return -(-tokens // block_size)


def blocks_for_each(tokens: I64, ahead: int, block_size: int) -> I64:
    """As `blocks_for`, for many, each with `ahead` more; a shift costs a tenth of a division."""
    rounded = tokens + (ahead + block_size - 1)
    if block_size & (block_size - 1):
        rounded //= block_size
    else:
        rounded >>= block_size.bit_length() - 1
    return rounded


def findable_blocks(known_tokens: int, block_size: int) -> int:
    """Returns the blocks that a prefix-cache hit may have at most: one known token is computed again."""
    return (known_tokens - 1) // block_size


def usable_hit(found: int, drops_last: bool) -> int:
    """Returns the blocks of a prefix-cache hit that are used, of those found."""
    return found - 1 if found and drops_last else found


@overload
def reaches_max_tokens(known: int, in_flight: int, max_tokens: int) -> bool: ...
@overload
def reaches_max_tokens(known: I64, in_flight: int, max_tokens: I64) -> npt.NDArray[np.bool_]: ...
def reaches_max_tokens(
    known: int | I64, in_flight: int, max_tokens: int | I64
) -> bool | npt.NDArray[np.bool_]:
    """Whether a request is sure to end with the batches in flight, so that it gets no further row.

    Args:
        known: output tokens known.
        in_flight: batches in flight in which it samples: each brings one token or more.
        max_tokens: most output tokens. A stop token cannot be foreseen.
    """
    return known + in_flight >= max_tokens


def last_output(max_tokens: int, stop_at: int, positions: int) -> int:
    """Returns the output tokens that a request writes: as asked for, up to a stop token or the last position.

    Args:
        max_tokens: most output tokens.
        stop_at: the n-th is a stop token.
        positions: that the model has for its output.
    """
    return min(max_tokens, stop_at, positions)


@overload
def leaves_drafts_unused(known: int, in_flight: int, max_tokens: int) -> bool: ...
@overload
def leaves_drafts_unused(known: I64, in_flight: int, max_tokens: I64) -> npt.NDArray[np.bool_]: ...
def leaves_drafts_unused(
    known: int | I64, in_flight: int, max_tokens: int | I64
) -> bool | npt.NDArray[np.bool_]:
    """Whether drafts proposed after a step are sure not to be verified: its token is the last one.

    Args:
        known, in_flight, max_tokens: as in `reaches_max_tokens`, when the step is scheduled.
    """
    return known + (in_flight + 1) >= max_tokens


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """The rules of one engine, as integers.

    Attributes:
        num_speculative_tokens: K, the drafts of a decode row.
        draft_slots: budget tokens that each row is charged on top of its own.
        lookahead: KV slots held past the scheduled tokens, for the drafter to write into.
        lookahead_at_admission: the same when a request is admitted.
        in_flight: batches in flight when the next one is scheduled: 1 asynchronously, else 0.
        block_size, usable_blocks, watermark_blocks: tokens a KV block; blocks of the pool; of which an
            admission beside others leaves free.
        max_num_seqs, max_num_batched_tokens, max_model_len: as in `EngineConfig`.
        chunks_prompts: a prompt may be computed in pieces.
        reserves_all: an admission needs blocks for everything known, whatever it takes at once.
        reserves_max_tokens: an admission takes blocks for its prompt and max_tokens at once (`reserved`).
        static_batching: nobody is let in beside those who run.
        cut_unit: tokens of which a piece that does not end its prompt is a multiple.
        placeholders: drafts that fill up an admission with one token left (0: it is not filled up).
        hash_lookahead: tokens past a block that its key in the prefix cache covers.
        drops_last_hit: a hit gives its last block up.
        draft_passes: of the drafter, in a step that proposes K.
        skips_unused_drafts: a step all of whose drafts are sure not to be used is noted, and an EAGLE drafter
            (`eagle`) then runs one pass, to keep its KV in step; a draft model runs all of them.
        drafter_positions: of the drafter, where they are fewer than the model's; else 0.
    """

    num_speculative_tokens: int
    draft_slots: int
    lookahead: int
    lookahead_at_admission: int
    in_flight: int
    block_size: int
    usable_blocks: int
    watermark_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    chunks_prompts: bool
    reserves_all: bool
    reserves_max_tokens: bool
    static_batching: bool
    cut_unit: int
    placeholders: int
    hash_lookahead: int
    drops_last_hit: bool
    draft_passes: int
    skips_unused_drafts: bool
    eagle: bool
    drafter_positions: int
    layout: KvLayout | None

    @classmethod
    def of(cls, config: EngineConfig) -> SchedulerRules:
        """Returns the rules of a configuration."""
        speculative, k = config.speculative, config.num_speculative_tokens
        lookahead = speculative.num_lookahead_tokens if speculative else 0
        covers_next = config.uses_eagle and config.prefix_hash_covers_next_token
        return cls(
            num_speculative_tokens=k,
            draft_slots=speculative.draft_slots if speculative and config.charges_draft_slots else 0,
            lookahead=lookahead,
            lookahead_at_admission=lookahead if config.lookahead_at_admission else 0,
            in_flight=int(config.async_scheduling),
            block_size=config.block_size,
            usable_blocks=config.usable_blocks,
            watermark_blocks=int(config.watermark * config.num_gpu_blocks),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            chunks_prompts=config.enable_chunked_prefill,
            reserves_all=config.scheduler_reserve_full_isl,
            reserves_max_tokens=config.reserves_max_tokens,
            static_batching=config.static_batching,
            cut_unit=config.block_size if config.cuts_prompts_at_blocks else 1,
            placeholders=k if config.pads_one_token_admission else 0,
            hash_lookahead=int(covers_next),
            drops_last_hit=config.uses_eagle and not covers_next,
            draft_passes=speculative.draft_passes if speculative else 0,
            skips_unused_drafts=config.skips_unused_drafts and lookahead > 0,
            eagle=config.uses_eagle,
            drafter_positions=config.drafter_positions,
            layout=config.kv_layout,
        )

    def row_charge(self, drafts: int) -> int:
        """Returns the budget tokens of a row that verifies so many drafts."""
        return 1 + drafts + self.draft_slots

    def long_prefill_cap(self, config: EngineConfig, present: int) -> int:
        """Returns the most tokens of one sequence in a step (`NEVER` where the cap is off).

        Args:
            config: its switches.
            present: unfinished sequences.
        """
        cap, present = config.long_prefill_token_threshold, max(present, 1)
        if cap <= 0 or (present <= 1 and config.spares_lone_long_prefill):
            return NEVER
        if config.long_prefill_token_threshold_adaptive:
            return max(cap, self.max_num_batched_tokens // present)
        return cap

    def piece(self, missing: int, computed: int, budget: int, cap: int = NEVER) -> int:
        """Returns the tokens of a running sequence that a step computes, 0 or less if none.

        Args:
            missing: known tokens and drafts that are not computed.
            computed: tokens that are.
            budget: tokens that the step has left.
            cap: most tokens of one sequence.
        """
        most = budget - self.draft_slots
        if cap < most:
            most = cap
        if self.max_model_len - 1 - computed < most:
            most = self.max_model_len - 1 - computed
        return missing if missing < most else most

    def cut(self, tokens: int) -> int:
        """Returns what is computed of a prompt for which a step has only so many tokens."""
        return tokens - tokens % self.cut_unit

    def slots(self, end: int) -> int:
        """Returns the KV slots that a running sequence holds while tokens up to `end` are computed."""
        slots = min(end + self.lookahead, self.max_model_len)
        return self.layout.held(slots) if self.layout else slots

    def blocks(self, end: int) -> int:
        """Returns the blocks for `slots`."""
        return blocks_for(self.slots(end), self.block_size)

    def most_slots(self, total: int) -> int:
        """Returns the KV slots that a request may hold at its end, with the drafts of the steps in flight.

        Args:
            total: its prompt and max_tokens.
        """
        last = 0 if self.reserves_max_tokens else 1  # the KV of the last token is never written
        return self.slots(total - last + self.num_speculative_tokens * (1 + self.in_flight))

    def reserved(self, total: int) -> int:
        """Returns the blocks that a request holds from its admission on, whatever it computes (0: none).

        Args:
            total: its prompt and max_tokens.
        """
        return blocks_for(self.most_slots(total), self.block_size) if self.reserves_max_tokens else 0

    def held_at_admission_each(self, ends: I64, totals: I64) -> I64:
        """As `blocks_at_admission`, or what is `reserved` if that is more, for many."""
        held = self.blocks_at_admission_each(ends)
        if not self.reserves_max_tokens:
            return held
        most = totals + self.num_speculative_tokens * (1 + self.in_flight) + self.lookahead
        slots = np.minimum(most, self.max_model_len)
        slots = self.layout.held_each(slots) if self.layout else slots
        return np.asarray(np.maximum(held, blocks_for_each(slots, 0, self.block_size)))

    def blocks_at_admission(self, end: int) -> int:
        """Returns the blocks of a request that is admitted to compute tokens up to `end`."""
        slots = end + self.lookahead_at_admission
        slots = slots if slots < self.max_model_len else self.max_model_len
        return -(-(self.layout.held(slots) if self.layout else slots) // self.block_size)

    def blocks_each(self, ends: I64) -> I64:
        """As `blocks`, for many, none of whom reaches `max_model_len`."""
        if self.layout:
            return blocks_for_each(self.layout.held_each(ends + self.lookahead), 0, self.block_size)
        return blocks_for_each(ends, self.lookahead, self.block_size)

    def blocks_at_admission_each(self, ends: I64) -> I64:
        """As `blocks_at_admission`, for many, none of whom reaches `max_model_len`."""
        if self.layout:
            held = self.layout.held_each(ends + self.lookahead_at_admission)
            return blocks_for_each(held, 0, self.block_size)
        return blocks_for_each(ends, self.lookahead_at_admission, self.block_size)

    def blocks_received(self, prompt: int) -> int:
        """Returns the blocks of a prompt whose KV comes from elsewhere: those that it is sent in."""
        return blocks_for(self.layout.held(prompt) if self.layout else prompt, self.block_size)

    def usable_hit(self, found: int) -> int:
        """As the function of the same name."""
        return usable_hit(found, self.drops_last_hit)

    def keyed_blocks(self, computed: int, known: int) -> int:
        """Returns the blocks of a sequence that have a key in the prefix cache.

        Args:
            computed: tokens whose KV is there. known: tokens that are known.
        """
        return min(computed, known - self.hash_lookahead) // self.block_size

    def blocks_reserved(self, known: int) -> int:
        """Returns the blocks that must be free or found before a request of so many known tokens enters."""
        if not self.reserves_all:
            return 0
        slots = min(known, self.max_model_len)
        return blocks_for(self.layout.held(slots) if self.layout else slots, self.block_size)

    def pads(self, beside_rows: bool, computed: int) -> bool:
        """Whether an admission with one token left is filled up with placeholder drafts.

        Not as the only row of a fresh engine, and not at the end of the model's positions.

        Args:
            beside_rows: the step has rows of running sequences.
            computed: tokens of the admission that are computed.
        """
        k = self.num_speculative_tokens
        return (beside_rows or computed > 0) and computed + k + 2 <= self.max_model_len

    def outgrows_drafter(self, end: int) -> bool:
        """Whether a row that computes tokens up to `end` leaves the drafter no positions for K drafts.

        Then it does not run after that step, and what every row verifies next is void (vLLM zeroes it).
        """
        return 0 < self.drafter_positions < end + self.num_speculative_tokens

    def passes(self, planned: int | None, unused: bool) -> int:
        """Returns the drafter's passes after a step.

        Args:
            planned: the most drafts that a policy wants of a row next; None is K. No drafts still take one
                pass, to keep the drafter's KV in step.
            unused: no draft proposed after it can be used.
        """
        passes = self.draft_passes
        if planned is not None:
            passes = min(passes, max(planned, 1))
        return min(passes, 1) if unused and self.eagle else passes
