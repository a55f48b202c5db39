"""Laws of a whole run: clients, router and replicas on one clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, SPREAD, ToyCost, World, drafting, worlds

from specfleet.sim.config import ClientConfig, DeploymentConfig, LoadConfig
from specfleet.sim.recorder import FINISHED, REJECTED
from specfleet.sim.router import ROUTERS
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.workloads.requests import RequestTable

LAWS = settings(max_examples=60, deadline=None)


def finished(result: RunResult) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which requests were served."""
    return np.asarray(result.requests["status"] == FINISHED)


def each_equal(ours: RunResult, theirs: RunResult) -> bool:
    """Whether all columns agree to the last byte."""
    pairs = [(ours.requests, theirs.requests), (ours.iterations, theirs.iterations)]
    return all(a.keys() == b.keys() and all(a[x].tobytes() == b[x].tobytes() for x in a) for a, b in pairs)


@LAWS
@given(worlds(), st.integers(0, 2**32))
def test_requests_in_are_finished_or_refused(world: World, seed: int) -> None:
    result = world.run(seed)
    served = finished(result)
    rejected = result.requests["status"] == REJECTED
    assert (served | rejected).all()
    assert rejected.sum() == sum(result.refusals.values())
    assert (result.requests["output_tokens"][served] == np.array(world.output)[served]).all()
    assert (result.requests["output_tokens"][rejected] == 0).all()
    assert result.iterations["output_tokens"].sum() == result.requests["output_tokens"].sum()
    assert result.iterations["chunks"].sum() == result.requests["chunks"].sum()


@LAWS
@given(worlds(), st.integers(0, 2**32))
def test_nothing_happens_before_its_cause_and_no_clock_goes_back(world: World, seed: int) -> None:
    result = world.run(seed)
    due = np.array(world.arrival_s)[finished(result)]
    rows = {name: values[finished(result)] for name, values in result.requests.items()}
    order = ["sent_s", "arrived_s", "admitted_s", "first_token_s", "finished_s"]
    assert (due <= rows["sent_s"]).all()
    assert all((rows[a] <= rows[b]).all() for a, b in pairwise(order))
    assert (rows["admitted_s"] < rows["first_token_s"]).all()
    assert (rows["first_chunk_s"] >= rows["first_token_s"]).all()
    assert (rows["last_chunk_s"] >= rows["finished_s"]).all()
    assert (rows["last_chunk_s"] >= rows["first_chunk_s"]).all()
    for replica in range(world.deployment.replicas):
        mine = result.iterations["replica"] == replica
        start, end = result.iterations["start_s"][mine], result.iterations["end_s"][mine]
        assert (start < end).all()
        assert (end[:-1] <= start[1:]).all(), "one batch at a time"


