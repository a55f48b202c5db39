"""Lanes whose requests are forgotten as they end: what they did goes into a `Summary`, window by window.

A request is *over* when its last chunk has left the engine and every earlier request's has, too; an
iteration is over when nobody who took part in it can still be thrown out. What is over is handed on and
dropped, so that memory goes with the requests present and the length of the longest, not with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.books.books import Books
from specfleet.sim.calendar.books.ledger import Ledger
from specfleet.sim.calendar.books.log import Log
from specfleet.sim.calendar.chunk_times import ChunkTimes, Later
from specfleet.sim.calendar.columns import shapes_of
from specfleet.sim.calendar.ends import Ends
from specfleet.sim.calendar.fleet import lane_of
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.slots import Queue, SlotLives, Slots
from specfleet.sim.calendar.trajectories import NOT_YET
from specfleet.sim.calendar.waiting import WaitingLine
from specfleet.sim.calendar.window import Window
from specfleet.sim.metrics.summary import Summary
from specfleet.sim.recorder import FINISHED, Columns

IN_FLIGHT = 4
"""Iterations back from the last in which a request may still be thrown out, its last chunk on its way."""
Watcher = Callable[[Columns], None]
"""Is shown the iterations that are over (columns as `RunResult.iterations`)."""


@dataclass(frozen=True)
class Shelf:
    """What lanes share whose requests are forgotten.

    Attributes:
        plan: the run, its longest requests in place of all.
        rules: of the engines.
        summary: takes in what is over.
        slots, lives: the requests that are there, and their lives.
        ledger: counts rounds; None without speculation.
    """

    plan: CalendarRun
    rules: Footprints
    summary: Summary
    slots: Slots
    lives: SlotLives
    ledger: Ledger | None

    @classmethod
    def of(
        cls,
        plan: CalendarRun,
        rules: Footprints,
        never_short: bool,
        capacity: int,
        summary: Summary,
        lanes: int = 1,
    ) -> Shelf:
        """Returns an empty one.

        Args:
            plan, rules, summary: as above.
            never_short: nobody is ever preempted.
            capacity: most requests waiting and running.
            lanes: that share it.
        """
        slots = Slots(capacity)
        processes = () if plan.luck is None else plan.luck.processes
        lives = SlotLives(slots, plan.table, rules, plan.luck, processes, not never_short)
        config, warmups = plan.config, plan.scenario.load.num_warmups
        ledger = Ledger(lives, rules.k, warmups, lanes, config.max_num_seqs) if rules.k else None
        return cls(plan, rules, summary, slots, lives, ledger)

    @property
    def rounds_by_accepted(self) -> I64:
        """As in `RunResult`."""
        return np.zeros(1, dtype=np.int64) if self.ledger is None else self.ledger.accepted[1:]


class Stream:
    """A lane whose requests are forgotten.

    Args:
        shelf: what it may share with others.
        number: its own among those.
        replica: its number in the cluster.
        watch: is shown iterations; None is nobody.
        ends: who has to know of ends.

    Attributes:
        walk: the lane's iterations, as in `LaneServer`.
    """

    def __init__(self, shelf: Shelf, number: int, replica: int, watch: Watcher | None, ends: Ends) -> None:
        self.plan, self.rules, self.summary, self.replica = shelf.plan, shelf.rules, shelf.summary, replica
        self.slots, self.lives, self.ledger = shelf.slots, shelf.lives, shelf.ledger
        self._watch, self._number = watch, number
        self._inbox: Queue[int] = Queue()
        self._times: Queue[float] = Queue()
        waiting = WaitingLine(self._inbox, self._times)  # type: ignore[arg-type] # read by index and length alone
        books = Books(self.lives, self.ledger, number, Log(self.rules.packing), None)
        cost, plan = shelf.plan.scenario.cost, shelf.plan
        self.lane = lane_of(plan.config, cost, [self.lives], waiting, books, ends, replica)
        self._later_of: Queue[list[int]] = Queue()
        self.lane.log.stays = self._later_of  # type: ignore[assignment]
        self.walk = self.lane.run()
        next(self.walk)
        self._forgotten = 0
        self._here: I64 = np.zeros(0, dtype=np.int64)  # places that are not over, in order of arrival
        self._unranked: I64 = np.zeros(0, dtype=np.int64)
        self._window = Window(self.rules.lag)
        self._chunk_times = ChunkTimes(plan.scenario.client, self.summary)
        self._change: I64 = np.zeros(1, dtype=np.int64)
        self._decoding = 0

    def take(self, places: I64) -> None:
        """Learns whose places the requests of the inbox are, in order of arrival."""
        self._here = np.concatenate([self._here, places])

    def hand_on(self, last: bool = False) -> None:
        """Hands on what is over, and forgets it; `last`: every turn has been taken."""
        seen = range(self._forgotten, self.lane.waiting.head)
        self._inbox.forget(seen)
        self._times.forget(seen)
        self._forgotten = self.lane.waiting.head
        self._window.take(self.lane.log)
        self.lives.settle()
        self._hand_on_requests(last)
        self._hand_on_iterations(last)

    @property
    def quiet_until_s(self) -> float:
        """Time before which nothing more is to come from requests that are here."""
        before_s = self._window.before_s
        times = [before_s if before_s < inf else 0.0]
        if len(self._here):
            times.append(float(self.slots.columns["sent_s"][self._here[0]]))
        times += [float(request.columns["sent_s"][0]) for request in self._chunk_times.waiting.values()]
        return min(times)

    def _hand_on_requests(self, last: bool) -> None:
        """Hands on the requests that are over, and gives their places back."""
        lives, totals = self.lives, self.lane.log.totals
        places = self._here[: _leading(lives.is_settled_each(self._here))]
        first = lives.first[places].astype(np.int64)
        finish = first + lives.rounds[places]
        for i in _known(places, totals):
            finish[i] = totals[int(places[i])][1]
        over = finish < self._window.until - (0 if last else IN_FLIGHT)
        outside = self.lane.crowd.thrown_out()
        if outside:
            over &= ~np.isin(places, outside)
        count = _leading(over)
        if not count:
            return
        self._hand_on(places[:count], first[:count], finish[:count])
        self._unranked = np.concatenate([self._unranked, places[:count]])
        self._here = self._here[count:].copy()
        done = ~np.isin(self._unranked, list(self._chunk_times.waiting))
        self.slots.forget(self._unranked[done])
        self._unranked = self._unranked[~done]

    def _hand_on(self, places: I64, first: I64, finish: I64) -> None:
        """Hands on requests that are over, in order of arrival."""
        last, cut = first + self.lives.rounds[places], self.lane.log.cut
        for i in _known(places, cut):
            last[i] = first[i] + cut.pop(int(places[i]))
        columns, later = self._columns_of(places, first, finish), self._take_later(places)
        if self.ledger is None:
            self._note_decoding(columns["counted"], places, first, last, later)
        self._hand_on_gaps(places, columns["counted"])
        self._chunk_times.add(places, columns, first, last, later)
        for place in places.tolist() if self.lane.crowd.tracks else ():
            self.lane.books.forget(place)

    def _columns_of(self, places: I64, first: I64, finish: I64) -> Columns:
        """Returns the request columns, except when chunks reach the client."""
        log, slots, lives, window = self.lane.log, self.slots.columns, self.lives, self._window
        n, base = len(places), window.base
        admitted, preemptions = first.copy(), np.zeros(n, dtype=np.int64)
        rounds, accepted = lives.rounds[places].astype(np.int64), lives.accepted[places].astype(np.int64)
        for i in _known(places, log.admitted):
            admitted[i] = log.admitted.pop(int(places[i]))
        for i in _known(places, log.preemptions):
            preemptions[i] = log.preemptions.pop(int(places[i]))
        for i in _known(places, log.totals):
            rounds[i], accepted[i] = log.totals.pop(int(places[i]))[0][:2]
        if self.ledger is None:
            rounds[:] = accepted[:] = 0
        names = ("prompt_tokens", "output_tokens", "class_id", "sent_s", "arrived_s")
        return {name: slots[name][places] for name in names} | {
            "request_id": slots["row"][places],
            "counted": slots["row"][places] >= self.plan.scenario.load.num_warmups,
            "status": np.full(n, FINISHED),
            "replica": np.full(n, self.replica),
            "admitted_s": window.turn_s[admitted - base],
            "first_token_s": window.end_s[first - base],
            "finished_s": window.end_s[finish - base],
            "verifications": rounds,
            "accepted_tokens": accepted,
            "draft_tokens": rounds * self.rules.k,
            "preemptions": preemptions,
            "cached_tokens": np.zeros(n, dtype=np.int64),
        }

    def _take_later(self, places: I64) -> list[Later]:
        """Returns the stays after a preemption of requests that are over."""
        entries = self._later_of.items()
        mine = set(places.tolist()) if entries else set()
        found = [
            Later(newcomers, index, place, first, first + rounds)
            for index, (place, first, rounds, newcomers) in entries
            if place in mine
        ]
        self._later_of.forget([stay.index for stay in found])
        return found

    def _note_decoding(
        self, counted: npt.NDArray[np.bool_], places: I64, first: I64, last: I64, later: list[Later]
    ) -> None:
        """Notes from when to when chunks of counted requests follow one another (without drafts)."""
        mine = set(places[counted].tolist()) if later else set()
        more = [(stay.first, stay.last) for stay in later if stay.place in mine]
        stays = np.array(more, dtype=np.int64).reshape(-1, 2)
        base = self._window.base - 1  # a chunk follows another from the iteration after the first on
        missing = self._window.until - base + 1 - len(self._change)
        if missing > 0:
            self._change = np.concatenate([self._change, np.zeros(missing, dtype=np.int64)])
        np.add.at(self._change, np.concatenate([first[counted], stays[:, 0]]) - base, 1)
        np.subtract.at(self._change, np.concatenate([last[counted], stays[:, 1]]) - base, 1)

    def _hand_on_gaps(self, places: I64, counted: npt.NDArray[np.bool_]) -> None:
        """Hands on the pauses of more than one iteration of requests that are over."""
        log, window = self.lane.log.odd_gaps, self._window
        if not log:
            return
        rows = np.array(log, dtype=np.int64).reshape(-1, 3)
        mine = np.isin(rows[:, 2], places)
        del log[:]
        log.extend(rows[~mine].ravel().tolist())
        it, before, place = rows[mine].T
        end_s, order = window.end_s[it - window.base], np.argsort(places)
        self.summary.add_gaps(
            {
                "counted": counted[order][np.searchsorted(places[order], place)],
                "from_iteration": before,
                "end_s": end_s,
                "gap_s": end_s - window.end_s[before - window.base],
                "tokens": np.ones(len(it), dtype=np.int64),
            }
        )

    def _hand_on_iterations(self, last: bool) -> None:
        """Hands on the iterations that are over, and forgets them."""
        window, rules = self._window, self.rules
        over = (window.until if last else self._first_open()) - window.base
        if over <= 0:
            return
        before_s, gaps = window.before_s, self._gaps(over)
        log, start_s, end_s = window.pop(over)
        k, passes = (
            np.array(rules.k, dtype=np.int32),
            np.full(over, rules.scheduler.draft_passes, dtype=np.int32),
        )
        columns = shapes_of(log, rules, k, passes) | {"start_s": start_s, "end_s": end_s}
        columns |= {"gaps_by_tokens": gaps, "replica": np.full(over, self.replica)}
        self.summary.add_iterations(columns, self.replica, before_s)
        if self._watch is not None:
            self._watch(columns)
        if self.ledger is not None:
            self.ledger.forget(self._number, window.base)

    def _first_open(self) -> int:
        """Returns the first iteration that somebody who is not over has taken part in, or may."""
        first = self.lives.first[self._here]
        until, known = self._window.until - IN_FLIGHT, first[first != NOT_YET]
        until = min(until, int(known.min(initial=until)))
        return min([until, *self.lane.log.admitted.values()])

    def _gaps(self, over: int) -> npt.NDArray[np.integer]:
        """Returns the chunks that follow one of the iteration before, by tokens, in the first iterations."""
        if self.ledger is not None:
            return self.ledger.counts(self._number, over)[0].copy()
        missing = over - len(self._change)
        if missing > 0:
            self._change = np.concatenate([self._change, np.zeros(missing, dtype=np.int64)])
        change, self._change = self._change[:over].copy(), self._change[over:].copy()
        change[0] += self._decoding
        gaps = np.zeros((over, 2), dtype=np.int64)
        np.cumsum(change, out=gaps[:, 1])
        self._decoding = int(gaps[-1, 1])
        return gaps


def _leading(true: npt.NDArray[np.bool_]) -> int:
    """Returns how many are true before the first that is not."""
    return len(true) if true.all() else int(true.argmin())


def _known(places: I64, noted: Mapping[int, object]) -> list[int]:
    """Returns where places are that something is noted of."""
    if not noted:
        return []
    return np.flatnonzero(np.isin(places, np.fromiter(noted, np.int64, len(noted)))).tolist()
