"""What differs between engine builds and hosts: async rules, graph ladder, memory rules, host time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.cudagraph import VLLM_LADDER, Tier, capture_sizes, rounded_sizes, uniform_sizes
from specfleet.hardware.memoryrules import MemoryRules
from specfleet.hardware.sglang.defaults import OWN_GRAPHS, DecodeGraphs

_LARGE_GPU_BYTES = 70 * 2**30
BLACKWELL = 10.0
"""Compute capability of its data-centre GPUs."""

KERNELS = ("vllm", "sglang", "trtllm")
"""Collections of measured kernels, by engine."""
SCHEDULERS = ("vllm", "sglang", "trtllm")
"""Whose rules decide, and whose automatic values hold."""
BLOCK_SIZES = {"vllm": 16, "sglang": 1, "trtllm": 32}
"""Tokens in one KV block if nothing is said, by whose rules decide (TensorRT-LLM: KvCacheConfig)."""


@dataclass(frozen=True)
class EngineProfile:
    """One engine build on one class of host; loaded from `catalog/engines/*.yaml`, which gives the sources.

    Host times are what a step takes beyond its kernels: a constant and a part per request, one pair for
    asynchronous and one for synchronous scheduling. They belong to the machine as much as to the build.
    `arithmetic_rate` multiplies the GPU's FLOP rate in every GEMM (served GEMMs run below kernel benchmarks).
    `kernel_time_scale` multiplies everything but host time: what `specfleet calibrate` fits, 1 otherwise.
    `yarn_lengthens`: the factor of YaRN raises the longest sequence by itself.
    `kernels` names the engine whose measured kernels run, `kernel_version` the release (of several measured
    the first that is not older; "" is the newest). `kernels_choosing_with_bias`: kernels that choose experts
    by scores with a correction added. `fp8_gemm_table` prices its FP8 GEMMs by the
    measured table, which has tile cliffs; `bf16_gemm_table` its BF16 GEMMs up to 256 rows by a table of its
    time's library, where the GPU has one (`gemmtable.py`); `fused_fp8_quantisation` means static scales: no
    pass that quantises a GEMM's input. `draft_launch_s` is what a drafter pass takes beyond its kernels,
    `draft_tree_launch_s` one that chooses among branches (0: the same), `draft_extend_launch_s` the first of
    a round besides, where it has no graph while the others have one.
    `cudagraph_max_tokens` 0 switches graphs, and so padding, off (`..._blackwell`: on such a GPU);
    `cudagraph_ladder` has the captured sizes in runs of (first, last, step), counted in sequences or tokens
    and rounded to 1 + drafts as the next say. `cudagraph_adds_uniform`: 1 + drafts times 1, 2, 4, 8, ...
    requests is captured besides, and the token budget. `decode_graphs`: those that an SGLang server is
    asked for. `cudagraph_uniform_apart`: batches in which everybody
    has 1 + drafts tokens have graphs of their own, the list rounded up to multiples of it; all others are
    padded on the list as it is.
    `drafts_at_any_length`: a head of the EAGLE kind drafts at any length, and a draft model (or a head whose
    positions cannot be raised) lowers the engine's own longest sequence; otherwise the drafter is skipped in
    steps with a sequence beyond its positions. `gone_methods` are drafting methods the build no longer has.
    `pipeline_runs_ahead`: with pipeline stages a batch more than stages is in flight, a request decodes in
    every so many-th of them, and the last stage drafts; otherwise as many batches as stages, and no drafts.
    `scheduler` names whose rules decide; with `sglang` graphs, limits and memory follow `hardware.sglang` and
    `gpu_memory_utilization` is its `mem_fraction_static`; with `trtllm` its capacity scheduler decides, and
    `gpu_memory_utilization` is its `free_gpu_memory_fraction`: of what weights and activations leave.
    `image` is the container image that holds this release; "" where the profile stands for no single one.
    """

    name: str
    async_scheduling: Mapping[str, bool] = field(hash=False)
    deducts_cudagraphs: bool
    cudagraph_bytes_per_layer_and_size: int
    cudagraph_max_tokens: int
    cudagraph_tokens_per_sequence: int
    cudagraph_cap_counts_drafts: bool
    host_async_s: float
    host_async_s_per_request: float
    host_sync_s: float
    host_sync_s_per_request: float
    draft_launch_s: float
    arithmetic_rate: float
    fp8_gemm_table: bool
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    memory: MemoryRules
    scheduler_reserve_full_isl: bool
    lookahead_at_admission: bool
    pads_one_token_admission: bool
    trims_drafts_to_max_tokens: bool
    prefix_hash_covers_next_token: bool
    spares_lone_long_prefill: bool
    skips_unused_drafts: bool
    charges_draft_slots: bool
    drafts_at_any_length: bool
    yarn_lengthens: bool = False
    kernel_time_scale: float = 1.0
    kernels: str = "vllm"
    kernel_version: str = ""
    kernels_choosing_with_bias: int = 1
    fused_fp8_quantisation: bool = False
    bf16_gemm_table: bool = False
    draft_tree_launch_s: float = 0.0
    draft_extend_launch_s: float = 0.0
    cudagraph_ladder: tuple[tuple[int, ...], ...] = tuple(map(tuple, VLLM_LADDER))
    cudagraph_counts_sequences: bool = False
    cudagraph_rounds_to_query: bool = True
    cudagraph_max_tokens_blackwell: int = 512
    cudagraph_adds_uniform: bool = False
    cudagraph_uniform_apart: bool = False
    gone_methods: tuple[str, ...] = ()
    pipeline_runs_ahead: bool = False
    decode_graphs: DecodeGraphs = OWN_GRAPHS
    scheduler: str = "vllm"
    image: str = ""
    aliases: tuple[str, ...] = ()
    source: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Reject values outside their range and tables with missing rows."""
        if not 0.0 < self.arithmetic_rate <= 1.0:
            raise ValueError(f"engine {self.name}: arithmetic_rate is {self.arithmetic_rate}; use (0, 1]")
        if not self.kernel_time_scale > 0.0:
            raise ValueError(
                f"engine {self.name}: kernel_time_scale is {self.kernel_time_scale}; it must be positive"
            )
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(
                f"engine {self.name}: gpu_memory_utilization is {self.gpu_memory_utilization}; use (0, 1]"
            )
        if self.kernels not in KERNELS:
            raise ValueError(
                f"engine {self.name}: kernels is {self.kernels!r}; use one of {', '.join(KERNELS)}"
            )
        if self.scheduler not in SCHEDULERS:
            raise ValueError(
                f"engine {self.name}: scheduler is {self.scheduler!r}; use one of {', '.join(SCHEDULERS)}"
            )
        if any(len(run) != 3 or min(run) < 1 for run in self.cudagraph_ladder):
            raise ValueError(
                f"engine {self.name}: cudagraph_ladder needs runs of (first, last, step), each at least 1"
            )
        if "none" not in self.async_scheduling:
            raise ValueError(f"engine {self.name}: async_scheduling lacks the entry 'none'")

    def limits(self, accelerator: Accelerator) -> tuple[int, int]:
        """Default `max_num_seqs` and `max_num_batched_tokens` on a GPU.

        vLLM: the profile's own on GPUs of 70 GiB and more that are no A100, else at most 256 and 2,048.
        """
        if accelerator.hbm_bytes >= _LARGE_GPU_BYTES and accelerator.constants != "a100_sxm":
            return self.max_num_seqs, self.max_num_batched_tokens
        return min(self.max_num_seqs, 256), min(self.max_num_batched_tokens, 2048)

    def schedules_async(self, method: str | None) -> bool:
        """Whether this build schedules asynchronously by default with the drafting method (None: plain)."""
        return self.async_scheduling.get(method or "none", False)

    def graph_ceiling(self, accelerator: Accelerator) -> int:
        """Most tokens that a graph has on a GPU, however many sequences there are."""
        blackwell = BLACKWELL <= accelerator.compute_capability < BLACKWELL + 1
        both = self.cudagraph_max_tokens, self.cudagraph_max_tokens_blackwell
        return max(both) if blackwell and self.cudagraph_max_tokens else self.cudagraph_max_tokens

    def max_capture_tokens(
        self,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        query_len: int,
        *,
        ceiling: int | None = None,
        own: int = 0,
    ) -> int:
        """Largest batch, in tokens, that has a CUDA graph.

        vLLM: `min(max_num_seqs * q * 2, ceiling)`, and never above the token budget; q = 1 + drafts in builds
        that count them. `own`: what the model asks for in its place.
        """
        most = self.cudagraph_max_tokens if ceiling is None else ceiling
        if own and most:
            return min(own, max_num_batched_tokens)
        tokens = max_num_seqs * self.cudagraph_tokens_per_sequence
        if self.cudagraph_cap_counts_drafts:
            tokens *= query_len
        return min(tokens, most, max_num_batched_tokens)

    def capture_sizes(
        self,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        query_len: int,
        *,
        tiers: Sequence[Tier] = (),
        ceiling: int | None = None,
        own: int = 0,
    ) -> tuple[int, ...]:
        """Token counts that have a CUDA graph, in growing order.

        `tiers`: where K follows a schedule, each 1 + K with the most requests that run with it.
        """
        most = self.max_capture_tokens(
            max_num_seqs, max_num_batched_tokens, query_len, ceiling=ceiling, own=own
        )
        sizes = capture_sizes(
            most,
            query_len,
            ladder=self.cudagraph_ladder,
            counts_sequences=self.cudagraph_counts_sequences,
            rounds_to_query=self.cudagraph_rounds_to_query,
        )
        if not self.cudagraph_adds_uniform:
            return sizes
        requests = self.cudagraph_max_tokens if ceiling is None else ceiling
        besides = () if own else uniform_sizes(tiers or ((query_len, max_num_seqs),), most, requests)
        budget = (max_num_batched_tokens,) if max_num_batched_tokens <= most else ()
        return tuple(sorted({*sizes, *besides, *budget}))

    def uniform_sizes(self, sizes: Sequence[int], query_len: int, max_num_seqs: int) -> tuple[int, ...]:
        """Of the captured `sizes`, what a batch of `query_len` tokens a sequence is padded on."""
        if not (self.cudagraph_uniform_apart and sizes):
            return tuple(sizes)
        return rounded_sizes(sizes, query_len, min(sizes[-1], query_len * max_num_seqs))