@LAWS
@given(worlds(), st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_bytes(world: World, seed: int) -> None:
    assert each_equal(world.run(seed), world.run(seed))


@LAWS
@given(worlds(), st.integers(0, 2**32))
def test_tokens_emitted_are_those_sampled_less_the_surplus(world: World, seed: int) -> None:
    result = world.run(seed)
    k = world.engine.num_speculative_tokens
    rows = {name: values[finished(result)] for name, values in result.requests.items()}
    # a chunk is one sampled token and the accepted drafts before it; the last one is cut at the end
    sampled = rows["chunks"] + rows["accepted_tokens"]
    surplus = sampled - rows["output_tokens"]
    assert ((surplus >= 0) & (surplus <= k)).all()
    assert (rows["accepted_tokens"] <= rows["draft_tokens"]).all()
    assert (rows["draft_tokens"] <= k * rows["verifications"]).all()
    assert (rows["verifications"] < rows["chunks"]).all() or not k
    assert (rows["cached_tokens"] == 0).all() or world.engine.enable_prefix_caching


@LAWS
@given(worlds(), st.integers(0, 2**32))
def test_limits_hold_in_every_iteration(world: World, seed: int) -> None:
    rows, engine = world.run(seed).iterations, world.engine
    assert (rows["running"] <= engine.max_num_seqs).all()
    assert (rows["tokens"] <= engine.max_num_batched_tokens).all()
    assert (rows["kv_blocks_used"] <= engine.usable_blocks).all()
    assert (rows["decode_sequences"] + rows["prefill_sequences"] <= rows["running"]).all()
    assert (rows["logit_rows"] <= rows["tokens"]).all()


@LAWS
@given(worlds(st.sampled_from(["closed", "capped"])), st.integers(0, 2**32))
def test_no_more_requests_are_in_flight_than_the_client_allows(world: World, seed: int) -> None:
    result = world.run(seed)
    limit = world.load.max_concurrency
    assert limit is not None
    sent = np.asarray(result.requests["sent_s"], dtype=np.float64)
    over = np.where(finished(result), result.requests["last_chunk_s"], result.requests["arrived_s"])
    for now in sent:
        assert ((sent <= now) & (over > now)).sum() <= limit
    assert (np.diff(sent) >= 0).all(), "sent in order"


@LAWS
@given(worlds(st.just("open")), st.integers(0, 2**32))
def test_in_an_open_loop_requests_leave_when_they_are_due(world: World, seed: int) -> None:
    result = world.run(seed)
    due = np.array(world.arrival_s)
    serial = world.client.send_serial_s
    queued = due.copy()
    for i in range(1, len(due)):
        queued[i] = max(due[i], queued[i - 1] + serial)
    assert result.requests["sent_s"].tolist() == queued.tolist()
    assert result.requests["arrived_s"] == pytest.approx(queued + world.client.send_s)


@LAWS
@given(
    worlds(), st.integers(0, 2**32), st.integers(1, 3), st.sampled_from(sorted(ROUTERS)), st.integers(1, 64)
)
def test_luck_does_not_depend_on_fleet_router_or_batch(
    world: World, seed: int, replicas: int, router: str, seqs: int
) -> None:
    ample = replace(world.engine, max_num_batched_tokens=4096, num_gpu_blocks=100_000)
    here = replace(world, engine=ample)
    deployment = DeploymentConfig(replicas, router)
    there = replace(here, deployment=deployment, engine=replace(ample, max_num_seqs=seqs), load=LoadConfig())
    ours, theirs = here.run(seed).requests, there.run(seed).requests
    for name in ("verifications", "draft_tokens", "accepted_tokens", "output_tokens", "chunks"):
        assert ours[name].tolist() == theirs[name].tolist(), name


@LAWS
@given(worlds(), st.integers(0, 2**32))
def test_without_speculation_acceptance_is_not_read(world: World, seed: int) -> None:
    plain = replace(world, engine=replace(world.engine, speculative=None))
    assert each_equal(plain.run(seed), replace(plain, acceptance=SPREAD).run(seed))


def test_a_user_sends_again_when_answered_and_turned_round() -> None:
    client = ClientConfig(send_s=0.01, receive_s=0.002, turn_s=0.003, send_serial_s=0.0, chunk_s=0.0)
    result = World([5] * 6, [4] * 6, client=client, load=LoadConfig(max_concurrency=2)).run()
    sent, last = result.requests["sent_s"], result.requests["last_chunk_s"]
    assert sent[:2].tolist() == [0.0, 0.0]
    assert sent[2:] == pytest.approx(np.sort(last)[:-2] + 0.003)


def test_round_robin_takes_turns_and_the_least_loaded_gets_the_next() -> None:
    world = World(
        [5] * 6,
        [4, 400, 4, 4, 4, 4],
        arrival_s=[0.0, 0.001, 0.002, 1.0, 2.0, 3.0],
        deployment=DeploymentConfig(2, "round_robin"),
    )
    assert world.run().requests["replica"].tolist() == [0, 1, 0, 1, 0, 1]
    least = replace(world, deployment=DeploymentConfig(2, "least_outstanding"))
    assert least.run().requests["replica"].tolist() == [0, 1, 0, 0, 0, 0]


def test_random_routing_depends_on_seed_and_request_alone() -> None:
    world = World([5] * 200, [2] * 200, deployment=DeploymentConfig(3, "random"))
    picks = world.run(1).requests["replica"]
    spread_out = replace(world, arrival_s=np.arange(200.0).tolist())
    assert picks.tolist() == spread_out.run(1).requests["replica"].tolist()
    assert picks.tolist() != world.run(2).requests["replica"].tolist()
    assert np.bincount(picks).min() > 40


def test_an_arrival_at_the_time_a_step_starts_is_seen_by_it() -> None:
    world = World([5, 5], [6, 6], arrival_s=[0.0, 0.04], cost=ToyCost(step_s=0.02))
    result = world.run()
    assert result.requests["admitted_s"].tolist() == [0.0, 0.04]


def test_classes_of_traffic_accept_by_their_own_process() -> None:
    never, always = (AcceptanceSpec(conditional_acceptance=a) for a in (0.0, 1.0))
    result = World([5] * 4, [9] * 4, engine=drafting(3), classes={"a": always, "": never}).run()
    assert result.requests["accepted_tokens"].tolist() == [6, 0, 6, 0]


def test_a_run_in_which_every_request_is_refused_ends() -> None:
    result = World([500, 600], [5, 5], engine=replace(ENGINE, max_model_len=100), load=LoadConfig(1)).run()
    assert result.requests["status"].tolist() == [REJECTED, REJECTED]
    assert len(result.iterations["end_s"]) == 0


def test_prompts_share_kv_as_far_as_their_segments_say() -> None:
    shared_stream = -1
    segments = ([0, 2, 4, 5], [shared_stream, 0, shared_stream, 1, 2], [64, 10, 64, 20, 84])
    table = RequestTable.of([74, 84, 84], [3, 3, 3], arrival_s=[0.0, 1.0, 2.0], segments=segments)
    engine = replace(ENGINE, enable_prefix_caching=True)
    result = simulate(World([], [], engine=engine).scenario({}), table, 0)
    assert result.requests["cached_tokens"].tolist() == [0, 64, 0]
    plain = simulate(World([], []).scenario({}), table, 0)
    assert plain.requests["cached_tokens"].tolist() == [0, 0, 0]
