"""A lane under SGLang's rules whose KV is counted alone: nothing is found by others, nobody is thrown out.

Most engines are that, and most of their turns are a decode of everybody or a prefill batch of one or two. So
requests are no objects here: who waits is a place, who runs is a number of its stay, and a prefill batch is a
list of how many tokens each computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from specfleet.hardware.stepcost import StepCost, prefill_pairs
from specfleet.sim.calendar.sglang.asking import Asking, Prefilled
from specfleet.sim.calendar.sglang.ends import EndedAt, SglangEnds
from specfleet.sim.calendar.sglang.kv import Count
from specfleet.sim.calendar.sglang.lane import SglangLane
from specfleet.sim.calendar.sglang.line import AsTheyCame
from specfleet.sim.calendar.sglang.lives import SglangLives, SglangTrajectories
from specfleet.sim.errors import Unsuited
from specfleet.sim.rules import NEVER
from specfleet.sim.sglang.adder import admit_counted
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules


class CutPrompt(NamedTuple):
    """A prompt that is being cut.

    Attributes:
        place: of the request. start: tokens computed. admitted: the iteration of its admission.
    """

    place: int
    start: int
    admitted: int


class CountedLane(SglangLane):
    """One engine; arguments as `SglangLane`, with a queue in order of arrival and a count of KV.

    Attributes:
        cut: the prompt that is being cut.
        stood: last decode batch, first one, and life of those who run, in order, and of some who have run.
    """

    __slots__ = ("cut", "stood")

    waiting: AsTheyCame

    def __init__(
        self,
        rules: SglangRules,
        ratio: NewTokenRatio,
        cost: StepCost,
        lives: SglangTrajectories,
        waiting: AsTheyCame,
        kv: Count,
        ignore_eos: bool,
        ends: SglangEnds | None,
        replica: int,
    ) -> None:
        super().__init__(rules, ratio, cost, lives, waiting, kv, ignore_eos, None, ends, replica)
        self.cut: CutPrompt | None = None
        self.stood: list[Any] = []

    @property
    def cutting(self) -> bool:
        """Whether a prompt is being cut."""
        return self.cut is not None

    def runs(self) -> Iterator[tuple[Asking, int]]:
        """As `SglangPosition.runs`."""
        seen, fresh = self.decodes - self.decode_flies, len(self.stood) - self.prefilled.size
        for index, (last, since, block, j) in enumerate(self.stood):
            if index >= fresh or last >= seen:
                one = Asking(block.first_place + j, block.prompt[j], block.most[j], self.ignore_eos)
                one.live(block, j)
                one.since, one.last = since, last
                yield one, 0 if index >= fresh else block.computed(j, seen - since) - one.num_tokens + 1

    def _prefill(self) -> tuple[int, ...] | None:
        """As `SglangLane._prefill`."""
        waiting, begun = self.waiting, self.cut
        if begun is None and (self.full or waiting.head == waiting.visible):
            return None
        running, left = self._runs()
        places = self.rules.max_running_requests - running
        missing = None
        if begun is not None:
            prompt, most = waiting.asked_by(begun.place)
            missing = prompt - begun.start, most
        elif places <= 0:
            self.full = True
            return None
        free = (self.pages - self.old_pages - self.new_pages - self.chunk_pages) * self.rules.page
        asked = waiting.asked() if waiting.head + 1 < waiting.visible else waiting.asked_first()
        counts, cut, self.full = admit_counted(
            self.rules, free, self._promised(left), places, self.full, missing, asked
        )
        return self._take(counts, cut, running) if counts else None

    def _take(self, counts: list[int], cut: bool, running: int) -> tuple[int, ...]:
        """Gives the admitted their KV: the tokens of each row, and whether more is to come of the last.

        Returns:
            The batch as `_note` takes it.
        """
        rules, waiting, begun = self.rules, self.waiting, self.cut
        ones = ones_context = ones_seen = pairs = rank = start = 0
        window = self.lives.window or NEVER
        self.cut, self.chunk_pages, batch = None, 0, Prefilled()
        last = len(counts) - cut
        for index, count in enumerate(counts):
            if begun is None:
                place = waiting.inbox[waiting.head]
                waiting.head += 1
                start, admitted = 0, self.iterations
            else:
                (place, start, admitted), begun = begun, None
            end = start + count
            if count == 1:
                ones, ones_context, ones_seen = ones + 1, ones_context + end, ones_seen + min(end, window)
            else:
                pairs += prefill_pairs(count, start)
            if index < last:
                rank += 1
                self._begin(place, rank, admitted, batch)
            else:
                self.cut, self.chunk_pages = CutPrompt(place, end, admitted), rules.pages(end)
        used = self.old_pages + self.new_pages + self.chunk_pages
        if used > self.pages:
            raise Unsuited("a prefill batch does not find its KV")
        if self.lag:
            self._learn()
            self.prefilled = batch
        else:  # known at once
            self.new_pages -= batch.pages
        if cut or not running or (batch.at_once and not self.lag):
            self.full = False
        rows, tokens = len(counts), sum(counts)
        shape = tokens, ones, rows - ones, rows, 0, ones_context, ones_seen, pairs, self.passes[1]
        return (*shape, running + rows, used)

    def _begin(self, place: int, rank: int, admitted: int, batch: Prefilled) -> None:
        """One has its first token, and decodes from the next decode batch on."""
        block, j = self._life(place)
        rounds, since, pages = block.rounds[j], self.decodes, block.blocks[j]
        self.new_pages += pages
        self.stays.noted.extend((place, self.iterations, rank, admitted, since, rounds))
        self._stand(block, j, rounds)
        if len(self.stood) > 4 * self.rules.max_running_requests + 64:
            self.stood = [one for one in self.stood if one[0] >= since - 1]
        batch.size += 1
        if not rounds or self.lag:
            batch.count(block, j, block.most[j], pages, self.pack.context_mask, 1)
        if rounds:
            self.calendar.add(block, j, self.entry)
        self.lives.first[place] = since - 1
        if self.ends is not None:
            ended = EndedAt(place, self.iterations, rank, rank)
            self.ends.expect(ended, since, since + rounds - 1, self.iterations)

    def _life(self, place: int) -> tuple[SglangLives, int]:
        """Returns the block and index of the life of one who is prefilled."""
        return self.lives.life(place)

    def _stand(self, block: SglangLives, j: int, rounds: int) -> None:
        """One who is prefilled is on the running list."""
        self.stood.append((self.decodes + rounds - 1, self.decodes, block, j))
