"""The books of an engine whose K changes: between two changes, what its sequences do is one *term*."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.books.books import Books
from specfleet.sim.calendar.books.log import Log
from specfleet.sim.calendar.books.members import Members
from specfleet.sim.calendar.books.standing import Drawn, Standing
from specfleet.sim.calendar.packing import Packing
from specfleet.sim.calendar.stay import NOTHING_YET, Counts, Left, Stay, StayRef
from specfleet.sim.calendar.trajectories import BLOCK, NOT_YET, Trajectories
from specfleet.sim.rules import NEVER

LEAST_REACH = 16
"""Rounds that everybody is drawn ahead at least: fewer cost as many numpy calls."""


class TermBooks(Books):
    """Books that are written when a term ends.

    Args:
        by_k: the requests' lives by the number of a K (`plans.Plans`).
        engine, log: as in `Books`.
        members: the sequences running, term by term.

    Attributes:
        k: number of the K from the present term on.
        until: the iteration before which its sequences have to be drawn again.
    """

    k_varies = True

    def __init__(self, by_k: list[Trajectories], engine: int, log: Log, members: Members) -> None:
        super().__init__(by_k[-1], members.ledger, engine, log, members)
        self._by_k = by_k
        self.k = len(by_k) - 1
        self.until = NEVER
        most, rules = by_k[-1].rules.k, by_k[-1].rules.scheduler
        self._void_below = 1 + most if len(by_k) > 1 + most else 0
        drawn = [lives.rules.k for lives in by_k[self._void_below :]]
        self.passes_at = (0,) * self._void_below + tuple(rules.passes(k, False) for k in drawn)
        self._stay_of: dict[int, int] = {}
        self._planned = array("q")
        """2 numbers for each change of K: the iteration that decided it, its number from the next one on."""

    def go_over(self, it: int, k: int) -> None:
        """Notes that rows have the drafts of number `k` from iteration `it` on."""
        if k != self.k:
            self._planned.extend((it - 1, k))
        self.k = k

    def listed(self, refs: Rows[StayRef], it: int) -> list[Left]:
        """As `Books.listed`."""
        return self._lefts(self._members.look(it, self.k, refs)[0])

    def leave(self, refs: Rows[StayRef], it: int) -> list[Left]:
        """As `Books.leave`."""
        standing = self._members.close(it, self.k, refs)
        self._members.nobody(it)
        left = self._lefts(standing)
        for sequence in left:
            self._end_stay(sequence.place)
        return left

    def _lefts(self, standing: Standing) -> list[Left]:
        rows = zip(*(column.tolist() for column in standing), strict=True)
        return [Left(*row, self.counts(row[0])) for row in rows]  # type: ignore[call-arg]

    def counts(self, place: int) -> Counts:
        """As `Books.counts`: what a request had had when its last term ended."""
        members = self._members
        numbers = members.verifications, members.accepted, members.rounds, members.drafts
        verifications, accepted, rounds, drafts = (int(column[place]) for column in numbers)
        return Counts(verifications, accepted, 1 + rounds, drafts)

    def _end_stay(self, place: int) -> None:
        """Notes how many rounds a request had until now in the calendar, since it came or came back."""
        rounds, stay = int(self._members.rounds[place]), self._stay_of.pop(place, None)
        if stay is None:
            self.log.cut.setdefault(place, rounds)
        else:
            self.log.stays[stay][2] += rounds

    def begun_elsewhere(self, place: int, first: int) -> None:
        """As `Books.begun_elsewhere`: nothing was booked ahead."""
        self.lives.first[place] = first
        self.log.cut[place] = 0

    def stepped(self, place: int, counts: Counts, last: int) -> None:
        """As `Books.stepped`."""
        members, rounds = self._members, counts.chunks - 1
        members.rounds[place], members.verifications[place] = rounds, counts.verifications
        members.accepted[place], members.drafts[place] = counts.accepted, counts.drafts
        self.log.skipped[place] = last - int(self.lives.first[place]) - rounds

    def draw_running(
        self, standing: Standing, alive: list[bool], it: int, k: int, newcomers: int
    ) -> tuple[Drawn, list[StayRef], list[int]]:
        """As `Books.draw_running`; the sequences are the new term's."""
        self.go_over(it, k)
        drawn = self.draw_term(standing, it, ahead=False)
        for place, goes_on in zip(standing.place.tolist(), alive, strict=True):
            if goes_on:
                self._stay_of[place] = len(self.log.stays)
                self.log.stays.append([place, it - 1, -int(self._members.rounds[place]), newcomers])
        term = self._members.term
        return drawn, [], np.where(term.whole, term.rounds, NEVER).tolist()

    def tail(self, refs: list[StayRef]) -> StayRef:
        """As `Books.tail`: who joined during the term stands behind all the others."""
        return refs.pop() if refs else self._members.pop(self.k)

    def growth_before(self, it: int) -> list[int]:
        """As `Books.growth_before`: those of the present term."""
        return self._members.growth(it, self.k)

    def over(self, stay: Stay, first: int) -> None:
        """As `Books.over`: the end of its term will not find it."""
        self._members.book_one(stay, first, stay.rounds, self.k)

    def cut(self, stay: Stay, first: int, done: int) -> None:
        """As `Books.cut`: its rounds are booked, and none were before."""
        self._members.book_one(stay, first, done, self.k)
        self._end_stay(stay.place)

    def pick(self, place: int, known: int) -> StayRef | None:
        """As `Books.pick`: those of the present term, or who had ended when it began, not known yet."""
        members = self._members
        there = np.flatnonzero(members.term.standing.place == place)
        if len(there):
            return members.take(self.k, int(there[0]))
        if self.lives.first[place] == NOT_YET:
            return None
        return known + 1, known + 1, place, self._waiting(place, int(members.final[place]))

    def began(self, place: int, first: int) -> int:
        """As `Books.began`."""
        index = self._last_stay(place)
        return int(self.lives.first[place]) if index is None else self.log.stays[index][1]

    def _last_stay(self, place: int) -> int | None:
        """Where the last stay of a request is noted among those after a preemption; None: it is the first."""
        if place not in self.log.preemptions:
            return None
        stays = self.log.stays
        return next((i for i in range(len(stays) - 1, -1, -1) if stays[i][0] == place), None)

    def _take_back(self, place: int, known: int) -> int:
        """Takes the rounds of a request behind iteration `known` out of the books; returns how many."""
        members, lost = self._members, 0
        assert self.ledger is not None
        for first, gains, kept, k in members.recent.behind(place, known):
            count = len(gains)
            self.ledger.book_stay(members.lane, place, first, gains, kept, -1)
            members.rounds[place] -= count
            if k:
                members.verifications[place] -= count
                members.accepted[place] -= int(gains.sum()) - count
                members.drafts[place] -= k * count
            else:
                self.ledger.book_idle(place, -count)
            lost += count
        return lost

    def given_up(self, stay: Stay, first: int, had: int, known: int, thrown_out: bool) -> None:
        """As `Books.given_up`: what the present term has had is booked, and what is not known taken back."""
        members, log, place = self._members, self.log, stay.place
        began, index = self.began(place, first), self._last_stay(place)
        if not thrown_out:
            members.book_one(stay, first, min(max(known - first, 0), had), self.k)
        lost, last = self._take_back(place, known), known
        if not thrown_out or had == stay.rounds:
            self._end_stay(place)
        elif index is None:
            log.cut[place] -= lost
        else:
            log.stays[index][2] -= lost
        counts = self.counts(place)
        if began > known and index is None:
            log.cut[place], counts, last = -1, NOTHING_YET, -1
        elif began > known:
            assert index is not None
            log.stays[index][2], last = -1, log.forget_gap(began, place)
            counts = counts._replace(chunks=counts.chunks - 1)
        log.totals[place] = counts, last
        log.skipped.pop(place, None)

    def rest(self, stay: Stay, done: int, last_emission: int) -> Stay:
        """As `Books.rest`: what it will do depends on K, and is drawn when it comes back."""
        rules = self._members.rules[self.k]
        assert stay.footprint is not None
        tokens = (int(stay.footprint[done]) & rules.packing.context_mask) - (rules.query - 1)
        return self._waiting(stay.place, tokens, last_emission)

    def _waiting(self, place: int, tokens: int, last_emission: int = -1) -> Stay:
        """Returns what somebody is who waits to compute so many tokens again: no round of it is drawn."""
        members = self._members
        lengths = int(members.prompt[place]), int(members.final[place]), int(members.most[place])
        return Stay.waiting(place, lengths, tokens, self.lives.rules, last_emission)

    def draw(self, standing: Standing, k: int) -> list[Stay]:
        """As `Books.draw`, of those who wait: what they will do is drawn when they come back."""
        rows = zip(standing.place.tolist(), standing.computed.tolist(), strict=True)
        return [self._waiting(place, tokens) for place, tokens in rows]

    def again(self, stay: Stay) -> Stay:
        """As `Books.again`."""
        if stay.last_emission < 0:
            block = self._by_k[self.k].block(stay.place // BLOCK)
            return Stay.fresh(stay.place, block, stay.place % BLOCK)
        computed, gains = self._members.rounds_of(stay, self.k)
        return stay.drawn(computed, gains, self._members.rules[self.k])

    def came_back(self, stay: Stay, it: int, newcomers: int) -> None:
        """As `Books.came_back`: its prefill has sent a chunk, and its rounds are booked with the others."""
        members, place = self._members, stay.place
        members.rounds[place] += 1
        rounds = int(members.rounds[place])
        self._stay_of[place] = len(self.log.stays)
        self.log.stays.append([place, it, -rounds, newcomers])
        self.log.skipped[place] = it - int(self.lives.first[place]) - rounds

    def close(self, it: int, refs: Rows[StayRef]) -> Standing:
        """Ends the term before iteration `it`; returns who is left."""
        return self._members.close(it, self.k, refs)

    def draw_term(self, standing: Standing, it: int, ahead: bool) -> Drawn:
        """Begins a term at the present K in iteration `it`.

        Whoever is drawn is drawn again when K changes. So they are drawn twice as far as the last term
        lasted, and on from there if this one lasts longer.

        Args:
            standing: where they stand. it: the iteration.
            ahead: somebody has to know of all of them when they will end.
        """
        members = self._members
        lasted = it - members.term.begin
        self.until = NEVER
        if not len(standing.place):
            members.nobody(it)
            return Drawn.nobody()
        reach = NEVER if ahead else max(2 * lasted, LEAST_REACH)
        drawn = members.draw(it, self.k, standing, reach)
        if not members.term.whole.all():
            self.until = it + reach
        return drawn

    def outcomes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.integer]]:
        """As `Members.outcomes`, of the present term."""
        return self._members.outcomes()

    def ends(self) -> dict[int, int]:
        """Returns the iteration in which sequences of the present term end, as far as is known, by place."""
        term = self._members.term
        known = term.whole & (term.rounds > 0)
        ends = (term.rounds[known] + term.begin - 1).tolist()
        return dict(zip(term.standing.place[known].tolist(), ends, strict=True))

    def leaves(self, pack: Packing, lag: int) -> dict[int, tuple[int, int]]:
        """Returns when each sequence of the present term leaves, and with how many blocks, by place."""
        term = self._members.term
        after = term.rounds + lag
        held = (term.footprint[term.starts + after - 1] >> pack.blocks) & pack.blocks_mask
        leaves = zip((term.begin + after).tolist(), held.tolist(), strict=True)
        return dict(zip(term.standing.place.tolist(), leaves, strict=True))

    def finish(self, refs: Rows[StayRef]) -> None:
        """As `Books.finish`."""
        members = self._members
        members.close(len(self.log.end_s) + 1, self.k, refs)
        for place in list(self._stay_of):
            self._end_stay(place)
        self.lives.rounds[:], self.lives.accepted[:] = members.rounds, members.accepted
        self.verified, self.drafts = members.verifications, members.drafts

    def _plans(self) -> npt.NDArray[np.int32]:
        """Returns the number of the K planned in each iteration for the next."""
        changes = np.frombuffer(self._planned, dtype=np.int64).reshape(-1, 2)
        plans = np.full(len(self.log.end_s), len(self._by_k) - 1, dtype=np.int32)
        lasts = np.append(changes[1:, 0], len(plans)) - changes[:, 0]
        plans[len(plans) - int(lasts.sum()) :] = np.repeat(changes[:, 1], lasts)
        return plans

    def steps_without_drafter(self) -> int:
        """As `Books.steps_without_drafter`."""
        return int(np.count_nonzero(self._plans() < self._void_below))

    def drafts_by_iteration(self) -> npt.NDArray[np.int32]:
        """As `Books.drafts_by_iteration`."""
        drafts = np.array([lives.rules.k for lives in self._by_k], dtype=np.int32)
        return np.concatenate([drafts[-1:], drafts[self._plans()[:-1]]])

    def passes_by_iteration(self) -> npt.NDArray[np.int32]:
        """As `Books.passes_by_iteration`."""
        return np.array(self.passes_at, dtype=np.int32)[self._plans()]
