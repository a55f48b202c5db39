"""Timings of the hot path, kept out of the tests: `make bench`. Compare within one run, as ratios."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import pytest
from jobs import Job
from pytest_benchmark.fixture import BenchmarkFixture

from specfleet.hardware import catalog
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost, StepShape
from specfleet.sim.config import EngineConfig, LoadConfig, SpeculativeConfig
from specfleet.sim.simulation import Scenario, simulate
from specfleet.sim.speculation.acceptance import Acceptance, AcceptanceSpec
from specfleet.workloads.requests import RequestTable

pytestmark = pytest.mark.perf

ACCEPTANCE = AcceptanceSpec(by_position=(0.74, 0.57, 0.43, 0.33), concentration=18.0)


def cost(k: int) -> KernelCost:
    """A 70B on four GPUs, with an EAGLE-3 head if it drafts."""
    head = catalog.drafter("yuhuili/EAGLE3-LLaMA3.3-Instruct-70B") if k else None
    place = Placement.of(
        catalog.model("meta-llama/Llama-3.3-70B-Instruct"),
        catalog.accelerator("h100-sxm"),
        catalog.engine_profile("vllm-0.33"),
        tensor_parallel_size=4,
        quantization="fp8",
        drafter=head,
        num_speculative_tokens=k,
        max_num_seqs=256,
    )
    return KernelCost(place)


def test_fixed_amount_of_numpy_work_to_compare_with(benchmark: BenchmarkFixture) -> None:
    """10,000 additions of 100 entries: how fast this machine is just now."""
    a = np.ones(100)

    def calibrate() -> None:
        for _ in range(10_000):
            np.add(a, a)

    benchmark(calibrate)


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("concurrency", [1, 64, 256])
def test_one_thousand_requests_in_a_closed_loop(
    benchmark: BenchmarkFixture, concurrency: int, k: int
) -> None:
    """1,000 requests of 1,000 + 250 tokens."""
    speculative = SpeculativeConfig("eagle3", k) if k else None
    engine = EngineConfig(256, 8192, 50_000, async_scheduling=True, speculative=speculative)
    scenario = Scenario(engine, cost(k), {"": ACCEPTANCE}, load=LoadConfig(max_concurrency=concurrency))
    table = RequestTable.of(np.full(1000, 1000), np.full(1000, 250))
    benchmark(lambda: simulate(scenario, table, 0))


@pytest.mark.parametrize(("k", "times"), [(0, 30.0), (4, 15.0)])
def test_an_iteration_is_many_times_cheaper_than_a_step(k: int, times: float) -> None:
    """1,500 requests of the reference job, some 170 running: both ways in turn."""
    job = Job("reference", requests=1500, k=k)
    scenario, table = job.scenario(), job.table()
    ratios, a_row = [], []
    for _ in range(3):
        started = time.perf_counter()
        result = simulate(scenario, table, 0)
        between = time.perf_counter()
        simulate(scenario, table, 0, engine="step")
        stepped = time.perf_counter() - between
        ratios.append(stepped / (between - started))
        a_row.append(stepped / result.iterations["running"].sum())
    assert median(ratios) >= times
    assert min(a_row) < 3e-6, "seconds of a step by sequence running"


def test_price_of_a_decode_step(benchmark: BenchmarkFixture) -> None:
    """One look-up."""
    priced, shape = cost(4), StepShape(1000, 200, 0, 1000, 800, 250_000, 250_000, 0, 4)
    benchmark(lambda: priced.seconds(shape))


def test_luck_of_a_request(benchmark: BenchmarkFixture) -> None:
    """250 rounds at full depth."""
    process = Acceptance(ACCEPTANCE, 4, 0)
    benchmark(lambda: process.accepted(7, 1000, 250))
