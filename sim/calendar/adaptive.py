"""The fast path of an engine whose K follows its batch: a calendar that is made anew when K changes.

Between two changes it is the calendar of `lane`. A shortage of KV is not met here: it is stepped.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from specfleet.hardware.stepcost import StepCost
from specfleet.sim.calendar.admission import Unsuited
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.members import Members, Standing
from specfleet.sim.calendar.plans import Plans
from specfleet.sim.calendar.seat import Counts, Left, Seat
from specfleet.sim.calendar.trajectories import BLOCK, Trajectories
from specfleet.sim.calendar.watch import Watch
from specfleet.sim.config import EngineConfig


class AdaptiveLane(Lane):
    """One engine under a policy.

    Args:
        config: its limits and rules.
        cost: prices a step.
        lives: the requests by K, with one column of first iterations.
        members: the sequences running.
        plans: the policy.
        inbox, arrived_s, watch, stops, lane, replica: as in `Admission`.
    """

    def __init__(
        self,
        config: EngineConfig,
        cost: StepCost,
        lives: list[Trajectories],
        members: Members,
        plans: Plans,
        inbox: list[int] | range,
        arrived_s: array[float],
        watch: Watch | None,
        stops: bool,
        lane: int,
        replica: int,
    ) -> None:
        super().__init__(
            config,
            cost,
            lives[-1],
            members.ledger,
            inbox,
            arrived_s,
            watch,
            stops,
            lane,
            replica,
            plans.learns,
        )
        self.by_k = lives
        self.members = members
        self.plans = plans
        on_host = self.passes == 0
        self.passes_at = tuple(0 if on_host else min(self.passes, max(k, 1)) for k in range(len(lives)))
        self.k = self.rules.k
        self._stay_of: dict[int, int] = {}
        self.planned = array("q")
        """2 numbers for each change of K: the iteration that decided it, drafts from the next one on."""

    def _is_stuck(self, acc: int, n: int) -> bool:
        """As in `Lane`."""
        prefill, rules = self.prefill, self.rules
        room = self.config.max_num_batched_tokens - n * (1 + self.k + self.slots) - self.slots
        if prefill is None or room <= 0:
            return False
        done = prefill.done + min(prefill.seat.tokens - prefill.done, room)
        grown = -(-(done + rules.lookahead) // rules.block_size) - prefill.held
        return grown > self.total - ((acc >> rules.packing.blocks) & rules.packing.blocks_mask)

    def _evict_prefill(self, acc: int) -> int:
        raise Unsuited("a prompt in pieces takes the last blocks under a policy")

    def _forget_dead(self, it: int) -> None:
        """They are booked when K changes."""

    def _change(self, acc: int, it: int, i: int, old: int, k: int) -> None:
        """Makes the calendar anew from `it` on, at another K."""
        rules, members = self.rules, self.members
        standing = members.close(it, old, self.stays)
        self.stays.clear()
        self._go_over(it, k)
        self.clear(i)
        if self.prefill is not None:
            acc -= rules.prefilling(self.prefill.held)
            seat = self.prefill.seat
            block = self.drawn.block(seat.place // BLOCK)
            self.prefill.seat = Seat.fresh(seat.place, block, seat.place % BLOCK)
        self.calendar[i] = -acc
        self._seat(standing, it, i)
        if self.watch is not None:
            ends = (members.term.rounds + it - 1).tolist()
            self.watch.move(dict(zip(standing.place.tolist(), ends, strict=True)))

    def _go_over(self, it: int, k: int) -> None:
        """Notes that rows have `k` drafts from iteration `it` on."""
        if k != self.k:
            self.planned.extend((it - 1, k))
        self.k = k
        self.drawn = self.by_k[k]
        self._home = (-1, None)

    def _seat(self, standing: Standing, it: int, i: int) -> None:
        """Draws sequences at the present K and adds them to the calendars."""
        members = self.members
        if not len(standing.place):
            members.nobody(it)
            return
        self.add(members.seat(it, self.k, standing), i)
        if self.learns:
            rounds, gains = members.outcomes()
            np.add.at(self.outcomes, (rounds + i, gains), 1)

    def leave(self, it: int) -> list[Left]:
        """As in `Handover`."""
        members = self.members
        standing = members.close(it, self.k, self.stays)
        self.stays.clear()
        members.nobody(it)
        left = []
        for row in zip(*(column.tolist() for column in standing), strict=True):
            place, computed, known, asked, held = row
            numbers = members.verifications, members.accepted, members.rounds, members.drafts
            verifications, accepted, rounds, drafts = (int(column[place]) for column in numbers)
            counts = Counts(verifications, accepted, 1 + rounds, drafts)
            left.append(Left(place, computed, known, asked, held, counts))
            self._end_stay(place)
        return left

    def _end_stay(self, place: int) -> None:
        """Notes how many rounds a request had until now in the calendar, since it came or came back."""
        rounds, stay = int(self.members.rounds[place]), self._stay_of.pop(place, None)
        if stay is None:
            self.log.cut.setdefault(place, rounds)
        else:
            self.log.stays[stay][2] += rounds

    def disown(self, place: int, first: int) -> None:
        """As in `Handover`: nothing was booked ahead."""
        self.lives.first[place] = first
        self.log.cut[place] = 0

    def note(self, place: int, counts: Counts, last: int) -> None:
        """As in `Handover`."""
        members, rounds = self.members, counts.chunks - 1
        members.rounds[place], members.verifications[place] = rounds, counts.verifications
        members.accepted[place], members.drafts[place] = counts.accepted, counts.drafts
        self.log.skipped[place] = last - int(self.lives.first[place]) - rounds

    def enter(self, members: Members, standing: Standing, alive: list[bool], it: int, i: int, k: int) -> None:
        """As in `Handover`."""
        self._go_over(it, k)
        self._seat(standing, it, i)
        for place, goes_on in zip(standing.place.tolist(), alive, strict=True):
            if goes_on:
                self._stay_of[place] = len(self.log.stays)
                self.log.stays.append([place, it - 1, -int(members.rounds[place]), self.newcomers])
        if self.watch is not None:
            for place, rounds in zip(standing.place.tolist(), members.term.rounds.tolist(), strict=True):
                self.watch.expect(it - 1, place, rounds)

    def finish(self) -> None:
        """As in `Lane`."""
        members = self.members
        members.close(len(self.log.end_s) + 1, self.k, self.stays)
        for place in list(self._stay_of):
            self._end_stay(place)
        self.lives.rounds[:], self.lives.accepted[:] = members.rounds, members.accepted
        self.verified, self.drafts = members.verifications, members.drafts

    def _plans(self) -> npt.NDArray[np.int32]:
        """Returns the drafts planned in each iteration for the next."""
        changes = np.frombuffer(self.planned, dtype=np.int64).reshape(-1, 2)
        plans = np.full(len(self.log.end_s), self.rules.k, dtype=np.int32)
        lasts = np.append(changes[1:, 0], len(plans)) - changes[:, 0]
        plans[len(plans) - int(lasts.sum()) :] = np.repeat(changes[:, 1], lasts)
        return plans

    def drafts_by_iteration(self) -> npt.NDArray[np.int32]:
        """As in `Lane`."""
        return np.concatenate([[np.int32(self.rules.k)], self._plans()[:-1]]).astype(np.int32)

    def passes_by_iteration(self) -> npt.NDArray[np.int32]:
        """As in `Lane`."""
        return np.array(self.passes_at, dtype=np.int32)[self._plans()]
