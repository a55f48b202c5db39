"""What a request contributes to SGLang's decode batches, drawn before it is admitted.

From its first token to its end a request is in every decode batch, so decode batches are what is numbered
here; prefill batches lie between them and move nobody on. Of the j-th decode of a request all that the rules
ask for follows from its lengths and its luck: KV pages, context, the output that an admission expects of it.

With overlap a batch is decided before the result of the one before it is known, if that is a decode. What an
admission sees then is the batch before; KV and rows of those who ended in it are noted apart (`Leave`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specfleet.sim.calendar.footprints import differences
from specfleet.sim.calendar.luck import I64, U8, Luck
from specfleet.sim.calendar.trajectories import BLOCK, LifeBatch, Trajectories
from specfleet.sim.errors import Unsuited
from specfleet.sim.rules import NEVER, reaches_max_tokens
from specfleet.sim.sglang.rules import CLIP_MAX_NEW_TOKENS, SglangRules
from specfleet.workloads.requests import RequestTable


@dataclass(frozen=True, slots=True)
class SglangPacking:
    """Where the fields of a packed sum are: sequences, KV pages, context tokens from bit 0.

    Attributes:
        pages, count: first bit of a field. context_mask, pages_mask: of a field moved to bit 0.
    """

    pages: int
    count: int
    context_mask: int
    pages_mask: int

    @classmethod
    def of(cls, rules: SglangRules, shares: bool = False) -> SglangPacking | None:
        """Returns the layout for an engine; None where its counts do not fit in 63 bits.

        Where prompts share prefixes, requests hold together more than the pool has: the layout is as wide as
        it can be, and `Shared` sees to it that nothing grows beyond that.
        """
        width = 1 + rules.num_speculative_tokens
        # the pool may be overdrawn by one step of everybody before that is noticed
        most = rules.pool + rules.max_running_requests * (rules.reserve + 2 * (rules.page + width))
        context, pages = most.bit_length() + 1, (most // rules.page).bit_length() + 1
        room = 62 - rules.max_running_requests.bit_length() - 1 - context - pages
        if room < 0:
            return None
        if shares:
            context, pages = context + room // 2, pages + room // 2
        return cls(context, context + pages, (1 << context) - 1, (1 << pages) - 1)


class Leave(NamedTuple):
    """What stands in the calendar where a request is gone, columns by request.

    Attributes:
        pages: of its last decode, with the count above them. before: as it was decided with overlap, a result
            behind.
        sure, sure_before: the same of those whose end is certain a batch ahead.
        ghost: count and context of a row computed in vain, of those whose end is not. ghost_pages: its pages
            without speculation, where they grow whatever is accepted. ghost_beyond: of its context, what lies
            outside a sliding window.
    """

    pages: list[int]
    before: list[int]
    sure: list[int]
    sure_before: list[int]
    ghost: list[int]
    ghost_pages: list[int]
    ghost_beyond: list[int]


class Rounds(NamedTuple):
    """Rounds of some requests, drawn far enough.

    Attributes:
        gains: tokens of each, flat; None: one each.
        starts: the first place of each request. before: tokens before each place, over all; one longer.
        rounds: that each request needs.
    """

    gains: U8 | None
    starts: I64
    before: I64
    rounds: I64


@dataclass(slots=True)
class SglangLives(LifeBatch):
    """Up to 256 lives. `row[start:end]` is added from a request's first decode on.

    Attributes:
        reach: of each, context and the output that an admission expects it to write, in any of its decodes.
        clipped: as `row`, of what an estimate does not count of that output; None: it counts all.
        beyond: as `row`, of what a decode reads and a sliding window does not see; None: it sees all.
        held: KV tokens that a request has when it begins each decode, flat.
        leave: what is noted where it is gone.
        query: tokens that a decode computes.
    """

    reach: list[int]
    clipped: I64 | None
    beyond: I64 | None
    held: I64
    leave: Leave
    query: int

    def computed(self, j: int, decode: int) -> int:
        """Returns the KV tokens that a request has when it begins its n-th decode, from 0."""
        return int(self.held[self.start[j] + decode])

    def word(self, j: int, decodes: int) -> tuple[int, int, int]:
        """Returns what a request contributes in the last of so many decodes: packed, `reach`, `beyond`."""
        low = self.start[j]
        high = low + decodes
        reach = self.reach[j] if decodes else 0
        if self.clipped is not None:
            reach -= int(np.add.reduce(self.clipped[low:high]))
        beyond = 0 if self.beyond is None else int(np.add.reduce(self.beyond[low:high]))
        return int(np.add.reduce(self.row[low:high])), reach, beyond

    def largest(self, j: int) -> int:
        """Returns the most KV tokens that a request reads or holds, but for its reserve and its last page."""
        return int(self.held[self.start[j] + self.rounds[j]]) + self.query

    def accepted(self) -> int:
        """Returns the drafts accepted in the life of one who is computed again."""
        return 0 if self.gains is None else int(self.gains[: self.rounds[0]].sum()) - self.rounds[0]

    def kept_in_tree(self, j: int, in_vain: bool) -> int:
        """Returns the tokens whose KV a request leaves when it ends: none of its last token, unless that is
        computed, by a row in vain or as a draft that was accepted beyond its end."""
        computed, rounds = self.computed(j, self.rounds[j]), self.rounds[j]
        if self.gains is None:
            return computed + (in_vain and not self.leave.sure[j])
        if not rounds:
            return computed
        last = int(self.gains[self.start[j] + rounds - 1])
        return computed - last + min(last, int(self.kept[j]) + 1)


class SglangTrajectories(Trajectories):
    """Lives under SGLang's rules. `first` is the number of the decode batch before a request's first one.

    Args:
        table: all requests, their outputs cut as SGLang cuts them.
        order, luck: as `Trajectories`.
        rules, packing: of the engine.

    Attributes:
        misses: rounds whose look-ups found nothing are no verifications.
        window: keys that windowed layers see; 0: nobody outgrows it.
    """

    def __init__(
        self, table: RequestTable, order: I64, rules: SglangRules, packing: SglangPacking, luck: Luck | None
    ) -> None:
        self.sglang, self.layout, self.misses, self.window = rules, packing, False, 0
        super().__init__(table, order, None, luck, False)  # type: ignore[arg-type]
        self.gains: list[U8] = []

    def life(self, place: int) -> tuple[SglangLives, int]:
        """Returns the block that a request's life is in, drawn on first sight, and its index there."""
        block = self._blocks.get(place // BLOCK) or self.block(place // BLOCK)
        return block, place % BLOCK  # type: ignore[return-value]

    def asked(self, row: int) -> tuple[int, int]:
        """Returns the prompt and max_tokens of a row."""
        return int(self._prompt[row]), int(self._most[row])

    def asked_each(self) -> tuple[memoryview, memoryview]:
        """Returns the prompts and max_tokens of all, by place."""
        return self._prompt[self.order].data, self._most[self.order].data

    def missed(self, places: I64) -> I64:
        """Returns the rounds of requests that are no verifications, since their look-ups found nothing."""
        missed = np.zeros(len(places), dtype=np.int64)
        if not self.misses or self.luck is None:
            return missed
        for low in range(0, len(places), BLOCK):
            some = places[low : low + BLOCK]
            rounds = self.rounds[some].astype(np.int64)
            hashes = (rounds + 2) // 2
            starts = 2 * (np.cumsum(hashes) - hashes)
            hits = np.concatenate(([0], np.cumsum(self.luck.found(self.order[some], hashes))))
            missed[low : low + BLOCK] = rounds - (hits[starts + rounds] - hits[starts])
        return missed

    def _draw(self, number: int) -> SglangLives:
        low = number * BLOCK
        ids, prompt, output, most = self._requests(low)
        gains, _, starts, before, rounds = self._rounds(ids, output - 1)
        self.rounds[low : low + BLOCK] = rounds
        self.accepted[low : low + BLOCK] = before[starts + rounds] - before[starts] - rounds
        return self._lives(low, prompt, output - 1, most, Rounds(gains, starts, before, rounds))

    def again(self, place: int, written: int, verified: int) -> SglangLives:
        """Returns the life of a request that was retracted, from when it is computed again.

        Args:
            place: of the request.
            written: its output tokens then.
            verified: its rounds so far, thrown away or not.
        """
        if self.misses:  # the prefill takes a look-up, too
            raise Unsuited("look-ups that may miss, of a request that is computed again")
        columns = self._requests(place // BLOCK * BLOCK)
        ids, prompt, output, most = (column[place % BLOCK :][:1] for column in columns)
        wanted, drawn = output - written - 1, None
        if self.luck is None:
            starts, before = np.zeros(1, dtype=np.int64), np.arange(int(wanted[0]) + 3)
            drawn = Rounds(None, starts, before, wanted)
        draw = wanted if drawn else self.luck.rounds_to_draw(ids, wanted)  # type: ignore[union-attr]
        while drawn is None:
            assert self.luck is not None
            hashes = (verified + draw + 4) // 2
            gains = self.luck.gains(ids, hashes)[verified:]
            before = np.zeros(len(gains) + 1, dtype=np.int64)
            np.cumsum(gains, out=before[1:])
            rounds = np.searchsorted(before, wanted)
            if rounds[0] <= draw[0]:
                drawn = Rounds(gains, np.zeros(1, dtype=np.int64), before, rounds)
            draw = wanted
        return self._lives(place, prompt + written, wanted, most - written, drawn)

    def _lives(self, first_place: int, known: I64, wanted: I64, most: I64, drawn: Rounds) -> SglangLives:
        """Returns lives from the end of a prefill on.

        Args:
            first_place: of the first of them.
            known: tokens that the prefill computes. wanted: outputs after the one that it samples.
            most: outputs it may have, that one among them.
            drawn: its rounds.
        """
        rules, pack, query = self.sglang, self.layout, 1 + self.sglang.num_speculative_tokens
        gains, starts, before, rounds = drawn
        lengths = np.diff(starts, append=len(before) - 1)
        base, ends = before[starts], starts + rounds
        held = before[:-1] + np.repeat(known - base, lengths)
        pages = rules.pages_to_decode(held)
        last = starts + np.maximum(rounds - 1, 0)
        beyond = self._beyond(held, starts, ends)
        leave = self._leave(rounds, starts, before, base, most, pages, held[ends] + 1)
        word = pages << pack.pages
        word += held
        word += (1 << pack.count) + 1
        word[ends] = 0
        row = differences(word, 0)
        row[starts] = word[starts]
        reach = most - 1 + known
        clipped = None
        if int(most.max(initial=0)) - 1 > CLIP_MAX_NEW_TOKENS:
            over = np.maximum(np.repeat(reach - CLIP_MAX_NEW_TOKENS, lengths) - held, 0)
            over[ends] = 0
            clipped = differences(over, 0)
            clipped[starts] = over[starts]
        return SglangLives(
            first_place=first_place,
            row=row,
            side=None,
            footprint=None,
            gains=gains,
            drafts=None,
            wants=None,
            kept=wanted - (before[last] - base),
            starts=starts,
            rounds_column=rounds,
            prompt=known.tolist(),
            blocks=rules.pages(known).tolist(),
            rounds=rounds.tolist(),
            most=most.tolist(),
            uses_drafts=[],
            final=[],
            start=starts.tolist(),
            end=(ends + 1).tolist(),
            unused=[],
            spared=[],
            rows=[],
            reach=(reach + 1).tolist(),
            clipped=clipped,
            beyond=beyond,
            held=held,
            leave=leave,
            query=query,
        )

    def _beyond(self, held: I64, starts: I64, ends: I64) -> I64 | None:
        """Returns what decodes read outside the window, as differences; arguments as in `_lives`."""
        if not self.window:
            return None
        over = np.maximum(held + (1 + self.sglang.num_speculative_tokens - self.window), 0)
        over[ends] = 0
        found = differences(over, 0)
        found[starts] = over[starts]
        return found

    def _leave(
        self,
        rounds: I64,
        starts: I64,
        before: I64,
        base: I64,
        most: I64,
        pages: I64,
        in_vain: I64,
    ) -> Leave:
        """Returns what is noted of each where it is gone; arguments as in `_lives`."""
        pack, last = self.layout, starts + np.maximum(rounds - 1, 0)
        earlier = np.where(rounds > 1, last - 1, last) if self.sglang.reserve else last
        known = np.where(rounds > 0, 1 + before[last] - base, 0)
        sure = reaches_max_tokens(known, 1, most)
        one = np.where(sure, 1 << pack.pages, 0)
        ghosts = np.where(sure, 0, (1 << pack.count) + in_vain)
        outside = in_vain + (self.sglang.num_speculative_tokens - (self.window or NEVER))
        # of one that ends with its first token, the row in vain would have been its first decode
        grown = pages[starts + rounds]
        return Leave(
            ((1 << pack.pages) + pages[last]).tolist(),
            pages[earlier].tolist(),
            (one + np.where(sure, pages[last], 0)).tolist(),
            np.where(sure, pages[earlier], 0).tolist(),
            ghosts.tolist(),
            np.where(sure, 0, grown).tolist(),
            np.where(sure, 0, np.maximum(outside, 0)).tolist(),
        )
