"""Client and router of requests that are forgotten, portion after portion."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.slots import Requests
from specfleet.sim.cluster import OpenArrivals
from specfleet.sim.metrics.summary import Summary
from specfleet.sim.recorder import REJECTED
from specfleet.sim.router import Router
from specfleet.workloads.requests import RequestTable


class Senders:
    """The client and the router: who is sent when, who is refused, and who goes where.

    Args:
        plan: the run.
        summary: takes in those refused.
        refuses: they are this one's to count; a fleet in shares has one that does.

    Attributes:
        refusals: reasons with their counts.
    """

    def __init__(self, plan: CalendarRun, summary: Summary, refuses: bool = True) -> None:
        self._plan, self._summary, self._refuses = plan, summary, refuses
        self.refusals: dict[str, int] = {}
        self._loop = OpenArrivals(plan.scenario, plan.seed)
        self._sent = 0
        self._begun = False

    @property
    def router(self) -> Router:
        """The router."""
        return self._loop.router

    def replicas(self, requests: Requests) -> npt.NDArray[np.int64]:
        """Returns the replica of each of successive requests, of a router that asks nobody."""
        return self._loop.replicas(requests["row"])

    def send(self, table: RequestTable) -> Requests:
        """Returns the columns of successive requests that are served."""
        scenario, n = self._plan.scenario, len(table)
        here = CalendarRun(scenario, table, self._plan.seed, None)
        sent_s, arrived_s = self._loop.times(table.arrival_s)
        rows = np.arange(self._sent, self._sent + n)
        names = ("prompt_tokens", "output_tokens", "max_tokens", "class_id", "temperature")
        columns = {name: getattr(table, name) for name in names}
        luck = rows if table.luck_id is None else table.luck_id
        columns |= {"row": rows, "luck_id": luck, "sent_s": sent_s, "arrived_s": arrived_s}
        self._sent += n
        warmups = scenario.load.num_warmups
        if not self._begun and (rows[here.served] >= warmups).any():
            self._summary.begin(float(sent_s[here.served][rows[here.served] >= warmups][0]))
            self._begun = True
        if len(here.refused) and self._refuses:
            self._refuse({name: column[here.refused] for name, column in columns.items()})
            for reason, count in here.refusals().items():
                self.refusals[reason] = self.refusals.get(reason, 0) + count
        return {name: column[here.served] for name, column in columns.items()}

    def _refuse(self, columns: Requests) -> None:
        n, none = len(columns["row"]), np.zeros(len(columns["row"]), dtype=np.int64)
        columns = {**columns, "request_id": columns["row"]}
        names = (
            "cached_tokens",
            "draft_tokens",
            "preemptions",
            "verifications",
            "accepted_tokens",
            "replica",
        )
        times = ("admitted_s", "first_token_s", "finished_s", "first_chunk_s", "last_chunk_s")
        counted = columns["row"] >= self._plan.scenario.load.num_warmups
        self._summary.add_requests(
            {**columns, "counted": counted, "status": np.full(n, REJECTED)}
            | dict.fromkeys(names, none)
            | dict.fromkeys(times, np.full(n, np.nan))
        )
