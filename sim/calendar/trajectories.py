"""The lives of requests in an engine, drawn in blocks before they are admitted.

From its first token to its end a request takes part in successive iterations, and all that an
engine needs of it in the j-th of them follows from its lengths and its luck: whether it has a row,
how much context it reads, how many blocks it holds. `Trajectories` draws that for 256 requests at
once, as rows of packed integers (`packing`) ready to be added to a calendar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.luck import I64, U8, Luck
from specfleet.sim.calendar.packing import Packing
from specfleet.sim.config import EngineConfig
from specfleet.workloads.requests import RequestTable

BLOCK = 256
"""Requests drawn at once: 60 numpy calls for all of them. 32 cost four times as much a request."""
NOT_YET = -1
"""A request whose first token has no iteration yet."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the engine's configuration makes of a sequence.

    Attributes:
        k: drafts a round. query: tokens of a decode row, 1 + k.
        lookahead: KV slots held past the scheduled tokens. at_admission: the same at admission.
        lag: 1 if a batch is scheduled when the one before it starts (asynchronous), else 0.
        block_size: tokens a block.
        notes_unused: a step all of whose drafts are unusable is priced with one drafter pass.
        window: keys that windowed layers see, if a request outgrows it; else 0.
        has_side: a second packed word is kept (`sides`).
        packing: the layout of packed integers.
    """

    k: int
    query: int
    lookahead: int
    at_admission: int
    lag: int
    block_size: int
    notes_unused: bool
    window: int
    has_side: bool
    packing: Packing

    @classmethod
    def of(
        cls, config: EngineConfig, longest_tokens: int, reads_kv: bool = False, shared: bool = False
    ) -> Rules | None:
        """Returns the rules of a configuration; None where its counts do not fit the packing.

        Args:
            config: of the engine.
            longest_tokens: prompt and output of the longest request.
            reads_kv: a policy looks at the KV tokens of the batch.
            shared: sequences may hold the same blocks.
        """
        k, speculative = config.num_speculative_tokens, config.speculative
        lookahead = speculative.num_lookahead_tokens if speculative else 0
        packing = Packing.of(config, 2 * (1 + k) + lookahead, longest_tokens, shared)
        window = config.sliding_window
        if longest_tokens + 2 * (1 + k) + lookahead <= window:
            window = 0
        has_side = reads_kv or window > 0
        if packing is None or (has_side and 2 * packing.blocks > 63):
            return None
        passes = speculative.draft_passes if speculative else 0
        return cls(
            k=k,
            query=1 + k,
            lookahead=lookahead,
            at_admission=lookahead if config.lookahead_at_admission else 0,
            lag=int(config.async_scheduling),
            block_size=config.block_size,
            notes_unused=config.skips_unused_drafts and config.uses_eagle and lookahead > 0 and passes > 1,
            window=window,
            has_side=has_side,
            packing=packing,
        )

    def at(self, k: int) -> Rules:
        """Returns the rules at another draft length; what the drafter needs ahead does not change."""
        return replace(self, k=k, query=1 + k)

    def prefill_blocks(self, tokens: int) -> int:
        """Returns the blocks a sequence holds after a prefill of so many tokens in one piece."""
        return -(-(tokens + self.at_admission) // self.block_size)

    def prefilling(self, blocks: int) -> int:
        """Returns what a sequence contributes while it is prefilled."""
        return (1 << self.packing.running) + (blocks << self.packing.blocks)

    def sides(self, footprint: I64, starts: I64, asked: I64) -> I64 | None:
        """Returns the differences of the second packed word, flat; None where none is kept.

        Its fields: context outside the sliding window (from bit 0), and tokens that the scheduler holds
        for computed (from the first bit of `packing.blocks`): asynchronously those asked for in the step
        before, as if all its drafts had been accepted.

        Args:
            footprint: of sequences, flat.
            starts: the first place of each.
            asked: KV tokens each was scheduled for in the step before its first place.
        """
        if not self.has_side:
            return None
        pack = self.packing
        context, decodes = footprint & pack.context_mask, (footprint >> pack.rows) & 1
        held_for = context - self.query
        if self.lag:
            held_for[1:] = context[:-1]
            held_for[starts] = asked
        side = (held_for * decodes) << pack.blocks
        if self.window:
            side += np.maximum(context - self.window, 0)
        row: I64 = np.diff(side, prepend=0)
        row[starts] = side[starts]
        return row

    def footprint(self, computed: I64, final: int, held: int, certain: bool) -> I64:
        """As `footprints`, for one sequence."""
        rounds = len(computed)
        places = np.full(rounds + 1 + self.lag, final, dtype=np.int64)
        places[:rounds] = computed
        ends, count, last, blocks = np.array([[rounds + self.lag], [rounds], [final], [held]])
        return self.footprints(places, ends, count, last, blocks, np.array([certain]))

    def footprints(
        self,
        computed: I64,
        ends: I64,
        rounds: I64,
        final: I64,
        held: I64,
        certain: npt.NDArray[np.bool_],
        asked: I64 | None = None,
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
        """
        pack, size = self.packing, self.block_size
        context = computed + self.query
        if not self.lag:
            slots = context + (self.lookahead + size - 1)
        else:
            first, after = ends - rounds - 1, ends - 1
            context[after] = final + self.query
            slots = np.empty_like(context)
            # scheduled while the round before is in flight, as if all its drafts were accepted
            np.add(context[:-1], self.query + self.lookahead + size - 1, out=slots[1:])
            before = computed[first] if asked is None else asked
            slots[first] = before + (self.query + self.lookahead + size - 1)
        blocks = slots >> (size.bit_length() - 1) if size & (size - 1) == 0 else slots // size
        if asked is not None:  # more may be held, or asked for at the old K, than is needed from now on
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


