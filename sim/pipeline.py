"""An engine whose layers lie on stages, one after another: several batches are under way at once.

As vLLM's `step_with_batch_queue`: batches are decided until the queue is full, then the oldest is waited
for. The queue holds as many as there are stages, and one more where scheduling is asynchronous. A batch
without rows takes a place in it, too. A request is in one of them at a time, but for pieces of one prompt,
which may follow each other.

A stage takes batches in order, each when the stage before has handed it on and the one before it has left:

    start(stage, batch) = max(end(stage - 1, batch) + send, end(stage, batch - 1))

The first stage begins when the batch `stages` before has ended: the tokens sampled there come back to it.
So when a batch ends all is known of the one that begins then, and no other moment matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from specfleet.hardware.stepcost import StepCost, StepShape
from specfleet.sim.config import EngineConfig
from specfleet.sim.engine import Engine, Flight
from specfleet.sim.errors import Stall
from specfleet.sim.flight import standstill
from specfleet.sim.recorder import Recorder
from specfleet.sim.sequence import Batch

if TYPE_CHECKING:
    from specfleet.sim.speculation.policy import Policy


class StagedCost(StepCost, Protocol):
    """Prices a step stage by stage."""

    def stage_seconds(self, shape: StepShape) -> tuple[list[float], list[float]]:
        """Seconds of a step on each stage, and of the sends between them."""
        ...


def walk(
    begin_s: float, stages_s: list[float], sends_s: list[float], left_s: list[float]
) -> tuple[float, float]:
    """Runs a batch through the stages; returns when it begins on the first, and ends on the last.

    Args:
        begin_s: when it may begin.
        stages_s: seconds on each stage.
        sends_s: seconds between them.
        left_s: when the batch before left each stage; updated.
    """
    start = now = max(begin_s, left_s[0])
    for stage, seconds in enumerate(stages_s):
        if stage:
            now = max(now + sends_s[stage - 1], left_s[stage])
        now += seconds
        left_s[stage] = now
    return start, now


class PipelineEngine(Engine):
    """As `Engine`, with as many batches under way as there are stages.

    Args:
        config: limits and rules.
        cost: prices a step stage by stage.
        recorder: gets a row a batch; rows of successive batches overlap in time.
        replica: this engine's number.
        policy: chooses the drafts while running; None is always K.
    """

    def __init__(
        self,
        config: EngineConfig,
        cost: StepCost,
        recorder: Recorder,
        replica: int = 0,
        policy: Policy | None = None,
    ) -> None:
        super().__init__(config, cost, recorder, replica, policy)
        assert hasattr(cost, "stage_seconds"), "the rules ask for a price by stages"
        self._staged: StagedCost = cost  # type: ignore[assignment] # it has what is asked of it
        self._stages = config.pipeline_parallel_size
        self._depth = self._stages + (1 if config.async_scheduling else 0)
        self._left_s = [0.0] * self._stages
        self._priced: tuple[list[float], list[float]] = [], []

    def settle(self, now: float) -> None:
        """As `Engine.settle`: starts the batch that waited for the one that ended."""
        flights = self._flights
        if self._aborts:
            self._drop()
        if flights and flights[0].end_s <= now:
            self._commit(flights.popleft())
            self._advance(now)
        self._read(now)

    def _advance(self, now: float) -> None:
        """Starts the batch whose turn it is since another has left the queue."""
        flights = self._flights
        if len(flights) >= self._stages and flights[self._stages - 1].shape is None:
            self._start_if_any(flights[self._stages - 1], now)

    def _start_if_any(self, flight: Flight, now: float) -> None:
        if flight.batch.rows:
            self._start(flight, now)

    def fill(self, now: float) -> float:
        """Decides batches until the queue is full; those without rows leave it when they are the oldest.

        Returns and raises as `turn`.
        """
        flights, scheduler, idle = self._flights, self.scheduler, 0
        while len(scheduler):
            while len(flights) < self._depth:
                batch = scheduler.schedule(now)
                for sequence in batch.new:
                    sequence.admitted_s = now  # type: ignore[attr-defined] # here they are requests
                for sequence, tokens in batch.cached:
                    if not sequence.num_preemptions:
                        sequence.cached_tokens = tokens  # type: ignore[attr-defined]
                self._take(batch, now)
                idle = 0 if batch.rows or batch.preempted else idle + 1
            if flights[0].batch.rows or idle > 2 * self._depth:
                break
            flights.popleft()
            self._advance(now)
        while flights and not flights[0].batch.rows:
            flights.popleft()
            self._advance(now)
        if flights:
            return flights[0].end_s
        if len(scheduler):
            raise Stall(standstill(scheduler, self.replica, now))
        scheduler.rest()
        return float("inf")

    def _take(self, batch: Batch, now: float) -> None:
        """Puts a batch into the queue, and starts it unless it has to wait for another's tokens."""
        flight = Flight(batch, self.scheduler)
        self._flights.append(flight)
        if len(self._flights) <= self._stages:
            self._start_if_any(flight, now)

    def _seconds(self, shape: StepShape) -> float:
        """Returns the work of a step; when it ends is `_start`'s to say."""
        self._priced = self._staged.stage_seconds(shape)
        stages, sends = self._priced
        return sum(stages) + sum(sends)

    def _start(self, flight: Flight, now: float) -> None:
        super()._start(flight, now)
        flight.start_s, flight.end_s = walk(now, *self._priced, self._left_s)


def engine_of(
    config: EngineConfig, cost: StepCost, recorder: Recorder, replica: int, policy: Policy | None
) -> Engine:
    """The engine of a configuration: its layers on one stage, or on several."""
    make = PipelineEngine if config.pipeline_parallel_size > 1 else Engine
    return make(config, cost, recorder, replica, policy)
