"""Gathers the columns of a run from its lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.recorder import FINISHED, REJECTED, REQUEST_COUNTS, REQUEST_TIMES, Columns
from sim.timeline_columns import LaneColumns
from sim.timeline_lane import Lane
from sim.timeline_ledger import Ledger
from sim.timeline_luck import F64, I64
from sim.timeline_trajectories import Rules

if TYPE_CHECKING:
    from sim.timeline_plan import Plan


@dataclass(frozen=True)
class Ran:
    """What a run leaves behind: the fields of `RunResult` of the same names."""

    requests: Columns
    iterations: Columns
    odd_gaps: Columns
    rounds_by_accepted: tuple[int, ...]
    refusals: Mapping[str, int]
    steps_without_drafter: int = 0
    stepped_share: float = 0.0


class Harvest:
    """Fills the request columns lane by lane, and merges iterations in order of time.

    Args:
        plan: what was run.
        rules: of its engines.
        sent_s, arrived_s: of every request, on the client's and the cluster's clock.
    """

    def __init__(self, plan: Plan, rules: Rules, sent_s: F64, arrived_s: F64) -> None:
        self.plan = plan
        table = plan.table
        n = len(table)
        self.columns: Columns = {name: np.full(n, np.nan) for name in REQUEST_TIMES}
        self.columns |= {name: np.zeros(n, dtype=np.int32) for name in REQUEST_COUNTS}
        self.columns["sent_s"], self.columns["arrived_s"] = sent_s, arrived_s
        self.columns["status"][plan.served], self.columns["status"][plan.refused] = FINISHED, REJECTED
        self.columns["output_tokens"][plan.served] = table.output_tokens[plan.served]
        self._counted = np.arange(n) >= plan.scenario.load.num_warmups
        self._rounds = np.zeros(rules.k + 2, dtype=np.int64)
        self._parts: list[LaneColumns] = []

    def add(self, lane: Lane, places: I64) -> None:
        """Takes in a lane's requests: `places` in order of arrival."""
        lane.finish()
        rows = lane.lives.order[places]
        part = LaneColumns(lane, places, self._counted[lane.lives.order])
        self._parts.append(part)
        for name, values in part.requests().items():
            self.columns[name][rows] = values
        self.columns["replica"][rows] = lane.replica
        client = self.plan.scenario.client
        none = np.zeros(len(rows), dtype=np.int64)
        first, last = part.chunk_ranks() if client.chunk_s else (none, none)
        sights = (("first_chunk_s", "first_token_s", first), ("last_chunk_s", "finished_s", last))
        for name, engine, rank in sights:
            self.columns[name][rows] = self.columns[engine][rows] + client.receive_s + client.chunk_s * rank

    def add_rounds(self, ledger: Ledger | None) -> None:
        """Takes in the rounds that were counted."""
        if ledger is not None:
            self._rounds += ledger.accepted

    def ran(self) -> Ran:
        """Returns everything."""
        iterations = [part.iterations() for part in self._parts]
        gaps = [part.odd_gaps() for part in self._parts]
        return Ran(
            self.columns,
            _by_end(iterations),
            _by_end(gaps),
            tuple(self._rounds[1:].tolist()),
            self.plan.refusals(),
        )


def _by_end(tables: list[Columns]) -> Columns:
    if len(tables) == 1:
        return tables[0]
    order = np.argsort(np.concatenate([table["end_s"] for table in tables]), kind="stable")
    return {name: np.concatenate([table[name] for table in tables])[order] for name in tables[0]}
