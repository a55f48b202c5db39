"""A lane whose K follows the batch size or the queue: lives are drawn again when it changes.

The drafts that a row verifies are those planned after the batch before it: of everybody who decodes the same
number, of one who has just been prefilled that planned after its prefill batch. When the number changes, each
life is drawn again from the decode behind the one in flight; what it was until then is noted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specfleet.hardware.stepcost import StepCost
from specfleet.sim.calendar.luck import I64, U8, Luck
from specfleet.sim.calendar.plans import ByBatchSize
from specfleet.sim.calendar.sglang.asking import Asking
from specfleet.sim.calendar.sglang.counted import CountedLane
from specfleet.sim.calendar.sglang.ends import SglangEnds
from specfleet.sim.calendar.sglang.kv import Count
from specfleet.sim.calendar.sglang.line import AsTheyCame
from specfleet.sim.calendar.sglang.lives import Rounds, SglangLives, SglangPacking, SglangTrajectories
from specfleet.sim.calendar.sglang.stays import NUMBERS
from specfleet.sim.calendar.trajectories import BLOCK
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules
from specfleet.workloads.requests import RequestTable

MOST_KEPT = 64
"""Blocks of lives kept, by the K of their first decode and of the others."""


class Stood(NamedTuple):
    """One who runs, or has run.

    Attributes:
        last, since: its last decode batch, and that of its first round in `block`, where it is `j`.
        part: its life since the last change of K, as `Parts` has it.
        verified: rounds with drafts up to that first one.
    """

    last: int
    since: int
    block: SglangLives
    j: int
    part: int
    verified: int


class PlannedTrajectories(SglangTrajectories):
    """Lives that are drawn when a K is known; arguments as `SglangTrajectories`."""

    def __init__(
        self, table: RequestTable, order: I64, rules: SglangRules, packing: SglangPacking, luck: Luck | None
    ) -> None:
        super().__init__(table, order, rules, packing, luck)
        self._fresh: dict[tuple[int, int, int], SglangLives] = {}

    def fresh(self, place: int, first: int, k: int) -> tuple[SglangLives, int]:
        """Returns the block and index of a life: `first` drafts in its first decode, then `k`."""
        kept, key = self._fresh, (place // BLOCK, first, k)
        if key not in kept:
            if len(kept) >= MOST_KEPT:
                kept.clear()
            kept[key] = self._draw_planned(*key)
        return kept[key], place % BLOCK

    def _draw_planned(self, number: int, first: int, k: int) -> SglangLives:
        assert self.luck is not None
        low = number * BLOCK
        ids, prompt, output, most = self._requests(low)
        hashes = (output + 4) // 2
        drawn = self.luck.gains(ids, hashes)
        starts = 2 * (np.cumsum(hashes) - hashes)
        gains = _capped(drawn, k)
        if not first:  # its first decode takes no luck
            gains[1:] = gains[:-1].copy()
        gains[starts] = _capped(drawn[starts], first)
        return self._lives(low, prompt, output - 1, most, _rounds(gains, starts, output - 1))

    def from_now(self, places: I64, held: I64, given: I64, verified: I64, k: int) -> SglangLives:
        """Returns the lives of some who decode, from the decode in flight on.

        Args:
            places: of them. held: KV tokens before that decode. given: tokens that it gives.
            verified: rounds with drafts so far, that one included. k: drafts of all rounds behind it.
        """
        assert self.luck is not None
        ids = self.order[places]
        prompt, output, most = self._prompt[ids], self._output[ids], self._most[ids]
        wanted = prompt + output - 1 - held
        skipped = verified // 2
        hashes = (wanted + 6) // 2
        drawn = self.luck.gains(ids, hashes, skipped)
        begins = 2 * (np.cumsum(hashes) - hashes) + verified % 2
        lengths = 2 * hashes - 1  # one in front, for the decode in flight; two less behind
        starts = np.cumsum(lengths) - lengths
        at = np.arange(int(lengths.sum())) + np.repeat(begins - starts - 1, lengths)
        gains = _capped(drawn[np.maximum(at, 0)], k)
        gains[starts] = given
        return self._lives(0, held, wanted, most + prompt - held, _rounds(gains, starts, wanted))


def _capped(gains: U8, k: int) -> U8:
    """Returns the tokens of rounds that verify `k` drafts."""
    return np.minimum(gains, np.uint8(k + 1))


def _rounds(gains: U8, starts: I64, wanted: I64) -> Rounds:
    """Returns how many rounds each takes until it has so many tokens."""
    before = np.zeros(len(gains) + 1, dtype=np.int64)
    np.cumsum(gains, out=before[1:])
    return Rounds(gains, starts, before, np.searchsorted(before, before[starts] + wanted) - starts)


class Parts:
    """What lives have been between changes of K: successive rounds, and the tokens each gives.

    Attributes:
        noted: of each: its stay, the decode batch of its first round, where its tokens begin, how many
            rounds, the drafts of the first and of the others, and the tokens kept of the last one (-1: all).
        gains: tokens of all rounds.
    """

    WIDTH = 7

    def __init__(self) -> None:
        self.noted, self.gains = array("q"), array("B")

    def begin(self, stay: int, since: int, gains: U8, k: tuple[int, int], kept: int) -> int:
        """Notes a life to its end; returns its number."""
        number = len(self.noted) // self.WIDTH
        self.noted.extend((stay, since, len(self.gains), len(gains), *k, kept))
        self.gains.frombytes(gains.tobytes())
        return number

    def cut(self, part: int, decode: int) -> int:
        """Notes that a life was drawn again behind a decode batch; returns its stay."""
        at = self.WIDTH * part
        self.noted[at + 3], self.noted[at + 6] = decode + 1 - self.noted[at + 1], -1
        return self.noted[at]

    def rounds(self) -> PartRounds:
        """Returns all rounds, stay by stay, in order."""
        table = np.frombuffer(self.noted, dtype=np.int64).reshape(-1, self.WIDTH)
        table = table[np.argsort(table[:, 0], kind="stable")]
        stay, since, begins, rounds, first, k, kept = table.T
        nth = np.arange(int(rounds.sum())) - np.repeat(np.cumsum(rounds) - rounds, rounds)
        drawn = np.frombuffer(self.gains, dtype=np.uint8)[np.repeat(begins, rounds) + nth]
        tokens, some = drawn.copy(), (rounds > 0) & (kept >= 0)
        tokens[(np.cumsum(rounds) - 1)[some]] = kept[some]
        drafts = np.where(nth == 0, np.repeat(first, rounds), np.repeat(k, rounds))
        return PartRounds(np.repeat(stay, rounds), np.repeat(since, rounds) + nth, drafts, drawn, tokens)


class PartRounds(NamedTuple):
    """Rounds, in order of their stays.

    Attributes:
        stay, decode: of each. drafts: that it verifies. drawn, tokens: those that it gives, and keeps.
    """

    stay: I64
    decode: I64
    drafts: I64
    drawn: U8
    tokens: U8

    def counts(self, mine: npt.NDArray[np.bool_], decodes: int, width: int) -> I64:
        """Returns rounds by decode batch and tokens kept, of some stays."""
        of = mine[self.stay]
        keys = self.decode[of] * width + self.tokens[of]
        return np.bincount(keys, minlength=decodes * width).reshape(-1, width)

    def accepted(self, mine: npt.NDArray[np.bool_], width: int) -> I64:
        """Returns verifications by tokens given, of some stays."""
        of = mine[self.stay] & (self.drafts > 0)
        return np.bincount(self.drawn[of], minlength=width)

    def by_stay(self, values: I64, stays: int) -> I64:
        """Returns sums by stay."""
        return np.bincount(self.stay, weights=values, minlength=stays).astype(np.int64)


class PlannedLane(CountedLane):
    """One engine; arguments as `CountedLane`.

    Args:
        plans: K by batch size and queue.
    """

    __slots__ = ("parts", "plans")

    lives: PlannedTrajectories

    def __init__(
        self,
        rules: SglangRules,
        ratio: NewTokenRatio,
        cost: StepCost,
        lives: PlannedTrajectories,
        waiting: AsTheyCame,
        kv: Count,
        ignore_eos: bool,
        ends: SglangEnds | None,
        replica: int,
        plans: ByBatchSize,
    ) -> None:
        super().__init__(rules, ratio, cost, lives, waiting, kv, ignore_eos, ends, replica)
        self.plans, self.parts = plans, Parts()
        self.k = plans.drafts(0, 0, 0)

    def by_rows(self, waiting: int) -> list[int]:
        """As `SglangPosition.by_rows`."""
        return self.plans.table if waiting < self.plans.queue else [0] * len(self.plans.table)

    def runs(self) -> Iterator[tuple[Asking, int]]:
        """As `SglangPosition.runs`."""
        seen, fresh = self.decodes - self.decode_flies, len(self.stood) - self.prefilled.size
        for index, (last, since, block, j, part, _) in enumerate(self.stood):
            if index >= fresh or last >= seen:
                place = self.stays.noted[NUMBERS * self.parts.noted[Parts.WIDTH * part]]
                one = Asking(place, *self.lives.asked(int(self.lives.order[place])), self.ignore_eos)
                one.live(block, j)
                one.since, one.last = since, last
                yield one, 0 if index >= fresh else block.computed(j, seen - since) - one.num_tokens + 1

    def _take(self, counts: list[int], cut: bool, running: int) -> tuple[int, ...]:
        waits = self.waiting.count - len(counts) + (self.cut is not None)
        self.prefill_k = self.plans.drafts(len(counts), waits, 0)
        return super()._take(counts, cut, running)

    def _life(self, place: int) -> tuple[SglangLives, int]:
        return self.lives.fresh(place, self.prefill_k, self.k)

    def _stand(self, block: SglangLives, j: int, rounds: int) -> None:
        since, low = self.decodes, block.start[j]
        assert block.gains is not None
        gains, kept = block.gains[low : low + rounds], int(block.kept[j])
        stay = len(self.stays.noted) // NUMBERS - 1
        part = self.parts.begin(stay, since, gains, (self.prefill_k, self.k), kept)
        self.stood.append(Stood(since + rounds - 1, since, block, j, part, int(self.prefill_k > 0)))
        if rounds:
            self.more += self.prefill_k - self.k

    def change(self, k: int) -> None:
        """Everybody verifies `k` drafts from the decode behind the last one on."""
        flying, drafts, self.k = self.decodes - 1, self.k, k
        alive = [one for one in self.stood if one.last > flying]
        if not alive:
            return
        held, places, verified, stays = [], [], [], []
        for _, since, block, j, part, already in alive:
            done = flying - since
            at = block.start[j] + done
            held.append((block.held.item(at), block.held.item(at + 1)))
            verified.append(already + done * (drafts > 0))
            stays.append(self.parts.cut(part, flying))
            places.append(self.stays.noted[NUMBERS * stays[-1]])
            self.calendar.remove(block, j, self.entry, done + 1)
        before, after = np.array(held).T
        block = self.lives.from_now(np.array(places), before, after - before, np.array(verified), k)
        assert block.gains is not None
        ends: dict[int, int] = {}
        for index, stay in enumerate(stays):
            low, rounds = block.start[index], block.rounds[index]
            gains, kept = block.gains[low + 1 : low + rounds], int(block.kept[index])
            part = self.parts.begin(stay, flying + 1, gains, (k, k), kept)
            last = ends[places[index]] = flying + rounds - 1
            alive[index] = Stood(last, flying, block, index, part, verified[index])
            self.calendar.add_rest(block, index, self.entry)
        renewed = iter(alive)
        self.stood = [next(renewed) if one.last > flying else one for one in self.stood]
        if self.ends is not None:
            self.ends.postpone(flying, ends)
