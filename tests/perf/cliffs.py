"""Times each configuration that was once a cliff beside its base: `python tests/perf/bench.py --cliffs`.

A closed loop of 128 users, 2,000 requests of 1,000 + 250 tokens, K = 4, prices of a 70B on four H100. A row
is the base with one thing changed; both are run in turn, and the fewest CPU seconds of each count.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from combinations import combinations

from specfleet.hardware import catalog
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost
from specfleet.sim.config import DeploymentConfig, EngineConfig, LoadConfig, SglangConfig, SpeculativeConfig
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import RunResult, Scenario, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.bursts import Burst, HotCold
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.workloads.build import WorkloadSpec
from specfleet.workloads.build_sessions import session_requests
from specfleet.workloads.lengths import Fixed
from specfleet.workloads.pauses import FixedPause
from specfleet.workloads.requests import RequestTable
from specfleet.workloads.sessions import SessionSpec

USERS = 128
ORDINARY, OTHER = 3.0, 5.0
"""Bars: a row may cost so many times its base."""


@cache
def price(k: int, seqs: int) -> KernelCost:
    """A 70B in FP8 on four H100 with its EAGLE-3 head."""
    return KernelCost(
        Placement.of(
            catalog.model("meta-llama/Llama-3.3-70B-Instruct"),
            catalog.accelerator("h100-sxm"),
            catalog.engine_profile("vllm-0.33"),
            tensor_parallel_size=4,
            quantization="fp8",
            drafter=catalog.drafter("yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"),
            num_speculative_tokens=k,
            max_num_seqs=seqs,
        )
    )


@dataclass(frozen=True)
class Row:
    """One configuration.

    Args:
        name: it is called by.
        users, requests, k, method: of the closed loop and its drafter.
        engine, speculative, acceptance: fields that differ from the base's.
        policy: chooses K while running.
        shared: prompt tokens that one of eight groups shares.
        lengths: prompt and output lengths vary as in recorded conversations.
        temperatures: requests are sampled at 0 or 1.
        classes: every other request is of class `a`.
        sessions: turns of a session; 0: single requests.
        rate: requests a second; None: all are due at once.
        deployment: replicas and router.
        ordinary: what most users have, with the lower bar.
        base: the row it is compared with.
    """

    name: str
    users: int = USERS
    requests: int = 2000
    k: int = 4
    method: str = "eagle3"
    engine: tuple[tuple[str, Any], ...] = ()
    speculative: tuple[tuple[str, Any], ...] = ()
    acceptance: tuple[tuple[str, Any], ...] = ()
    policy: PolicySpec | None = None
    shared: int = 0
    lengths: bool = False
    temperatures: bool = False
    classes: bool = False
    sessions: int = 0
    rate: float | None = None
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)
    ordinary: bool = False
    base: Row | None = None

    def scenario(self) -> Scenario:
        """Returns the configuration."""
        speculative = SpeculativeConfig(self.method, self.k, **dict(self.speculative))
        engine = EngineConfig(
            max_num_seqs=256, max_num_batched_tokens=8192, num_gpu_blocks=50_000, speculative=speculative
        )
        engine = replace(engine, **dict(self.engine))
        spec = AcceptanceSpec(**({"conditional_acceptance": 0.7} | dict(self.acceptance)))
        cost = price(self.k, engine.max_num_seqs)
        load = LoadConfig(max_concurrency=self.users)
        return Scenario(engine, cost, {"": spec}, self.deployment, load=load, policy=self.policy)

    def table(self) -> RequestTable:
        """Returns the requests."""
        if self.sessions:
            return self._turns()
        n, rng = self.requests, np.random.default_rng(0)
        prompts, outputs = np.full(n, 1000), np.full(n, 250)
        if self.lengths:
            prompts = np.clip(rng.lognormal(np.log(1000), 0.8, n), 32, 6000).astype(np.int64)
            outputs = np.clip(rng.lognormal(np.log(200), 0.7, n), 16, 1500).astype(np.int64)
        segments = None
        if self.shared:
            streams = np.stack([-1 - np.arange(n) % 8, np.arange(n)], axis=1).ravel()
            own = np.maximum(prompts - self.shared, 1)
            prompts = self.shared + own
            tokens = np.stack([np.full(n, self.shared), own], axis=1).ravel()
            segments = np.arange(0, 2 * n + 1, 2), streams, tokens
        table = RequestTable.of(prompts, outputs, segments=segments)
        table = replace(table, priority=rng.integers(0, 3, n))
        if self.classes:
            table = replace(table, class_id=np.arange(n) % 2, class_names=("a", "b"))
        if self.rate is not None:
            table = replace(table, arrival_s=np.cumsum(rng.exponential(1.0 / self.rate, n)))
        if self.temperatures:
            table = replace(table, temperature=rng.integers(0, 2, n).astype(float))
        return table

    def _turns(self) -> RequestTable:
        """Returns sessions, each turn of which adds 200 tokens to the prompt and 100 of an answer."""
        size, law = (
            WorkloadSpec(self.requests, Fixed(200), Fixed(100), request_rate=1000.0),
            Fixed(self.sessions),
        )
        return session_requests(size, SessionSpec(law, FixedPause(0.5), system_tokens=400), 0)


def sglang_rows(base: Row) -> list[Row]:
    """Returns the rows under SGLang's rules, each with its base."""
    plain = replace(base, name="SGLang", engine=(("sglang", SglangConfig()),))
    tree = (*plain.engine, ("enable_prefix_caching", True))
    ranks = (("sglang", SglangConfig(enable_priority_scheduling=True)),)
    tight = (*tree, ("num_gpu_blocks", 5000))
    bold = (("sglang", SglangConfig(schedule_conservativeness=0.02)), ("num_gpu_blocks", 6000))
    shared = replace(plain, base=plain, ordinary=True, shared=512)
    ahead = replace(plain, name="SGLang, overlap", engine=(*plain.engine, ("async_scheduling", True)))
    mixed = (("sglang", SglangConfig(enable_mixed_chunk=True)),)
    by_batch = PolicySpec("batch_size", {"schedule": ((1, 96, 4), (97, 120, 3), (121, 256, 2))})
    return [
        replace(plain, name="SGLang's rules", base=base),
        replace(
            ahead,
            name="SGLang's rules, overlap",
            base=replace(base, name="asynchronous", engine=(("async_scheduling", True),)),
        ),
        replace(plain, name="SGLang, K by batch size", base=plain, ordinary=True, policy=by_batch),
        replace(plain, name="SGLang, goodput", base=plain, policy=PolicySpec("goodput", {})),
        replace(plain, name="SGLang, mixed chunk", base=plain, engine=mixed),
        replace(
            plain, name="SGLang, sliding window", base=plain, engine=(*plain.engine, ("sliding_window", 512))
        ),
        replace(
            plain,
            name="SGLang, n-gram, half match",
            method="ngram",
            base=replace(plain, name="SGLang, n-gram", method="ngram"),
            acceptance=(("proposal_probability", 0.5),),
        ),
        replace(shared, name="SGLang, shared prefix", engine=tree),
        replace(shared, name="SGLang, shared prefix, KV short", engine=tight),
        replace(
            plain,
            name="SGLang, K by batch size, shared prefix",
            base=plain,
            policy=by_batch,
            engine=tree,
            shared=512,
        ),
        replace(ahead, name="SGLang, goodput, overlap", base=ahead, policy=PolicySpec("goodput", {})),
        replace(
            ahead,
            name="SGLang, mixed chunk, overlap",
            base=ahead,
            engine=(*mixed, ("async_scheduling", True)),
        ),
        replace(plain, name="SGLang, retraction", base=plain, engine=bold),
        replace(plain, name="SGLang, priorities", base=plain, engine=ranks),
    ]


