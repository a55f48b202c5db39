"""What the replicas of both roles run: engines that are stepped, and say what becomes of KV."""

from __future__ import annotations

from array import array
from dataclasses import replace
from math import nan
from typing import Any, NamedTuple, Protocol

import numpy as np

from specfleet.hardware.stepcost import StepCost, drafter_pass_s
from specfleet.sim.clients import Client
from specfleet.sim.columns.receiving import ReceivingCrowd
from specfleet.sim.config import EngineConfig
from specfleet.sim.engine import Engine, Flight
from specfleet.sim.recorder import Columns, Recorder
from specfleet.sim.scenario import Ran, Scenario
from specfleet.sim.scheduler import Scheduler
from specfleet.sim.speculation.policy import Policy
from specfleet.sim.stepped import Engines, EngineServer


class PromptPiece(NamedTuple):
    """A piece of a prompt that a step computes.

    Attributes:
        row: whose.
        computed: tokens of the prompt that are computed when the step has ended.
        start_s, end_s: of the step.
    """

    row: int
    computed: int
    start_s: float
    end_s: float


class PromptEngine(Engine):
    """An engine that says which pieces of prompts its steps compute, when these begin.

    Attributes:
        pieces: since the last time that somebody took them out.
    """

    def __init__(
        self, config: EngineConfig, cost: StepCost, recorder: Recorder, replica: int, policy: Policy | None
    ) -> None:
        super().__init__(config, cost, recorder, replica, policy)
        self.pieces: list[PromptPiece] = []

    def _start(self, flight: Flight, now: float) -> None:
        super()._start(flight, now)
        for sequence in flight.batch.tail.sequences:
            known = min(sequence.num_computed_tokens, sequence.prompt_tokens)
            self.pieces.append(PromptPiece(sequence.id, known, now, flight.end_s))


class RebuildingEngine(Engine):
    """An engine that decodes prompts of which the drafter has no KV: in the step that lets one in, the
    drafter computes it in one pass over the prompt, in pieces as long as a step may be."""

    def _start(self, flight: Flight, now: float) -> None:
        super()._start(flight, now)
        for sequence in flight.batch.new:
            if not sequence.num_preemptions:
                most = self.config.max_num_batched_tokens
                flight.end_s += drafter_pass_s(self.cost, most, sequence.prompt_tokens)


class Standstills:
    """When a replica stood still with requests inside: they waited for KV, or for KV to be taken.

    Attributes:
        times: start and end of each such time, seconds. waiting: the requests that waited.
    """

    def __init__(self) -> None:
        self.times = array("d")
        self.waiting = array("q")
        self._since = nan

    def begin(self, now: float, waiting: int) -> None:
        """From now on so many requests wait, and nothing runs."""
        if waiting:
            self._since = now
            self.waiting.append(waiting)

    def end(self, now: float) -> None:
        """A turn is taken."""
        if self._since == self._since:
            self.times.extend((self._since, now))
            self._since = nan

    def columns(self, replica: int) -> Columns:
        """Returns `replica`, `start_s`, `end_s`, `waiting`, a row each time."""
        times = np.array(self.times, dtype=np.float64).reshape(-1, 2)
        waiting = np.array(self.waiting, dtype=np.int64)
        return {
            "replica": np.full(len(waiting), replica),
            "start_s": times[:, 0],
            "end_s": times[:, 1],
            "waiting": waiting,
        }


def joined_standstills(each: list[Standstills]) -> Columns:
    """Returns the columns of replicas, in order of their numbers."""
    columns = [standing.columns(number) for number, standing in enumerate(each)]
    return {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}


class Takes(Protocol):
    """Who wants to know what becomes of KV."""

    def made(self, piece: PromptPiece) -> None:
        """A step has begun that computes a piece of a prompt."""
        ...

    def opened(self, row: int, now: float) -> None:
        """The decode replica has blocks for a prompt."""
        ...

    def given_up(self, row: int) -> None:
        """A prompt's KV has come and was given up again, for others to go on."""
        ...


class RoleServer(EngineServer):
    """An engine of either role; arguments as `EngineServer`.

    Attributes:
        standing: when it stood still.
        told: who wants to know what becomes of KV.
    """

    told: Takes

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.standing = Standstills()

    def advance(self, now: float, until: float) -> float:
        """As `EngineServer.advance`."""
        self.standing.end(now)
        due = super().advance(now, until)
        engine, scheduler = self.engine, self.scheduler
        if isinstance(engine, PromptEngine):
            for piece in engine.pieces:
                self.told.made(piece)
            engine.pieces.clear()
        if isinstance(scheduler.crowd, ReceivingCrowd):
            for row in scheduler.crowd.opened:
                self.told.opened(row, now)
            scheduler.crowd.opened.clear()
            for row in scheduler.crowd.given_up:
                self.told.given_up(row)
            scheduler.crowd.given_up.clear()
        if engine.flight is None:
            self.standing.begin(now, len(scheduler))
        return due

    @property
    def busy(self) -> bool:
        """Whether anybody is inside."""
        return len(self.scheduler) > 0

    def arrived(self, row: int) -> None:
        """The KV of a prompt has come."""
        self.scheduler.arrived(row)

    def release(self, row: int) -> None:
        """The KV of a request that has ended was taken."""
        self.scheduler.release(row)

    @property
    def scheduler(self) -> Scheduler:
        """The engine's."""
        found = self.engine.scheduler
        assert isinstance(found, Scheduler), "SGLang's pools are not disaggregated"
        return found


class RoleEngines(Engines):
    """The engines of a pool that has a role; arguments as `Engines`, `table` as that role sees it.

    Attributes:
        servers: an engine a replica.
    """

    serves = RoleServer
    servers: list[RoleServer]  # type: ignore[assignment] # they are made of `serves`

    def _engine(self, scenario: Scenario, replica: int) -> Engine:
        policy = self._policy(scenario)
        make = PromptEngine if scenario.engine.hands_kv_over else Engine
        if scenario.engine.rebuilds_drafter_kv:
            make = RebuildingEngine
        return make(scenario.engine, scenario.cost, self._recorder, replica, policy)

    def ran(self, client: Client) -> Ran:
        """As `Engines.ran`, with the times at which replicas stood still."""
        return replace(
            super().ran(client), standing=joined_standstills([server.standing for server in self.servers])
        )
