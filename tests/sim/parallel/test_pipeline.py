"""Batches on their way through stages: closed forms, one request by hand, and laws of random worlds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, ToyCost, World, worlds

from specfleet.hardware.kernels import Array
from specfleet.hardware.stepcost import TERMS, StepShape
from specfleet.sim.config import NO_CLIENT, DeploymentConfig, EngineConfig
from specfleet.sim.laws.steps import PipelineOrder
from specfleet.sim.metrics.columns import by_replica, engine_load
from specfleet.sim.metrics.latency import latency_split
from specfleet.sim.metrics.pools import by_pool
from specfleet.sim.pipeline import walk
from specfleet.sim.recorder import alone_s
from specfleet.sim.scenario import ReplicaPool, RunResult, Scenario
from specfleet.sim.scheduler import Scheduler
from specfleet.sim.sequence import Sequence
from specfleet.sim.simulation import simulate
from specfleet.workloads.requests import RequestTable

SEND_S = 0.0005


@dataclass(frozen=True)
class Staged(ToyCost):
    """A toy step dealt out to stages alike, with sends between them."""

    stages: int = 2

    def stage_seconds(self, shape: StepShape) -> tuple[list[float], list[float]]:
        """Equal stages, equal sends."""
        return [super().seconds(shape) / self.stages] * self.stages, [SEND_S] * (self.stages - 1)

    def seconds(self, shape: StepShape) -> float:
        """Their sum."""
        stages, sends = self.stage_seconds(shape)
        return sum(stages) + sum(sends)

    def terms(self, columns: Mapping[str, np.ndarray[tuple[int], np.dtype[np.int64]]]) -> dict[str, Array]:
        """The same for many steps, in the first term of all."""
        nothing = np.zeros(len(columns["tokens"]))
        return dict.fromkeys(TERMS, nothing) | super().terms(columns)


def engine(stages: int, ahead: bool = True, **changes: object) -> EngineConfig:
    more = {"pipeline_parallel_size": stages, "async_scheduling": ahead, **changes}
    return replace(ENGINE, **more)  # type: ignore[arg-type]


def world(stages: int, count: int, output: int, ahead: bool = True, **changes: object) -> World:
    """Requests of one-token prompts, all there at once."""
    cost = Staged(step_s=0.01 * stages, stages=stages)
    more = {"engine": engine(stages, ahead), "cost": cost, "client": NO_CLIENT, **changes}
    return World([1] * count, [output] * count, **more)  # type: ignore[arg-type]


@given(st.integers(1, 8), st.integers(1, 20), st.floats(0.001, 1.0))
def test_equal_stages_and_m_batches_leave_a_bubble_of_p_minus_1_in_m_plus_p_minus_1(
    stages: int, batches: int, seconds: float
) -> None:
    left = [0.0] * stages
    ends = [walk(0.0, [seconds] * stages, [0.0] * (stages - 1), left)[1] for _ in range(batches)]
    assert ends[-1] == pytest.approx((batches + stages - 1) * seconds)
    work = batches * stages * seconds
    assert 1.0 - work / (stages * ends[-1]) == pytest.approx((stages - 1) / (batches + stages - 1))


@given(st.data())
def test_batches_walk_as_a_flow_shop(data: st.DataObject) -> None:
    """Against the longest path through the visits that come before a batch's end on the last stage."""
    stages, batches = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    some = st.floats(0.0, 1.0)
    times = [data.draw(st.lists(some, min_size=stages, max_size=stages)) for _ in range(batches)]
    sends = data.draw(st.lists(some, min_size=stages - 1, max_size=stages - 1))
    left, ends = [0.0] * stages, []
    for each in times:
        ends.append(walk(0.0, each, sends, left)[1])

    def longest(batch: int, stage: int) -> float:
        if batch < 0 or stage < 0:
            return 0.0
        before = longest(batch, stage - 1) + (sends[stage - 1] if stage else 0.0)
        return times[batch][stage] + max(before, longest(batch - 1, stage))

    assert ends == pytest.approx([longest(batch, stages - 1) for batch in range(batches)])


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_token_of_a_request_takes_the_sum_of_stages_and_sends(stages: int, ahead: bool) -> None:
    result = world(stages, 1, 6, ahead).run()
    ends = result.iterations["end_s"]
    each = 0.01 * stages + (stages - 1) * SEND_S
    steps = ends[result.iterations["decode_sequences"] > 0]
    assert ends[0] == pytest.approx(each)
    assert np.diff(ends)[: len(steps)] == pytest.approx(each)