def rows() -> list[Row]:
    """Returns all rows, each with its base."""
    base = Row("base")
    caching = ("enable_prefix_caching", True)
    cached = replace(base, name="shared prefix", engine=(caching,), shared=512)
    varied = replace(base, name="lengths of conversations", lengths=True)
    many = Row("1,024 users", 1024, 8000, engine=(("max_num_seqs", 1024), ("num_gpu_blocks", 200_000)))
    ngram = replace(base, name="n-gram, always a match", method="ngram")
    ahead = (("async_scheduling", True),)
    looked_up = replace(ngram, name="n-gram, asynchronous", engine=ahead)
    runs = HotCold(0.8, 0.1, 0.93)
    short = ("num_gpu_blocks", 8000)

    def but(name: str, of: Row = base, **fields: Any) -> Row:
        return replace(of, name=name, base=of, **fields)

    def usual(name: str, of: Row = base, **fields: Any) -> Row:
        return but(name, of, ordinary=True, **fields)

    def policy(name: str, **parameters: Any) -> Row:
        return but(name, policy=PolicySpec(name, parameters))

    goodput = PolicySpec("goodput", {})
    by_batch = PolicySpec("batch_size", {"schedule": ((1, 96, 4), (97, 120, 3), (121, 256, 2))})
    ranked = (("concentration", 10.0), ("length_rank_correlation", 0.5))
    pool = ("num_gpu_blocks", 800_000)
    return [
        *sglang_rows(base),
        usual("KV short", engine=(short,)),
        usual("shared prefix", engine=(caching,), shared=512),
        usual("shared prefix, KV short", cached, engine=(caching, ("num_gpu_blocks", 5000))),
        usual("drafter of 2,048 positions", varied, speculative=(("drafter_max_model_len", 2048),)),
        usual("n-gram, half match", looked_up, engine=ahead, acceptance=(("proposal_probability", 0.5),)),
        usual("n-gram, copying in runs", looked_up, engine=ahead, acceptance=(("hot_cold", runs),)),
        but("n-gram, half match, synchronous", ngram, acceptance=(("proposal_probability", 0.5),)),
        usual("burst", acceptance=(("burst", Burst(0.6, 1.0)),)),
        usual("length_rank_correlation", varied, acceptance=ranked),
        usual("goodput", policy=goodput),
        usual("goodput, KV short", policy=goodput, engine=(short,)),
        usual("K by batch size", policy=by_batch),
        usual("max_num_seqs 2,048", many, engine=(("max_num_seqs", 2048), ("num_gpu_blocks", 200_000))),
        usual("4,096 users", many, users=4096, requests=16_000, engine=(("max_num_seqs", 4096), pool)),
        policy("bandit"),
        policy("adaptive_tiers"),
        policy("acceptance_gate"),
        policy("early_stop"),
        but("temperature_gate", temperatures=True, policy=PolicySpec("temperature_gate", {"limit": 0.5})),
        policy("slo_budget", tpot_s=0.02, budget=256),
        policy("oracle"),
        but("priority", engine=(("policy", "priority"),)),
        but("long_prefill_token_threshold", engine=(("long_prefill_token_threshold", 512),)),
        but("reroll_on_reject", speculative=(("reroll_on_reject", True),)),
        *combinations(base),
    ]


