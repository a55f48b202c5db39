"""A measured benchmark point: what ran, under which load, what was measured; and how it is simulated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from specfleet.experiments.point.build import SCHEDULER_RULES, kv_layout
from specfleet.experiments.point.trtllm import DEFAULT_POLICY, capacity_rules
from specfleet.hardware.memory import kv_budget
from specfleet.hardware.pipeline.cost import kernel_cost
from specfleet.hardware.placement import Placement
from specfleet.sim.config import (
    DeploymentConfig,
    EngineConfig,
    LoadConfig,
    SglangConfig,
    SpeculativeConfig,
)
from specfleet.sim.scenario import Scenario
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.workloads.build import WorkloadSpec

BENCH_KEYS = {
    "tpot_mean_ms": "mean_tpot_ms",
    "tpot_p99_ms": "p99_tpot_ms",
    "itl_mean_ms": "mean_itl_ms",
    "itl_median_ms": "median_itl_ms",
    "ttft_mean_ms": "mean_ttft_ms",
    "ttft_median_ms": "median_ttft_ms",
    "ttft_p99_ms": "p99_ttft_ms",
    "output_throughput": "output_throughput",
    "acceptance_length": "spec_decode_acceptance_length",
    "tpot_median_ms": "median_tpot_ms",
}
"""Scored quantities that a benchmark prints, with the keys of `vllm bench serve`."""

SPEEDUP = "throughput_speedup"
"""Throughput over that of plain decoding, where a row states the ratio itself."""

METRICS = (
    "tpot_mean_ms",
    "tpot_p99_ms",
    "itl_mean_ms",
    "itl_median_ms",
    "ttft_mean_ms",
    "ttft_median_ms",
    "ttft_p99_ms",
    "output_throughput",
    "kv_pool_tokens",
    "acceptance_length",
    "ttft_steps",
    "tpot_median_ms",
    SPEEDUP,
)
"""All scored quantities, in the order in which they are shown."""

TTFT_STEPS_CONCURRENCY = range(2, 9)
"""Where TTFT median / ITL median counts steps: an idle engine (1) and queueing (more) say other things."""

TRANSIENT_FROM = 32
"""MT-Bench has 80 prompts: from this concurrency on a run never gets past its start and its end."""


class Unusable(Exception):  # noqa: N818 - it is a reason, not a fault
    """A row that cannot be scored: a column it needs is empty, or its quality flag is not ok."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """One measured run, ready to be simulated.

    Args:
        name: of the row, for messages.
        campaign: the machine; rows of one campaign are compared with its plain rows.
        dataset: what was asked.
        placement: model, drafter, GPUs and engine.
        max_model_len: tokens, prompt and output.
        drafter_max_model_len: positions of the drafter, or None.
        enable_prefix_caching, enable_chunked_prefill: as served.
        capacity_scheduler_policy: of TensorRT-LLM, or None for its own choice.
        workload: the requests.
        max_concurrency: the client's cap, or None.
        acceptance: given by the measurement, or None where nothing is drafted.
        rounds: verifications behind `acceptance`, its weight among other rows.
        closed_form: scored by the closed form unless asked otherwise.
        replicas: engines apart behind one address; ranks that share experts are the placement's.
        tree_passes: the drafter's passes where they are not those of a chain of K; 0 where they are.
        measured: values by metric.
        assumptions: what the row does not say and its settings had to.
    """

    name: str
    campaign: str
    dataset: str
    placement: Placement
    max_model_len: int
    workload: WorkloadSpec
    measured: Mapping[str, float]
    drafter_max_model_len: int | None = None
    enable_prefix_caching: bool = False
    enable_chunked_prefill: bool = True
    capacity_scheduler_policy: str | None = None
    max_concurrency: int | None = None
    acceptance: AcceptanceSpec | None = None
    rounds: float = 1.0
    closed_form: bool = False
    replicas: int = 1
    tree_passes: int = 0
    assumptions: tuple[str, ...] = ()

    @property
    def engines(self) -> int:
        """Engines and ranks that requests are dealt out to."""
        return self.replicas * self.placement.data_parallel_size

    @property
    def k(self) -> int:
        """Drafts a round; 0 without speculation."""
        return self.placement.num_speculative_tokens

    @property
    def method(self) -> str:
        """Drafting method, or "none"."""
        return self.placement.drafter.method if self.placement.drafter else "none"

    @property
    def drafter(self) -> str:
        """Drafter's name, or "none"."""
        return self.placement.drafter.name if self.placement.drafter else "none"

    @property
    def concurrency(self) -> int | None:
        """Requests offered at once: the cap, or all; None under an open loop without a cap."""
        if self.max_concurrency is not None and math.isinf(self.workload.request_rate):
            return min(self.max_concurrency, self.workload.num_prompts)
        if self.max_concurrency is not None and self.workload.request_rate >= self.max_concurrency / 2:
            return self.max_concurrency
        return self.workload.num_prompts if math.isinf(self.workload.request_rate) else None

    @property
    def transient(self) -> bool:
        """Whether throughput and TTFT are a start and an end and nothing between."""
        named = self.dataset.lower().replace("-", "").startswith("mtbench")
        return named and (self.concurrency or 0) >= TRANSIENT_FROM