@pytest.mark.parametrize("ahead", [False, True])
def test_groups_in_turn_fill_the_stages_and_each_token_takes_as_long_as_alone(ahead: bool) -> None:
    """Four requests that come one after another are in four batches: four times the tokens a second."""
    stages, output = 4, 200
    tight = engine(stages, ahead, max_num_batched_tokens=ENGINE.max_num_batched_tokens)
    one = world(stages, 1, output, ahead, engine=tight).run()
    spread = [0.011 * place for place in range(stages)]
    several = World(
        [1] * stages, [output] * stages, arrival_s=spread, engine=tight, cost=Staged(0.04, stages=stages),
        client=NO_CLIENT,
    ).run()  # fmt: skip
    alone, together = (_tpot_s(result) for result in (one, several))
    assert together == pytest.approx(alone, rel=0.05)
    span = [float(result.requests["finished_s"].max()) for result in (one, several)]
    assert span[1] == pytest.approx(span[0], rel=0.05), "four requests in the time of one"


def _tpot_s(result: RunResult) -> float:
    requests = result.requests
    seconds = requests["finished_s"] - requests["first_token_s"]
    return float(np.mean(seconds / (requests["output_tokens"] - 1)))


def test_all_in_one_batch_leave_the_other_stages_idle() -> None:
    """vLLM deals nothing out by itself: who is admitted together decodes together."""
    result = world(4, 8, 50).run()
    rows = result.iterations
    assert set(rows["decode_sequences"][rows["decode_sequences"] > 0].tolist()) == {8}
    assert (rows["start_s"][1:] >= rows["end_s"][:-1]).all(), "one batch under way at a time"


def test_pieces_of_one_prompt_follow_each_other_through_the_stages() -> None:
    config = engine(4, max_num_batched_tokens=100)
    result = World([1000], [1], engine=config, cost=Staged(0.04, stages=4), client=NO_CLIENT).run()
    rows, passage_s = result.iterations, 4 * 0.01 + 3 * SEND_S
    assert len(rows["end_s"]) == 10
    # no more than four are under way: the fifth begins when the first has ended, the ninth when the fifth has
    assert rows["end_s"][-1] == pytest.approx(2 * passage_s + 0.01 + passage_s)
    assert (rows["start_s"][1:4] < rows["end_s"][0]).all()


@pytest.mark.parametrize("stages", [2, 3])
def test_a_request_decodes_in_every_stages_th_step_and_no_sooner(stages: int) -> None:
    scheduler = Scheduler(engine(stages))
    for number in range(3):
        scheduler.add(Sequence(number, 1 + number, 50))
    seen: dict[int, list[int]] = {}
    flying = []
    for step in range(40):
        batch = scheduler.schedule()
        for sequence in batch.sequences:
            seen.setdefault(sequence.id, []).append(step)
        flying.append(batch)
        if len(flying) == stages + 1:
            done = flying.pop(0)
            if done.rows:
                scheduler.commit(done, [1] * done.rows)
    for steps in seen.values():
        assert set(np.diff(steps).tolist()) == {stages}


@st.composite
def pipelines(draw: st.DrawFn) -> World:
    """A random world whose engines have stages."""
    this, stages = draw(worlds()), draw(st.integers(2, 4))
    config = replace(this.engine, pipeline_parallel_size=stages)
    cost = Staged(step_s=0.01, token_s=0.0003, pass_s=0.001, stages=stages)
    drafts = config.async_scheduling
    if not drafts:
        config = replace(config, speculative=None)
    return replace(this, engine=config, cost=cost, acceptance=this.acceptance if drafts else None)