def seconds(row: Row) -> tuple[float, RunResult]:
    """CPU seconds of one run with its metrics, and what it did."""
    scenario, table = row.scenario(), row.table()
    started = time.process_time()
    result = simulate(scenario, table, 0)
    benchmark(result)
    return time.process_time() - started, result


def measure(row: Row, times: int = 3) -> dict[str, Any]:
    """Runs a row and its base in turn; the ratio is of CPU seconds a request."""
    assert row.base is not None
    seconds(replace(row.base, requests=300)), seconds(replace(row, requests=300))
    here, base = [], []
    for _ in range(times):
        base.append(seconds(row.base)[0])
        taken, result = seconds(row)
        here.append(taken)
        if taken > 40 * base[-1]:
            break
    each, base_each = min(here) / row.requests, min(base) / row.base.requests
    return {
        "row": row.name,
        "base": row.base.name,
        "us_per_request": round(1e6 * each, 1),
        "base_us_per_request": round(1e6 * base_each, 1),
        "ratio": round(each / base_each, 2),
        "bar": ORDINARY if row.ordinary else OTHER,
        "stepped_share": round(result.stepped_share, 4),
        "stepped_because": result.stepped_because,
        "preempted_share": round(float((result.requests["preemptions"] > 0).mean()), 3),
    }


def show(only: str = "") -> None:
    """Measures and prints all rows, or those whose name begins with `only`."""
    print(
        f"{'row':32}{'beside':>26}{'us':>8}{'base':>8}{'ratio':>8}{'bar':>5}{'stepped':>9}{'preempted':>11}"
    )
    for row in rows():
        if row.name.startswith(only):
            got = measure(row)
            print(
                f"{got['row']:32}{got['base']:>26}{got['us_per_request']:8.0f}{got['base_us_per_request']:8.0f}"
                f"{got['ratio']:8.1f}{got['bar']:5.0f}{got['stepped_share']:9.0%}{got['preempted_share']:11.1%}"
                f"  {got['stepped_because']}",
                flush=True,
            )


if __name__ == "__main__":
    show(*sys.argv[1:2])
