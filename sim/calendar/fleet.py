"""Builds the lanes that share a list of requests."""

from __future__ import annotations

from array import array

from specfleet.sim.calendar.adaptive import AdaptiveLane
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.ledger import Ledger
from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.members import Members
from specfleet.sim.calendar.own import OwnLane
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.plans import Learner
from specfleet.sim.calendar.prefix import AdaptivePrefixLane, PrefixLane
from specfleet.sim.calendar.prompts import Prompts
from specfleet.sim.calendar.stepper import Stepper
from specfleet.sim.calendar.trajectories import Rules, Trajectories
from specfleet.sim.calendar.watch import Watch
from specfleet.sim.engine import Request
from specfleet.sim.requests import RequestMaker


class Fleet:
    """What lanes share: trajectories, and the counts of their rounds.

    Args:
        plan: the run.
        rules: of its engines.
        rows: their requests; a *place* is an index into it.
        lanes: how many.
    """

    def __init__(self, plan: CalendarRun, rules: Rules, rows: I64, lanes: int = 1) -> None:
        self.plan = plan
        table, luck = plan.table, plan.luck
        self.by_k: list[Trajectories] = []
        self._may_throw_out = not plan.never_short(rules)
        if plan.policy is None or luck is None:
            keeps = plan.may_step or self._may_throw_out
            self.lives = Trajectories(table, rows, rules, luck, keeps)
        else:
            draws = [None, *(luck.at(k) for k in range(1, rules.k + 1))]
            self.by_k = [Trajectories(table, rows, rules.at(k), own, True) for k, own in enumerate(draws)]
            self.lives = self.by_k[-1]
            for other in self.by_k:
                other.first = self.lives.first
        self._prompts: Prompts | None = None
        if plan.shared:
            ahead = int(plan.config.uses_eagle and plan.config.prefix_hash_covers_next_token)
            self._prompts = Prompts(table, rows, rules.block_size, ahead)
        warmups = plan.scenario.load.num_warmups
        most_rows = plan.config.max_num_seqs
        self._maker = RequestMaker(table, plan.lives, warmups, with_confidence=False)
        self.ledger = Ledger(self.lives, rules.k, warmups, lanes, most_rows) if rules.k else None
        self._members: Members | None = None
        if plan.may_step:
            by_k = dict(enumerate(self.by_k)) or {rules.k: self.lives}
            self._members = Members(table, by_k, self.ledger)
        if self.by_k:
            self.lives.book = None  # terms are booked instead of blocks

    def lane(
        self,
        inbox: list[int] | range,
        arrived_s: array[float],
        replica: int,
        lane: int = 0,
        watch: Watch | None = None,
        stops: bool = False,
    ) -> Lane:
        """Returns a lane; arguments as those of `Admission`."""
        plan, config, cost = self.plan, self.plan.config, self.plan.scenario.cost
        plans = plan.plans() if self.by_k else None
        members = None if self._members is None else self._members.of_lane(lane)
        if plans is None or members is None:
            shared = (config, cost, self.lives, self.ledger, inbox, arrived_s, watch, stops, lane, replica)
            made = self._lane_class(*shared)
        else:
            adaptive = (
                config,
                cost,
                self.by_k,
                members,
                plans,
                inbox,
                arrived_s,
                watch,
                stops,
                lane,
                replica,
            )
            made = AdaptiveLane(*adaptive) if self._prompts is None else AdaptivePrefixLane(*adaptive)
        if self._prompts is not None and isinstance(made, PrefixLane):
            made.begin(self._prompts)
        elif isinstance(made, OwnLane):
            made.begin()
        elif members is not None:
            policy = plans.policy if isinstance(plans, Learner) else plan.make_policy()
            made.stepper = Stepper(made, self._request, policy, members)
        return made

    @property
    def _lane_class(self) -> type[Lane]:
        """The kind of engine, at a fixed K."""
        if self._prompts is not None:
            return PrefixLane
        return OwnLane if self.plan.config.enable_prefix_caching and self._may_throw_out else Lane

    def _request(self, place: int) -> Request:
        return self._maker.request(int(self.lives.order[place]))
