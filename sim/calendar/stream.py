"""One lane whose requests are forgotten as they end: what it did goes into a `Summary`, window by window.

A request is *over* when its last chunk has left the engine and every earlier request's has, too; an
iteration is over when nobody who took part in it can still be thrown out. What is over is handed on and
dropped, so that memory goes with the requests present and the length of the longest, not with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Any

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
from specfleet.sim.calendar.slots import COLUMNS, Home, Queue, Requests, SlotLives, Slots
from specfleet.sim.calendar.trajectories import BLOCK, NOT_YET
from specfleet.sim.calendar.waiting import WaitingLine
from specfleet.sim.calendar.window import Window
from specfleet.sim.metrics.summary import Summary
from specfleet.sim.recorder import FINISHED, Columns

IN_FLIGHT = 4
"""Iterations back from the last in which a request may still be thrown out, its last chunk on its way."""
Watcher = Callable[[Columns], None]
"""Is shown the iterations that are over (columns as `RunResult.iterations`)."""


class Stream:
    """A lane fed portion by portion.

    Args:
        plan: the run, its longest requests in place of all.
        rules: of the engine.
        never_short: nobody is ever preempted.
        replica: its number.
        capacity: most requests waiting and running.
        summary: takes in what is over.
        watch: is shown iterations; None is nobody.
    """

    def __init__(
        self,
        plan: CalendarRun,
        rules: Footprints,
        never_short: bool,
        replica: int,
        capacity: int,
        summary: Summary,
        watch: Watcher | None = None,
    ) -> None:
        self.plan, self.rules, self.summary, self.replica = plan, rules, summary, replica
        self._watch = watch
        self.slots = Slots(capacity)
        processes = () if plan.luck is None else plan.luck.processes
        self.lives = SlotLives(self.slots, plan.table, rules, plan.luck, processes, not never_short)
        config, warmups = plan.config, plan.scenario.load.num_warmups
        self.ledger = Ledger(self.lives, rules.k, warmups, 1, config.max_num_seqs) if rules.k else None
        self._inbox: Queue[int] = Queue()
        self._times: Queue[float] = Queue()
        waiting = WaitingLine(self._inbox, self._times)  # type: ignore[arg-type] # read by index and length alone
        books = Books(self.lives, self.ledger, 0, Log(rules.packing), None)
        cost, ends = plan.scenario.cost, Ends(None, False)
        self.lane = lane_of(config, cost, [self.lives], waiting, books, ends, replica)
        self._later_of: Queue[list[int]] = Queue()
        self.lane.log.stays = self._later_of  # type: ignore[assignment]
        self._walk = self.lane.run()
        next(self._walk)
        self._left: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in COLUMNS}
        self._until = self._sent_s = 0.0
        self._forgotten = 0
        self._begun = 0  # requests over, of the front block
        self._window = Window(rules.lag)
        self._chunk_times = ChunkTimes(plan.scenario.client, summary)
        self._change: I64 = np.zeros(1, dtype=np.int64)
        self._decoding = 0
        self._held: list[Home] = []

    def feed(self, requests: Requests, last: bool = False) -> None:
        """Takes requests in order of arrival; whole blocks go to the lane, the rest waits for more.

        Raises:
            Full: more are waiting and running than there is room for.
        """
        for name in COLUMNS:
            self._left[name].append(requests[name])
        if len(requests["sent_s"]):
            self._sent_s = float(requests["sent_s"][-1])
        count = sum(map(len, self._left["row"]))
        if count < BLOCK and not last:
            return
        columns = {name: np.concatenate(parts) for name, parts in self._left.items()}
        whole = count if last else count - count % BLOCK
        for low in range(0, whole, BLOCK):
            home = self.slots.take(columns, low)
            self.lives.begin(home, self._window.until)
            first = home.number * BLOCK
            self._inbox.extend(range(first, first + home.used))
        if whole:
            self._times.extend(columns["arrived_s"][:whole].tolist())
            self._until = float(columns["arrived_s"][whole - 1])
        self._left = {name: [column[whole:].copy()] for name, column in columns.items()}

    def run(self, last: bool = False) -> None:
        """Takes every turn before the last request fed arrives, or all, and hands on what is over.

        Raises:
            Unsuited: it met something that only `Engine` can do.
        """
        if last:
            with suppress(StopIteration):
                self._walk.send(inf)
        else:
            self._walk.send(self._until)
        seen = range(self._forgotten, self.lane.waiting.head)
        self._inbox.forget(seen)
        self._times.forget(seen)
        self._forgotten = self.lane.waiting.head
        self._window.take(self.lane.log)
        self.lives.settle()
        self._hand_on_requests(last)
        self._hand_on_iterations(last)

    @property
    def rounds_by_accepted(self) -> I64:
        """As in `RunResult`."""
        return np.zeros(1, dtype=np.int64) if self.ledger is None else self.ledger.accepted[1:]

    @property
    def quiet_until_s(self) -> float:
        """Time before which nothing more is to come from here."""
        before_s = self._window.before_s
        times = [before_s if before_s < inf else 0.0, self._sent_s]
        times += [float(part[0]) for part in self._left["sent_s"] if len(part)]
        if self.slots.homes:
            front = self.slots.homes[0].number * BLOCK + self._begun
            times.append(float(self.slots.columns["sent_s"][front]))
        times += [float(request.columns["sent_s"][0]) for request in self._chunk_times.waiting.values()]
        return min(times)

    def _hand_on_requests(self, last: bool) -> None:
        """Hands on the requests that are over, and gives their places back."""
        lives, totals, homes = self.lives, self.lane.log.totals, self.slots.homes
        parts = [np.zeros(0, dtype=np.int64)]
        for home in homes:
            low = home.number * BLOCK
            if not lives.is_settled(home.number) or lives.first[low] == NOT_YET:
                break
            parts.append(np.arange(low, low + home.used))
        places = np.concatenate(parts)[self._begun :]
        first = lives.first[places].astype(np.int64)
        finish = first + lives.rounds[places]
        for i in _known(places, totals):
            finish[i] = totals[int(places[i])][1]
        over = finish < self._window.until - (0 if last else IN_FLIGHT)
        outside = self.lane.crowd.thrown_out()
        if outside:
            over &= ~np.isin(places, outside)
        count = len(over) if over.all() else int(over.argmin())
        if count:
            self._hand_on(places[:count], first[:count], finish[:count])
        self._begun += count
        while homes and self._begun >= homes[0].used:
            self._begun -= homes[0].used
            self._held.append(homes.popleft())
        waiting = {place // BLOCK for place in self._chunk_times.waiting}
        for home in [home for home in self._held if home.number not in waiting]:
            self._held.remove(home)
            self.slots.release(home)

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
            self.ledger.forget(window.base)

    def _first_open(self) -> int:
        """Returns the first iteration that somebody who is not over has taken part in, or may."""
        lives, begun = self.lives, self._begun
        until = self._window.until - IN_FLIGHT
        for home in self.slots.homes:
            first = lives.first[home.number * BLOCK + begun : home.number * BLOCK + home.used]
            known = first[first != NOT_YET]
            until = min(until, int(known.min(initial=until)))
            if len(known) < len(first):
                break
            begun = 0
        return min([until, *self.lane.log.admitted.values()])

    def _gaps(self, over: int) -> npt.NDArray[np.integer]:
        """Returns the chunks that follow one of the iteration before, by tokens, in the first iterations."""
        if self.ledger is not None:
            return self.ledger.counts(0, over)[0].copy()
        missing = over - len(self._change)
        if missing > 0:
            self._change = np.concatenate([self._change, np.zeros(missing, dtype=np.int64)])
        change, self._change = self._change[:over].copy(), self._change[over:].copy()
        change[0] += self._decoding
        gaps = np.zeros((over, 2), dtype=np.int64)
        np.cumsum(change, out=gaps[:, 1])
        self._decoding = int(gaps[-1, 1])
        return gaps


def _known(places: I64, noted: Mapping[int, object]) -> list[int]:
    """Returns where places are that something is noted of."""
    if not noted:
        return []
    return np.flatnonzero(np.isin(places, np.fromiter(noted, np.int64, len(noted)))).tolist()
