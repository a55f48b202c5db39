"""What a sequence contributes to its engine, iteration by iteration, as packed integers (`packing`).

The engine's rules (`sim.rules`) say how many blocks a sequence holds and whether it has a row; here they are
applied to whole lives at once, so that a life can be added to a calendar when it begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.packing import Packing
from specfleet.sim.config import EngineConfig
from specfleet.sim.rules import SchedulerRules, leaves_drafts_unused

Count = TypeVar("Count", int, I64)


@dataclass(frozen=True, slots=True)
class Footprints:
    """Lives as packed integers, for one engine at one draft length.

    Attributes:
        scheduler: the engine's rules.
        k: drafts of a decode row.
        lag: 1 if a batch is scheduled when the one before it starts (asynchronous), else 0.
        notes_unused: a step all of whose drafts are unusable is priced with one drafter pass.
        window: keys that windowed layers see, if a request outgrows it; else 0.
        has_side: a second packed word is kept (`sides`).
        packing: the layout of packed integers.
    """

    scheduler: SchedulerRules
    k: int
    lag: int
    notes_unused: bool
    window: int
    has_side: bool
    packing: Packing

    @classmethod
    def of(
        cls, config: EngineConfig, longest_tokens: int, reads_kv: bool = False, shared: bool = False
    ) -> Footprints | None:
        """Returns the rules of a configuration; None where its counts do not fit the packing.

        Args:
            config: of the engine.
            longest_tokens: prompt and output of the longest request.
            reads_kv: a policy looks at the KV tokens of the batch.
            shared: sequences may hold the same blocks.
        """
        rules, query = SchedulerRules.of(config), 1 + config.num_speculative_tokens
        growth = 2 * query + rules.lookahead
        packing = Packing.of(config, growth, longest_tokens, shared)
        window = config.sliding_window if longest_tokens + growth > config.sliding_window else 0
        has_side = reads_kv or window > 0
        if packing is None or (has_side and (packing.wide or 2 * packing.blocks > 63)):
            return None
        has_side = has_side or packing.wide
        saves_passes = rules.skips_unused_drafts and rules.eagle and rules.draft_passes > 1
        return cls(rules, query - 1, rules.in_flight, saves_passes, window, has_side, packing)

    @property
    def query(self) -> int:
        """Tokens of a decode row."""
        return 1 + self.k

    @property
    def notes_low(self) -> bool:
        """Whether the low field of the second word is noted by iteration."""
        return self.window > 0 or self.packing.wide

    @property
    def low_mask(self) -> int:
        """The low field of the second word: of a wide layout all of it."""
        return (1 << 62) - 1 if self.packing.wide else self.packing.context_mask

    def summed(self, footprint: Count) -> Count:
        """Returns what of footprints is added up: a wide layout leaves the context out."""
        return footprint & ~self.packing.context_mask if self.packing.wide else footprint

    @property
    def lookahead(self) -> int:
        """KV slots held past the scheduled tokens."""
        return self.scheduler.lookahead

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self.scheduler.block_size

    def at(self, k: int) -> Footprints:
        """Returns the rules at another draft length; what the drafter needs ahead does not change."""
        return replace(self, k=k)

    def prefilling(self, blocks: Count) -> Count:
        """Returns what a sequence contributes while it is prefilled."""
        return (1 << self.packing.running) + (blocks << self.packing.blocks)

    def sides(self, footprint: I64, starts: I64, asked: I64, drafts: I64 | None = None) -> I64 | None:
        """Returns the differences of the second packed word, flat; None where none is kept.

        Its fields: context outside the sliding window (from bit 0), and tokens that the scheduler holds
        for computed (from the first bit of `packing.blocks`): asynchronously those asked for in the step
        before, as if all its drafts had been accepted. Of a wide layout it is the context alone.

        Args:
            footprint: of sequences, flat.
            starts: the first place of each.
            asked: KV tokens each was scheduled for in the step before its first place.
            drafts: of the row at each place; None is K.
        """
        if not self.has_side:
            return None
        pack = self.packing
        context, decodes = footprint & pack.context_mask, (footprint >> pack.rows) & 1
        if pack.wide:
            side = context
        else:
            held_for = context - (self.query if drafts is None else drafts + 1)
            if self.lag:
                held_for[1:] = context[:-1]
                held_for[starts] = asked
            side = (held_for * decodes) << pack.blocks
        if self.window:
            side += np.maximum(context - self.window, 0)
        row = differences(side, 0)
        row[starts] = side[starts]
        return row

    def footprint(
        self, computed: I64, final: int, held: int, certain: bool, drafts: I64 | None = None
    ) -> I64:
        """As `footprints`, for one sequence."""
        rounds = len(computed)
        places = np.full(rounds + 1 + self.lag, final, dtype=np.int64)
        places[:rounds] = computed
        ends, count, last, blocks = np.array([[rounds + self.lag], [rounds], [final], [held]])
        return self.footprints(places, ends, count, last, blocks, np.array([certain]), drafts=drafts)

    def footprints(
        self,
        computed: I64,
        ends: I64,
        rounds: I64,
        final: I64,
        held: I64,
        certain: npt.NDArray[np.bool_],
        asked: I64 | None = None,
        drafts: I64 | None = None,
    ) -> I64:
        """Returns what sequences contribute, iteration by iteration, packed, as one flat array.

        A sequence occupies places `ends[i] - rounds[i] - 1 - lag .. ends[i]`; the last one is zero.

        Args:
            computed: KV tokens before each place's round, flat.
            ends: the place of each sequence's zero.
            rounds: of each sequence.
            final: KV tokens after its last round.
            held: blocks after its prefill.
            certain: its last round is sure to be the last, so that no row follows (asynchronous).
            asked: KV tokens each was scheduled for in the step before; None is its prefill's.
            drafts: of the row at each place; None is K.
        """
        pack, rules = self.packing, self.scheduler
        query: int | I64 = self.query if drafts is None else drafts + 1
        context = computed + query
        if not self.lag:
            blocks = rules.blocks_each(context)
        else:
            first, after = ends - rounds - 1, ends - 1
            context[after] = final + _at(query, after)
            scheduled = np.empty_like(context)
            # scheduled while the round before is in flight, as if all its drafts were accepted
            np.add(context[:-1], _at(query, slice(1, None)), out=scheduled[1:])
            scheduled[first] = (computed[first] if asked is None else asked) + _at(query, first)
            blocks = rules.blocks_each(scheduled)
        if drafts is not None:  # a shorter row frees nothing
            blocks = _never_less(blocks, ends - rounds - self.lag)
        if asked is not None or rules.reserves_max_tokens:  # more may be held, or asked for at the old K
            floor, low = np.zeros_like(blocks), ends - rounds - self.lag
            least = np.maximum(held, blocks[low])
            floor[low] = least
            floor[low[1:]] -= least[:-1]
            np.maximum(blocks, np.add.accumulate(floor, out=floor), out=blocks)
        footprint = blocks
        footprint <<= pack.blocks
        footprint += context
        footprint += (1 << pack.running) + (1 << pack.rows)
        if self.lag and certain.any():
            last = after[certain]
            none = rounds[certain] == 0
            kept = (footprint[last - 1] >> pack.blocks) & pack.blocks_mask
            kept = np.where(none, held[certain], kept)
            footprint[last] = (kept << pack.blocks) + (1 << pack.running)
        footprint[ends] = 0
        return footprint

    def outgrown(self, footprint: I64, ends: I64, rounds: I64, asked: I64) -> tuple[I64, I64, I64]:
        """Returns from which of its rows on each sequence has outgrown the drafter, and all its rows.

        Who has outgrown the drafter once stays so; but the first row may seem to have for once (the third
        number, else 0): it is scheduled as if more drafts of an earlier K had been accepted.

        Args:
            footprint, ends, rounds: as in `footprints`.
            asked: KV tokens each was scheduled for in the step before its first place.
        """
        pack, rules, starts = self.packing, self.scheduler, ends - rounds - self.lag
        end, rows = footprint & pack.context_mask, rounds
        if self.lag:
            rows = rounds + ((footprint[ends - 1] >> pack.rows) & 1)
            end[1:] = end[:-1] + self.query
            end[starts] = asked + self.query
        within = np.zeros(len(end) + 1, dtype=np.int64)
        np.cumsum(end + rules.num_speculative_tokens <= rules.drafter_positions, out=within[1:])
        spared = within[starts + rows] - within[starts]
        early = (spared > 0) & (within[starts + 1] == within[starts])
        return spared + early, rows, early.astype(np.int64)

    def outgrown_one(self, footprint: I64, rounds: int, asked: int) -> tuple[int, int, int]:
        """As `outgrown`, for one sequence; nothing where nobody outgrows the drafter."""
        if not self.scheduler.drafter_positions:
            return 0, 0, 0
        spared, rows, early = self.outgrown(footprint, *np.array([[rounds + self.lag], [rounds], [asked]]))
        return int(spared[0]), int(rows[0]), int(early[0])


def _at(values: int | I64, places: I64 | slice) -> int | I64:
    """Returns the values at places, where there is more than one for all."""
    return values if isinstance(values, int) else values[places]


def _never_less(blocks: I64, starts: I64) -> I64:
    """Returns the most that a sequence has held up to each place; sequences begin at `starts`."""
    more = int(blocks.max(initial=0)) + 1
    floor = np.zeros_like(blocks)
    floor[starts[1:]] = more
    np.add.accumulate(floor, out=floor)
    blocks += floor
    np.maximum.accumulate(blocks, out=blocks)
    blocks -= floor
    return blocks


def differences(values: I64, before: int) -> I64:
    """Returns the change of each value from the one before it: `np.diff` with what stands before the first.

    `np.diff` itself joins arrays first, which takes ten times as long for a short one.
    """
    changes = np.empty_like(values)
    np.subtract(values[1:], values[:-1], out=changes[1:])
    changes[:1] = values[:1] - before
    return changes


def unused_places(
    lag: int, rounds: I64, known: I64, earlier: I64, most: I64, certain: npt.NDArray[np.bool_]
) -> I64:
    """Returns the place of each sequence's row whose drafts are sure not to be used, or -1.

    That can only be its last row: the engine knows then that at most one more token is missing,
    asynchronously one step earlier and one step behind.

    Args:
        lag: 1 for asynchronous engines.
        rounds: of each sequence.
        known: tokens written and known before its last round.
        earlier: the same before the round before that.
        most: max_tokens.
        certain: no row follows the last round (asynchronous).
    """
    if not lag:
        return np.where(leaves_drafts_unused(known, 0, most) & (rounds > 0), rounds - 1, -1)
    at_last = certain & (rounds > 0) & leaves_drafts_unused(earlier, 1, most)
    in_vain = ~certain & leaves_drafts_unused(known, 1, most)
    return np.where(at_last, rounds - 1, np.where(in_vain, rounds, -1))
