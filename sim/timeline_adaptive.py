"""The fast path of an engine whose K follows its batch: a calendar that is made anew when K changes.

Between two changes it is the calendar of `timeline_lane`. The pool has to hold everybody: nobody is
preempted.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from hardware.stepcost import StepCost
from sim.config import EngineConfig
from sim.timeline_admission import Unsuited
from sim.timeline_lane import Lane
from sim.timeline_members import Members
from sim.timeline_plans import Plans
from sim.timeline_seat import Seat
from sim.timeline_trajectories import BLOCK, Trajectories
from sim.timeline_watch import Watch


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
        self.planned = array("q")
        """2 numbers for each change of K: the iteration that decided it, drafts from the next one on."""

    def _make_room(self, acc: int, it: int, i: int) -> int:
        raise Unsuited("KV ran short under a policy")

    def _evict_prefill(self, acc: int) -> int:
        raise Unsuited("KV ran short under a policy")

    def _forget_dead(self, it: int) -> None:
        """They are booked when K changes."""

    def _change(self, acc: int, it: int, i: int, old: int, k: int) -> None:
        """Makes the calendar anew from `it` on, at another K."""
        rules, members = self.rules, self.members
        self.planned.extend((it - 1, k))
        self.k = k
        standing = members.close(it, old, self.stays)
        self.stays.clear()
        self.drawn = self.by_k[k]
        self._home = (-1, None)
        for table in (self.calendar, self.unused, self.side, self.outcomes):
            table[i:] = 0
        self.side_sum = 0
        if self.prefill is not None:
            acc -= rules.prefilling(self.prefill.held)
            seat = self.prefill.seat
            block = self.drawn.block(seat.place // BLOCK)
            self.prefill.seat = Seat.fresh(seat.place, block, seat.place % BLOCK)
        self.calendar[i] = -acc
        if not len(standing.place):
            members.nobody(it)
            return
        seated = members.seat(it, k, standing)
        places = seated.offsets + i
        np.add.at(self.calendar, places, seated.row)
        np.add.at(self.unused, seated.unused + i, 1)
        if seated.side is not None:
            np.add.at(self.side, places, seated.side)
        if self.learns:
            rounds, gains = members.outcomes()
            np.add.at(self.outcomes, (rounds + i, gains), 1)
        if self.watch is not None:
            ends = (members.term.rounds + it - 1).tolist()
            self.watch.move(dict(zip(standing.place.tolist(), ends, strict=True)))

    def finish(self) -> None:
        """As in `Lane`."""
        members = self.members
        members.close(len(self.log.end_s) + 1, self.k, self.stays)
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
