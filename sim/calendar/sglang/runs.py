"""A run under SGLang's rules on the calendar: what `on_the_calendar` is for vLLM's."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.books.ledger import Ledger
from specfleet.sim.calendar.harvest import by_end
from specfleet.sim.calendar.luck import F64, I64
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.plans import ByBatchSize
from specfleet.sim.calendar.sglang.columns import SglangColumns
from specfleet.sim.calendar.sglang.counted import CountedLane
from specfleet.sim.calendar.sglang.ends import SglangEnds
from specfleet.sim.calendar.sglang.kv import Count, Shared
from specfleet.sim.calendar.sglang.lane import SglangLane
from specfleet.sim.calendar.sglang.line import AsTheyCame, SglangLine, Sorted
from specfleet.sim.calendar.sglang.lives import SglangPacking, SglangTrajectories
from specfleet.sim.calendar.sglang.planned import PlannedLane, PlannedTrajectories
from specfleet.sim.calendar.sglang.retraction import Retracts
from specfleet.sim.calendar.trajectories import LifeBatch
from specfleet.sim.clients import Answer
from specfleet.sim.cluster import Cluster
from specfleet.sim.errors import Unsuited
from specfleet.sim.recorder import FINISHED, REJECTED, REQUEST_COUNTS, REQUEST_TIMES, Columns
from specfleet.sim.scenario import Ran
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules
from specfleet.workloads.requests import RequestTable


class SglangFleet:
    """What lanes share: the lives of their requests, and the counts of their rounds.

    Args:
        run: that is about to begin.
        rows: their requests; a place is an index into it.
        lanes: how many.
        retracts: lanes keep what is needed where prompts share prefixes or requests are retracted.
    """

    def __init__(self, run: CalendarRun, rows: I64, lanes: int = 1, retracts: bool = False) -> None:
        self.run = run
        sglang = run.config.sglang
        assert sglang is not None
        self.retracts = retracts or run.shared or sglang.enable_priority_scheduling
        self.rules = SglangRules.of(run.config)
        packing = SglangPacking.of(self.rules, run.shared)
        if packing is None:
            raise Unsuited("counts that do not fit in one integer")
        self.planned = run.policy is not None
        make = PlannedTrajectories if self.planned else SglangTrajectories
        self.lives = make(outputs_cut(run.table, self.rules), rows, self.rules, packing, run.luck)
        self.lives.misses, self.lives.window = run.verifies_in_vain, run.sglang_window
        self.ledger: Ledger | None = None
        self._gains: list[npt.NDArray[np.uint8]] = []
        self._begins = np.zeros(len(rows), dtype=np.int64)
        self._length = 0
        if self.rules.num_speculative_tokens and not self.planned:
            warmups, most = run.scenario.load.num_warmups, self.rules.max_running_requests
            self.ledger = Ledger(self.lives, self.rules.num_speculative_tokens, warmups, lanes, most)
            self.lives.book = self._book

    def _book(self, block: LifeBatch) -> None:
        """Counts the rounds of a block, and keeps what each of them gives."""
        assert self.ledger is not None
        assert block.gains is not None
        self.ledger.book(block)
        some = block.rounds_column > 0
        kept = block.gains.copy()
        kept[block.starts[some] + block.rounds_column[some] - 1] = block.kept[some]
        self._begins[block.first_place : block.first_place + len(block.starts)] = block.starts + self._length
        self._gains.append(kept)
        self._length += len(kept)

    def gains(self) -> tuple[npt.NDArray[np.uint8], I64] | None:
        """Returns the tokens that each round kept, and where those of each place begin."""
        if self.ledger is None:
            return None
        return np.concatenate([*self._gains, np.zeros(0, dtype=np.uint8)]), self._begins

    def lane(
        self, inbox: array[int] | range, arrived_s: array[float], replica: int, ends: SglangEnds | None
    ) -> SglangLane:
        """Returns a lane; arguments as in `sim.calendar.fleet.Fleet.lane`."""
        config, sglang = self.run.config, self.run.config.sglang
        assert sglang is not None
        kv: Count | Shared
        waiting: SglangLine
        # without a tree, outputs that are known are looked at one by one
        known_lengths = sglang.ignore_eos and not config.enable_prefix_caching
        if self.retracts:
            layout = self.lives.layout if self.run.shared else None
            kv = Shared(self.rules, config.enable_prefix_caching, config.uses_eagle, layout)
            waiting = Sorted(inbox, arrived_s, self.lives, self.run.table, sglang, kv)
        else:
            kv = Count(self.rules, config.enable_prefix_caching)
            waiting = AsTheyCame(inbox, arrived_s, self.lives, sglang.ignore_eos)
        if self.planned and (self.retracts or known_lengths):
            raise Unsuited("SGLang's scheduler under a draft policy, where requests are looked at one by one")
        ratio = NewTokenRatio.of(sglang.schedule_conservativeness)
        cost, lives = self.run.scenario.cost, self.lives
        if isinstance(kv, Count) and isinstance(waiting, AsTheyCame) and not known_lengths:
            if self.planned:
                plans = self.run.plans()
                assert isinstance(plans, ByBatchSize) and isinstance(lives, PlannedTrajectories)
                given = self.rules, ratio, cost, lives, waiting, kv, sglang.ignore_eos, ends, replica
                return PlannedLane(*given, plans)
            return CountedLane(self.rules, ratio, cost, lives, waiting, kv, sglang.ignore_eos, ends, replica)
        eos, displaces = sglang.ignore_eos, sglang if sglang.preempts else None
        return SglangLane(self.rules, ratio, cost, self.lives, waiting, kv, eos, displaces, ends, replica)


def outputs_cut(table: RequestTable, rules: SglangRules) -> RequestTable:
    """Returns the requests with their outputs as SGLang lets them be."""
    most = rules.max_new_tokens_each(table.prompt_tokens, table.max_tokens)
    output = np.maximum(np.minimum(table.output_tokens, most), 1)
    return replace(table, max_tokens=most, output_tokens=output)


class SglangServer:
    """A lane in a replica.

    Args:
        lane: the engine.
        places: index of each row among its requests.
    """

    def __init__(self, lane: SglangLane, ends: SglangEnds, places: list[int]) -> None:
        self.lane, self._ends, self._places = lane, ends, places
        self.walk = lane.run()
        next(self.walk)

    def submit(self, row: int, now: float) -> None:
        """Puts a request into the lane's inbox at `now`."""
        self.lane.submit(self._places[row], now)

    def advance(self, now: float, until: float) -> float:
        """Takes every turn before `until`, or until somebody has ended whom others wait for."""
        return self.walk.send(until)

    def answers(self) -> Iterator[Answer]:
        """Yields who has ended since the last call."""
        lane, ended = self.lane, self._ends.ended
        self._ends.ended = []
        if not ended:
            return
        for place, first, first_rank, last_rank in ended:
            first_s = lane.times[3 * first + 1]
            yield Answer(int(lane.lives.order[place]), first_s, first_rank, self._ends.turn_s, last_rank)