@dataclass
class Readout:
    """What files of measurements hold.

    Args:
        points: rows that can be scored.
        skipped: reasons with counts.
        errors: rows that name a model, GPU, drafter or engine that is not known, with counts.
        said: how files of other tools were read.
        why: rows that are not scored, with the reason.
    """

    points: list[MeasuredPoint] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)


def pool_tokens(placement: Placement) -> int:
    """Returns the KV pool that the memory model gives a server, as vLLM logs it."""
    return kv_budget(placement).tokens


def speculative_config(point: MeasuredPoint) -> SpeculativeConfig | None:
    """Returns how the point's server drafts; None for a plain one."""
    drafter = point.placement.drafter
    if drafter is None:
        return None
    return SpeculativeConfig(
        drafter.method, point.k, point.drafter_max_model_len, parallel_drafting=drafter.parallel_drafting
    )


def drafter_passes(point: MeasuredPoint) -> int:
    """Returns the drafter's passes after a step."""
    speculative = speculative_config(point)
    if point.tree_passes:
        return point.tree_passes
    return speculative.draft_passes if speculative else 0


def scenario(point: MeasuredPoint) -> Scenario:
    """Returns the point's server under its load.

    Raises:
        hardware.memory.DoesNotFit: when no KV block is left.
    """
    place = point.placement
    budget, sglang = kv_budget(place), None
    blocks = budget.num_gpu_blocks
    if place.profile.scheduler == "sglang":
        chunk = place.max_num_batched_tokens if point.enable_chunked_prefill else -1
        sglang, blocks = SglangConfig(chunked_prefill_size=chunk), blocks + 1
    trtllm, stages = place.profile.scheduler == "trtllm", place.pipeline_parallel_size
    policy = (point.capacity_scheduler_policy or DEFAULT_POLICY) if trtllm else None
    engine = EngineConfig(
        max_num_seqs=place.max_num_seqs,
        max_num_batched_tokens=place.max_num_batched_tokens,
        num_gpu_blocks=blocks,
        block_size=place.block_size,
        max_model_len=point.max_model_len,
        enable_prefix_caching=point.enable_prefix_caching,
        enable_chunked_prefill=point.enable_chunked_prefill,
        async_scheduling=place.async_scheduling and (stages == 1 or place.profile.pipeline_runs_ahead),
        scheduler_reserve_full_isl=place.profile.scheduler_reserve_full_isl,
        speculative=speculative_config(point),
        sliding_window=place.model.reach,
        pipeline_parallel_size=stages,
        kv_layout=None if sglang else kv_layout(budget),
        sglang=sglang,
        **capacity_rules(policy),
        **{rule: getattr(place.profile, rule) for rule in SCHEDULER_RULES},
    )
    acceptance = {"": point.acceptance} if point.acceptance is not None else {}
    router = "round_robin" if sglang else "least_outstanding"
    deployment = DeploymentConfig(point.engines, router, place.data_parallel_size)
    load = LoadConfig(point.max_concurrency)
    if point.engines == 1:
        return Scenario(engine, kernel_cost(place), acceptance, load=load)
    return Scenario(engine, kernel_cost(place), acceptance, deployment, load=load)