@settings(max_examples=60, deadline=None)
@given(pipelines(), st.integers(0, 3))
def test_every_law_holds_of_random_pipelines_and_latencies_have_parts(this: World, seed: int) -> None:
    result = this.run(seed)  # its laws are checked
    assert result.stepped_share == 1.0 or not len(result.iterations["end_s"])
    plain = Staged(step_s=0.01, token_s=0.0003, stages=this.engine.pipeline_parallel_size)
    latency_split(result, plain)  # raises where the parts do not sum to the whole


@given(pipelines())
@settings(max_examples=20, deadline=None)
def test_a_gpu_is_busy_for_at_most_all_of_the_time(this: World) -> None:
    result = this.run()
    load = engine_load(result)
    if load is not None:
        assert 0.0 <= load.gpu_busy <= 1.0 + 1e-9
        assert load.mean_running <= this.engine.max_num_seqs * (1.0 + 1e-9)
        rows = result.iterations
        span_s = float(rows["end_s"].max() - rows["start_s"].min())
        assert all(each.gpu_busy_s <= span_s * (1.0 + 1e-9) for each in by_replica(result))


def test_the_time_of_iterations_that_overlap_is_counted_once() -> None:
    columns = {
        "start_s": np.array([0.0, 1.0, 0.5, 9.0]),
        "end_s": np.array([2.0, 4.0, 3.0, 10.0]),
        "replica": np.array([0, 0, 1, 0]),
    }
    assert alone_s(columns).tolist() == [2.0, 2.0, 2.5, 1.0]


def test_more_batches_under_way_than_stages_are_found_and_so_is_one_that_overtakes() -> None:
    order = PipelineOrder(2)
    assert order.breach(0.0, 2.0) is None
    assert order.breach(1.0, 3.0) is None
    assert "2 others are under way" in str(order.breach(1.5, 4.0))
    order = PipelineOrder(2)
    order.breach(0.0, 2.0)
    assert "past the one before it" in str(order.breach(1.0, 1.5))


def test_the_calendar_leaves_pipelines_to_stepping() -> None:
    result = world(2, 3, 4).run()
    assert result.stepped_share == 1.0 and "pipeline" in result.stepped_because
    with pytest.raises(ValueError, match="pipeline_parallel_size is 0"):
        replace(ENGINE, pipeline_parallel_size=0)


def test_replicas_of_pipelines_are_alike() -> None:
    """Two replicas, each with every other request, are two runs of one replica."""
    this = world(3, 6, 5, deployment=DeploymentConfig(2, "round_robin"))
    both = this.run()
    alone = world(3, 3, 5).run()
    assert sorted(both.requests["finished_s"].tolist()) == sorted(alone.requests["finished_s"].tolist() * 2)


def test_a_pool_of_pipelines_beside_another_is_busy_for_at_most_all_of_the_time() -> None:
    """Two pools, one with stages: whichever comes first, no replica is busy for longer than the run."""
    plain = ReplicaPool("plain", ENGINE, ToyCost(step_s=0.02), (0,))
    staged = ReplicaPool("staged", engine(2), Staged(0.02, stages=2), (1,))
    table = RequestTable.of([1] * 40, [20] * 40, arrival_s=(0.005 * np.arange(40)).tolist())
    for pools in ((plain, staged), (staged, plain)):
        scenario = Scenario.of_pools(pools, DeploymentConfig(2), NO_CLIENT)
        result = simulate(scenario, table, 0)
        assert scenario.stages == 2
        rows = result.iterations
        span_s = float(rows["end_s"].max() - rows["start_s"].min())
        assert all(each.gpu_busy_s <= span_s * (1.0 + 1e-9) for each in by_replica(result))
        load = engine_load(result)
        assert load is not None and load.gpu_busy <= 1.0 + 1e-9
        assert all(pool.gpu_busy <= 1.0 + 1e-9 for pool in by_pool(result))
        overlap = rows["start_s"][rows["replica"] == 1][1:] < rows["end_s"][rows["replica"] == 1][:-1]
        assert overlap.any(), "batches of the pipeline are under way together"
