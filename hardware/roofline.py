"""The naive datasheet roofline (`cost_model: roofline`), for comparison: off by about a factor of two."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.kernels import Array
from specfleet.hardware.layers.stack import as_projected
from specfleet.hardware.mixture.routing import busiest_rank, effective_tokens
from specfleet.hardware.model import DrafterSpec, ModelSpec
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import StepShape


class RooflineCost:
    """`max(bytes / bandwidth, FLOP / peak)` of a step per GPU: no kernel floor, padding, links or host."""

    def __init__(self, placement: Placement) -> None:
        """Turn the placement into seconds per pass, row, KV token and pair."""
        self.placement = placement
        model, tp = placement.model, placement.tensor_parallel_size
        bandwidth = placement.accelerator.hbm_bytes_per_s
        peak = placement.accelerator.flops_per_s
        head = model.vocab_size // tp * model.hidden_size
        linear = model.linear_bytes(placement.quantization, tp)
        self._weights_s = (linear + 2 * head) / bandwidth
        self._experts = experts_s(placement)
        self._experts_s = self._experts.tolist()
        kv = model.kv_bytes_per_token(placement.kv_cache_dtype, tp) / bandwidth
        self._window_token_s = kv * model.share_in_reach(placement.kv_cache_dtype, tp)
        self._kv_token_s = kv - self._window_token_s
        self._token_s = 2.0 * active_parameters(model, tp) / peak[placement.weight_dtype]
        self._logit_s = 2.0 * head / peak["bfloat16"]
        self._pair_s = _pair_flops(model, tp) / peak["bfloat16"]
        self._draft_pass_s = self._draft_kv_token_s = self._draft_row_s = 0.0
        drafter, draft_tp = placement.drafter, placement.draft_tensor_parallel_size
        if drafter and drafter.on_gpu:
            weights = pass_parameters(drafter, draft_tp, placement.num_speculative_tokens)
            kv = drafter.kv_bytes_per_token(placement.kv_cache_dtype, draft_tp)
            self._draft_pass_s = 2.0 * weights / bandwidth
            self._draft_kv_token_s = kv / bandwidth
            self._draft_row_s = 2.0 * weights / peak["bfloat16"]

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        weights = self._weights_s + self._experts_s[shape.tokens]
        kv = shape.kv_tokens * self._kv_token_s + shape.kv_tokens_in_window * self._window_token_s
        arithmetic = shape.tokens * self._token_s + shape.logit_rows * self._logit_s
        arithmetic = arithmetic + shape.prefill_pairs * self._pair_s
        compute = max(0.0, arithmetic - (weights + kv))
        drafter = 0.0
        if shape.draft_passes:
            requests = shape.decode_sequences + shape.prefill_sequences
            moved = self._draft_pass_s + shape.kv_tokens * self._draft_kv_token_s
            first = max(moved, shape.tokens * self._draft_row_s)
            later = max(moved, requests * self._draft_row_s)
            drafter = first + (shape.draft_passes - 1) * later
        total: float = weights + kv + compute + drafter
        return total

    def terms(self, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, Array]:
        """Seconds by term, a row a step; communication, launch and host are zero."""
        tokens, passes = columns["tokens"], columns["draft_passes"]
        weights = self._weights_s + self._experts[tokens]
        kv = columns["kv_tokens"] * self._kv_token_s
        kv = kv + columns["kv_tokens_in_window"] * self._window_token_s
        arithmetic = tokens * self._token_s + columns["logit_rows"] * self._logit_s
        arithmetic = arithmetic + columns["prefill_pairs"] * self._pair_s
        requests = columns["decode_sequences"] + columns["prefill_sequences"]
        moved = self._draft_pass_s + columns["kv_tokens"] * self._draft_kv_token_s
        first = np.maximum(moved, tokens * self._draft_row_s)
        later = np.maximum(moved, requests * self._draft_row_s)
        zero = np.zeros(len(tokens))
        return {
            "weights": weights,
            "kv": kv,
            "compute": np.maximum(0.0, arithmetic - (weights + kv)),
            "communication": zero,
            "launch": zero,
            "host": zero,
            "drafter": np.where(passes > 0, first + (passes - 1) * later, 0.0),
        }

    def summary(self) -> str:
        """GPU, GPU count and model, and what one pass over the weights takes."""
        placement = self.placement
        weights = self._weights_s + self._experts_s[1]
        return (
            f"roofline: {placement.model.name} on {placement.tensor_parallel_size} x "
            f"{placement.accelerator.name}, weights {1e3 * weights:.2f} ms a pass"
        )


def experts_s(placement: Placement) -> Array:
    """Seconds to read the distinct routed experts of all layers, by tokens; zeros for a dense model."""
    model, tokens = placement.model, np.arange(placement.largest_step + 1, dtype=np.float64)
    if not model.num_experts:
        return np.zeros_like(tokens)
    alike = effective_tokens(tokens, placement.num_speculative_tokens, placement.routing_correlation)
    alike = alike * placement.data_parallel_size
    ways, ranks = placement.expert_split(placement.tensor_parallel_size)
    seconds = np.zeros_like(tokens)
    for run in as_projected(model.runs):
        if run.experts:
            read = busiest_rank(alike, run.experts.experts, run.experts.per_token, ranks).distinct
            each = model.expert_bytes(run, placement.quantization, ways)
            seconds = seconds + run.layers * read * each / placement.accelerator.hbm_bytes_per_s
    return seconds


def active_parameters(model: ModelSpec, tp: int) -> float:
    """Weights of all layers' GEMMs on one GPU that one token passes through."""
    return model.linear_parameters(tp) + model.routed_parameters(tp)


def pass_parameters(drafter: DrafterSpec, tp: int, drafts: int) -> float:
    """Weights that one drafter pass reads on one GPU (Medusa: one head a draft)."""
    if drafter.model is None:
        return drafts * (drafter.target_hidden_size**2 + drafter.head_parameters(tp))
    fc = drafter.fc_gemm(tp) or (0, 0)
    head = drafter.draft_vocab_size // tp * drafter.model.hidden_size
    return active_parameters(drafter.model, tp) + fc[0] * fc[1] + head


def _pair_flops(model: ModelSpec, tp: int) -> float:
    """FLOP of one causal (query, key) pair over all layers on one GPU: products with key and value."""
    return sum((layers * mixer.pair_flops(tp) for mixer, layers in model.mixers.items()), 0.0)
