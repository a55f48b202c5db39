"""Gathers the columns of a run from its lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.books.ledger import Ledger
from specfleet.sim.calendar.columns import LaneColumns, Places
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.luck import F64
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.rows.columns import RowColumns
from specfleet.sim.calendar.rows.lane import RowLane
from specfleet.sim.recorder import FINISHED, REJECTED, REQUEST_COUNTS, REQUEST_TIMES, Columns
from specfleet.sim.scenario import Ran


class Harvest:
    """Fills the request columns lane by lane, and merges iterations in order of time.

    Args:
        plan: what was run.
        rules: of its engines.
        sent_s, arrived_s: of every request, on the client's and the cluster's clock.
    """

    def __init__(self, plan: CalendarRun, rules: Footprints, sent_s: F64, arrived_s: F64) -> None:
        self.plan = plan
        table = plan.table
        n = len(table)
        self.columns: Columns = {"sent_s": sent_s, "arrived_s": arrived_s}
        status, output = np.full(n, FINISHED, dtype=np.int8), table.output_tokens
        if len(plan.refused):
            status[plan.refused], output = REJECTED, output.copy()
            output[plan.refused] = 0
        self.columns |= {"status": status, "output_tokens": output}
        self._size = n
        self._counted = np.arange(n) >= plan.scenario.load.num_warmups
        self._rounds = np.zeros(rules.k + 2, dtype=np.int64)
        self._stepped = self._without_drafter = 0
        self._iterations: list[Columns] = []
        self._gaps: list[Columns] = []

    def add(self, lane: Lane | RowLane, places: Places) -> None:
        """Takes in a lane's requests, `places` in order of arrival; its log is used up."""
        rows = self._rows_of(lane, places)
        part: LaneColumns | RowColumns
        if isinstance(lane, RowLane):
            part = RowColumns(lane, places)
            self._iterations.append(part.iterations())
            self._gaps.append(part.odd_gaps())
            self._rounds[1:] += lane.log.recorder.rounds_by_accepted
            self._add_requests(lane.replica, part, rows)
            return
        lane.finish()
        part = LaneColumns(lane, places, self._counted[lane.lives.order])
        self._iterations.append(part.iterations())
        self._gaps.append(part.odd_gaps())
        self._without_drafter += lane.books.steps_without_drafter()
        lane.log.forget_iterations()
        self._stepped += len(lane.log.stepped)
        if lane.recorder is not None:
            self._rounds[1:] += lane.recorder.rounds_by_accepted
        self._add_requests(lane.replica, part, rows)

    def _add_requests(self, replica: int, part: LaneColumns | RowColumns, rows: Places) -> None:
        for name, values in part.requests():
            self._fill(name, rows, values)
        if self.plan.scenario.deployment.replicas > 1:
            self._fill("replica", rows, np.array(replica, dtype=np.int32))
        self._add_chunks(part, rows)

    def _rows_of(self, lane: Lane | RowLane, places: Places) -> Places:
        """Returns where the columns have a lane's requests."""
        whole = isinstance(places, slice) and len(lane.lives.order) == self._size
        return places if whole else lane.lives.order[places]

    def _add_chunks(self, part: LaneColumns | RowColumns, rows: Places) -> None:
        """Fills in when the client has had each request's first and last chunk."""
        client, columns = self.plan.scenario.client, self.columns
        ranks = part.chunk_ranks() if client.chunk_s else None
        for name, engine in (("first_chunk_s", "first_token_s"), ("last_chunk_s", "finished_s")):
            if ranks is None and not client.receive_s:
                columns[name] = columns[engine]
                continue
            seen = columns[engine][rows] + client.receive_s
            if ranks is not None:
                seen += client.chunk_s * next(ranks)
                if name == "last_chunk_s":
                    seen = np.maximum(seen, columns["first_chunk_s"][rows])
            self._fill(name, rows, seen)

    def _fill(self, name: str, rows: Places, values: npt.NDArray[Any]) -> None:
        """Puts values into a column; values for all rows become the column."""
        if isinstance(rows, slice) and values.ndim:
            self.columns[name] = values
            return
        if name not in self.columns:
            times, n = name in REQUEST_TIMES, self._size
            self.columns[name] = np.full(n, np.nan) if times else np.zeros(n, dtype=np.int32)
        self.columns[name][rows] = values

    def add_rounds(self, ledger: Ledger | None) -> None:
        """Takes in the rounds that were counted."""
        if ledger is not None:
            self._rounds += ledger.accepted

    def ran(self) -> Ran:
        """Returns everything."""
        n = self._size
        nothing = {name: np.broadcast_to(np.nan, n) for name in REQUEST_TIMES}
        nothing |= {name: np.broadcast_to(np.int32(0), n) for name in REQUEST_COUNTS}
        iterations = by_end(self._iterations)
        return Ran(
            nothing | self.columns,
            iterations,
            by_end(self._gaps),
            tuple(self._rounds[1:].tolist()),
            self.plan.refusals(),
            steps_without_drafter=self._without_drafter,
            stepped_share=self._stepped / max(len(iterations["end_s"]), 1),
        )


def by_end(tables: list[Columns]) -> Columns:
    """Merges tables in order of `end_s`, column by column; they are used up."""
    if len(tables) == 1:
        return tables[0]
    order = np.argsort(np.concatenate([table["end_s"] for table in tables]), kind="stable")
    return {name: np.concatenate([table.pop(name) for table in tables])[order] for name in list(tables[0])}
