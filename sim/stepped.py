"""Replicas whose engines are stepped, and what they write down."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan

from specfleet.sim.clients import Answer, Client
from specfleet.sim.engine import Engine, Request
from specfleet.sim.errors import Breach, Stall
from specfleet.sim.laws.names import BLOCKS
from specfleet.sim.pipeline import engine_of
from specfleet.sim.recorder import ABORTED, FINISHED, REJECTED, Recorder
from specfleet.sim.requests import RequestMaker
from specfleet.sim.scenario import Ran, Scenario
from specfleet.sim.sequence import Sequence
from specfleet.sim.sglang.scheduler import SglangScheduler
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.policies import asks_for_confidence, make_policy
from specfleet.sim.speculation.policy import Policy
from specfleet.workloads.requests import RequestTable


class EngineServer:
    """An engine in a replica.

    Args:
        engine: the state machine.
        make: makes the request of a row.
        recorder: gets the row of every request that ends.
        refusals: reasons for which requests were refused or given up, with counts; added to.
        every_turn: whether the laws of a scheduler are checked after each turn.
    """

    def __init__(
        self,
        engine: Engine,
        make: RequestMaker,
        recorder: Recorder,
        refusals: dict[str, int],
        every_turn: bool = False,
    ) -> None:
        self.engine = engine
        self.refusals = refusals
        self._make = make
        self._recorder = recorder
        self._every_turn = every_turn
        self._now = 0.0

    def submit(self, row: int, now: float) -> None:
        """Puts a request into the engine's inbox at `now`."""
        request = self._make.request(row)
        request.arrived_s = now
        self.engine.inbox.append(request)

    def advance(self, now: float, until: float) -> float:
        """Takes one turn; returns when the next is due."""
        self._now = now
        due = self.engine.turn(now)
        if self._every_turn:
            self.check()
        return due

    def kv_usage(self) -> float:
        """Returns the share of the engine's KV blocks in use."""
        kv = self.engine.scheduler.kv
        return 1.0 - kv.free_blocks / kv.total_blocks

    def queue(self) -> int:
        """Returns the requests that wait in the engine."""
        return len(self.engine.scheduler.waiting)

    def settle(self, now: float) -> None:
        """The first half of a turn: takes in what ended at `now`, and the inbox."""
        self._now = now
        self.engine.settle(now)

    def fill(self, now: float) -> None:
        """The other half: schedules while there is work and room."""
        self.engine.fill(now)
        if self._every_turn:
            self.check()

    def check(self) -> None:
        """Checks that blocks add up, and that whoever runs may.

        Raises:
            Breach: with the time of the last turn.
        """
        engine = self.engine
        try:
            engine.scheduler.check()
        except Breach as breach:
            raise breach.at(self._now, engine.replica) from None
        except AssertionError as error:
            raise Breach(BLOCKS, str(error), None, self._now, engine.replica) from None
        if isinstance(engine.scheduler, SglangScheduler):
            return  # its tree keeps what nobody holds
        kv = engine.scheduler.kv
        if engine.idle and kv.free_blocks != kv.total_blocks:
            said = f"nobody is left, and {kv.total_blocks - kv.free_blocks} blocks are not free"
            raise Breach(BLOCKS, said, time_s=self._now, replica=engine.replica)

    def answers(self) -> Iterator[Answer]:
        """Yields who ended at the last turn, or was given up there, and notes their rows."""
        for request in self.engine.aborted:
            reason = "SGLang ended it for lack of KV, with every other request retracted"
            self.refusals[reason] = self.refusals.get(reason, 0) + 1
            self._note(request, ABORTED)
            yield Answer(request.id, 0.0, 0, self._now, 0, failed=True)
        self.engine.aborted = []
        ended, self.engine.finished = self.engine.finished, []
        for request, rank in ended:
            self._note(request, FINISHED)
            yield Answer(request.id, request.first_token_s, request.first_chunk_rank, self._now, rank)

    def _note(self, request: Request, status: int) -> None:
        self._recorder.request(
            request.id,
            status=status,
            arrived_s=request.arrived_s,
            admitted_s=request.admitted_s,
            first_token_s=request.first_token_s if request.chunks else nan,
            finished_s=self._now,
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


class Engines:
    """The engines of all replicas.

    Args:
        scenario: the configuration.
        table: the requests.
        lives: their luck; None without speculation.
        every_turn: whether the laws of a scheduler are checked after each turn.

    Attributes:
        servers: an engine a replica.
        refusals: reasons for which requests were refused, with counts.
    """

    def __init__(
        self, scenario: Scenario, table: RequestTable, lives: Lives | None, every_turn: bool = False
    ) -> None:
        self._table, self._scenario = table, scenario
        self._recorder = Recorder(len(table), scenario.engine.num_speculative_tokens + 1)
        ahead = scenario.engine.async_scheduling
        make = RequestMaker(
            table, lives, scenario.load.num_warmups, asks_for_confidence(scenario.policy), ahead
        )
        self.refusals: dict[str, int] = {}
        self.servers = [
            EngineServer(self._engine(scenario, replica), make, self._recorder, self.refusals, every_turn)
            for replica in range(scenario.deployment.replicas)
        ]

    def _engine(self, scenario: Scenario, replica: int) -> Engine:
        policy = self._policy(scenario)
        return engine_of(scenario.engine, scenario.cost, self._recorder, replica, policy)

    @staticmethod
    def _policy(scenario: Scenario) -> Policy | None:
        k = scenario.engine.num_speculative_tokens
        return make_policy(scenario.policy, k, scenario.cost) if k else None

    def restart(self, replica: int) -> None:
        """A replica that was gone comes back, with nothing in its caches."""
        engine = self.servers[replica].engine
        if engine.idle and engine.iterations:
            engine.restart(self._policy(self._scenario))

    def accepts(self, row: int, now: float) -> bool:
        """Whether a request that arrives at `now` can be served; notes why not."""
        prompt, most = int(self._table.prompt_tokens[row]), int(self._table.max_tokens[row])
        refusal = self.servers[0].engine.refusal(Sequence(row, prompt, most))
        if refusal is None:
            return True
        self.refusals[refusal] = self.refusals.get(refusal, 0) + 1
        self._recorder.request(row, status=REJECTED, arrived_s=now)
        return False

    def assign(self, row: int, replica: int) -> None:
        """Notes which replica a request goes to."""
        self._recorder.request(row, replica=replica)

    def send_away(self, row: int) -> None:
        """A request which might have come has gone elsewhere: nothing is known of it here."""

    def ran(self, client: Client) -> Ran:
        """Returns what was recorded, and what the client saw.

        Raises:
            Stall: nothing is due any more, but requests are left.
            Breach: blocks are lost.
        """
        engines = [server.engine for server in self.servers]
        if left := [engine for engine in engines if not engine.idle]:
            states = "; ".join(f"replica {e.replica}: {len(e.scheduler)} requests inside" for e in left)
            raise Stall(f"nothing is due any more, but {states}")
        for server in self.servers:
            server.check()
        recorder = self._recorder
        return Ran(
            recorder.requests() | client.times(),
            recorder.iterations(),
            recorder.odd_gaps(),
            tuple(recorder.rounds_by_accepted),
            self.refusals,
            steps_without_drafter=sum(engine.steps_without_drafter for engine in engines),
            stepped_share=1.0,
        )
