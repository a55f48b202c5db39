"""The books of an engine whose requests have drafts of their own (`drafts.own`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.books.books import Books
from specfleet.sim.calendar.books.ledger import Ledger
from specfleet.sim.calendar.books.log import Log
from specfleet.sim.calendar.drafts.own import NO_PAST, OwnDrafts, Past
from specfleet.sim.calendar.stay import Counts, Stay
from specfleet.sim.calendar.trajectories import Trajectories


class OwnBooks(Books):
    """Books of lives that have drafts of their own; who is thrown out is drawn when it comes back.

    Args:
        lives, ledger, engine, log: as in `Books`.
        drafting: decides the drafts of each life.
    """

    def __init__(
        self, lives: Trajectories, ledger: Ledger | None, engine: int, log: Log, drafting: OwnDrafts
    ) -> None:
        super().__init__(lives, ledger, engine, log, None)
        self.drafting = drafting
        self.verified, self.drafts = lives.verified, lives.drafted
        if drafting.planned:
            rules = lives.rules
            self.passes_at = tuple(rules.scheduler.passes(k, False) for k in range(1 + rules.k))
        self._past: dict[int, Past] = {}
        """Of those who were thrown out, by place."""

    def _book(self, stay: Stay, first: int, rounds: int, sign: int) -> None:
        verified, drafts = _verified(stay, rounds)
        self.lives.verified[stay.place] += sign * verified
        self.lives.drafted[stay.place] += sign * drafts
        super()._book(stay, first, rounds, sign)
        if self.ledger is not None:
            self.ledger.book_idle(stay.place, sign * (rounds - verified))

    def _after(self, stay: Stay, rounds: int) -> Counts:
        before, (verified, drafts) = self.counts(stay.place), _verified(stay, rounds)
        after = super()._after(stay, rounds)
        return after._replace(verifications=before.verifications + verified, drafts=before.drafts + drafts)

    def _without(self, stay: Stay, rounds: int) -> Counts:
        after, (verified, drafts) = self.counts(stay.place), _verified(stay, rounds)
        before = super()._without(stay, rounds)
        return before._replace(verifications=after.verifications - verified, drafts=after.drafts - drafts)

    def rest(self, stay: Stay, done: int, last_emission: int) -> Stay:
        """As `Books.rest`: none of it is drawn before it comes back."""
        assert stay.footprint is not None and stay.drafts is not None and stay.gains is not None
        past, rules = self._past.get(stay.place, NO_PAST), self.lives.rules
        self._past[stay.place] = self.drafting.thrown_out(past, stay.drafts, stay.gains, done)
        tokens = (int(stay.footprint[done]) & rules.packing.context_mask) - int(stay.drafts[done])
        lengths = stay.prompt, stay.final, stay.most
        return Stay.waiting(stay.place, lengths, tokens, rules, last_emission)

    def again(self, stay: Stay) -> Stay:
        """As `Books.again`."""
        if stay.last_emission < 0:
            return stay
        drafting, row = self.drafting, int(self.lives.order[stay.place])
        gains, drafts = drafting.again(row, self._past[stay.place], stay.final - stay.tokens)
        wanted = None
        if drafting.planned:
            wanted = drafting.wanted(np.array([row]), np.array([len(drafts)]), drafts)
        return stay.with_drafts(gains, drafts, wanted, self.lives.rules)

    def wanted_of_piece(self, place: int) -> int:
        """As `Books.wanted_of_piece`."""
        past = self._past.get(place, NO_PAST)
        wanted = self.drafting.of_piece(int(self.lives.order[place]), past)
        if past is not NO_PAST:
            self._past[place] = self.drafting.after_piece(past)
        return wanted

    def passes_by_iteration(self) -> npt.NDArray[np.int32]:
        """As `Books.passes_by_iteration`."""
        return np.array(self.log.passes, dtype=np.int32)


def _verified(stay: Stay, rounds: int) -> tuple[int, int]:
    """Returns how many of the first rounds of a stay verified drafts, and the drafts."""
    assert stay.drafts is not None
    drafts = stay.drafts[:rounds]
    return int(np.count_nonzero(drafts)), int(drafts.sum())
