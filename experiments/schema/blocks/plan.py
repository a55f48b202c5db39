"""The `slo:` and `plan:` blocks: what must be met, and what may be bought to meet it."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from specfleet.experiments.schema.blocks.acceptance import Acceptance
from specfleet.experiments.schema.blocks.base import (
    RATES_PER_S,
    Block,
    Count,
    Drafts,
    Factor,
    Fraction,
    Named,
)
from specfleet.experiments.schema.blocks.deployment import KvTransfer
from specfleet.experiments.schema.blocks.own import RouterName
from specfleet.experiments.schema.blocks.policy import DraftPolicy
from specfleet.experiments.schema.blocks.scaling import PoolName, Scaling
from specfleet.experiments.schema.blocks.serve import Gpus, Speculation
from specfleet.experiments.schema.blocks.tree import DraftTree

Limit = Annotated[float, Field(gt=0, le=1e9)]

_FiniteRate = Annotated[float, Field(ge=RATES_PER_S[0], le=RATES_PER_S[1])]

LATENCIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = ("p50", "p90", "p95", "p99")


class Slo(Block):
    """Limits on the client's clock, in one of two forms.

    By request: `ttft_ms`, `tpot_ms`, `e2el_ms` and `attainment`; a request is good when it meets all that are
    given. By percentile: `p99_ttft_ms` and so on; each percentile by itself.
    """

    ttft_ms: Limit | None = None
    """Longest time to first token of one request."""
    tpot_ms: Limit | None = None
    """Longest time per output token after the first of one request."""
    e2el_ms: Limit | None = None
    """Longest time from send to last token of one request."""
    attainment: Fraction = 0.99
    """Share of requests that must be good, in the form by request."""
    p50_ttft_ms: Limit | None = None
    """Limit on the 50th percentile of the time to first token."""
    p90_ttft_ms: Limit | None = None
    """Limit on the 90th percentile of the time to first token."""
    p95_ttft_ms: Limit | None = None
    """Limit on the 95th percentile of the time to first token."""
    p99_ttft_ms: Limit | None = None
    """Limit on the 99th percentile of the time to first token."""
    p50_tpot_ms: Limit | None = None
    """Limit on the 50th percentile of the time per output token after the first."""
    p90_tpot_ms: Limit | None = None
    """Limit on the 90th percentile of the time per output token after the first."""
    p95_tpot_ms: Limit | None = None
    """Limit on the 95th percentile of the time per output token after the first."""
    p99_tpot_ms: Limit | None = None
    """Limit on the 99th percentile of the time per output token after the first."""
    p50_itl_ms: Limit | None = None
    """Limit on the 50th percentile of the wait for a chunk."""
    p90_itl_ms: Limit | None = None
    """Limit on the 90th percentile of the wait for a chunk."""
    p95_itl_ms: Limit | None = None
    """Limit on the 95th percentile of the wait for a chunk."""
    p99_itl_ms: Limit | None = None
    """Limit on the 99th percentile of the wait for a chunk."""
    p50_e2el_ms: Limit | None = None
    """Limit on the 50th percentile of the time from send to last token."""
    p90_e2el_ms: Limit | None = None
    """Limit on the 90th percentile of the time from send to last token."""
    p95_e2el_ms: Limit | None = None
    """Limit on the 95th percentile of the time from send to last token."""
    p99_e2el_ms: Limit | None = None
    """Limit on the 99th percentile of the time from send to last token."""

    @property
    def percentile_limits_ms(self) -> dict[str, float]:
        """Metric such as `p99_ttft_ms` -> limit, of the form by percentile; empty in the other."""
        keys = [f"{p}_{latency}_ms" for latency in LATENCIES for p in PERCENTILES]
        return {key: limit for key in keys if (limit := getattr(self, key)) is not None}

    @property
    def request_limits_ms(self) -> dict[str, float]:
        """`ttft`, `tpot`, `e2el` -> limit of one request.

        In the form by percentile that of the highest percentile given: goodput counts the requests within it.
        """
        found: dict[str, float] = {}
        for latency in ("ttft", "tpot", "e2el"):
            keys = [f"{latency}_ms", *(f"{p}_{latency}_ms" for p in PERCENTILES)]
            given = [limit for key in keys if (limit := getattr(self, key)) is not None]
            if given:
                found[latency] = given[-1]
        return found


class Drafting(Block):
    """One way to draft: a drafter, the K to try, and what it achieves."""

    speculative_config: Speculation
    """vLLM's `--speculative-config`; its num_speculative_tokens is the only K if no list is given."""
    num_speculative_tokens: tuple[Drafts, ...] = ()
    """Drafts a round (K) to try."""
    acceptance: Acceptance | None = None
    """What this drafter achieves on this traffic; the file's own block if left out."""
    draft_tree: tuple[DraftTree, ...] = ()
    """Trees of drafts to try beside chains; SGLang verifies them."""
    draft_policy: tuple[DraftPolicy | None, ...] = ()
    """Ways to choose K while running, each tried with every K; null: always K. Only null if left out."""


