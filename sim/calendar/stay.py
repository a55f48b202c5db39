"""A request that the calendar cannot take as it was drawn: prefilled in pieces, or thrown out and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from specfleet.sim.calendar.footprints import Footprints, differences, unused_places
from specfleet.sim.calendar.luck import I64, U8
from specfleet.sim.calendar.trajectories import BLOCK, LifeBatch
from specfleet.sim.rules import leaves_drafts_unused, reaches_max_tokens


@dataclass(slots=True)
class Stay:
    """One stay of a request in the running list, from its prefill to its end or its preemption.

    Attributes:
        place: of the request in its trajectories.
        prompt, final, most: prompt tokens; KV tokens after the last round; max_tokens.
        tokens: to prefill: the prompt, and after a preemption what had been written.
        blocks: held after a prefill in one piece.
        rounds, kept, gains: as in `LifeBatch`, from here to the end of the request.
        footprint, row, side: as in `LifeBatch`, this request's part; row is relative to `blocks`.
        unused, drafts, wants, spared, rows: as in `LifeBatch`.
        last_emission: iteration of its last chunk before the preemption, or -1.
        early: 1 where its first row has outgrown the drafter and the next has not (`Footprints.outgrown`).
        earlier: KV tokens before the step in flight when this begins, unless that is its prompt's: -1.
        padded: placeholder drafts that its prefill ended with.
        extra: where this stay is noted among the stays after a preemption, or -1.
    """

    place: int
    prompt: int
    final: int
    most: int
    tokens: int
    blocks: int
    rounds: int
    kept: int
    gains: U8 | None
    footprint: I64 | None
    row: I64
    side: I64 | None
    unused: int
    drafts: U8 | None = None
    wants: I64 | None = None
    spared: int = 0
    rows: int = 0
    last_emission: int = -1
    early: int = 0
    earlier: int = -1
    padded: int = 0
    extra: int = -1

    @classmethod
    def fresh(cls, place: int, block: LifeBatch, index: int) -> Stay:
        """Returns the first stay of a block's request."""
        start, end, rounds = block.start[index], block.end[index], block.rounds[index]
        return cls(
            place=place,
            prompt=block.prompt[index],
            final=block.final[index],
            most=block.most[index],
            tokens=block.prompt[index],
            blocks=block.blocks[index],
            rounds=rounds,
            kept=int(block.kept[index]),
            gains=None if block.gains is None else block.gains[start : start + rounds],
            footprint=None if block.footprint is None else block.footprint[start:end],
            row=block.row[start:end],
            side=None if block.side is None else block.side[start:end],
            unused=block.unused[index] if block.unused else -1,
            drafts=None if block.drafts is None else block.drafts[start:end],
            wants=None if block.wants is None else block.wants[start:end],
            spared=block.spared[index] if block.rows else 0,
            rows=block.rows[index] if block.rows else 0,
        )

    @classmethod
    def waiting(
        cls, place: int, lengths: tuple[int, int, int], tokens: int, rules: Footprints, last_emission: int
    ) -> Stay:
        """Returns what somebody is who waits to compute so many tokens again: no round of it is drawn.

        Args:
            place, tokens, last_emission: as the attributes. lengths: `prompt`, `final` and `most`.
            rules: of the engine.
        """
        prompt, final, most = lengths
        return cls(
            place=place,
            prompt=prompt,
            final=final,
            most=most,
            tokens=tokens,
            blocks=rules.scheduler.blocks_at_admission(tokens),
            rounds=0,
            kept=0,
            gains=None,
            footprint=None,
            row=np.zeros(0, dtype=np.int64),
            side=None,
            unused=-1,
            last_emission=last_emission,
        )

    @property
    def may_use_drafts(self) -> bool:
        """Whether a draft proposed when its prompt is computed might be used."""
        return not leaves_drafts_unused(self.tokens - self.prompt, 0, self.most)

    def holding(self, blocks: int, rules: Footprints) -> Stay:
        """Returns the same stay after a prefill that took another number of blocks, being in pieces."""
        more = (blocks - self.blocks) << rules.packing.blocks
        if not more:
            return self
        row, footprint = self.row.copy(), self.footprint
        row[0] -= more
        decodes = (int(self.row[0]) + rules.prefilling(self.blocks)) >> rules.packing.rows
        if rules.lag and not decodes & rules.packing.rows_mask:  # it ends: it holds them until that is known
            row[:2] += more, -more
            if footprint is not None:
                footprint = footprint + np.array([more, *[0] * (len(footprint) - 1)])
        return replace(self, blocks=blocks, row=row, footprint=footprint)

    def never_below(self, blocks: int, rules: Footprints) -> Stay:
        """Returns the same stay whose rows hold so many blocks at least: its prefill had as many."""
        pack = rules.packing
        words = np.cumsum(self.row) + rules.prefilling(self.blocks)
        held = (words >> pack.blocks) & pack.blocks_mask
        more = np.where(words > 0, np.maximum(blocks - held, 0), 0) << pack.blocks
        footprint = None if self.footprint is None else self.footprint + more
        row = differences(words + more, rules.prefilling(self.blocks))
        return replace(self, row=row, footprint=footprint)

    def rest(self, done: int, rules: Footprints, last_emission: int) -> Stay:
        """Returns the stay after a preemption.

        The prefill that computes everything again emits a token of its own. So all later rounds stand
        one token further on, and the last one falls away if that token was all it had to give.

        Args:
            done: rounds before the preemption, fewer than `rounds`.
            rules: of the engine.
            last_emission: iteration of the last chunk before it.
        """
        assert self.footprint is not None
        computed = (self.footprint[done : self.rounds] & rules.packing.context_mask) - (rules.query - 1)
        rounds = len(computed) - int(computed[-1] >= self.final)
        gains = None if self.gains is None else self.gains[done : done + rounds]
        waiting = replace(self, tokens=int(computed[0]), last_emission=last_emission, padded=0, extra=-1)
        return waiting.drawn(computed[:rounds], gains, rules)

    def with_drafts(self, gains: U8, drafts: U8, wanted: U8 | None, rules: Footprints) -> Stay:
        """As `drawn`, with drafts of its own.

        Args:
            gains, drafts, wanted: tokens, drafts, and drafts that a policy wants (None: there is none), of
                its rounds and of two more at least.
            rules: of the engine.
        """
        before = np.cumsum(gains, dtype=np.int64) - gains
        rounds = int(np.searchsorted(before, self.final - self.tokens))
        computed, places = before[:rounds] + self.tokens, rounds + 1 + rules.lag
        drafts = drafts[:places].copy()
        stay = self.drawn(computed, gains[:rounds], rules, drafts.astype(np.int64))
        assert stay.footprint is not None
        rows = rounds + ((int(stay.footprint[rounds]) >> rules.packing.rows) & 1)  # one may be in vain
        stay.wants = None
        if wanted is not None:
            stay.wants = np.where(np.arange(places) <= rows, np.int64(1) << wanted[:places], 0)
        drafts[rows:] = 0
        stay.drafts = drafts
        return stay

    def drawn(self, computed: I64, gains: U8 | None, rules: Footprints, drafts: I64 | None = None) -> Stay:
        """Returns the stay with its rounds, of which this one knows none.

        Args:
            computed: KV tokens before each. gains: tokens sampled in each, the last one uncut.
            rules: of the engine.
            drafts: of each, and of what follows them; None is K.
        """
        rounds, tokens = len(computed), self.tokens
        blocks = rules.scheduler.blocks_at_admission(tokens)
        blocks = max(blocks, rules.scheduler.reserved(self.prompt + self.most))
        known = (int(computed[rounds - 1]) + 1 if rounds else tokens) - self.prompt
        before = (int(computed[rounds - 2]) + 1 if rounds > 1 else tokens) - self.prompt
        certain = reaches_max_tokens(known, 1, self.most)
        footprint = rules.footprint(computed, self.final, blocks, certain, drafts)
        spared, rows, _ = rules.outgrown_one(footprint, rounds, tokens)
        start, asked = np.array([[0], [tokens]])
        return replace(
            self,
            blocks=blocks,
            rounds=rounds,
            kept=self.final - int(computed[rounds - 1]) if rounds else 0,
            gains=gains,
            footprint=footprint,
            row=differences(rules.summed(footprint), rules.prefilling(blocks)),
            side=rules.sides(footprint, start, asked, drafts),
            unused=_unused(rules, rounds, known, before, self.most, certain),
            spared=spared,
            rows=rows,
        )


