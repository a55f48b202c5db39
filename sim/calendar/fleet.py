"""Builds the lanes that share a list of requests."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from specfleet.hardware.stepcost import StepCost
from specfleet.sim.calendar.books.books import Books
from specfleet.sim.calendar.books.ledger import Ledger
from specfleet.sim.calendar.books.log import Log
from specfleet.sim.calendar.books.members import Members
from specfleet.sim.calendar.books.own import OwnBooks
from specfleet.sim.calendar.books.terms import TermBooks
from specfleet.sim.calendar.crowd import CalendarCrowd, DrawnLives
from specfleet.sim.calendar.ends import Ends
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.gate import RANKED
from specfleet.sim.calendar.kv.counted import CountedKV
from specfleet.sim.calendar.kv.private import PrivateKV
from specfleet.sim.calendar.kv.prompts import Prompts
from specfleet.sim.calendar.kv.shared import SharedKV
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.luck import I64, Luck
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.plans import ByBatchSize, Learner, Plans, WithinReach
from specfleet.sim.calendar.stepper import Stepper
from specfleet.sim.calendar.sums import Calendar
from specfleet.sim.calendar.trajectories import Trajectories
from specfleet.sim.calendar.waiting import PriorityLine, WaitingLine
from specfleet.sim.calendar.watch import Watch
from specfleet.sim.config import EngineConfig
from specfleet.sim.engine import Request
from specfleet.sim.errors import Unsuited
from specfleet.sim.requests import RequestMaker


class LaneKinds(NamedTuple):
    """The classes that a lane is put together of."""

    line: type[WaitingLine] = WaitingLine
    crowd: type[CalendarCrowd] = CalendarCrowd
    kv: type[CountedKV] = CountedKV
    lane: type[Lane] = Lane


USUAL = LaneKinds()


class Fleet:
    """What lanes share: trajectories, and the counts of their rounds.

    Args:
        plan: the run.
        rules: of its engines.
        rows: their requests; a *place* is an index into it.
        lanes: how many.
        kinds: what each is put together of.
    """

    def __init__(
        self, plan: CalendarRun, rules: Footprints, rows: I64, lanes: int = 1, kinds: LaneKinds = USUAL
    ) -> None:
        self.plan, self._kinds = plan, kinds
        table, luck = plan.table, plan.luck
        self.by_k: list[Trajectories] = []
        own = plan.drafting
        self._may_throw_out = not plan.never_short(rules)
        if (plan.policy is None and not plan.reaches) or luck is None or own is not None:
            keeps = plan.may_step or self._may_throw_out or plan.patient
            self.lives = Trajectories(table, rows, rules, luck, keeps, own)
        elif plan.policy is None:
            void = Trajectories(table, rows, rules, None, True)
            self.by_k = [void] * (rules.k + 1) + [Trajectories(table, rows, rules, luck, True)] * (
                rules.k + 1
            )
        else:
            draws: list[Luck | None] = [None, *(luck.at(k) for k in range(1, rules.k + 1))]
            if plan.reaches:  # void ones first: `Plans`
                draws = [*[None] * (rules.k + 1), *draws]
            kinds_of = enumerate(draws)
            self.by_k = [
                Trajectories(table, rows, rules.at(k % (rules.k + 1)), own, True) for k, own in kinds_of
            ]
        if self.by_k:
            self.lives = self.by_k[-1]
            for other in self.by_k:
                other.first = self.lives.first
        self._prompts: Prompts | None = None
        if plan.shared:
            ahead = rules.scheduler.hash_lookahead
            self._prompts = Prompts(table, rows, rules.block_size, ahead, plan.repeats)
        warmups = plan.scenario.load.num_warmups
        most_rows = plan.config.max_num_seqs
        ahead = plan.config.async_scheduling
        self._maker = RequestMaker(table, plan.lives, warmups, with_confidence=False, ahead=ahead)
        self.ledger = Ledger(self.lives, rules.k, warmups, lanes, most_rows) if rules.k else None
        self._members: Members | None = None
        if plan.may_step:
            by_k = dict(enumerate(self.by_k)) or {rules.k: self.lives}
            self._members = Members(table, by_k, self.ledger)
        if self.by_k:
            self.lives.book = None  # terms are booked instead of blocks

    def lane(
        self,
        inbox: array[int] | range,
        arrived_s: array[float],
        replica: int,
        lane: int = 0,
        watch: Watch | None = None,
        stops: bool = False,
        runs_ahead: bool = False,
    ) -> Lane:
        """Returns a lane.

        Args:
            inbox, arrived_s: as in `WaitingLine`.
            replica: its number in the cluster.
            lane: its number among those that share these requests.
            watch, stops, runs_ahead: as in `Ends`.
        """
        plan, cost, by_k = self.plan, self.plan.scenario.cost, self.by_k or [self.lives]
        plans = plan.plans() if self.by_k else None
        if plan.reaches and self.by_k:
            k = self.lives.rules.k
            plans = WithinReach(plans or ByBatchSize([k] * (1 + plan.config.max_num_seqs)), k)
        members = None if self._members is None else self._members.of_lane(lane)
        log = Log(self.lives.rules.packing)
        books = Books(self.lives, self.ledger, lane, log, members)
        if self.by_k and members is not None:
            books = TermBooks(by_k, lane, log, members)
        elif plan.drafting is not None:
            books = OwnBooks(self.lives, self.ledger, lane, log, plan.drafting)
        waiting, ends = self._line(inbox, arrived_s), Ends(watch, stops, runs_ahead)
        made = lane_of(plan.config, cost, by_k, waiting, books, ends, replica, plans, self._kinds)
        if self._kinds is not USUAL:
            return made
        if self._prompts is not None:
            made.crowd.kv = SharedKV(made.crowd, self._prompts)
        elif plan.config.enable_prefix_caching and self._may_throw_out and not self.by_k:
            made.crowd.kv = PrivateKV(made.crowd)
        elif members is not None and not plan.reaches:
            policy = plans.policy if isinstance(plans, Learner) else plan.make_policy()
            made.stepper = Stepper(made.crowd, cost, replica, self._request, plans, policy, members)
        return made

    def _line(self, inbox: array[int] | range, arrived_s: array[float]) -> WaitingLine:
        """Returns a queue; raises `Unsuited` for priorities where KV comes from elsewhere."""
        if self.plan.config.policy == "fcfs":
            return self._kinds.line(inbox, arrived_s)
        if self._kinds is not USUAL:
            raise Unsuited(RANKED)
        return PriorityLine(inbox, arrived_s, self.plan.table.priority[self.lives.order])

    def _request(self, place: int) -> Request:
        return self._maker.request(int(self.lives.order[place]))


def lane_of(
    config: EngineConfig,
    cost: StepCost,
    by_k: list[Trajectories],
    waiting: WaitingLine,
    books: Books,
    ends: Ends,
    replica: int,
    plans: Plans | None = None,
    kinds: LaneKinds = USUAL,
) -> Lane:
    """Puts a lane together whose blocks are only counted.

    Args:
        config: of the engine.
        cost: prices a step.
        by_k: the requests' lives by K; one entry where K never changes.
        waiting, books, ends: of the engine.
        replica: its number in the cluster.
        plans: K by batch size and queue; None is always K.
        kinds: what it is put together of.
    """
    lives = by_k[-1]
    speculative = config.speculative
    learns = (plans is not None and plans.learns) or (
        speculative is not None and speculative.reroll_on_reject
    )
    calendar = Calendar(lives.rules, lives.longest_row, learns, lives.drafting, lives.keeps_footprints)
    crowd = kinds.crowd(config, DrawnLives(by_k), calendar, waiting, books, ends)
    crowd.kv = kinds.kv(crowd)
    return kinds.lane(cost, crowd, plans, replica)