class Day(Block):
    """A day whose traffic a plan is made for: exactly one of `preset` and `trace`."""

    preset: Literal["azure-conv-2024", "azure-code-2024"] | None = None
    """A weekday of the week of 2024: its mean, and its busiest hour over its quietest, as a wave."""
    trace: str | None = None
    """A log whose rows begin with a time, such as Azure's: its requests are counted by 5 minutes."""
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    """Which day of the log, as it writes it; the only whole one if left out."""
    mean_per_s: Annotated[float, Field(gt=0, le=RATES_PER_S[1])] | None = None
    """Requests/s on average, in place of the recorded ones: the shape of the day at another size."""
    faster: Annotated[float, Field(ge=1, le=48)] = 6.0
    """How many times as fast the day passes in the simulation: rates stay, and climbs are as many times as
    steep, so that replicas that follow the load rather look worse than they are."""
    peak_hour: Annotated[float, Field(ge=0, lt=24)] = 20.0
    """Of a preset: when most comes. Not published; it moves the day, and changes no figure of it."""


Classes: TypeAlias = Annotated[tuple[str, ...], Field(min_length=1)]


class Candidates(Block):
    """What may be bought: every combination. What is left out is as in `serve:`."""

    engine: tuple[str, ...] = ()
    """Engine profiles, such as vllm-0.33 and sglang."""
    gpu: tuple[Named, ...] = ()
    """GPUs by name or mapping."""
    tensor_parallel_size: tuple[Gpus, ...] = ()
    """GPUs of one replica; of one rank, where there are several."""
    data_parallel_size: tuple[Gpus, ...] = ()
    """Ranks of one replica that share the experts of a mixture and step together."""
    pipeline_parallel_size: tuple[Gpus, ...] = ()
    """Stages of one replica, each of so many GPUs: layers one after another."""
    enable_expert_parallel: tuple[bool, ...] = ()
    """Whole experts on each GPU of a replica, or a part of every expert."""
    quantization: tuple[Literal["fp8"] | None, ...] = ()
    """Of the weights; null keeps them in `dtype`."""
    drafting: tuple[Drafting, ...] = ()
    """Ways to draft; plain decoding is always a candidate."""
    router: tuple[RouterName, ...] = ()
    """Routers tried before the engines that were chosen, beside that of `deployment`."""
    disaggregated: tuple[KvTransfer, ...] = ()
    """Ways to hand KV over from replicas that compute prompts to replicas that decode, `{}` for the usual
    one: splits of no more replicas than the plan buys are tried, with and without drafts."""
    autoscale: tuple[Scaling, ...] = ()
    """Ways to have replicas follow the load of the plan's day, against the fixed fleet for its peak."""
    pools: tuple[Annotated[dict[PoolName, Classes], Field(min_length=2)], ...] = ()
    """Ways to part the traffic classes among pools, each with an engine of its own: pool -> its classes."""


class Plan(Block):
    """`specfleet plan`: the cheapest deployment that meets the SLO."""

    candidates: Candidates = Candidates()
    objective: Literal["cost", "headroom", "throughput"] = "cost"
    """What is looked for: the cheapest; or, on all GPUs of `max_gpus` or `gpus_available`, most room to the
    limits, or the largest rate at the SLO."""
    prices_per_hour_usd: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = Field(default_factory=dict)
    """GPU as named in `candidates` -> price of one for an hour; the catalogue's if left out."""
    prices_file: str | None = None
    """CSV or YAML with prices by GPU and kind; those of `prices_per_hour_usd` count before them."""
    price_kind: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Which of several prices of a GPU in `prices_file` counts, such as on_demand or spot."""
    gpus_available: dict[str, Count] = Field(default_factory=dict)
    """GPU as named in `candidates` -> the most of it that can be had."""
    max_gpus: Count | None = None
    """The most GPUs of a deployment, of whichever kind."""
    schedule: tuple[tuple[Annotated[float, Field(ge=0, lt=24)], _FiniteRate], ...] = ()
    """[hour of the day, requests/s from then on] pairs, in place of workload.request_rate."""
    day: Day | None = None
    """A day of traffic, in place of `schedule` and workload.request_rate; its busiest hour is planned for."""
    growth: Factor = 1.0
    """Factor on the traffic: 1.3 plans for 30 % more."""
    also_at: Annotated[tuple[Factor, ...], Field(max_length=8)] = (0.5, 2.0, 5.0)
    """Times the traffic at which is searched again, to say what would be bought; of `objective: cost`."""
    spare_replicas: Annotated[int, Field(ge=0, le=4096)] = 0
    """Replicas bought beyond those needed, counted in the cost: 1 is N + 1."""
