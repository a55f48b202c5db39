"""Requests that leave a lane because their clients have given them up.

As in vLLM it happens at the beginning of a turn, before the batch that ended is committed: what that batch,
and one scheduled ahead, sampled for the request is thrown away, its blocks are free at once, and what is
cached of them stays so. A life is cut out of the calendar from this iteration on, as by a preemption, and
what was booked of it beyond the last outcome known is taken back.
"""

from __future__ import annotations

from array import array

from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.stay import NOTHING_YET, Stay, StayRef, stay_of
from specfleet.sim.calendar.trajectories import NOT_YET
from specfleet.sim.errors import Unsuited


class Leaving:
    """Lets requests go from a lane that rests.

    Args:
        lane: the engine; who decodes in it is remembered one by one (`CalendarCrowd.tracks`).
    """

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._crowd, self._waiting, self._log = lane.crowd, lane.waiting, lane.log

    def never_read(self, place: int) -> bool:
        """Takes a request out of the inbox that no turn has seen; False if one has."""
        inbox = self._waiting.inbox
        assert isinstance(inbox, array)
        for index in range(len(inbox) - 1, self._waiting.visible - 1, -1):
            if inbox[index] == place:
                self._unqueue(index)
                return True
        return False

    def let_go(self, place: int) -> None:
        """Lets a request go that is inside, before the turn that is due is taken.

        Raises:
            Unsuited: steps are, or were, made by `Engine`.
        """
        crowd, watch, known = self._crowd, self.lane.ends.watch, self.lane.ends.committed
        if self._log.recorder is not None:
            raise Unsuited("requests that are given up where the token budget is short")
        assert watch is not None
        watch.catch_up(known)
        crowd.kv.somebody_left()
        if crowd.begun is not None and crowd.begun.stay.place == place:
            self._stop_prompt()
        elif not self._was_thrown_out(place, known):
            ref = self._decodes(place, known)
            if ref is None:
                self._unqueue(self._waiting.inbox.index(place))
            else:
                self._stop_decoding(ref, known)

    def _unqueue(self, index: int) -> None:
        """Takes a request out of the inbox that was never admitted."""
        waiting, inbox = self._waiting, self._waiting.inbox
        assert isinstance(inbox, array)
        assert index >= waiting.head
        self._crowd.books.lives.send_away(inbox[index])
        del inbox[index], waiting.arrived_s[index]
        waiting.visible -= index < waiting.visible

    def _decodes(self, place: int, known: int) -> StayRef | None:
        """Takes somebody off the running list; None if it does not decode."""
        refs = self._crowd.refs
        for index in range(len(refs) - 1, -1, -1):
            if refs[index][2] == place:
                return refs.pop(index)
        return self._crowd.books.pick(place, known)

    def _stop_decoding(self, ref: StayRef, known: int) -> None:
        """Cuts a life out of the calendar; `known`: the last iteration whose outcome is."""
        crowd, at, stay, first = self._crowd, self.lane.at, stay_of(ref), ref[1]
        done, kept = at.it - first - 1, max(known - first, -1)
        landed = bool(crowd.footprints.lag) and not at.flying  # the calendar knows nobody any more
        still_held = crowd.kv.leave(stay, done, kept, landed)
        if not landed and ref[0] >= at.it:
            share = crowd.calendar.take_out(stay, done, at.i) - (still_held << crowd.pack.blocks)
            crowd.calendar.row[at.i] -= share
        began = crowd.books.began(stay.place, first)
        crowd.books.given_up(stay, first, stay.rounds, known, thrown_out=False)
        self._forget_end(stay, began, first + stay.rounds, known)

    def _stop_prompt(self) -> None:
        """Lets the prompt go that is computed in pieces."""
        crowd, begun = self._crowd, self._crowd.begun
        assert begun is not None
        still_held = crowd.kv.leave_begun(begun)
        crowd.begun = None
        crowd.at.acc -= crowd.footprints.prefilling(begun.held) - (still_held << crowd.pack.blocks)
        self._over_before(begun.stay)

    def _was_thrown_out(self, place: int, known: int) -> bool:
        """Lets somebody go who was thrown out and waits, perhaps for its last tokens in flight."""
        crowd, preempted = self._crowd, self._waiting.preempted
        index = next((index for index, stay in enumerate(preempted) if stay.place == place), None)
        ref, it = crowd.evicted.get(place), crowd.evicted_in
        flies = ref is not None and it - 1 > known
        if index is None and not flies:
            return False
        crowd.kv.forget_thrown_out(place)
        stay = None if index is None else preempted.pop(index)
        if stay is not None and stay.last_emission < 0:
            crowd.newcomers += 1  # it has entered, and does not come again
        if not flies:
            assert stay is not None
            self._over_before(stay)
            return True
        assert ref is not None
        last, first = stay_of(ref), ref[1]
        began = crowd.books.began(place, first)
        crowd.books.given_up(last, first, it - first - 1, known, thrown_out=True)
        watch = self.lane.ends.watch
        assert watch is not None
        watch.stay_on(place, it - 1)
        self._forget_end(last, began, first + last.rounds if stay is None else None, known)
        return True

    def _over_before(self, stay: Stay) -> None:
        """Somebody leaves of whom nothing is in flight that counts."""
        crowd, place = self._crowd, stay.place
        counts = crowd.books.counts(place)
        if crowd.books.lives.first[place] == NOT_YET:
            crowd.books.lives.send_away(place)
            self._log.cut[place], counts = -1, NOTHING_YET
        self._log.totals[place] = counts, stay.last_emission
        self._log.skipped.pop(place, None)
        self._forget_end(stay, -1, None, -1)

    def _forget_end(self, stay: Stay, first: int, end: int | None, known: int) -> None:
        watch = self.lane.ends.watch
        assert watch is not None
        watch.let_go(stay.place, first, end, known)
