"""What a run keeps grows with requests and iterations, by a few tens of bytes each."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sim_toys import ENGINE, World, drafting

from specfleet.sim import simulation
from specfleet.sim import summarise as summarise_module
from specfleet.sim.calendar import runs
from specfleet.sim.config import NO_CLIENT, ClientConfig, DeploymentConfig, LoadConfig
from specfleet.sim.metrics import samples
from specfleet.sim.metrics.handover import ttft_split
from specfleet.sim.metrics.samples import PerToken, Samples
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.summarise import summarise
from specfleet.workloads.build import RequestStream, WorkloadSpec
from specfleet.workloads.lengths import Fixed, LogNormal

AT_MOST, AFTERWARDS = 140, 105
"""Bytes of a request with its steps, of a closed loop in batches of 16: at the peak, and in the result."""
A_REQUEST, A_CLIENT, AN_ITERATION = 72, 32, 80
"""Bytes of a request (lengths and class apart), more of it where the client takes time, of an iteration."""


def kept(columns: Mapping[str, np.ndarray]) -> int:
    """Bytes of columns, those that share memory counted once."""
    owners = {}
    for values in columns.values():
        owner = values
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        owners[id(owner)] = owner.nbytes
    return sum(owners.values())


def run(k: int, output: int, client: ClientConfig = NO_CLIENT) -> RunResult:
    """400 requests on an ample engine."""
    n = 400
    return World(
        [20] * n,
        [output] * n,
        arrival_s=(0.01 * np.arange(n)).tolist(),
        engine=drafting(k) if k else ENGINE,
        classes={"": AcceptanceSpec(conditional_acceptance=0.7)} if k else None,
        client=client,
    ).run()


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("client", [NO_CLIENT, ClientConfig()])
def test_a_run_keeps_tens_of_bytes_a_request_and_an_iteration(k: int, client: ClientConfig) -> None:
    for output in (10, 200):
        result = run(k, output, client)
        assert result.stepped_share == 0.0
        table = {name: result.requests[name] for name in ("class_id", "prompt_tokens", "max_tokens")}
        each = A_REQUEST if client is NO_CLIENT else A_REQUEST + A_CLIENT
        assert kept(result.requests) - kept(table) <= each * 400 + 1000
        iterations = len(result.iterations["end_s"])
        counts = 2 * (k + 2) * max(2 * iterations, 4096) if k else 0  # has room for growth
        assert kept(result.iterations) <= AN_ITERATION * iterations + counts + 1000


def test_a_column_of_one_number_holds_one_number() -> None:
    [table] = RequestStream(WorkloadSpec(10_000, LogNormal(5.0, 0.5, 1, 400), Fixed(10)), 0).portions(10_000)
    lengths_and_sessions = {"prompt_tokens", "session_id"}
    held = {name: kept({name: getattr(table, name)}) for name in table.column_names()}
    assert {name for name, size in held.items() if size > 8} == lengths_and_sessions


def bytes_at_most_and_after(requests: int) -> NDArray[np.int64]:
    """Bytes that making and simulating a closed loop takes at most, and those that its result keeps."""
    spec = WorkloadSpec(requests, Fixed(50), Fixed(10))
    world = World([], [], engine=replace(ENGINE, max_num_seqs=16), load=LoadConfig(max_concurrency=16))
    tracemalloc.start()
    try:
        [table] = RequestStream(spec, 0).portions(requests)
        result = simulate(world.scenario({}), table, 0)
        after, at_most = tracemalloc.get_traced_memory()
        del result
        return np.array([at_most, after])
    finally:
        tracemalloc.stop()


def test_a_request_takes_few_bytes_while_it_is_simulated_and_fewer_in_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (simulation, runs):
        monkeypatch.setattr(module, "MANY", 1)
    bytes_at_most_and_after(100)  # prices, which are kept
    few, many = 10_000, 20_000
    each = (bytes_at_most_and_after(many) - bytes_at_most_and_after(few)) / (many - few)
    assert (each <= [AT_MOST, AFTERWARDS]).all(), each


def test_where_a_ttft_went_is_told_in_three_columns_at_a_time() -> None:
    result = run(0, 10, ClientConfig())
    many = {name: np.repeat(column, 100) for name, column in result.requests.items()}
    several = replace(result, requests=many)
    tracemalloc.start()
    try:
        found = ttft_split(several)
        assert tracemalloc.get_traced_memory()[1] <= (3 * 8 + 2) * len(many["sent_s"])
    finally:
        tracemalloc.stop()
    assert found == pytest.approx(ttft_split(result))


def test_columns_that_are_equal_share_memory() -> None:
    columns = run(0, 10).requests
    assert np.shares_memory(columns["sent_s"], columns["arrived_s"])
    assert np.shares_memory(columns["first_chunk_s"], columns["first_token_s"])


@given(
    st.lists(st.tuples(st.floats(0, 10), st.lists(st.integers(0, 3), min_size=4, max_size=4)), max_size=30),
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 3)), max_size=4),
)
def test_pauses_by_token_are_those_written_out(
    rows: list[tuple[float, list[int]]], odd: list[tuple[float, int]]
) -> None:
    pauses, chunks = np.array([v for v, _ in rows]), np.array([c for _, c in rows]).reshape(-1, 4)
    odd_s, odd_tokens = np.array([v for v, _ in odd]), np.array([n for _, n in odd], dtype=np.int64)
    out = [p / n for p, c in rows for n in (1, 2, 3) for _ in range(n * c[n])]
    out += [p / n for p, n in odd for _ in range(n)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "PIECE", 7)
        sample = PerToken(pauses, chunks, odd_s, np.eye(99, dtype=np.int64)[odd_tokens])
        assert len(sample) == len(out)
        if out:
            assert sample.mean() == pytest.approx(np.mean(out))
            assert sample.std() == pytest.approx(np.std(out), abs=1e-9)
            percents = [0.0, 3.0, 50.0, 99.0, 100.0]
            assert sample.percentiles(percents) == pytest.approx(np.percentile(out, percents))


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=50), st.data())
def test_a_percentile_is_found_among_values_of_any_size(values: list[float], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(values), max_size=len(values)))
    sample = Samples(np.array(values), np.array(weights))
    expected = np.percentile(np.repeat(values, weights), [10.0, 50.0, 99.9])
    assert sample.percentiles([10.0, 50.0, 99.9]) == pytest.approx(expected, rel=1e-12)


ALONE = DeploymentConfig()


def peak_of_summary(requests: int, deployment: DeploymentConfig = ALONE) -> int:
    """Bytes that a summary takes at most."""
    spec = WorkloadSpec(requests, Fixed(50), Fixed(10), request_rate=40.0)
    engine = replace(drafting(3), max_num_seqs=16)
    luck = {"": AcceptanceSpec(conditional_acceptance=0.7)}
    world = World([], [], engine=engine, classes=luck, deployment=deployment)
    tracemalloc.start()
    try:
        summary = summarise(world.scenario(world.classes or {}), RequestStream(spec, 0), 0, portion=2048)
        assert summary.whole is None and summary.all.completed == requests
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("fleet", [ALONE, DeploymentConfig(3, "least_outstanding")], ids=["one", "counted"])
def test_a_summary_takes_no_more_memory_for_more_requests(
    fleet: DeploymentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summarise_module, "PLACES", 4096)  # memory that is asked for and never touched
    peak_of_summary(2048, fleet)  # what is made once and kept, such as tables of acceptance
    assert peak_of_summary(40_000, fleet) < 1.2 * peak_of_summary(10_000, fleet), "32 bytes a request are 1.2"
