"""From lanes to the columns of a run whose clients give up: a row an attempt, the last of which is its
request's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specfleet.sim.attempts import ATTEMPT_COUNTS, ATTEMPT_TIMES, SUMMED
from specfleet.sim.calendar.columns import Places
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.harvest import Harvest, by_end
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.luck import F64, I64
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.rows.lane import RowLane
from specfleet.sim.fleet.tries import Sums, Tries, nothing_summed
from specfleet.sim.recorder import GAVE_UP, REJECTED, REQUEST_COUNTS, REQUEST_TIMES, Columns, Recorder
from specfleet.sim.scenario import Ran


class EndedAttempt(NamedTuple):
    """An attempt that is not its request's last, or that was let go.

    Attributes:
        place: of the attempt.
        again: it is not the last.
        left_s: when its engine let it go; None: it had ended.
    """

    place: int
    again: bool
    left_s: float | None


class History:
    """Attempts that are over, in order of time.

    Args:
        order: the row of each place.
        sums: as `Tries` shares them between pools.

    Attributes:
        past: the attempts.
    """

    def __init__(self, order: I64, sums: Sums) -> None:
        self._order, self.sums = order, sums
        self.past: list[EndedAttempt] = []

    def note(self, place: int, again: bool, left_s: float | None) -> None:
        """Notes one, as `EndedAttempt`."""
        self.past.append(EndedAttempt(place, again, left_s))
        if again:
            self.sums.setdefault(int(self._order[place]), nothing_summed())


class AttemptHarvest(Harvest):
    """Fills the columns of attempts lane by lane.

    Args:
        plan: what was run.
        rules: of its engines.
        order: the row of each place; an attempt has a place.
        arrived_s, replica: of each place.
    """

    def __init__(
        self, plan: CalendarRun, rules: Footprints, order: I64, arrived_s: F64, replica: npt.NDArray[Any]
    ) -> None:
        super().__init__(plan, rules, arrived_s, arrived_s)
        self._order, self._size = order, len(order)
        times = dict.fromkeys(REQUEST_TIMES, np.float64)
        kinds = {**times, **dict.fromkeys(REQUEST_COUNTS, np.int64)}
        self.columns = {name: np.zeros(len(order), dtype=kind) for name, kind in kinds.items()}
        for name in REQUEST_TIMES:
            self.columns[name][:] = np.nan
        for name in ("first_iteration", "last_iteration"):
            self.columns[name][:] = -1
        self.columns |= {"arrived_s": arrived_s, "replica": replica}
        self.columns["output_tokens"][:] = plan.table.output_tokens[order]

    def _rows_of(self, lane: Lane | RowLane, places: Places) -> Places:
        return places

    def _fill(self, name: str, rows: Places, values: npt.NDArray[Any]) -> None:
        self.columns[name][rows] = values

    def _add_chunks(self, part: Any, rows: Places) -> None:
        """The client itself knows when it had chunks."""

    def ran(self) -> Ran:
        """As `Harvest.ran`; of no request yet."""
        if not self._iterations:
            nobody = Recorder(0, self.plan.config.num_speculative_tokens + 1)
            self._iterations, self._gaps = [nobody.iterations()], [nobody.odd_gaps()]
        iterations = by_end(self._iterations)
        return Ran(
            {},
            iterations,
            by_end(self._gaps),
            tuple(self._rounds[1:].tolist()),
            self.plan.refusals(),
            steps_without_drafter=self._without_drafter,
            stepped_share=self._stepped / max(len(iterations["end_s"]), 1),
        )

    def let_go(self, past: Sequence[EndedAttempt]) -> None:
        """Says of attempts that were let go what they had come to by then."""
        columns = self.columns
        left = [(place, left_s) for place, _, left_s in past if left_s is not None]
        places = np.array([place for place, _ in left], dtype=np.int64)
        columns["finished_s"][places] = [left_s for _, left_s in left]
        columns["status"][places] = GAVE_UP
        tokens = columns["chunks"][places] + columns["accepted_tokens"][places]
        columns["output_tokens"][places] = tokens
        silent = places[columns["chunks"][places] == 0]
        columns["first_token_s"][silent] = np.nan
        for name in ("first_iteration", "last_iteration"):
            columns[name][silent] = -1
        for name in ("verifications", "draft_tokens", "accepted_tokens"):
            columns[name][silent] = 0

    def by_request(self, history: History, current: I64, refused_s: F64) -> tuple[Columns, Tries]:
        """Returns the columns of requests, each as its last attempt was, and the attempts before.

        Args:
            history: of all attempts.
            current: the place of each row's last attempt here, -1 of rows without any.
            refused_s: when refused rows arrived.
        """
        plan, columns = self.plan, self.columns
        recorder = Recorder(len(plan.table), 1)
        requests = recorder.requests()
        tries = Tries(recorder, plan.table, plan.scenario.load.num_warmups, history.sums)
        begun = np.flatnonzero(current >= 0)
        requests["replica"][begun] = columns["replica"][current[begun]]
        names = [name for name in (*ATTEMPT_TIMES, *ATTEMPT_COUNTS) if name in columns]
        gone = [entry for entry in history.past if entry.again]
        for place, _, left_s in gone:
            row = int(self._order[place])
            known = {name: columns[name][place].item() for name in names}
            if left_s is None:  # as `Tries.too_late`
                nothing = dict.fromkeys((*SUMMED, "output_tokens", "status"), 0)
                replica = requests["replica"][row]
                recorder.request(row, **(known | nothing | {"finished_s": np.nan, "replica": replica}))
            mine = {"request_id": row, "prompt_tokens": int(plan.table.prompt_tokens[row])}
            tries.add(known | mine | {"counted": row >= plan.scenario.load.num_warmups})
        last = begun[~np.isin(current[begun], [place for place, _, _ in gone])]
        for name in (*REQUEST_TIMES, *REQUEST_COUNTS):
            requests[name][last] = columns[name][current[last]]
        requests["status"][plan.refused] = REJECTED
        requests["arrived_s"][plan.refused] = refused_s[plan.refused]
        return requests, tries
