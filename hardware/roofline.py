"""The naive datasheet roofline (`cost_model: roofline`), for comparison: off by about a factor of two."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hardware.kernels import Array
from hardware.model import WEIGHT_BYTES, ModelSpec
from hardware.placement import Placement
from hardware.stepcost import StepShape


class RooflineCost:
    """`max(bytes / bandwidth, FLOP / peak)` of a step per GPU: no kernel floor, padding, links or host."""

    def __init__(self, placement: Placement) -> None:
        """Turn the placement into seconds per pass, row, KV token and pair."""
        self.placement = placement
        model, tp = placement.model, placement.tensor_parallel_size
        bandwidth = placement.accelerator.hbm_bytes_per_s
        peak = placement.accelerator.flops_per_s
        linear = _linear_parameters(model, tp)
        head = model.vocab_size // tp * model.hidden_size
        self._weights_s = (linear * WEIGHT_BYTES[placement.quantization] + 2 * head) / bandwidth
        self._kv_token_s = model.kv_bytes_per_token(placement.kv_cache_dtype, tp) / bandwidth
        self._token_s = 2.0 * linear / peak[placement.weight_dtype]
        self._logit_s = 2.0 * head / peak["bfloat16"]
        self._pair_s = _pair_flops(model, tp) / peak["bfloat16"]
        self._draft_pass_s = self._draft_kv_token_s = self._draft_row_s = 0.0
        drafter, draft_tp = placement.drafter, placement.draft_tensor_parallel_size
        if drafter and drafter.model:
            fc = drafter.fc_gemm(draft_tp) or (0, 0)
            weights = _linear_parameters(drafter.model, draft_tp) + fc[0] * fc[1]
            weights += drafter.draft_vocab_size // draft_tp * drafter.model.hidden_size
            kv = drafter.kv_bytes_per_token(placement.kv_cache_dtype, draft_tp)
            self._draft_pass_s = 2.0 * weights / bandwidth
            self._draft_kv_token_s = kv / bandwidth
            self._draft_row_s = 2.0 * weights / peak["bfloat16"]

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        kv = shape.kv_tokens * self._kv_token_s
        arithmetic = shape.tokens * self._token_s + shape.logit_rows * self._logit_s
        arithmetic = arithmetic + shape.prefill_pairs * self._pair_s
        compute = max(0.0, arithmetic - (self._weights_s + kv))
        drafter = 0.0
        if shape.draft_passes:
            requests = shape.decode_sequences + shape.prefill_sequences
            moved = self._draft_pass_s + shape.kv_tokens * self._draft_kv_token_s
            first = max(moved, shape.tokens * self._draft_row_s)
            later = max(moved, requests * self._draft_row_s)
            drafter = first + (shape.draft_passes - 1) * later
        return self._weights_s + kv + compute + drafter

    def terms(self, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, Array]:
        """Seconds by term, a row a step; communication, launch and host are zero."""
        tokens, passes = columns["tokens"], columns["draft_passes"]
        kv = columns["kv_tokens"] * self._kv_token_s
        arithmetic = tokens * self._token_s + columns["logit_rows"] * self._logit_s
        arithmetic = arithmetic + columns["prefill_pairs"] * self._pair_s
        requests = columns["decode_sequences"] + columns["prefill_sequences"]
        moved = self._draft_pass_s + columns["kv_tokens"] * self._draft_kv_token_s
        first = np.maximum(moved, tokens * self._draft_row_s)
        later = np.maximum(moved, requests * self._draft_row_s)
        zero = np.zeros(len(tokens))
        return {
            "weights": np.full(len(tokens), self._weights_s),
            "kv": kv,
            "compute": np.maximum(0.0, arithmetic - (self._weights_s + kv)),
            "communication": zero,
            "launch": zero,
            "host": zero,
            "drafter": np.where(passes > 0, first + (passes - 1) * later, 0.0),
        }

    def summary(self) -> str:
        """GPU, GPU count and model, and what one pass over the weights takes."""
        placement = self.placement
        return (
            f"roofline: {placement.model.name} on {placement.tensor_parallel_size} x "
            f"{placement.accelerator.name}, weights {1e3 * self._weights_s:.2f} ms a pass"
        )


def _linear_parameters(model: ModelSpec, tp: int) -> int:
    """Weights of all layers' GEMMs on one GPU."""
    return model.num_layers * sum(n * k for n, k in model.layer_gemms(tp))


def _pair_flops(model: ModelSpec, tp: int) -> float:
    """FLOP of one causal (query, key) pair over all layers on one GPU: two products of head_dim."""
    return 4.0 * model.num_layers * (model.num_heads // tp) * model.head_dim