class SglangLanes:
    """The lanes of all replicas on the cluster's clock, which share their requests."""

    def __init__(self, run: CalendarRun, retracts: bool = False) -> None:
        replicas = run.scenario.deployment.replicas
        self.run, self.fleet = run, SglangFleet(run, run.served, replicas, retracts)
        place_of = np.full(len(run.table), -1)
        place_of[run.served] = np.arange(len(run.served))
        self._places: list[int] = place_of.tolist()
        self.arrived_s = np.full(len(run.table), np.nan)
        self.servers = []
        for replica in range(replicas):
            ends = SglangEnds(run.scenario.client.chunk_s != 0.0)
            lane = self.fleet.lane(array("q"), array("d"), replica, ends)
            self.servers.append(SglangServer(lane, ends, self._places))

    def accepts(self, row: int, now: float) -> bool:
        """Whether a request that arrives at `now` can be served."""
        self.arrived_s[row] = now
        return self._places[row] >= 0

    def assign(self, row: int, replica: int) -> None:
        """Notes which replica a request goes to."""
        if self.fleet.ledger is not None:
            self.fleet.ledger.lane_of[self._places[row]] = replica

    def send_away(self, row: int) -> None:
        """Notes that a request which might have come has gone to another pool, or nowhere."""
        self.fleet.lives.send_away(self._places[row])

    def ran(self, sent_s: F64) -> Ran:
        """Returns what the lanes did; `sent_s` is when each request was sent."""
        harvest = SglangHarvest(self.run, sent_s, self.arrived_s)
        harvest.add(self.fleet, [server.lane for server in self.servers])
        return harvest.ran()


