"""The experiment file: its blocks, keys and plain defaults. Attribute names are the YAML's keys.

Rules about one value are here; rules about several are in `rules.py`, defaults that depend on the catalogue
in `defaults.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, StringConstraints

from specfleet.experiments.schema.blocks.acceptance import Acceptance
from specfleet.experiments.schema.blocks.base import Block, Milliseconds
from specfleet.experiments.schema.blocks.deployment import Deployment
from specfleet.experiments.schema.blocks.expect import Claim
from specfleet.experiments.schema.blocks.own import Plugin
from specfleet.experiments.schema.blocks.plan import Plan, Slo
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.blocks.until import Until
from specfleet.experiments.schema.blocks.workload import Workload


class Client(Block):
    """The time between the benchmark's clock and the engine's; defaults of one measured client."""

    send_ms: Milliseconds = 8.0
    """From the client's send to the engine's queue."""
    receive_ms: Milliseconds = 2.5
    """From the engine's output to the client."""
    turn_ms: Milliseconds = 1.5
    """From a finished request to the next one of the same slot."""
    send_serial_ms: Milliseconds = 0.5
    """Between two sends: the client sends one request at a time."""
    chunk_ms: Milliseconds = 0.02
    """For each chunk received before this one in a step; never before the first of its request."""


def _no_client(value: object) -> object:
    """`client: none` is a client that takes no time."""
    return dict.fromkeys(Client.model_fields, 0.0) if value == "none" else value


Axis: TypeAlias = Annotated[tuple[object, ...], Field(min_length=1)]


class Sweep(Block):
    """The points of the experiment: every combination of the axes' values, the last axis fastest."""

    axes: dict[str, Axis] = Field(default_factory=dict)
    """Dotted key -> its values."""
    load: Literal["auto", "max_concurrency", "request_rate", "speed"] | None = None
    """Finds an axis of loads, the first, from idle to past saturation: `auto` takes what the workload has, a
    rate, a trace's speed or users; or name which."""


def _one_or_several(value: object) -> object:
    """A lone metric or format is a list of one."""
    return (value,) if isinstance(value, str) else value


FigureFormat: TypeAlias = Literal["png", "svg"]


class Report(Block):
    """What is plotted against what, and what is kept."""

    x: str | None = None
    """An axis or a metric; the first axis if left out."""
    lines: str | None = None
    """An axis, one line a value; the second axis if left out."""
    y: Annotated[tuple[str, ...], BeforeValidator(_one_or_several), Field(min_length=1)] = (
        "output_throughput",
        "mean_tpot_ms",
        "p99_tpot_ms",
        "p99_itl_ms",
        "p99_ttft_ms",
    )
    """Metrics, one plot each."""
    baseline: dict[str, object] | None = None
    """Axis -> the value that the others are compared with; plain decoding on an axis if left out."""
    formats: Annotated[tuple[FigureFormat, ...], BeforeValidator(_one_or_several), Field(min_length=1)] = (
        "png",
    )
    """Of the figures: png, svg or both."""
    least_gain: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """A gain counts where its whole 95 % interval lies beyond 1 + this; 0.02 is 2 %."""
    requests: Literal["all", "none"] = "all"
    """`none` keeps figures alone, in memory that does not grow with the number of requests: no requests.csv,
    percentiles within 0.05 %. For millions of requests in an open loop."""


class Experiment(Block):
    """A whole experiment file, or one point of it."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "experiment"
    """Names the results folder; the file's own name if left out."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """Of the first replication; the next ones count up."""
    replications: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Seeds a point is run with."""
    run: Until = Until()
    serve: Serve
    """What is served and on what: model, gpu, engine and its settings."""
    acceptance: Acceptance | None = None
    client: Annotated[Client, BeforeValidator(_no_client)] = Client()
    deployment: Deployment = Deployment()
    workload: Workload
    """What is asked: lengths (preset, trace, or input_len and output_len) and the load."""
    slo: Slo | None = None
    sweep: Sweep = Sweep()
    report: Report = Report()
    plan: Plan | None = None
    """What may be bought, for `specfleet plan`."""
    claim: Claim | None = None
    """What the run is expected to show; it then says whether it did."""
    plugins: tuple[Plugin, ...] = ()
    """Files and modules with code of your own: `plugins: [mine.py]`."""


_FIGURES = """
    duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput
    output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests
    spec_decode_acceptance_rate spec_decode_acceptance_length spec_decode_num_drafts spec_decode_draft_tokens
    spec_decode_accepted_tokens acceptance_length tokens_per_step verify_overhead draft_overhead gain
    proposed_share mean_batch mean_running mean_waiting peak_kv_usage gpu_busy preemptions rejected
    prefix_hit_share drafter_off_share slo_attainment output_throughput_per_gpu output_throughput_per_user
    kv_cache_tokens steps
    speedup_output_throughput speedup_mean_tpot speedup_p99_tpot offered_per_s served_per_s
    step_ms step_weights_ms step_kv_ms step_compute_ms step_communication_ms step_launch_ms step_host_ms
    step_drafter_ms
    energy_j_per_output_token energy_low_j_per_output_token energy_high_j_per_output_token mean_gpu_w
    gpu_ms_per_output_token gpu_memory_share gpu_compute_share gpu_waiting_share
    cost_usd_per_million_output_tokens energy_x_plain
    tasks task_throughput task_turns task_input_tokens task_cached_tokens task_output_tokens gpu_s_per_task
    usd_per_task speedup_mean_task speedup_p99_task speedup_mean_task_model
    mean_task_s median_task_s p90_task_s p99_task_s
    mean_task_model_s median_task_model_s p90_task_model_s p99_task_model_s
    ttft_client_ms ttft_queue_ms ttft_prefill_ms ttft_handover_ms ttft_transfer_ms ttft_decode_queue_ms
    ttft_first_step_ms kv_gb p99_transfer_ms link_out_busy link_in_busy prefill_stood_still kv_given_up
    gave_up gave_up_share gave_up_unanswered client_retries mean_gave_up_ms wasted_tokens wasted_seat_share
    mean_replicas peak_replicas scale_outs gpu_hours first_scale_out_s starting_p99_ttft_ms
    cost_usd cost_usd_on_demand cost_x_on_demand interruptions drained
    failures downtime_s availability retried lost recomputed_tokens recovery_s recovering_requests
    p99_ttft_recovering_ms p99_ttft_otherwise_ms p99_e2el_recovering_ms p99_e2el_otherwise_ms
    gateway_rejected gateway_timed_out gateway_turned_away gateway_mean_held_ms gateway_p99_held_ms
    capacity_per_s
"""
_LATENCIES = (
    *("ttft", "tpot", "itl", "itl_per_token", "e2el"),
    *("client_queue_time", "e2el_including_client_queue"),
)
_STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")

METRICS = frozenset(_FIGURES.split()) | {f"{s}_{latency}_ms" for s in _STATISTICS for latency in _LATENCIES}
"""What `report` can show: the columns of summary.csv."""


def is_metric(name: str) -> bool:
    """Whether a name is a metric of a point."""
    return name in METRICS
