"""The `serve.sglang:` block: what SGLang's scheduler is set up with and vLLM's is not, in SGLang's names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specfleet.experiments.schema.blocks.base import Block, Count, Drafts, Tokens


class Sglang(Block):
    """For `engine: sglang`; other engines refuse it. Values left out are SGLang's own."""

    schedule_policy: Literal["fcfs", "lpm"] = "fcfs"
    """Who waits is tried in turn, or longest cached prefix first."""
    schedule_conservativeness: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Factor on the share of their outputs for which running requests are expected to need KV."""
    max_prefill_tokens: Tokens = 16_384
    """Prompt tokens of a batch where prompts are not cut."""
    prefill_max_requests: Count | None = None
    """Requests of a prompt batch; no limit if left out."""
    enable_mixed_chunk: bool = False
    """Running requests ride along in prompt batches, without drafts."""
    enable_priority_scheduling: bool = False
    """By priority, then by time of entry."""
    schedule_low_priority_values_first: bool = False
    """A lower value is the higher priority."""
    priority_scheduling_preemption_threshold: Annotated[int, Field(ge=0, le=1_000_000_000)] = 10
    """A request displaces a running one only if its priority is higher by more than this."""
    disable_priority_preemption: bool = False
    """Nobody is displaced."""
    retraction_policy: Literal["length", "priority"] = "length"
    """Who gives way when KV runs out: fewest outputs first, or lowest priority first."""
    cuda_graph_max_bs: Annotated[int, Field(ge=1, le=1 << 14)] | None = None
    """Largest batch with a decode graph; SGLang's own, by GPU and tensor parallelism, if left out."""
    cuda_graph_bs: tuple[Annotated[int, Field(ge=1, le=1 << 14)], ...] | None = None
    """Batches with a decode graph, in place of the ladder."""
    speculative_num_steps: Drafts | None = None
    """Depth of the draft, for the KV held in reserve; that of `draft_tree` or of the chain if left out."""
    speculative_eagle_topk: Annotated[int, Field(ge=1, le=64)] | None = None
    """Branches of a drafted token, for the KV held in reserve; those of `draft_tree` if left out."""