class SglangHarvest:
    """Fills the columns of a run lane by lane."""

    def __init__(self, run: CalendarRun, sent_s: F64, arrived_s: F64) -> None:
        n = len(run.table)
        self.run = run
        self.columns: Columns = {name: np.full(n, np.nan) for name in REQUEST_TIMES}
        self.columns |= {name: np.zeros(n, dtype=np.int64) for name in REQUEST_COUNTS}
        self.columns |= {"sent_s": sent_s, "arrived_s": arrived_s}
        self.columns["status"][:] = FINISHED
        self.columns["status"][run.refused] = REJECTED
        self._counted = np.arange(n) >= run.scenario.load.num_warmups
        self._iterations: list[Columns] = []
        self._gaps: list[Columns] = []
        self._rounds = np.zeros(run.config.num_speculative_tokens + 2, dtype=np.int64)

    def add(self, fleet: SglangFleet, lanes: list[SglangLane]) -> None:
        """Takes in lanes that share a fleet."""
        fleet.lives.settle()
        gains, order = fleet.gains(), fleet.lives.order
        cut = outputs_cut(self.run.table, fleet.rules)
        self.columns["output_tokens"][order] = cut.output_tokens[order]
        for index, lane in enumerate(lanes):
            part = SglangColumns(lane, index, fleet.ledger, self._counted[order], gains)
            self._iterations.append(part.iterations())
            self._gaps.append(part.odd_gaps())
            rows = order[part.place]
            for name, values in part.requests():
                self.columns[name][rows] = values
            self.columns["replica"][rows] = lane.replica
            self._rounds[1] -= part.missed[self._counted[rows]].sum()
            self._add_chunks(part, rows)
            if part.rounds is not None:
                self._rounds += part.rounds.accepted(part.counted, len(self._rounds))
        if fleet.ledger is not None:
            self._rounds += fleet.ledger.accepted

    def _add_chunks(self, part: SglangColumns, rows: I64) -> None:
        """Fills in when the client has had each request's first and last chunk."""
        client, columns = self.run.scenario.client, self.columns
        first, last = columns["first_token_s"][rows], columns["finished_s"][rows]
        if client.chunk_s or client.receive_s:
            first, last = first + client.receive_s, last + client.receive_s
        if client.chunk_s:
            first_rank, last_rank = part.ranks()
            first = first + client.chunk_s * first_rank
            last = np.maximum(last + client.chunk_s * last_rank, first)
        columns["first_chunk_s"][rows], columns["last_chunk_s"][rows] = first, last

    def ran(self) -> Ran:
        """Returns everything."""
        return Ran(
            self.columns,
            by_end(self._iterations),
            by_end(self._gaps),
            tuple(self._rounds[1:].tolist()),
            self.run.refusals(),
        )


def sglang_on_the_calendar(run: CalendarRun) -> Ran:
    """Runs a scenario whose engines are SGLang's on the cluster's clock.

    Raises:
        Unsuited: it has to be stepped, and why.
    """
    try:
        return _clocked(run, retracts=False)
    except Retracts:
        return _clocked(run, retracts=True)


def _clocked(run: CalendarRun, retracts: bool) -> Ran:
    """Runs the lanes of all replicas on the cluster's clock; `retracts` as `SglangFleet`."""
    lanes = SglangLanes(run, retracts)
    cluster = Cluster(run.scenario, run.table, run.seed, lanes)
    cluster.run()
    return lanes.ran(cluster.client.times()["sent_s"])


def sglang_apart(run: CalendarRun, times: tuple[F64, F64], chosen: I64 | None) -> Ran:
    """Runs each replica alone; arguments as `apart` of `sim.calendar.runs`."""
    sent_s, arrived_s = times
    harvest = SglangHarvest(run, sent_s, arrived_s)
    for replica in range(run.scenario.deployment.replicas):
        rows = run.served if chosen is None else run.served[chosen == replica]
        if not len(rows):
            continue
        due = array("d")
        due.frombytes(np.ascontiguousarray(arrived_s[rows]).data.cast("B"))
        try:
            fleet, lane = _alone(run, rows, due, replica, retracts=False)
        except Retracts:
            fleet, lane = _alone(run, rows, due, replica, retracts=True)
        harvest.add(fleet, [lane])
    return harvest.ran()


def _alone(
    run: CalendarRun, rows: I64, due: array[float], replica: int, retracts: bool
) -> tuple[SglangFleet, SglangLane]:
    """Runs one replica; `retracts` as `SglangFleet`."""
    fleet = SglangFleet(run, rows, retracts=retracts)
    lane = fleet.lane(range(len(rows)), due, replica, None)
    walk = lane.run()
    next(walk)
    with suppress(StopIteration):
        walk.send(inf)
    return fleet, lane