def _unused(rules: Footprints, rounds: int, known: int, before: int, most: int, certain: bool) -> int:
    """As `unused_places`, for one."""
    if not rules.notes_unused:
        return -1
    one, two, three, four = np.array([[rounds], [known], [before], [most]])
    return int(unused_places(rules.lag, one, two, three, four, np.array([certain]))[0])


StayRef = tuple[int, int, int, Stay | LifeBatch]
"""Last iteration in the running list, iteration of the prefill's end, place, and where its row is."""


def stay_of(ref: StayRef) -> Stay:
    """Returns the stay that a reference stands for."""
    _, _, place, source = ref
    return source if isinstance(source, Stay) else Stay.fresh(place, source, place % BLOCK)


@dataclass(slots=True)
class Begun:
    """The one prompt that is computed in pieces: under FCFS it is the tail of the running list.

    Attributes:
        stay: what it will be.
        done, held: tokens computed, and blocks.
        last: iteration of its last piece.
    """

    stay: Stay
    done: int
    held: int
    last: int


class Counts(NamedTuple):
    """What a request has had so far."""

    verifications: int
    accepted: int
    chunks: int
    drafts: int

    def plus(self, gains: U8 | None, rounds: int, k: int, chunks: int) -> Counts:
        """Returns the counts after `rounds` more rounds of `k` drafts, and so many more chunks."""
        if gains is None:
            return Counts(self.verifications, self.accepted, self.chunks + chunks, self.drafts)
        accepted = self.accepted + int(gains[:rounds].sum()) - rounds
        return Counts(self.verifications + rounds, accepted, self.chunks + chunks, self.drafts + k * rounds)

    def minus(self, gains: U8 | None, rounds: int, k: int, chunks: int) -> Counts:
        """Returns the counts before `rounds` of them, and so many chunks: `plus` taken back."""
        more = NOTHING_YET.plus(gains, rounds, k, chunks)
        return Counts(*(mine - its for mine, its in zip(self, more, strict=True)))


NOTHING_YET = Counts(0, 0, 0, 0)


class Left(NamedTuple):
    """A running sequence between two steps, for `Engine` to go on with.

    Attributes:
        place: of the request. computed: KV tokens.
        known: output tokens known before the last step.
        asked: KV tokens the last step was scheduled for. held: KV blocks.
        counts: what it has had, the last step included.
    """

    place: int
    computed: int
    known: int
    asked: int
    held: int
    counts: Counts
