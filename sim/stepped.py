"""Replicas whose engines are stepped, and what they write down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import inf, nan

import numpy as np

from specfleet.sim.attempts import RETRIED_COUNTS, Attempts, Story
from specfleet.sim.clients import Answer, Client
from specfleet.sim.engine import Engine, Request
from specfleet.sim.errors import Breach, Stall
from specfleet.sim.fleet.tries import Sums, Tries
from specfleet.sim.laws.names import BLOCKS
from specfleet.sim.pipeline import engine_of
from specfleet.sim.recorder import ABORTED, FINISHED, GAVE_UP, LOST, REJECTED, Columns, Recorder
from specfleet.sim.requests import RequestMaker
from specfleet.sim.scenario import Ran, Scenario
from specfleet.sim.sequence import AskedTokens
from specfleet.sim.sglang.scheduler import SglangScheduler
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.policies import asks_for_confidence, make_policy
from specfleet.sim.speculation.policy import Policy
from specfleet.workloads.requests import RequestTable

OUT_OF_KV = "SGLang ended it for lack of KV, with every other request retracted"


class EngineServer:
    """An engine in a replica.

    Args:
        engine: the state machine.
        make: makes the request of a row.
        recorder: gets the row of every request that ends.
        refusals: reasons for which requests were refused or given up, with counts; added to.
        every_turn: whether the laws of a scheduler are checked after each turn.
        attempts: of requests that failures cut short; None where no replica fails.
        fresh: makes the engine that stands in the place of one that is lost.
        tries: of requests that are sent again by their clients; None where nobody gives up.

    Attributes:
        number: of its replica in the cluster.
    """

    def __init__(
        self,
        engine: Engine,
        make: RequestMaker,
        recorder: Recorder,
        refusals: dict[str, int],
        every_turn: bool = False,
        attempts: Attempts | None = None,
        fresh: Callable[[], Engine] | None = None,
        tries: Tries | None = None,
    ) -> None:
        self.engine = engine
        self.number = engine.replica
        self.refusals = refusals
        self._make = make
        self._recorder = recorder
        self._every_turn = every_turn
        self._now = 0.0
        self._attempts, self._fresh = attempts, fresh
        self._inside: dict[int, Request] = {}
        self._remembers = attempts is not None or tries is not None
        self._tries, self._leaving = tries, dict[Request, bool]()
        self._left_s: dict[Request, float] = {}
        self._hung_s = inf

    def hang(self, now: float) -> None:
        """The engine takes no further turn."""
        self._hung_s = now

    def submit(self, row: int, now: float) -> None:
        """Puts a request into the engine's inbox at `now`."""
        request = self._make.request(row)
        request.arrived_s = now
        if self._attempts is not None:
            request = self._attempts.resume(request)
        if self._remembers:
            self._inside[row] = request
        self.engine.inbox.append(request)

    def first_token(self, row: int) -> tuple[float, int] | None:
        """When the first token of a request inside left, and its rank in its step; None: it has none yet."""
        request = self._inside[row]
        found = (request.first_token_s, request.first_chunk_rank)
        if self._attempts is not None:
            found = self._attempts.first_token(request)
        return found if found[0] < inf else None

    def abort(self, row: int, again: bool) -> None:
        """Nobody waits for a request inside any more: its engine lets it go at its next turn.

        Args:
            row: of the request.
            again: its client will send it once more.
        """
        self._leaving[self._inside.pop(row)] = again
        self.engine.abort(row)

    def lose(self, now: float) -> list[int]:
        """The engine is gone, with its KV and all that was in flight; another one stands ready in its place.

        Returns:
            The requests that were inside, in the order of their arrival here.
        """
        assert self._attempts is not None
        assert self._fresh is not None
        lost, before = self.engine, self._inside
        began = lost.cut()
        cut_s = min(began, self._hung_s, now)
        if began < inf:
            self._attempts.cuts.append((lost.replica, began))
        for request in before.values():
            last_s = lost.chunk_s(request.last_iteration) if request.chunks else nan
            self._attempts.lose(request, lost.replica, cut_s, now, last_s)
        self._left_s = {request: max(cut_s, request.arrived_s) for request in self._leaving}
        self.engine, self._inside, self._hung_s = self._fresh(), {}, inf
        self.engine.left = [*self._leaving]
        self.engine.succeed(lost)
        return [*before]

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
        yield from self._those_who_left()
        for request in self.engine.aborted:
            self.refusals[OUT_OF_KV] = self.refusals.get(OUT_OF_KV, 0) + 1
            self._note(request, ABORTED)
            yield Answer(request.id, 0.0, 0, self._now, 0, failed=True)
        self.engine.aborted = []
        ended, self.engine.finished = self.engine.finished, []
        for request, rank in ended:
            first_s, first_rank = request.first_token_s, request.first_chunk_rank
            if self._attempts is not None:
                first_s, first_rank = self._attempts.first_token(request)
            self._note(request, FINISHED)
            yield Answer(request.id, first_s, first_rank, self._now, rank)

    def _those_who_left(self) -> Iterator[Answer]:
        """Yields who has left because its client had given it up: at once, or with its last result."""
        engine = self.engine
        if not self._leaving:
            return
        ended = [request for request, _ in engine.finished if request in self._leaving]
        ended += [request for request in engine.aborted if request in self._leaving]
        engine.finished = [entry for entry in engine.finished if entry[0] not in self._leaving]
        engine.aborted = [request for request in engine.aborted if request not in self._leaving]
        for request in (*engine.left, *ended):
            left_s = self._left_s.pop(request, self._now)
            if self._leaving.pop(request):
                assert self._tries is not None
                self._tries.note(request, engine.replica, left_s)
            else:
                self._note(request, GAVE_UP, left_s)
            yield Answer(request.id, 0.0, 0, self._now, 0, failed=True, left=self.number)
        engine.left = []

    def _note(self, request: Request, status: int, now: float | None = None) -> None:
        now = self._now if now is None else now
        self._recorder.request(
            request.id,
            status=status,
            arrived_s=request.arrived_s,
            admitted_s=request.admitted_s if request.admitted_s < inf else nan,
            first_token_s=request.first_token_s if request.chunks else nan,
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
        if status != GAVE_UP and self._remembers:
            del self._inside[request.id]
        if self._attempts is not None:
            more = self._attempts.ended(request, self.engine.replica, now, status)
            self._recorder.request(request.id, **more)


class Engines:
    """The engines of all replicas.

    Args:
        scenario: the configuration.
        table: the requests.
        lives: their luck; None without speculation.
        every_turn: whether the laws of a scheduler are checked after each turn.
        stories, sums: of requests that replicas lost, or clients sent again, as `Attempts` and `Tries` share
            them between pools.

    Attributes:
        servers: an engine a replica.
        refusals: reasons for which requests were refused, with counts.
    """

    serves = EngineServer

    def __init__(
        self,
        scenario: Scenario,
        table: RequestTable,
        lives: Lives | None,
        every_turn: bool = False,
        stories: dict[int, Story] | None = None,
        sums: Sums | None = None,
    ) -> None:
        self._table, self._scenario = table, scenario
        self._recorder = Recorder(len(table), scenario.engine.num_speculative_tokens + 1)
        ahead = scenario.engine.async_scheduling
        make = RequestMaker(
            table, lives, scenario.load.num_warmups, asks_for_confidence(scenario.policy), ahead
        )
        self.refusals: dict[str, int] = {}
        failures = scenario.deployment.failures
        self._attempts = None if failures is None else Attempts(failures.keep_partial, stories)
        self._tries = None
        if scenario.load.patience:
            sums = {} if sums is None else sums
            self._tries = Tries(self._recorder, table, scenario.load.num_warmups, sums)
        self.servers = [
            self.serves(
                self._engine(scenario, replica),
                make,
                self._recorder,
                self.refusals,
                every_turn,
                self._attempts,
                partial(self._engine, scenario, replica),
                self._tries,
            )
            for replica in range(scenario.deployment.replicas)
        ]
        if failures is not None:
            self._recorder.more((*RETRIED_COUNTS, "interrupted_s"))

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
        refusal = self.refusal(row)
        if refusal is None:
            return True
        self.refusals[refusal] = self.refusals.get(refusal, 0) + 1
        self._recorder.request(row, status=REJECTED, arrived_s=now)
        return False

    def refusal(self, row: int) -> str | None:
        """Returns why a request could never be served here, or None."""
        prompt, most = int(self._table.prompt_tokens[row]), int(self._table.max_tokens[row])
        return self.servers[0].engine.refusal(AskedTokens(prompt, most))

    def assign(self, row: int, replica: int) -> None:
        """Notes which replica a request goes to."""
        self._recorder.request(row, replica=replica)

    def refused(self, row: int, replica: int, now: float) -> None:
        """Notes that a request came to a replica that was dead."""
        self._recorder.request(row, replica=replica)
        assert self._attempts is not None
        self._attempts.refused(row, now)

    def taken_back(self, row: int) -> None:
        """Notes that a request is at no replica any more: where it was is known of its attempt."""

    def turned_away(self, row: int) -> bool:
        """Notes that a request ends at the gateway; returns whether a replica has lost it before."""
        if self._attempts is None or row not in self._attempts.stories:
            return False
        self._recorder.request(row, **self._attempts.given_up(row))
        return True

    def lost(self, row: int, now: float, reason: str) -> None:
        """A request that a replica lost ends, since it is not sent anew any more."""
        assert self._attempts is not None
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        self._recorder.request(row, status=LOST, finished_s=now, **self._attempts.gone(row))

    def withdrawn(self, row: int, reason: str) -> None:
        """Notes that a request was given up which a replica had lost, and which is at none."""
        assert self._attempts is not None
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        self._recorder.request(row, status=GAVE_UP, **self._attempts.gone(row))

    def begins_anew(self, row: int) -> None:
        """Notes that a request that ended too late is sent once more."""
        assert self._tries is not None
        if self._tries.too_late(row) == ABORTED:
            self.refusals[OUT_OF_KV] -= 1

    def goes_again(self, row: int) -> None:
        """Notes that a request which is sent once more is nowhere until it comes."""

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
        gaps, attempts, cuts = recorder.odd_gaps(), self._attempts, _cut_steps([])
        if attempts is not None:
            gaps, cuts = attempts.with_pauses(gaps), _cut_steps(attempts.cuts)
        found, known = recorder.requests() | client.times(), {} if attempts is None else attempts.columns()
        if self._tries is not None and client.patience is not None:
            found, more = self._tries.merged(found, client, self.refusals)
            known = more or known
        return Ran(
            found,
            recorder.iterations(),
            gaps,
            tuple(recorder.rounds_by_accepted),
            self.refusals,
            steps_without_drafter=sum(engine.steps_without_drafter for engine in engines),
            stepped_share=1.0,
            attempts=known,
            cuts=cuts,
        )


def _cut_steps(cuts: list[tuple[int, float]]) -> Columns:
    """Returns steps that failures cut short, as columns."""
    replicas, starts = [replica for replica, _ in cuts], [start for _, start in cuts]
    return {"replica": np.array(replicas, dtype=np.int64), "start_s": np.array(starts, dtype=np.float64)}
