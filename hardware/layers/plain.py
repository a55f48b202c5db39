"""The layers that the plain fields of a model describe, and layers as GEMMs see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from specfleet.hardware.layers.attention import GroupedAttention, LatentAttention
from specfleet.hardware.layers.feedforward import DenseMlp, ExpertMlp
from specfleet.hardware.layers.parts import Gemm
from specfleet.hardware.layers.stack import FeedForward, LayerRun


class LayerGroup(NamedTuple):
    """Layers alike: how many, their GEMMs with the format of each, the width of their dense (or shared) MLP,
    the routed experts with the format of those, and how many norms they have."""

    layers: int
    gemms: tuple[Gemm, ...]
    formats: tuple[str, ...]
    mlp_width: int
    experts: ExpertMlp | None
    expert_format: str
    norms: int
    run: LayerRun


class PlainShape(Protocol):
    """The fields of `ModelSpec` that describe layers alike but for window and experts."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def qkv_input_multiple(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def num_experts_per_tok(self) -> int: ...
    @property
    def moe_intermediate_size(self) -> int: ...
    @property
    def shared_expert_intermediate_size(self) -> int: ...
    @property
    def num_dense_layers(self) -> int: ...
    @property
    def router_bias(self) -> bool: ...
    @property
    def kv_lora_rank(self) -> int: ...
    @property
    def q_lora_rank(self) -> int: ...
    @property
    def qk_nope_head_dim(self) -> int: ...
    @property
    def qk_rope_head_dim(self) -> int: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def sliding_window(self) -> int: ...
    @property
    def num_windowed_layers(self) -> int: ...


def plain_runs(model: PlainShape) -> tuple[LayerRun, ...]:
    """The layers that the plain fields describe, those with a dense MLP first."""
    dense = model.num_dense_layers if model.num_experts else model.num_layers
    kinds: list[tuple[int, FeedForward]] = [(dense, DenseMlp(model.intermediate_size))]
    if model.num_experts:
        experts = ExpertMlp(
            model.num_experts, model.num_experts_per_tok, model.moe_intermediate_size,
            model.shared_expert_intermediate_size, router_bias=model.router_bias,
        )  # fmt: skip
        kinds.append((model.num_layers - dense, experts))
    runs = []
    if model.kv_lora_rank:
        latent = LatentAttention(
            model.num_heads, model.kv_lora_rank, model.qk_nope_head_dim, model.qk_rope_head_dim,
            model.v_head_dim, model.q_lora_rank,
        )  # fmt: skip
        runs = [LayerRun(count, (latent,), feed_forward) for count, feed_forward in kinds]
        return tuple(run for run in runs if run.layers)
    full = GroupedAttention(
        model.num_heads, model.num_kv_heads, model.head_dim, input_multiple=model.qkv_input_multiple
    )
    left = model.num_windowed_layers
    for count, feed_forward in kinds:
        windowed = min(left, count)
        left -= windowed
        runs.append(LayerRun(windowed, (replace(full, window=model.sliding_window),), feed_forward))
        runs.append(LayerRun(count - windowed, (full,), feed_forward))
    return tuple(run for run in runs if run.layers)


def group_of(run: LayerRun, hidden: int, tp: int, format_of: Callable[[LayerRun, str], str]) -> LayerGroup:
    """A run's GEMMs on one GPU of `tp`; `format_of` says how a part is stored."""
    parts = run.parts(hidden, tp)
    feed_forward = run.feed_forward
    width = feed_forward.width if isinstance(feed_forward, DenseMlp) else 0
    if isinstance(feed_forward, ExpertMlp):
        width = feed_forward.shared_width
    return LayerGroup(
        run.layers,
        tuple(part.gemm for part in parts),
        tuple(format_of(run, part.role) for part in parts),
        width // tp,
        run.experts,
        format_of(run, "experts"),
        run.norms,
        run,
    )