@dataclass(slots=True)
class Block:
    """The lives of up to 256 requests: flat arrays, and lists of Python integers a request.

    Attributes:
        row: differences of the footprints; `start[i]:end[i]` is what admission adds to a calendar,
            from the iteration after the prefill on. side: the same of the second word, or None.
        footprint: the footprints, for whoever is preempted; None where nobody can be.
        gains: tokens of each round, the last one uncut, flat. kept: tokens kept of the last round.
        prompt, blocks, admitted, pairs, rounds, most, final: a value a request; `admitted` is its packed
            contribution while it prefills, `pairs` the prefill's (query, key) pairs, `final` the KV
            tokens after its last round.
        unused: place (from `start`) of the row none of whose drafts can be used, or -1.
    """

    first_place: int
    row: I64
    side: I64 | None
    footprint: I64 | None
    gains: U8 | None
    kept: I64
    starts: I64
    rounds_column: I64
    prompt: list[int]
    blocks: list[int]
    admitted: list[int]
    pairs: list[int]
    rounds: list[int]
    most: list[int]
    final: list[int]
    start: list[int]
    end: list[int]
    unused: list[int]


class Trajectories:
    """Blocks of requests in the order in which a replica (or a fleet) meets them.

    Args:
        table: all requests.
        order: row numbers; a *place* is an index into it.
        rules: of the engine.
        luck: of the drafts; None without speculation.
        keeps_footprints: somebody may be preempted.
    """

    def __init__(
        self, table: RequestTable, order: I64, rules: Rules, luck: Luck | None, keeps_footprints: bool
    ) -> None:
        self.order = order
        self.rules = rules
        self.luck = luck
        self._prompt, self._output, self._most = table.prompt_tokens, table.output_tokens, table.max_tokens
        self.keeps_footprints = keeps_footprints
        n = len(order)
        self.first = np.full(n, NOT_YET, dtype=np.int32)
        self.rounds = np.zeros(n, dtype=np.int32)
        self.accepted = np.zeros(n, dtype=np.int32)
        self._blocks: dict[int, Block] = {}
        self.book: Callable[[Block], None] | None = None
        self.longest_row = int(table.output_tokens.max(initial=1)) + 2

    def block(self, number: int) -> Block:
        """Returns a block, drawing it on first sight."""
        found = self._blocks.get(number)
        if found is None:
            self.settle()
            found = self._blocks[number] = self._draw(number)
        return found

    def settle(self) -> None:
        """Books and forgets the blocks all of whose requests have their first token."""
        for number, block in list(self._blocks.items()):
            low = block.first_place
            if (self.first[low : low + BLOCK] != NOT_YET).all():
                if self.book is not None:
                    self.book(block)
                del self._blocks[number]

    def is_settled(self, number: int) -> bool:
        """Whether a block is booked, or was never drawn."""
        return number not in self._blocks

    def _requests(self, low: int) -> tuple[I64, I64, I64, I64]:
        """Returns row numbers, prompt, output and max_tokens of the block that begins at a place."""
        ids = self.order[low : low + BLOCK]
        return ids, self._prompt[ids], self._output[ids], self._most[ids]

    def _draw(self, number: int) -> Block:
        rules, low = self.rules, number * BLOCK
        ids, prompt, output, most = self._requests(low)
        wanted = output - 1
        gains, starts, before, rounds = self._rounds(ids, wanted)
        lengths = np.diff(starts, append=len(before) - 1)
        base = before[starts]
        computed = before[:-1] + np.repeat(prompt - base, lengths)
        last = starts + np.maximum(rounds - 1, 0)
        known = 1 + before[last] - base  # tokens known before the last round
        known[rounds == 0] = 0
        certain = known + 1 >= most
        held = -(-(prompt + rules.at_admission) // rules.block_size)
        ends = starts + rounds + rules.lag
        footprint = rules.footprints(computed, ends, rounds, prompt + wanted, held, certain)
        pack = rules.packing
        admitted = (held << pack.blocks) + (1 << pack.running)
        row = np.diff(footprint, prepend=0)
        row[starts] = footprint[starts] - admitted
        self.rounds[low : low + BLOCK] = rounds
        self.accepted[low : low + BLOCK] = before[starts + rounds] - base - rounds
        return Block(
            first_place=low,
            row=row,
            side=rules.sides(footprint, starts, prompt),
            footprint=footprint if self.keeps_footprints else None,
            gains=gains,
            kept=wanted - (before[last] - base),
            starts=starts,
            rounds_column=rounds,
            prompt=prompt.tolist(),
            blocks=held.tolist(),
            admitted=admitted.tolist(),
            pairs=(prompt * (prompt + 1) // 2).tolist(),
            rounds=rounds.tolist(),
            most=most.tolist(),
            final=(prompt + wanted).tolist(),
            start=starts.tolist(),
            end=(ends + 1).tolist(),
            unused=self._unused(known, certain, rounds, before, starts, base, most),
        )

    def _rounds(self, ids: I64, wanted: I64) -> tuple[U8 | None, I64, I64, I64]:
        """Draws rounds until each request has its tokens.

        Returns:
            Tokens of each round, flat (None: one each); first place of each request; tokens before
            each place, over all requests, one longer; rounds each request needs.
        """
        if self.luck is None:
            lengths = wanted + 2
            starts = np.cumsum(lengths) - lengths
            return None, starts, np.arange(int(lengths.sum()) + 1), wanted
        draw = self.luck.rounds_to_draw(ids, wanted)
        while True:
            hashes = (draw + 3) // 2
            gains = self.luck.gains(ids, hashes)
            before = np.zeros(len(gains) + 1, dtype=np.int64)
            np.cumsum(gains, out=before[1:])
            starts = 2 * (np.cumsum(hashes) - hashes)
            rounds = np.searchsorted(before, before[starts] + wanted) - starts
            short = rounds > draw
            if not short.any():
                return gains, starts, before, rounds
            draw = np.where(short, wanted, draw)

    def _unused(
        self,
        known: I64,
        certain: npt.NDArray[np.bool_],
        rounds: I64,
        before: I64,
        starts: I64,
        base: I64,
        most: I64,
    ) -> list[int]:
        """Returns the place of each request's row whose drafts are sure not to be used, or -1."""
        if not self.rules.notes_unused:
            return []
        previous = starts + np.maximum(rounds - 2, 0)
        earlier = np.where(rounds > 1, 1 + before[previous] - base, 0)
        return list(unused_places(self.rules.lag, rounds, known, earlier, most, certain).tolist())


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
        return np.where((known + 1 >= most) & (rounds > 0), rounds - 1, -1)
    at_last = certain & (rounds > 0) & (earlier + 2 >= most)
    in_vain = ~certain & (known + 2 >= most)
    return np.where(at_last, rounds - 1, np.where(in_vain, rounds, -1))
