"""How a lane gives its sequences to `Engine` and takes them back (`stepper`)."""

from __future__ import annotations

import numpy as np

from specfleet.sim.calendar.members import Members, Seated, Standing
from specfleet.sim.calendar.seat import NOTHING_YET, Counts, Left, Seat
from specfleet.sim.calendar.tail import Tail
from specfleet.sim.calendar.trajectories import BLOCK


class Handover(Tail):
    """One engine on the fast path, as far as it can be stepped for a while."""

    def counts(self, place: int) -> Counts:
        """Returns what a request had had when it was last taken out of the calendar."""
        return self._done.get(place, NOTHING_YET)

    def leave(self, it: int) -> list[Left]:
        """Takes everybody out of the calendar before iteration `it`, in the order of the running list."""
        pack, query = self.rules.packing, self.rules.query
        left = []
        for last, first, place, home in self.stays:
            if last < it:
                continue
            seat = home if isinstance(home, Seat) else Seat.fresh(place, home, place % BLOCK)
            done = it - first - 1
            assert seat.footprint is not None
            held, asked, computed, known = seat.blocks, seat.tokens, seat.tokens, seat.tokens - seat.prompt
            if done:
                word = int(seat.footprint[done - 1])
                held, asked = (word >> pack.blocks) & pack.blocks_mask, word & pack.context_mask
                known = asked - query - seat.prompt + 1
                computed = seat.final
                if done < seat.rounds:
                    computed = (int(seat.footprint[done]) & pack.context_mask) - query
            if done < seat.rounds:
                self._cut(seat, first, done)
            counts = self._done.get(place, NOTHING_YET)
            left.append(Left(place, computed, known, asked, held, counts))
        self.stays.clear()
        return left

    def clear(self, i: int) -> None:
        """Empties the calendars from place `i` on."""
        for table in (self.calendar, self.unused, self.side, self.outcomes):
            table[i:] = 0
        self.side_sum = 0

    def disown(self, place: int, first: int) -> None:
        """Takes back what was drawn for a request that `Engine` has begun, in iteration `first`."""
        block, j = self.lives.block(place // BLOCK), place % BLOCK
        self.lives.first[place] = first
        self.log.cut[place] = 0
        if block.gains is not None and self.ledger is not None:
            start, rounds = block.start[j], block.rounds[j]
            gains = block.gains[start : start + rounds]
            self.ledger.book_stay(self.lane, place, first, gains, int(block.kept[j]), -1)

    def note(self, place: int, counts: Counts, last: int) -> None:
        """Writes down what a request has had after being stepped, its last chunk in iteration `last`."""
        self._done[place] = counts
        self.log.totals[place] = counts, last

    def seats(self, members: Members, standing: Standing) -> list[Seat]:
        """Draws sequences from where they stand."""
        if not len(standing.place):
            return []
        members.seat(0, self.k, standing)
        seats = members.seats(self.k)
        members.nobody(0)
        return seats

    def enter(self, members: Members, standing: Standing, alive: list[bool], it: int, i: int, k: int) -> None:
        """Puts sequences into the calendar that stand where iteration `it` begins.

        Args:
            members: draws them.
            standing: where they stand.
            alive: whether each goes on; the others have ended in the step that is in flight.
            it, i: the iteration and its place.
            k: drafts of a row.
        """
        self.add(members.seat(it, k, standing), i)
        for seat, goes_on in zip(members.seats(k), alive, strict=True):
            self.stays.append((it - 2 + len(seat.row), it - 1, seat.place, seat))
            if goes_on:
                seat.extra = len(self.log.stays)
                self.log.stays.append([seat.place, it - 1, seat.rounds, self.newcomers])
                counts = self._done[seat.place]
                self._done[seat.place] = counts._replace(
                    chunks=counts.chunks - 1
                )  # no prompt, no chunk of it
                self._book(seat, it - 1)
            if self.watch is not None:
                self.watch.expect(it - 1, seat.place, seat.rounds)
        members.nobody(it)

    def add(self, seated: Seated, i: int) -> None:
        """Adds sequences seated together to the calendars, from place `i` on."""
        places = seated.offsets + i
        np.add.at(self.calendar, places, seated.row)
        np.add.at(self.unused, seated.unused + i, 1)
        if seated.side is not None:
            np.add.at(self.side, places, seated.side)
