"""Frozen configuration of the simulated cluster, in vLLM's field names.

Every number here is already resolved: defaults that depend on an engine build or a GPU
(memory, graph ladder, host time) are decided before these records are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import numpy.typing as npt

from specfleet.sim.disaggregation.config import HandoverConfig
from specfleet.sim.fleet.failing import FailuresConfig
from specfleet.sim.fleet.patience import PatienceConfig
from specfleet.sim.kvlayout import KvLayout

EAGLE_FAMILY = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Methods whose drafter reads the target's hidden states and keeps a KV layer of its own."""


ON_HOST = ("ngram", "suffix")
"""Methods that look drafts up in the text: no drafter model runs (vLLM 0.33 matches n-grams on the GPU)."""

BLOCK_DRAFTERS = ("dflash", "dspark")
"""Methods that fill a block of masked tokens in one pass: no budget is charged for it (vLLM 0.33.0)."""

WITHOUT_DRAFT_KV = (*ON_HOST, "medusa")
"""Methods without a KV cache of their own to write drafts into."""


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How drafts are proposed.

    Args:
        method: `eagle`, `eagle3`, `mtp`, `dflash`, `dspark`, `draft_model`, `medusa`, `ngram` or `suffix`.
        num_speculative_tokens: drafts a round (K), at least 1; of a tree, its nodes.
        drafter_max_model_len: positions the drafter can handle, tokens. While the longest
            sequence of a step plus K exceeds it, the drafter does not run in that step.
        parallel_drafting: all K drafts in one drafter pass.
        draft_depth: passes for a tree of drafts, its depth; None is a chain, one pass a draft.
        reroll_on_reject: price a second target pass in a step with a rejection. For engines
            whose recurrent state cannot be cut back (checkpoint and replay); vLLM and SGLang
            need none on attention models.
    """

    method: str
    num_speculative_tokens: int
    drafter_max_model_len: int | None = None
    parallel_drafting: bool = False
    reroll_on_reject: bool = False
    draft_depth: int | None = None

    @property
    def num_lookahead_tokens(self) -> int:
        """KV slots held past the scheduled tokens, for the drafter to write into."""
        if self.method in WITHOUT_DRAFT_KV:
            return 0
        return self.num_speculative_tokens + (1 if self.method == "dflash" else 0)

    @property
    def draft_slots(self) -> int:
        """Budget tokens charged for each scheduled request on top of its own.

        A draft model costs one: recorded scheduler traces of vLLM 0.33.0 (`charges_draft_slots`).
        """
        serial = 1 if self.method == "draft_model" else 0
        if self.parallel_drafting and self.method not in (*WITHOUT_DRAFT_KV, *BLOCK_DRAFTERS):
            return self.num_speculative_tokens - 1 + serial
        return serial

    @property
    def draft_passes(self) -> int:
        """Sequential drafter forwards in a step that proposes."""
        if self.method in ON_HOST:
            return 0
        if self.parallel_drafting or self.method in ("medusa", *BLOCK_DRAFTERS):
            return 1
        return self.draft_depth or self.num_speculative_tokens


@dataclass(frozen=True, slots=True)
class SglangConfig:
    """What SGLang's scheduler is set up with and vLLM's is not, in the names of SGLang's arguments.

    Of `EngineConfig` it takes `max_num_seqs` (`max_running_requests`), `max_model_len` (`context_length`),
    `block_size` (`page_size`), `enable_prefix_caching` (the radix cache), `async_scheduling` (overlap) and
    the pool; vLLM's token budget and its switches say nothing here.

    Args:
        chunked_prefill_size: tokens of prompts in a batch; -1: prompts are not cut.
        max_prefill_tokens: the same where they are not cut.
        prefill_max_requests: requests of a prefill batch, or None.
        enable_mixed_chunk: running requests ride along in prefill batches.
        schedule_policy: `fcfs` or `lpm` (longest cached prefix first).
        schedule_conservativeness: factor on the share of their outputs that running requests are expected
            to write.
        enable_priority_scheduling: by priority, then by time of entry; larger values first unless
            `schedule_low_priority_values_first`.
        priority_scheduling_preemption_threshold: a waiting request displaces a running one if its priority is
            higher by more than this, and only where the list of requests is full.
        disable_priority_preemption: nobody is displaced.
        retraction_policy: `length` (fewest outputs first) or `priority`.
        ignore_eos: every request is known to write all of its `max_tokens`.
        speculative_num_steps, speculative_eagle_topk: depth of the draft (0: that of a chain), branches.

    Raises:
        ValueError: for settings no engine would start with, all of them in one message.
    """

    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    prefill_max_requests: int | None = None
    enable_mixed_chunk: bool = False
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    disable_priority_preemption: bool = False
    retraction_policy: str = "length"
    ignore_eos: bool = False
    speculative_num_steps: int = 0
    speculative_eagle_topk: int = 1

    def __post_init__(self) -> None:
        faults = []
        if self.schedule_policy not in ("fcfs", "lpm"):
            faults.append(f"schedule_policy is {self.schedule_policy!r}; use 'fcfs' or 'lpm'")
        if self.retraction_policy not in ("length", "priority"):
            faults.append(f"retraction_policy is {self.retraction_policy!r}; use 'length' or 'priority'")
        if not self.schedule_conservativeness > 0.0:
            faults.append(
                f"schedule_conservativeness is {self.schedule_conservativeness}; it must be positive"
            )
        if self.max_prefill_tokens < 1:
            faults.append(f"max_prefill_tokens is {self.max_prefill_tokens}; it must be at least 1")
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def preempts(self) -> bool:
        """Whether a waiting request may displace a running one."""
        return self.enable_priority_scheduling and not self.disable_priority_preemption


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine replica: limits, and the scheduler's rules as named switches.

    The switches below `async_scheduling` are the differences between vLLM builds
    (`hardware/catalog/engines`); their defaults are vLLM 0.33.0's.

    Args:
        max_num_seqs: sequences running at once.
        max_num_batched_tokens: token budget of a step.
        num_gpu_blocks: KV blocks in the pool; one is the null block that is never handed out.
        block_size: tokens a block.
        max_model_len: tokens, prompt and output.
        enable_prefix_caching: reuse the KV of shared prefixes.
        enable_chunked_prefill: a prompt may be computed in pieces.
        long_prefill_token_threshold: most prompt tokens of one request in a step; 0 is off.
        long_prefill_token_threshold_adaptive: never cap below an equal share of the budget.
        policy: `fcfs` or `priority` (lower number first).
        watermark: fraction of the pool kept free when admitting beside running requests.
        async_scheduling: schedule step n+1 before the output of step n is known.
        scheduler_reserve_full_isl: admit only if the whole known sequence fits.
        lookahead_at_admission: reserve the drafter's slots already at admission.
        pads_one_token_admission: an admission with one token left takes K placeholder drafts.
        trims_drafts_to_max_tokens: never draft past `max_tokens`.
        prefix_hash_covers_next_token: with an EAGLE drafter, a block's hash covers the next token
            (otherwise the last matching block is dropped).
        spares_lone_long_prefill: the long-prefill cap is off while one request is in the system.
        skips_unused_drafts: no drafter pass in a step none of whose drafts can be used.
        charges_draft_slots: the token budget is charged for what the drafter appends to its input.
        speculative: the drafting method, or None.
        sliding_window: keys that the model's windowed layers see, tokens; 0: it has none.
        kv_layout: what a sequence holds where layers of several kinds share the pool; None: a slot a token.
        reserves_max_tokens: a request holds KV for its prompt and max_tokens from its admission on, so that
            nobody is ever thrown out (TensorRT-LLM's `GUARANTEED_NO_EVICT`).
        static_batching: nobody is admitted while anybody runs (its `STATIC_BATCH`, with the reserve).
        cuts_prompts_at_blocks: a piece that does not end its prompt is whole KV blocks.
        pipeline_parallel_size: stages that hold the layers in turn, with as many batches under way; with
            asynchronous scheduling one more is decided, and a request decodes in every so many-th step.
        hands_kv_over: the KV of a request that has ended is kept until it is taken (`Scheduler.release`).
        rebuilds_drafter_kv: the drafter computes its own KV of a prompt that comes, in one more pass over it.
        receives_kv: the KV of every prompt comes from elsewhere (`Scheduler.arrived`).
        sglang: set: SGLang's scheduler decides, with these settings; None: vLLM's.

    Raises:
        ValueError: for limits no engine would start with, all of them in one message.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    block_size: int = 16
    max_model_len: int = 8192
    enable_prefix_caching: bool = False
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    policy: str = "fcfs"
    watermark: float = 0.0
    async_scheduling: bool = False
    scheduler_reserve_full_isl: bool = True
    lookahead_at_admission: bool = True
    pads_one_token_admission: bool = True
    trims_drafts_to_max_tokens: bool = False
    prefix_hash_covers_next_token: bool = True
    spares_lone_long_prefill: bool = True
    skips_unused_drafts: bool = True
    charges_draft_slots: bool = True
    speculative: SpeculativeConfig | None = None
    sliding_window: int = 0
    kv_layout: KvLayout | None = None
    reserves_max_tokens: bool = False
    static_batching: bool = False
    cuts_prompts_at_blocks: bool = False
    pipeline_parallel_size: int = 1
    hands_kv_over: bool = False
    receives_kv: bool = False
    rebuilds_drafter_kv: bool = False
    sglang: SglangConfig | None = None

    def __post_init__(self) -> None:
        faults = []
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len"):
            if getattr(self, name) < 1:
                faults.append(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_gpu_blocks < 2:
            faults.append(f"num_gpu_blocks is {self.num_gpu_blocks}; one is the null block, so at least 2")
        if self.pipeline_parallel_size < 1:
            faults.append(f"pipeline_parallel_size is {self.pipeline_parallel_size}; it must be at least 1")
        if self.policy not in ("fcfs", "priority"):
            faults.append(f"policy is {self.policy!r}; use 'fcfs' or 'priority'")
        if self.static_batching and not self.reserves_max_tokens:
            faults.append("static_batching goes with reserves_max_tokens")
        if self.cuts_prompts_at_blocks and self.long_prefill_token_threshold:
            faults.append("cuts_prompts_at_blocks and long_prefill_token_threshold exclude each other")
        least = self.block_size + (self.speculative.draft_slots if self.speculative else 0)
        if (
            self.cuts_prompts_at_blocks
            and self.enable_chunked_prefill
            and self.max_num_batched_tokens < least
        ):
            faults.append(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; a piece of a prompt is {least}"
            )
        if not 0.0 <= self.watermark < 1.0:
            faults.append(f"watermark is {self.watermark}; it is a fraction of the pool below 1")
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def num_speculative_tokens(self) -> int:
        """K, or 0 without speculation."""
        return self.speculative.num_speculative_tokens if self.speculative else 0

    @property
    def decode_stagger(self) -> int:
        """Steps from one decode of a request to its next, at least: vLLM 0.33's `AsyncScheduler`."""
        return self.pipeline_parallel_size if self.async_scheduling else 1

    @property
    def usable_blocks(self) -> int:
        """KV blocks that requests can hold."""
        return self.num_gpu_blocks - 1

    @property
    def usable_tokens(self) -> int:
        """KV tokens that requests can hold."""
        return self.usable_blocks * self.block_size

    @property
    def drafter_positions(self) -> int:
        """Positions of the drafter, where they are fewer than the model's; else 0."""
        limit = None if self.speculative is None else self.speculative.drafter_max_model_len
        return limit if limit is not None and limit < self.max_model_len else 0

    @property
    def uses_eagle(self) -> bool:
        """Whether the drafter is of the EAGLE family."""
        return self.speculative is not None and self.speculative.method in EAGLE_FAMILY


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The load generator's own time, seconds. It is part of every latency a benchmark prints.

    Args:
        send_s: request leaving the client until the engine can read it.
        receive_s: chunk leaving the engine until the client has it.
        turn_s: last chunk received until the same user's next request is ready.
        send_serial_s: one send occupies the client this long; sends queue behind each other.
        chunk_s: handling one chunk; the chunks of a step are handled one after another. A chunk that comes
            while the first of its request still waits is handed over with it: vLLM's `RequestOutputCollector`
            merges what its reader has not taken yet.
    """

    send_s: float = 0.008
    receive_s: float = 0.0025
    turn_s: float = 0.0015
    send_serial_s: float = 0.0005
    chunk_s: float = 0.00002


NO_CLIENT = ClientConfig(0.0, 0.0, 0.0, 0.0, 0.0)
"""A client that costs nothing: latencies are the engine's own."""


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """Which pools a request may go to; the router chooses among their replicas.

    Args:
        by_class: traffic class -> pool; the key `""` is of classes that are not named. Empty: all pools.
        spill: pool -> (requests outstanding a replica from which on its requests go elsewhere, the pool they
            go to).
    """

    by_class: Mapping[str, str] = field(default_factory=dict)
    spill: Mapping[str, tuple[float, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What stands before the router: it lets so many requests in, and holds or turns away the others.

    Args:
        max_outstanding: requests outstanding at a replica at most; None is no limit, and nobody is held.
        queue: requests held at most, in order of arrival; who comes then is turned away. None: any number.
        timeout_s: who is held so long is given up; None: never.
        admit_ttft_s: who is predicted to wait longer for its first token is turned away; None: nobody.
        retries: how often a client sends again what was turned away.
        backoff_s: before the first time; twice as long before each further one.
    """

    max_outstanding: int | None = None
    queue: int | None = None
    timeout_s: float | None = None
    admit_ttft_s: float | None = None
    retries: int = 0
    backoff_s: float = 1.0


@dataclass(frozen=True, slots=True)
class DeploymentConfig:
    """How many replicas stand behind which router.

    Args:
        replicas: engines, each with its own GPUs.
        router: `round_robin`, `random` or `least_outstanding`.
        lockstep: so many successive replicas are data-parallel ranks that share experts: a step of theirs
            begins and ends together.
        routing: between pools, where there are several.
        refresh_s: what a router sees of replicas is as it was at the last multiple of this; 0: as it is.
        gateway: before the router, if any.
        failures: of replicas, if any.
        handover: where pools have roles, how the KV of a prompt goes from one to the other.
    """

    replicas: int = 1
    router: str = "round_robin"
    lockstep: int = 1
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    refresh_s: float = 0.0
    gateway: GatewayConfig | None = None
    failures: FailuresConfig | None = None
    handover: HandoverConfig | None = None


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """How requests are offered.

    Args:
        max_concurrency: most requests in flight (the client's cap), or None.
        num_warmups: the first so many requests are simulated and not counted.
        patience: how long clients wait, by traffic class; the key `""` is of classes that are not named.
    """

    max_concurrency: int | None = None
    num_warmups: int = 0
    patience: Mapping[str, PatienceConfig] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency limits of one request, seconds (None: no limit), and the share that must meet them.

    Attributes:
        by_class: what holds for each traffic class in their place, by `class_id`; None: these.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None
    attainment: float = 0.99
    by_class: tuple[Slo | None, ...] = ()

    def of_class(self, class_id: int) -> Slo:
        """Returns the limits of the requests of a class."""
        own = self.by_class[class_id] if class_id < len(self.by_class) else None
        return replace(self, by_class=()) if own is None else own

    def allowed(self, latency: str, class_id: npt.NDArray[np.integer]) -> float | npt.NDArray[np.float64]:
        """Returns the limit on a latency (`ttft_s`, ..), or of each request; inf where there is none.

        Args:
            latency: name of the field.
            class_id: of the requests.
        """
        if not self.by_class:
            limit = getattr(self, latency)
            return inf if limit is None else float(limit)
        each = [getattr(self.of_class(number), latency) for number in range(len(self.by_class))]
        table = np.array([inf if limit is None else limit for limit in each])
        return np.asarray(table[class_id])
