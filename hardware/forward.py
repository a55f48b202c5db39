"""One forward pass of a layer stack or of an LM head, tabulated by rows for one placement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardware.interconnect import all_reduce_law, all_reduce_s
from hardware.kernels import (
    ELEMENTWISE_FLOOR_S,
    Array,
    DecodeAttention,
    GemmParts,
    PrefillAttention,
    decode_attention,
    elementwise_s,
    gemm,
    prefill_attention,
)
from hardware.model import ModelSpec
from hardware.placement import Placement


class Forward(NamedTuple):
    """Seconds by rows (index 0: no work): kernel floors, streaming, arithmetic beyond it, GPU to GPU."""

    floor_s: Array
    stream_s: Array
    extra_s: Array
    communication_s: Array

    @property
    def total_s(self) -> Array:
        """Everything together."""
        return self.floor_s + self.stream_s + self.extra_s + self.communication_s


def rows_up_to(largest: int) -> Array:
    """Row counts 1 to `largest`; tables put a zero in front of what they compute from them."""
    return np.arange(1, largest + 1, dtype=np.float64)


def linear(placement: Placement, rows: Array, columns: int, depth: int, dtype: str = "bfloat16") -> GemmParts:
    """One GEMM of this placement in `dtype`, at the served FLOP rate."""
    accelerator = placement.accelerator
    return gemm(
        rows,
        columns,
        depth,
        weight_bytes=1 if dtype == "fp8" else 2,
        constants=placement.constants.gemm[dtype],
        bytes_per_s=accelerator.hbm_bytes_per_s,
        flops_per_s=accelerator.flops_per_s[dtype] * placement.profile.arithmetic_rate,
        sms=accelerator.sms,
        m_curve=dtype == "fp8" and placement.profile.fp8_m_curve,
    )


def layer_stack(placement: Placement, model: ModelSpec, tp: int, dtype: str, largest: int) -> Forward:
    """All layers of `model` without attention, for 0 to `largest` rows.

    A layer is four GEMMs, two norms (read and write hidden state and residual), one activation (read gate and
    up, write their product) and, on several GPUs, two all-reduces of the hidden state.
    """
    rows = rows_up_to(largest)
    parts = [linear(placement, rows, n, k, dtype) for n, k in model.layer_gemms(tp)]
    norm_bytes = 8.0 * model.hidden_size * rows
    activation_bytes = 6.0 * (model.intermediate_size // tp) * rows
    bandwidth = placement.accelerator.hbm_bytes_per_s
    elementwise = 2.0 * elementwise_s(norm_bytes, bandwidth) + elementwise_s(activation_bytes, bandwidth)
    floor = sum((part.floor_s for part in parts), np.full_like(rows, 3 * ELEMENTWISE_FLOOR_S))
    stream = sum((part.stream_s for part in parts), np.zeros_like(rows))
    extra = sum((part.extra_s for part in parts), elementwise)
    communication = 2.0 * reduce_s(placement, tp, rows * (2 * model.hidden_size))
    return Forward(*(with_zero(model.num_layers * part) for part in (floor, stream, extra, communication)))


def lm_head(placement: Placement, vocab_size: int, hidden_size: int, tp: int, largest: int) -> Forward:
    """LM head in BF16 for 0 to `largest` rows, and on several GPUs the gather of its logits."""
    rows = rows_up_to(largest)
    columns = vocab_size // tp
    part = linear(placement, rows, columns, hidden_size)
    gather = reduce_s(placement, tp, rows * (2 * columns))
    return Forward(*(with_zero(column) for column in (part.floor_s, part.stream_s, part.extra_s, gather)))


def reduce_s(placement: Placement, tp: int, message_bytes: Array) -> Array:
    """Seconds of one all-reduce among `tp` GPUs; a gather is priced by the same law. Zero on one GPU."""
    if tp == 1:
        return np.zeros_like(message_bytes)
    law = all_reduce_law(placement.accelerator.constants, tp, placement.accelerator.p2p)
    return all_reduce_s(message_bytes, law)


def decode_coefficients(placement: Placement, model: ModelSpec, tp: int) -> DecodeAttention:
    """Decode attention of all layers of `model` on one GPU."""
    kv_dtype = "fp8" if placement.kv_element_bytes == 1 else "bfloat16"
    return decode_attention(
        layers=model.num_layers,
        heads=model.num_heads // tp,
        kv_heads=model.kv_heads(tp),
        head_dim=model.head_dim,
        kv_bytes=placement.kv_element_bytes,
        constants=placement.constants.decode[kv_dtype, placement.attention],
        bytes_per_s=placement.accelerator.hbm_bytes_per_s,
    )


def prefill_coefficients(placement: Placement, model: ModelSpec, tp: int) -> PrefillAttention:
    """Prefill attention of all layers of `model` on one GPU; runs in BF16 at the measured FLOP rate."""
    return prefill_attention(
        layers=model.num_layers,
        heads=model.num_heads // tp,
        kv_heads=model.kv_heads(tp),
        head_dim=model.head_dim,
        kv_bytes=placement.kv_element_bytes,
        constants=placement.constants.prefill,
        bytes_per_s=placement.accelerator.hbm_bytes_per_s,
        flops_per_s=placement.accelerator.flops_per_s["bfloat16"],
        sms=placement.accelerator.sms,
    )


def with_zero(column: Array) -> Array:
    """`column` behind a zero, so that index = rows."""
    return np.concatenate(([0.0], column))
