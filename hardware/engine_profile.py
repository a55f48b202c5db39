"""What differs between engine builds and hosts: async rules, graph ladder, memory rules, host time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EngineProfile:
    """One engine build on one class of host; loaded from `catalog/engines/*.yaml`, which gives the sources.

    Host times are what a step takes beyond its kernels: a constant and a part per request, one pair for
    asynchronous and one for synchronous scheduling. They belong to the machine as much as to the build.
    `arithmetic_rate` multiplies the GPU's FLOP rate in every GEMM (served GEMMs run below kernel benchmarks).
    `fp8_m_curve` applies the measured tile cliffs of FP8 GEMMs.
    `cudagraph_max_tokens` 0 switches graphs, and so padding, off.
    """

    name: str
    async_scheduling: Mapping[str, bool]
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
    fp8_m_curve: bool
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_base_bytes: Mapping[str, int]
    sampler_copies: float
    sampler_copies_with_speculation: float
    scheduler_reserve_full_isl: bool
    lookahead_at_admission: bool
    pads_one_token_admission: bool
    trims_drafts_to_max_tokens: bool
    prefix_hash_covers_next_token: bool
    spares_lone_long_prefill: bool
    skips_unused_drafts: bool
    draft_slots_draft_model: int
    aliases: tuple[str, ...] = ()
    source: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject values outside their range and tables with missing rows."""
        if not 0.0 < self.arithmetic_rate <= 1.0:
            raise ValueError(f"engine {self.name}: arithmetic_rate is {self.arithmetic_rate}; use (0, 1]")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(
                f"engine {self.name}: gpu_memory_utilization is {self.gpu_memory_utilization}; use (0, 1]"
            )
        if missing := {"one_gpu", "tensor_parallel"} - set(self.memory_base_bytes):
            raise ValueError(f"engine {self.name}: memory_base_bytes lacks {', '.join(sorted(missing))}")
        if "none" not in self.async_scheduling:
            raise ValueError(f"engine {self.name}: async_scheduling lacks the entry 'none'")

    def schedules_async(self, method: str | None) -> bool:
        """Whether this build schedules asynchronously by default with the drafting method (None: plain)."""
        return self.async_scheduling.get(method or "none", False)

    def max_capture_tokens(self, max_num_seqs: int, max_num_batched_tokens: int, query_len: int) -> int:
        """Largest batch, in tokens, that has a CUDA graph.

        vLLM: `min(max_num_seqs * q * 2, 512)`, and never above the token budget; q = 1 + drafts in builds
        that count them.
        """
        tokens = max_num_seqs * self.cudagraph_tokens_per_sequence
        if self.cudagraph_cap_counts_drafts:
            tokens *= query_len
        return min(tokens, self.cudagraph_max_tokens, max_num_batched_tokens)

    def base_bytes(self, tp: int) -> int:
        """Memory that no formula explains, per GPU: context, workspaces, NCCL (`n0` of the memory rule)."""
        return self.memory_base_bytes["one_gpu" if tp == 1 else "tensor_parallel"]
