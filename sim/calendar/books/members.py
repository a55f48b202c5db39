"""Sequences between two changes of K, or between two times of being stepped: what they did, and what follows.

Such a change ends a *term*. Everybody who was running in it is booked for the rounds it had, and
whoever is left is drawn again from there: all of them together, in some sixty numpy
calls, because that is what a change costs.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Rows
from copy import copy
from dataclasses import replace

import numpy as np

from specfleet.sim.calendar.books.ledger import Ledger
from specfleet.sim.calendar.books.recent import Recent
from specfleet.sim.calendar.books.standing import Drawn, Had, Standing, Term
from specfleet.sim.calendar.footprints import differences, unused_places
from specfleet.sim.calendar.luck import I64, U8
from specfleet.sim.calendar.stay import Stay, StayRef
from specfleet.sim.calendar.trajectories import BLOCK, LifeBatch, Trajectories
from specfleet.sim.rules import NEVER, reaches_max_tokens
from specfleet.workloads.requests import RequestTable

SHORT_REACH = 64
"""Rounds that are drawn for everybody rather than asking how many each is likely to need."""


def _runs(lengths: I64) -> tuple[I64, I64]:
    """Returns 0, 1, .. for each length, one after another, and the number of the run each belongs to."""
    of = np.repeat(np.arange(len(lengths)), lengths)
    return np.arange(len(of)) - (np.cumsum(lengths) - lengths)[of], of


def _joined(stays: Rows[StayRef]) -> tuple[I64, list[tuple[LifeBatch | Stay, int]]]:
    """Returns those who joined during a term, and where to find their gains and footprints.

    Returns:
        Place, first iteration with a row, rounds to the end, blocks held, tokens computed and those that
        the prefill was scheduled for, shape `(6, n)`; and the source of each with the first place of its
        rounds there.
    """
    numbers = array("q")
    sources: list[tuple[LifeBatch | Stay, int]] = []
    for _, first, place, source in stays:
        if isinstance(source, LifeBatch):
            j = place % BLOCK
            prompt = source.prompt[j]
            numbers.extend((place, first + 1, source.rounds[j], source.blocks[j], prompt, prompt))
            sources.append((source, source.start[j]))
        else:
            asked = source.tokens + source.padded
            numbers.extend((place, first + 1, source.rounds, source.blocks, source.tokens, asked))
            sources.append((source, 0))
    columns: I64 = np.frombuffer(numbers, dtype=np.int64).reshape(-1, 6).T
    return columns, sources


class Members:
    """All sequences of one engine, term by term.

    Args:
        table: the requests.
        by_k: their trajectories by K; the last is the largest.
        ledger: counts rounds; None without speculation.

    Attributes:
        lane: the engine's number in the ledger. recent: what was booked last.
        rounds, verifications, accepted, drafts: by place, of all engines.
        prefilled: places of those whose prompt was computed in the step before the present term.
    """

    def __init__(
        self,
        table: RequestTable,
        by_k: Mapping[int, Trajectories],
        ledger: Ledger | None,
    ) -> None:
        order = by_k[max(by_k)].order
        self.order = order
        self.ledger = ledger
        self.lane, self.recent = 0, Recent()
        self.prompt = table.prompt_tokens[order]
        self.final = self.prompt + table.output_tokens[order] - 1
        self.most = table.max_tokens[order]
        self.rules = {k: lives.rules for k, lives in by_k.items()}
        self.luck = {k: lives.luck for k, lives in by_k.items()}
        self.prefilled: set[int] = set()
        totals = np.zeros((4, len(order)), dtype=np.int64)
        self.rounds, self.verifications, self.accepted, self.drafts = totals
        self.nobody(0)

    def of_lane(self, lane: int) -> Members:
        """Returns the sequences of one engine: nobody yet; what is known by place is shared."""
        own = copy(self)
        own.lane, own.recent = lane, Recent()
        own.nobody(0)
        return own

    def close(self, now: int, k: int, joined: Rows[StayRef]) -> Standing:
        """Ends the term of `k` before iteration `now`: books its rounds; returns who is left.

        Args:
            now: the first iteration that does not belong to it.
            k: drafts of its rows.
            joined: who joined during it, in the order of the running list.
        """
        standing, term = self.look(now, k, joined)
        self.prefilled = {place for _, first, place, _ in joined if first + 1 == now}
        self._book(term, k)
        return standing

    def look(self, now: int, k: int, joined: Rows[StayRef]) -> tuple[Standing, Had]:
        """Returns who is left before iteration `now`, and what they all have had; changes nothing."""
        rules, term = self.rules[k], self.term
        pack, lag, was = rules.packing, rules.lag, term.standing
        (new_place, new_begin, new_rounds, new_held, new_computed, new_asked), sources = _joined(joined)
        place = np.concatenate([was.place, new_place])
        begin = np.concatenate([np.full(len(was.place), term.begin), new_begin])
        rounds = np.concatenate([term.rounds, new_rounds])
        final, prompt = self.final[place], self.prompt[place]
        had = np.minimum(rounds, now - begin)
        ends = np.cumsum(had)
        prints, gains = self._rounds_had(k, had, ends, sources)
        context = (prints & pack.context_mask) - rules.query
        last, some, old = np.maximum(ends - 1, 0), had > 0, len(was.place)
        if not len(prints):
            prints = context = gains = np.zeros(1, dtype=np.int64)
        before = np.where(some, context[last], 0)
        computed = np.where(some, before + gains[last], np.concatenate([was.computed, new_computed]))
        held = (prints[last] >> pack.blocks) & pack.blocks_mask
        over = had == rounds
        over[:old] &= term.whole
        standing = Standing(
            place,
            np.where(over, final, computed),
            np.where(some, before - prompt + 1, np.concatenate([was.known, new_computed - prompt[old:]])),
            np.where(some, before + rules.query, np.concatenate([was.asked, new_asked])),
            np.where(some, held, np.concatenate([was.held, new_held])),
        )
        left = ~over if not lag else (~over | (begin + rounds == now))
        return Standing(*(column[left] for column in standing)), Had(place, begin, had, over, before, gains)

    def _rounds_had(
        self, k: int, had: I64, ends: I64, sources: list[tuple[LifeBatch | Stay, int]]
    ) -> tuple[I64, I64]:
        """Returns the footprints of the rounds that a term's sequences have had, and their tokens, flat.

        Args:
            k: drafts of a row.
            had, ends: rounds of each sequence, and their running sum.
            sources: where those are who joined during the term, and the first place of their rounds there.
        """
        term, old = self.term, len(self.term.rounds)
        split = int(ends[old - 1]) if old else 0
        base = np.repeat(term.starts - (ends - had)[:old], had[:old]) + np.arange(split)
        lives = [(source, low, low + n) for (source, low), n in zip(sources, had[old:].tolist(), strict=True)]
        parts = [source.footprint[low:high] for source, low, high in lives if source.footprint is not None]
        gains = np.ones(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
        if self.luck[k] is not None:
            gains[:split] = 0 if term.gains is None else term.gains[base]
            drawn = [source.gains[low:high] for source, low, high in lives if source.gains is not None]
            gains[split:] = np.concatenate([base[:0], *drawn])
        return np.concatenate([term.footprint[base], *parts]), gains

    def _book(self, term: Had, k: int) -> None:
        """Adds a term's rounds to what its requests and its iterations have had."""
        place, begin, had, over, before, gains = term
        self.rounds[place] += had
        ends, count = np.cumsum(had), int(had.sum())
        lows, gains = ends - had, gains[:count]
        ended = over & (had > 0)
        tokens = gains.copy()
        tokens[(ends - 1)[ended]] = (self.final[place] - before)[ended]
        verifies = self.luck[k] is not None
        if verifies:
            total = np.concatenate([[0], np.cumsum(gains)])
            self.verifications[place] += had
            self.accepted[place] += total[ends] - total[lows] - had
            self.drafts[place] += self.rules[k].k * had
        its = np.repeat(begin - lows, had) + np.arange(count)
        assert self.ledger is not None
        warm = (
            np.repeat(self.order[place] < self.ledger.num_warmups, had) if self.ledger.num_warmups else None
        )
        self.ledger.book_flat(self.lane, its, tokens, gains if verifies else None, warm)
        self.recent.note(place, begin, had, tokens, gains, self.rules[k].k if verifies else 0)

    def book_one(self, stay: Stay, first: int, rounds: int, k: int) -> None:
        """As `_book`, for the first rounds of one sequence whose prefill ended in `first`."""
        place, ledger, gains = stay.place, self.ledger, stay.gains
        assert ledger is not None
        self.rounds[place] += rounds
        self.recent.note_one(stay, first, rounds, 0 if gains is None else self.rules[k].k)
        if gains is None:
            its, one = np.arange(first + 1, first + 1 + rounds), np.ones(rounds, dtype=np.int64)
            warm = (one == 1) & (self.order[place] < ledger.num_warmups)
            ledger.book_flat(self.lane, its, one, None, warm)
            return
        self.verifications[place] += rounds
        self.accepted[place] += int(gains[:rounds].sum()) - rounds
        self.drafts[place] += self.rules[k].k * rounds
        kept = stay.kept if rounds == stay.rounds else 0
        ledger.book_stay(self.lane, place, first, gains[:rounds], kept, 1)

    def draw(self, now: int, k: int, standing: Standing, reach: int = NEVER) -> Drawn:
        """Seats sequences at a K, from iteration `now` on; arguments as `drawn`."""
        self.term, drawn = self.drawn(now, k, standing, reach)
        return drawn

    def drawn(self, now: int, k: int, standing: Standing, reach: int = NEVER) -> tuple[Term, Drawn]:
        """Returns what sequences do at a K from iteration `now` on, and what they add to the calendars.

        Args:
            now, k: as above. standing: where they stand.
            reach: most rounds of each: from `now + reach` on, what is drawn means nothing.
        """
        place, computed, known, asked, held = standing
        rules, lag = self.rules[k], self.rules[k].lag
        final, prompt, most = self.final[place], self.prompt[place], self.most[place]
        gains, lengths, starts, before, rounds = self._draw(k, place, final - computed, reach)
        whole = rounds <= reach
        rounds = np.minimum(rounds, reach)
        contexts = before[:-1] + np.repeat(computed - before[starts], lengths)
        last, earlier = starts + np.maximum(rounds - 1, 0), starts + np.maximum(rounds - 2, 0)
        known_last = np.where(rounds > 0, contexts[last] - prompt + 1, known)
        known_earlier = np.where(rounds > 1, contexts[earlier] - prompt + 1, known)
        certain = reaches_max_tokens(known_last, 1, most)
        ends = starts + rounds + lag
        footprint = rules.footprints(contexts, ends, rounds, final, held, certain, asked)
        offsets, of = _runs(rounds + lag + 1)
        summed = rules.summed(footprint)
        row = differences(summed, 0)
        row[starts] = summed[starts]
        places = starts[of] + offsets
        side = rules.sides(footprint, starts, asked)
        unused = np.full(len(place), -1)
        if rules.notes_unused:
            unused = unused_places(lag, rounds, known_last, known_earlier, most, certain)
        kept = final - contexts[last]
        term = Term(now, standing, rounds, starts, whole, gains, footprint, kept, unused)
        beyond = None
        if rules.scheduler.drafter_positions:
            spared, among, early = rules.outgrown(footprint, ends, rounds, asked)
            late, of = _runs(among - spared)
            beyond = np.concatenate([late + spared[of], 0 * early[early > 0]])
        sides = None if side is None else side[places]
        drawn = Drawn(offsets, row[places], sides, unused[unused >= 0], beyond)
        return term, drawn

    def outcomes(self) -> tuple[I64, I64 | U8]:
        """Returns the places of all rounds of this term, from its beginning, and the tokens each samples."""
        term = self.term
        offsets, of = _runs(term.rounds)
        return offsets, np.ones_like(of) if term.gains is None else term.gains[term.starts[of] + offsets]

    def stays(self, term: Term, k: int) -> list[Stay]:
        """Returns the sequences of a term one by one."""
        side = self.rules[k].sides(term.footprint, term.starts, term.standing.asked)
        return [self._stay(term, j, k, side) for j in range(len(term.rounds))]

    def _stay(self, term: Term, j: int, k: int, side: I64 | None) -> Stay:
        """Returns a sequence of a term by itself; `side`: of the whole term, as in `LifeBatch`."""
        rules, start, rounds = self.rules[k], int(term.starts[j]), int(term.rounds[j])
        who, computed, known, _, blocks = (int(column[j]) for column in term.standing)
        here = slice(start, start + rounds + rules.lag + 1)
        footprint = term.footprint[here]
        spared, among, early = rules.outgrown_one(footprint, rounds, int(term.standing.asked[j]))
        return Stay(
            place=who,
            prompt=int(self.prompt[who]),
            final=int(self.final[who]),
            most=int(self.most[who]),
            tokens=computed,
            blocks=blocks,
            rounds=rounds,
            kept=int(term.kept[j]) if rounds else 0,
            gains=None if term.gains is None else term.gains[start : start + rounds],
            footprint=footprint,
            row=differences(rules.summed(footprint), rules.prefilling(blocks)),
            side=None if side is None else side[here],
            unused=int(term.unused[j]),
            spared=spared,
            rows=among,
            early=early,
            earlier=-1 if who in self.prefilled else int(self.prompt[who]) + known - 1,
        )

    def growth(self, it: int, k: int) -> list[int]:
        """Returns the blocks that each sequence of the term of `k` takes in iteration `it`."""
        term, rules, had = self.term, self.rules[k], it - self.term.begin
        pack, there = rules.packing, had <= term.rounds + rules.lag
        at = np.where(there, term.starts + had, 0)
        if not len(at):
            return []
        held = (term.footprint[at] >> pack.blocks) & pack.blocks_mask
        before = (term.footprint[at - 1] >> pack.blocks) & pack.blocks_mask if had else term.standing.held
        return np.where(there, np.maximum(held - before, 0), 0).tolist()  # type: ignore[no-any-return]

    def rounds_of(self, stay: Stay, k: int) -> tuple[I64, U8 | None]:
        """Returns KV tokens before, and gains of, each round of somebody whose prompt is computed again."""
        place, wanted = np.array([[stay.place], [stay.final - stay.tokens]])
        gains, _, (start,), before, (rounds,) = self._draw(k, place, wanted, NEVER)
        here = slice(int(start), int(start + rounds))
        return before[here] + (stay.tokens - before[start]), None if gains is None else gains[here]

    def pop(self, k: int) -> StayRef:
        """Takes the last sequence out of the term of `k`, as `take`."""
        return self.take(k, len(self.term.rounds) - 1)

    def take(self, k: int, j: int) -> StayRef:
        """Takes the `j`-th sequence out of the term of `k`, not booked, as one that joined before it."""
        term, rules, others = self.term, self.rules[k], np.arange(len(self.term.rounds)) != j
        stay = self._stay(term, j, k, None)
        if rules.has_side:
            assert stay.footprint is not None
            stay.side = rules.sides(
                stay.footprint, np.zeros(1, dtype=np.int64), term.standing.asked[j : j + 1]
            )
        self.term = replace(
            term,
            standing=Standing(*(column[others] for column in term.standing)),
            rounds=term.rounds[others],
            starts=term.starts[others],
            whole=term.whole[others],
            kept=term.kept[others],
            unused=term.unused[others],
        )
        return term.begin + stay.rounds + rules.lag - 1, term.begin - 1, stay.place, stay

    def nobody(self, now: int) -> None:
        """Begins a term without anybody."""
        none = np.zeros(0, dtype=np.int64)
        self.term = Term(now, Standing.nobody(), none, none, none == 1, None, none, none, none)

    def _draw(self, k: int, place: I64, wanted: I64, reach: int) -> tuple[U8 | None, I64, I64, I64, I64]:
        """As `Trajectories._rounds`, from each request's next verification on; and the places each has.

        Of those who need more than `reach` rounds, as many are drawn, and more are said to be needed.
        """
        luck, most = self.luck[k], np.minimum(wanted, reach)
        if luck is None:
            lengths = most + 2
            starts = np.cumsum(lengths) - lengths
            return None, lengths, starts, np.arange(int(lengths.sum()) + 1), wanted
        ids, past = self.order[place], self.verifications[place]
        draw = (
            most
            if reach <= SHORT_REACH or len(place) == 1
            else np.minimum(luck.rounds_to_draw(ids, wanted), reach)
        )
        while True:
            hashes = (draw + 4) // 2
            gains = luck.gains(ids, hashes, past // 2)
            before = np.zeros(len(gains) + 1, dtype=np.int64)
            np.cumsum(gains, out=before[1:])
            lows = 2 * (np.cumsum(hashes) - hashes)
            starts = lows + (past & 1)
            rounds = np.searchsorted(before, before[starts] + wanted) - starts
            short = (rounds > draw) & (draw < most)
            if not short.any():
                return gains, 2 * hashes, starts, before, rounds
            draw = np.where(short, most, draw)
