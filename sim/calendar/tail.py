"""The tail of the running list: who is thrown out when KV runs short.

Under FCFS it happens at the tail alone, so it is rare; the loop over iterations is in `lane`.
"""

from __future__ import annotations

from specfleet.sim.calendar.admission import Admission, Unsuited
from specfleet.sim.calendar.seat import NOTHING_YET, Seat
from specfleet.sim.calendar.trajectories import BLOCK


class Tail(Admission):
    """One engine on the fast path, as far as requests leave it before their end.

    Attributes:
        doomed: thrown out in this step with their last tokens in flight: they end in the queue.
    """

    doomed = 0

    def _make_room(self, acc: int, it: int, i: int) -> int:
        """Throws sequences out from the tail until the growth of the others fits; returns the sum.

        Under FCFS the tail is never served before the shortage is met, and the growth of those before
        it only adds up: vLLM's sequential search stops at the same victims.
        """
        pack, total = self.rules.packing, self.total
        while (acc >> pack.blocks) & pack.blocks_mask > total:
            if self.prefill is not None:
                acc = self._evict_prefill(acc)
                continue
            last, first, place, home = self.stays.pop()
            if last >= it:
                seat = home if isinstance(home, Seat) else Seat.fresh(place, home, place % BLOCK)
                acc -= self._evict(seat, first, it, i)
        return acc

    def _evict_prefill(self, acc: int) -> int:
        """Throws out the prompt that is computed in pieces; returns the sum without it."""
        prefill = self.prefill
        assert prefill is not None
        self._refuse_own_blocks()
        self.prefill = None
        self.newcomers -= prefill.seat.last_emission < 0
        self.back.append(prefill.seat)
        place = prefill.seat.place
        self.log.preemptions[place] = self.log.preemptions.get(place, 0) + 1
        return acc - self.rules.prefilling(prefill.held)

    def _evict(self, seat: Seat, first: int, it: int, i: int) -> int:
        """Takes a sequence out of the calendar from `it` on; returns its share of the running sum."""
        self._refuse_own_blocks()
        assert seat.footprint is not None
        place, done = seat.place, it - first - 1
        rest = seat.row[done + 1 :]
        self.calendar[i + 1 : i + 1 + len(rest)] -= rest
        if seat.side is not None:
            rest = seat.side[done + 1 :]
            self.side[i + 1 : i + 1 + len(rest)] -= rest
            self.side_sum -= int(seat.side[: done + 1].sum())
        if seat.unused >= done:
            self.unused[i + seat.unused - done] -= 1
        self.log.preemptions[place] = self.log.preemptions.get(place, 0) + 1
        if done == seat.rounds:
            self.doomed += 1
            return int(seat.footprint[done])
        self.back.append(seat.rest(done, self.rules, it - 1))
        self._cut(seat, first, done)
        if self.watch is not None:
            self.watch.unexpect(place, first + seat.rounds, it - 1)
        return int(seat.footprint[done])

    def _cut(self, seat: Seat, first: int, done: int) -> None:
        """Takes back what was booked for a stay beyond its first `done` rounds."""
        place, log = seat.place, self.log
        if seat.gains is not None and self.ledger is not None:
            self.ledger.book_stay(self.lane, place, first, seat.gains, seat.kept, -1)
            self.ledger.book_stay(self.lane, place, first, seat.gains[:done], 0, 1)
        counts = self._done.get(place, NOTHING_YET)
        self._done[place] = counts.plus(seat.gains, done, self.rules.k, 1 + done)
        if seat.extra < 0:
            log.cut[place] = done
        else:
            log.stays[seat.extra][2] = done

    def _refuse_own_blocks(self) -> None:
        if self.config.enable_prefix_caching:
            raise Unsuited("a preempted sequence may find its own blocks again")

    def _forget_dead(self, it: int) -> None:
        """Drops stays that are over."""
        self.stays[:] = [stay for stay in self.stays if stay[0] >= it]
