"""Composition root: puts client, router and replicas together and runs them to the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specfleet.sim.calendar import runs
from specfleet.sim.calendar.kv.interface import Unsuited
from specfleet.sim.clients import Client
from specfleet.sim.engine import Engine, Request
from specfleet.sim.environment import Environment
from specfleet.sim.errors import Stall
from specfleet.sim.recorder import FINISHED, REJECTED, Recorder
from specfleet.sim.replica import Replica
from specfleet.sim.requests import RequestMaker
from specfleet.sim.router import ROUTERS
from specfleet.sim.scenario import Ran, RunResult, Scenario
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.policies import make_policy
from specfleet.workloads.requests import RequestTable

__all__ = ["ASKED_FOR", "Cluster", "RunResult", "Scenario", "simulate"]

ASKED_FOR = "stepping was asked for"
"""Why a run is stepped with `engine="step"`."""


class Cluster:
    """Client, router and replicas on one clock.

    Args:
        scenario: the configuration.
        table: the requests.
        seed: of the luck.
        lives: luck of the requests; None without speculation.
    """

    def __init__(self, scenario: Scenario, table: RequestTable, seed: int, lives: Lives | None) -> None:
        self.scenario = scenario
        self.table = table
        k = scenario.engine.num_speculative_tokens
        self.env = Environment()
        self.recorder = Recorder(len(table), k + 1)
        self.refusals: dict[str, int] = {}
        self.make = RequestMaker(table, lives, scenario.load.num_warmups, scenario.policy is not None)
        self.router = ROUTERS[scenario.deployment.router](seed)
        self.client = Client(
            self.env, table.arrival_s, scenario.client, scenario.load, self.recorder, self._arrive
        )
        self.replicas = [
            Replica(self.env, self._engine(index), self._ended)
            for index in range(scenario.deployment.replicas)
        ]

    def _engine(self, index: int) -> Engine:
        scenario = self.scenario
        k = scenario.engine.num_speculative_tokens
        policy = make_policy(scenario.policy, k, scenario.cost) if k else None
        return Engine(scenario.engine, scenario.cost, self.recorder, index, policy)

    def _arrive(self, row: int, now: float) -> None:
        """A request has reached the cluster: it is refused, or goes to a replica."""
        request = self.make.request(row)
        refusal = self.replicas[0].engine.refusal(request)
        if refusal is not None:
            self.refusals[refusal] = self.refusals.get(refusal, 0) + 1
            self.recorder.request(row, status=REJECTED, arrived_s=now)
            self.client.refused(now)
            return
        chosen = self.router.pick(row, self.replicas)
        self.recorder.request(row, replica=chosen)
        self.replicas[chosen].submit(request, now)

    def _ended(self, request: Request, place: int, now: float) -> None:
        """A request has ended: notes its row and tells the client."""
        self.recorder.request(
            request.id,
            status=FINISHED,
            arrived_s=request.arrived_s,
            admitted_s=request.admitted_s,
            first_token_s=request.first_token_s,
            finished_s=now,
            output_tokens=request.num_output_tokens,
            cached_tokens=request.cached_tokens,
            chunks=request.chunks,
            first_iteration=request.first_iteration,
            last_iteration=request.last_iteration,
            verifications=request.verifications,
            draft_tokens=request.draft_tokens,
            accepted_tokens=request.accepted_tokens,
            preemptions=request.num_preemptions,
        )
        self.client.answered(request, place, now)

    def run(self) -> None:
        """Runs to the end.

        Raises:
            Stall: nothing is due any more, but requests are left.
        """
        self.env.run()
        left = [replica.engine for replica in self.replicas if not replica.engine.idle]
        if left:
            states = "; ".join(f"replica {e.replica}: {len(e.scheduler)} requests inside" for e in left)
            raise Stall(f"nothing is due any more, but {states}")
        for replica in self.replicas:
            replica.engine.scheduler.check()

    def ran(self) -> Ran:
        """Returns what was recorded."""
        recorder = self.recorder
        return Ran(
            recorder.requests(),
            recorder.iterations(),
            recorder.odd_gaps(),
            tuple(recorder.rounds_by_accepted),
            self.refusals,
            steps_without_drafter=sum(r.engine.steps_without_drafter for r in self.replicas),
            stepped_share=1.0,
        )


def simulate(scenario: Scenario, table: RequestTable, seed: int, engine: str = "auto") -> RunResult:
    """Simulates `table` on `scenario` until every request has ended.

    Args:
        scenario: the configuration.
        table: the requests; its row numbers are their ids.
        seed: of acceptance luck and random routing.
        engine: `auto` walks a calendar (`sim.calendar`) where it applies and steps elsewhere, with the
            same result to the last bit; `step` always steps.

    Returns:
        Columns of requests and iterations.

    Raises:
        Stall: with a diagnosis, if the engine stands still with work left.
    """
    k = scenario.engine.num_speculative_tokens
    lives = Lives(scenario.acceptance, table, k, seed) if k and scenario.acceptance else None
    because, ran = ASKED_FOR, None
    if engine == "auto":
        try:
            ran = runs.run(scenario, table, seed, lives)
        except Unsuited as unsuited:
            because = str(unsuited)
    if ran is None:
        cluster = Cluster(scenario, table, seed, lives)
        cluster.run()
        ran = replace(cluster.ran(), stepped_because=because)
    n = len(table)
    requests = ran.requests | {
        "request_id": np.arange(n).astype(np.int32 if n < 1 << 31 else np.int64),
        "class_id": table.class_id,
        "prompt_tokens": table.prompt_tokens,
        "max_tokens": table.max_tokens,
        "counted": np.arange(n) >= scenario.load.num_warmups,
    }
    return RunResult(
        scenario=scenario,
        seed=seed,
        requests=requests,
        iterations=ran.iterations,
        odd_gaps=ran.odd_gaps,
        rounds_by_accepted=ran.rounds_by_accepted,
        refusals=ran.refusals,
        steps_without_drafter=ran.steps_without_drafter,
        stepped_share=ran.stepped_share,
        stepped_because=ran.stepped_because,
    )
