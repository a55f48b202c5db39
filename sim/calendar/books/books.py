"""What the requests of an engine on the calendar have had: chunks, rounds, accepted drafts.

Where K is always the same, a life is booked as it was drawn, and `Books` corrects what comes otherwise:
preemptions and stretches that were stepped. Where K changes, see `terms`.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.books.ledger import Ledger
from specfleet.sim.calendar.books.log import Log
from specfleet.sim.calendar.books.members import Members
from specfleet.sim.calendar.books.standing import Drawn, Standing
from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.stay import NOTHING_YET, Counts, Left, Stay, StayRef, stay_of
from specfleet.sim.calendar.trajectories import BLOCK, Trajectories


class Books:
    """The books of one engine whose K never changes.

    Args:
        lives: its requests.
        ledger: counts rounds; None without speculation.
        engine: its number among those that share `lives`.
        log: what it writes down.
        members: draws again whoever comes back from being stepped; None if nobody is stepped.

    Attributes:
        k_varies: K changes, so that those who have ended stay on the running list until they are booked.
        verified, drafts: verifications and drafts by place, where K is not the same for all.
    """

    k_varies = False
    verified: I64 | None = None
    drafts: I64 | None = None

    def __init__(
        self, lives: Trajectories, ledger: Ledger | None, engine: int, log: Log, members: Members | None
    ) -> None:
        self.lives = lives
        self.ledger = ledger
        self.engine = engine
        self.log = log
        self.members = members
        self._done: dict[int, Counts] = {}
        self.passes_at = (lives.rules.scheduler.draft_passes,) * (1 + lives.rules.k)
        """The drafter's passes by the drafts that it proposes."""

    def counts(self, place: int) -> Counts:
        """Returns what a request had had when it was last taken out of the calendar."""
        return self._done.get(place, NOTHING_YET)

    def came_back(self, stay: Stay, it: int, newcomers: int) -> None:
        """Books a stay that follows another one, as if it went on to the request's end.

        Args:
            stay: the stay. it: iteration in which its prefill ended.
            newcomers: requests that entered before it.
        """
        log = self.log
        stay.extra = len(log.stays)
        log.stays.append([stay.place, it, stay.rounds, newcomers])
        self._book(stay, it, stay.rounds, 1)
        log.totals[stay.place] = self._after(stay, stay.rounds), it + stay.rounds

    def _book(self, stay: Stay, first: int, rounds: int, sign: int) -> None:
        """Books the first rounds of a stay whose prefill ended in `first`, or (`sign` -1) takes them back."""
        if stay.gains is not None and self.ledger is not None:
            kept = stay.kept if rounds == stay.rounds else 0
            self.ledger.book_stay(self.engine, stay.place, first, stay.gains[:rounds], kept, sign)

    def _after(self, stay: Stay, rounds: int) -> Counts:
        """Returns what a request has had after the first rounds of a stay, its prefill's chunk included."""
        counts = self._done.get(stay.place, NOTHING_YET)
        return counts.plus(stay.gains, rounds, self.lives.rules.k, 1 + rounds)

    def _without(self, stay: Stay, rounds: int) -> Counts:
        """Returns what a request had had before the first rounds of a stay: `_after` taken back."""
        return self.counts(stay.place).minus(stay.gains, rounds, self.lives.rules.k, 1 + rounds)

    def tail(self, refs: list[StayRef]) -> StayRef:
        """Takes the last sequence off the running list; it may be dead."""
        return refs.pop()

    def growth_before(self, it: int) -> list[int]:
        """Returns the blocks that those take in iteration `it` who stand before the listed ones: nobody."""
        return []

    def over(self, stay: Stay, first: int) -> None:
        """Learns that a sequence taken off the running list has ended there; arguments as `cut`."""

    def rest(self, stay: Stay, done: int, last_emission: int) -> Stay:
        """Returns what is left of a stay that is cut; arguments as `Stay.rest`."""
        return stay.rest(done, self.lives.rules, last_emission)

    def again(self, stay: Stay) -> Stay:
        """Returns the stay of somebody who waited, as it is when its prompt has been computed."""
        return stay

    def wanted_of_piece(self, place: int) -> int:
        """Returns the drafts that a policy wants next of a request a piece of whose prompt is computed."""
        return self.lives.rules.k

    def cut(self, stay: Stay, first: int, done: int) -> None:
        """Takes back what was booked for a stay beyond its first `done` rounds.

        Args:
            stay: the stay. first: iteration in which its prefill ended.
            done: its rounds that count.
        """
        place, log = stay.place, self.log
        self._book(stay, first, stay.rounds, -1)
        self._book(stay, first, done, 1)
        self._done[place] = self._after(stay, done)
        if stay.extra < 0:
            log.cut[place] = done
        else:
            log.stays[stay.extra][2] = done

    def pick(self, place: int, known: int) -> StayRef | None:
        """Takes somebody off the running list who is not among the listed ones; None: it is not there.

        Args:
            place: of the request. known: the last iteration whose outcome is.
        """
        return None

    def began(self, place: int, first: int) -> int:
        """Returns when the prefill of somebody who decodes ended; `first`: before its present rounds."""
        return first

    def given_up(self, stay: Stay, first: int, had: int, known: int, thrown_out: bool) -> None:
        """Takes back what was booked of the last stay of a request whose client has given it up.

        Args:
            stay: the stay. first: iteration in which its prefill ended.
            had: its rounds: all, or as many as it had when it was thrown out.
            known: the last iteration whose outcome counts, before the end of the stay.
            thrown_out: it was.
        """
        place, log, kept = stay.place, self.log, max(known - first, -1)
        if had < stay.rounds:
            self._done[place] = self._without(stay, had)
        self._book(stay, first, had, -1)
        self._book(stay, first, max(kept, 0), 1)
        self._done[place] = counts = self._after(stay, kept) if kept >= 0 else self.counts(place)
        log.totals[place] = counts, first + kept if kept >= 0 else stay.last_emission
        if stay.extra < 0:
            log.cut[place] = kept
            return
        log.stays[stay.extra][2] = kept
        if kept < 0:
            log.forget_gap(first, place)

    def listed(self, refs: Rows[StayRef], it: int) -> list[Left]:
        """Returns who runs before iteration `it`, in the order of the running list; changes nothing."""
        return [self._left(stay_of(ref), ref[1], it) for ref in refs if ref[0] >= it]

    def leave(self, refs: Rows[StayRef], it: int) -> list[Left]:
        """As `listed`, for those who are taken out of the calendar: no more is booked from `it` on."""
        left = []
        for ref in refs:
            if ref[0] < it:
                continue
            stay, first = stay_of(ref), ref[1]
            if it - first - 1 < stay.rounds:
                self.cut(stay, first, it - first - 1)
            left.append(self._left(stay, first, it)._replace(counts=self.counts(stay.place)))
        return left

    def _left(self, stay: Stay, first: int, it: int) -> Left:
        """Returns where a sequence stands before iteration `it` whose prefill ended in `first`."""
        pack, query, done = self.lives.rules.packing, self.lives.rules.query, it - first - 1
        assert stay.footprint is not None
        held, asked, computed, known = stay.blocks, stay.tokens, stay.tokens, stay.tokens - stay.prompt
        if done:
            word = int(stay.footprint[done - 1])
            held, asked = (word >> pack.blocks) & pack.blocks_mask, word & pack.context_mask
            known = asked - query - stay.prompt + 1
            computed = stay.final
            if done < stay.rounds:
                computed = (int(stay.footprint[done]) & pack.context_mask) - query
        return Left(stay.place, computed, known, asked, held, self.counts(stay.place))

    def stepped(self, place: int, counts: Counts, last: int) -> None:
        """Writes down what a request has had after being stepped, its last chunk in iteration `last`."""
        self._done[place] = counts
        self.log.totals[place] = counts, last

    def begun_elsewhere(self, place: int, first: int) -> None:
        """Takes back what was drawn for a request that has got its first token by stepping, in `first`."""
        block, j = self.lives.block(place // BLOCK), place % BLOCK
        self.lives.first[place] = first
        self.log.cut[place] = 0
        if block.gains is not None and self.ledger is not None:
            start, rounds = block.start[j], block.rounds[j]
            gains = block.gains[start : start + rounds]
            self.ledger.book_stay(self.engine, place, first, gains, int(block.kept[j]), -1)

    def draw(self, standing: Standing, k: int) -> list[Stay]:
        """Draws sequences from where they stand."""
        if not len(standing.place):
            return []
        return self._members.stays(self._members.drawn(0, k, standing)[0], k)

    def draw_running(
        self, standing: Standing, alive: list[bool], it: int, k: int, newcomers: int
    ) -> tuple[Drawn, list[StayRef], list[int]]:
        """Draws and books sequences that run where iteration `it` begins.

        Args:
            standing: where they stand.
            alive: whether each goes on; the others have ended in the step that is in flight.
            it, k: the iteration; drafts of a row.
            newcomers: requests that have entered.

        Returns:
            What they add to the calendar, who they are, and the rounds of each.
        """
        members = self._members
        refs: list[StayRef] = []
        term, drawn = members.drawn(it, k, standing)
        stays = members.stays(term, k)
        for stay, goes_on in zip(stays, alive, strict=True):
            refs.append((it - 2 + len(stay.row), it - 1, stay.place, stay))
            if goes_on:
                counts = self._done[stay.place]  # no prompt is computed, so no chunk comes of it
                self._done[stay.place] = counts._replace(chunks=counts.chunks - 1)
                self.came_back(stay, it - 1, newcomers)
        return drawn, refs, [stay.rounds for stay in stays]

    @property
    def _members(self) -> Members:
        assert self.members is not None
        return self.members

    def forget(self, place: int) -> None:
        """Forgets what an ended request did, so that another may have its place."""
        self._done.pop(place, None)

    def finish(self, refs: Rows[StayRef]) -> None:
        """Books what is left to book at the end of the run: nothing here."""

    def steps_without_drafter(self) -> int:
        """Returns the iterations after which somebody had outgrown the drafter: here none."""
        return 0

    def drafts_by_iteration(self) -> npt.NDArray[np.int32]:
        """Returns the drafts verified by each decoding row, by iteration (or one number for all)."""
        return np.array(self.lives.rules.k, dtype=np.int32)

    def passes_by_iteration(self) -> npt.NDArray[np.int32]:
        """Returns the drafter's passes after each iteration whose drafts might be used."""
        return np.full(len(self.log.end_s), self.lives.rules.scheduler.draft_passes, dtype=np.int32)
