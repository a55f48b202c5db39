"""What a step must do at least, as the GPU's datasheet times it: no step can be faster.

Weights are read once a pass, KV once a sequence, and every scheduled token is multiplied with every weight
that it passes through. What kernels do beyond that (activations, padding, the arithmetic of decode attention)
is left out, so this is a bound and no prediction; `roofline.py` is one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.kernels import Array
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import Placement
from specfleet.hardware.roofline import active_parameters, experts_s


class LeastWork:
    """Bytes and FLOP of steps on one GPU, in seconds at the datasheet's rates.

    Args:
        placement: model, drafter and GPU.
    """

    def __init__(self, placement: Placement) -> None:
        model, tp, drafts = placement.model, placement.tensor_parallel_size, placement.drafter
        bandwidth, peaks = placement.accelerator.hbm_bytes_per_s, placement.accelerator.flops_per_s
        self._weights_s = model.linear_bytes(placement.quantization, tp) / bandwidth
        self._head_s = 2.0 * (model.vocab_size // tp) * model.hidden_size / bandwidth
        self._experts_s = experts_s(placement) if model.num_experts else None
        kv_s = model.kv_bytes_per_token(placement.kv_cache_dtype, tp) / bandwidth
        self._window_token_s = kv_s * model.share_in_reach(placement.kv_cache_dtype, tp)
        self._kv_token_s = kv_s - self._window_token_s
        mixed = max(peaks.values()) if model.stack else peaks[placement.weight_dtype]  # of several formats
        self._token_s = 2.0 * active_parameters(model, tp) / mixed
        self._logit_s = 2.0 * (model.vocab_size // tp) * model.hidden_size / peaks["bfloat16"]
        self._pair_s = _pair_flop(model, tp) / peaks["bfloat16"]
        self._pass_s = 0.0
        if drafts is not None and drafts.model is not None:
            own, own_tp = drafts.model, placement.draft_tensor_parallel_size
            head = 2.0 * (drafts.draft_vocab_size // own_tp) * own.hidden_size
            self._pass_s = (own.linear_bytes(None, own_tp) + head) / bandwidth

    def bytes_s(self, columns: Mapping[str, NDArray[np.integer]]) -> Array:
        """Seconds of steps' memory traffic; columns are named as the fields of `StepShape`."""
        seconds: Array = np.asarray(columns["kv_tokens"] * self._kv_token_s, dtype=np.float64)
        seconds += self._weights_s + self._head_s
        if self._window_token_s:
            seconds += columns["kv_tokens_in_window"] * self._window_token_s
        if self._experts_s is not None:
            seconds += self._experts_s[columns["tokens"]]
        if self._pass_s:
            seconds += columns["draft_passes"] * self._pass_s
        return seconds

    def flop_s(self, columns: Mapping[str, NDArray[np.integer]]) -> Array:
        """Seconds of steps' arithmetic; columns are named as the fields of `StepShape`."""
        seconds: Array = np.asarray(columns["tokens"] * self._token_s, dtype=np.float64)
        seconds += columns["logit_rows"] * self._logit_s
        seconds += columns["prefill_pairs"] * self._pair_s
        return seconds


def _pair_flop(model: ModelSpec, tp: int) -> float:
    """FLOP of a causal (query, key) pair in the layers that see every key."""
    pairs = (layers * mixer.pair_flops(tp) for mixer, layers in model.mixers.items() if not mixer.reach)
    return float(sum(pairs))
