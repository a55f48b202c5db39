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
from specfleet.sim.rules import reaches_max_tokens
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
    def of(cls, rules: SglangRules) -> SglangPacking | None:
        """Returns the layout for an engine; None where its counts do not fit in 63 bits."""
        width = 1 + rules.num_speculative_tokens
        # the pool may be overdrawn by one step of everybody before that is noticed
        most = rules.pool + rules.max_running_requests * (rules.reserve + 2 * (rules.page + width))
        context, pages = most.bit_length() + 1, (most // rules.page).bit_length() + 1
        if context + pages + rules.max_running_requests.bit_length() + 1 > 62:
            return None
        return cls(context, context + pages, (1 << context) - 1, (1 << pages) - 1)


class Leave(NamedTuple):
    """What stands in the calendar where a request is gone, columns by request.

    Attributes:
        pages: of its last decode, with the count above them. before: as it was decided with overlap, a result
            behind.
        sure, sure_before: the same of those whose end is certain a batch ahead.
        ghost: count and context of a row computed in vain, of those whose end is not. ghost_pages: its pages
            without speculation, where they grow whatever is accepted.
    """

    pages: list[int]
    before: list[int]
    sure: list[int]
    sure_before: list[int]
    ghost: list[int]
    ghost_pages: list[int]


@dataclass(slots=True)
class SglangLives(LifeBatch):
    """Up to 256 lives. `row[start:end]` is added from a request's first decode on.

    Attributes:
        left: as `row`, of the output that an admission expects it to write.
        context: KV tokens read in each decode, flat, those it writes included.
        leave: what is noted where it is gone.
    """

    left: I64
    context: I64
    leave: Leave


class SglangTrajectories(Trajectories):
    """Lives under SGLang's rules. `first` is the number of the decode batch before a request's first one.

    Args:
        table: all requests, their outputs cut as SGLang cuts them.
        order, luck: as `Trajectories`.
        rules, packing: of the engine.
    """

    def __init__(
        self, table: RequestTable, order: I64, rules: SglangRules, packing: SglangPacking, luck: Luck | None
    ) -> None:
        self.sglang, self.layout = rules, packing
        super().__init__(table, order, None, luck, False)  # type: ignore[arg-type]
        self.gains: list[U8] = []

    def _draw(self, number: int) -> SglangLives:
        rules, pack, low = self.sglang, self.layout, number * BLOCK
        ids, prompt, output, most = self._requests(low)
        wanted, query = output - 1, 1 + rules.num_speculative_tokens
        gains, _, starts, before, rounds = self._rounds(ids, wanted)
        lengths = np.diff(starts, append=len(before) - 1)
        base, ends = before[starts], starts + rounds
        computed = before[:-1] + np.repeat(prompt - base, lengths)
        pages = rules.tokens_to_decode(computed) // rules.page
        context = computed + query
        word = (1 << pack.count) + (pages << pack.pages) + context
        left = np.minimum(np.repeat(most - 1 + prompt, lengths) - computed, CLIP_MAX_NEW_TOKENS)
        last = starts + np.maximum(rounds - 1, 0)
        leave = self._leave(rounds, starts, before, base, most, pages, context[ends], prompt)
        word[ends] = left[ends] = 0
        row, left_row = differences(word, 0), differences(left, 0)
        row[starts], left_row[starts] = word[starts], left[starts]
        self.rounds[low : low + BLOCK] = rounds
        self.accepted[low : low + BLOCK] = before[ends] - base - rounds
        return SglangLives(
            first_place=low,
            row=row,
            side=None,
            footprint=None,
            gains=gains,
            drafts=None,
            wants=None,
            kept=wanted - (before[last] - base),
            starts=starts,
            rounds_column=rounds,
            prompt=prompt.tolist(),
            blocks=(rules.ceil_page(prompt) // rules.page).tolist(),
            rounds=rounds.tolist(),
            most=most.tolist(),
            uses_drafts=[],
            final=[],
            start=starts.tolist(),
            end=(ends + 1).tolist(),
            unused=[],
            spared=[],
            rows=[],
            left=left_row,
            context=context,
            leave=leave,
        )

    def _leave(
        self,
        rounds: I64,
        starts: I64,
        before: I64,
        base: I64,
        most: I64,
        pages: I64,
        in_vain: I64,
        prompt: I64,
    ) -> Leave:
        """Returns what is noted of each where it is gone; arguments as in `_draw`."""
        pack, last = self.layout, starts + np.maximum(rounds - 1, 0)
        earlier = np.where(rounds > 1, last - 1, last) if self.sglang.reserve else last
        known = np.where(rounds > 0, 1 + before[last] - base, 0)
        sure = reaches_max_tokens(known, 1, most)
        one = np.where(sure, 1 << pack.pages, 0)
        ghosts = np.where(sure, 0, (1 << pack.count) + in_vain)
        # of one that ends with its first token, the row in vain would have been its first decode
        grown = pages[starts + rounds]
        return Leave(
            ((1 << pack.pages) + pages[last]).tolist(),
            pages[earlier].tolist(),
            (one + np.where(sure, pages[last], 0)).tolist(),
            np.where(sure, pages[earlier], 0).tolist(),
            ghosts.tolist(),
            np.where(sure, 0, grown).tolist(),
        )
