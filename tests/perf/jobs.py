"""The reference jobs and their fixed price table, so that better physics does not move the benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.stepcost import StepShape
from specfleet.sim.config import (
    NO_CLIENT,
    DeploymentConfig,
    EngineConfig,
    LoadConfig,
    SglangConfig,
    SpeculativeConfig,
)
from specfleet.sim.simulation import Scenario
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.workloads.arrivals import open_loop
from specfleet.workloads.build import RequestStream, WorkloadSpec
from specfleet.workloads.lengths import Fixed
from specfleet.workloads.requests import RequestTable

F64 = NDArray[np.float64]


class PriceTable:
    """Roughly a 70B in BF16 on four H100: a step by tokens, KV tokens and prefill pairs; the drafter is free.

    Args:
        largest: tokens of the largest step.
    """

    def __init__(self, largest: int = 8192) -> None:
        rows = np.maximum(np.arange(largest + 1) - 250, 0)
        self.array: F64 = 9.0e-3 + rows * 3.86e-5
        self.table: list[float] = self.array.tolist()
        self.kv_token_s = 2.9e-8
        self.pair_s = 2.6e-11

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step: `(table[tokens] + kv) + pairs`."""
        return self.table[shape[0]] + self.kv_token_s * shape[5] + self.pair_s * shape[7]

    def terms(self, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, F64]:
        """The same by term, for many steps."""
        return {
            "weights": self.array[columns["tokens"]],
            "kv": np.asarray(self.kv_token_s * columns["kv_tokens"]),
            "compute": np.asarray(self.pair_s * columns["prefill_pairs"]),
        }

    def summary(self) -> str:
        """What it is."""
        return "a fixed price table"


@dataclass(frozen=True)
class Job:
    """One job of the benchmark.

    Args:
        name: it is called by.
        requests: how many.
        k: drafts a round.
        rate: requests a second of each replica; None is a closed loop of `concurrency` users.
        concurrency: most requests running, and users of a closed loop.
        output: tokens of each answer.
        blocks: of the KV pool.
        replicas, router: of the fleet.
        policy: chooses K while running; None is always `k`.
        caches: prefix caching is on, prompts are private.
        shared: of the 1,000 prompt tokens, those shared by one of eight groups and found in the cache.
        asynchronous: batches scheduled one ahead.
        bounds: mean running sequences between which the job is the one meant; None: any.
        summed: figures alone are kept, and the requests made in portions.
        sglang: SGLang's scheduler decides.
    """

    name: str
    requests: int = 10_000
    k: int = 4
    rate: float | None = 18.0
    concurrency: int = 256
    output: int = 250
    blocks: int = 200_000
    replicas: int = 1
    router: str = "round_robin"
    policy: PolicySpec | None = None
    caches: bool = False
    shared: int = 0
    asynchronous: bool = False
    bounds: tuple[float, float] | None = None
    summed: bool = False
    sglang: bool = False

    def scenario(self) -> Scenario:
        """Returns the configuration."""
        speculative = SpeculativeConfig("eagle3", self.k) if self.k else None
        engine = EngineConfig(
            max_num_seqs=self.concurrency,
            max_num_batched_tokens=8192,
            num_gpu_blocks=self.blocks,
            async_scheduling=self.asynchronous,
            enable_prefix_caching=self.caches or self.shared > 0,
            speculative=speculative,
            sglang=SglangConfig() if self.sglang else None,
        )
        return Scenario(
            engine,
            PriceTable(),
            {"": AcceptanceSpec(conditional_acceptance=0.7)} if self.k else {},
            DeploymentConfig(self.replicas, self.router),
            NO_CLIENT,
            LoadConfig(max_concurrency=self.concurrency if self.rate is None else None),
            self.policy,
        )

    def table(self) -> RequestTable:
        """Returns the requests: 1,000 tokens each, Poisson arrivals of seed 0."""
        n = self.requests
        rng = np.random.Generator(np.random.Philox(0))
        arrival_s = np.zeros(n) if self.rate is None else open_loop(n, self.rate * self.replicas, 1.0, rng)
        segments = None
        if self.shared:
            streams = np.stack([-1 - np.arange(n) % 8, np.arange(n)], axis=1).ravel()
            tokens = np.tile([self.shared, 1000 - self.shared], n)
            segments = np.arange(0, 2 * n + 1, 2), streams, tokens
        return RequestTable.of(
            np.full(n, 1000), np.full(n, self.output), arrival_s=arrival_s, segments=segments
        )

    def source(self) -> RequestStream:
        """Returns requests of the same law, in portions."""
        assert self.rate is not None
        rate, lengths = self.rate * self.replicas, (Fixed(1000), Fixed(self.output))
        return RequestStream(WorkloadSpec(self.requests, *lengths, request_rate=rate), 0)


LADDER = ((1, 32, 7), (33, 96, 5), (97, 160, 4), (161, 208, 3), (209, 256, 2))
"""(lowest batch, highest batch, K) of the adaptive job."""
REFERENCE = (190.0, 240.0)


def _ladder() -> list[Job]:
    """Concurrency, with and without drafts, in a closed loop; short and long answers; 1,000 requests."""
    jobs = []
    for k in (0, 4):
        kind = "-spec" if k else ""
        for users in (1, 8, 64, 256, 1024):
            n, blocks = (1000 if users == 1 else 3000 if users == 8 else 10_000), 800_000
            jobs.append(Job(f"closed-{users}{kind}", n, k, None, users, blocks=blocks))
        jobs += [
            Job(f"output-50{kind}", k=k, output=50, rate=20.0),
            Job(f"output-1000{kind}", k=k, output=1000, rate=10.0),
            Job(f"requests-1k{kind}", 1000, k),
        ]
    return jobs


JOBS = (
    Job("reference", k=0, bounds=REFERENCE),
    Job("reference-spec", bounds=REFERENCE),
    Job("reference-spec-async", asynchronous=True),
    Job("reference-adaptive", k=7, policy=PolicySpec("batch_size", {"schedule": LADDER})),
    Job("reference-learning", k=7, policy=PolicySpec("goodput")),
    Job("reference-prefix", rate=28.0, shared=512, blocks=14_000),
    Job("reference-spec-100k", 100_000, rate=17.0),
    Job("reference-spec-1m", 1_000_000, rate=17.0),
    Job("preempted", k=0, blocks=13_500),
    Job("preempted-cached", k=0, blocks=13_500, caches=True),
    Job("sglang", k=0, rate=16.0, sglang=True),
    Job("sglang-spec", rate=16.0, asynchronous=True, sglang=True),
    Job("sglang-closed-64", k=0, rate=None, concurrency=64, sglang=True),
    Job("sglang-closed-64-spec", rate=None, concurrency=64, asynchronous=True, sglang=True),
    Job("fleet-64", 1_000_000, rate=16.0, replicas=64),
    Job("fleet-64-balanced", 1_000_000, rate=16.0, replicas=64, router="least_outstanding"),
    Job("summary-1m", 1_000_000, rate=17.0, summed=True),
    Job("summary-10m", 10_000_000, rate=17.0, summed=True),
    *_ladder(),
)
