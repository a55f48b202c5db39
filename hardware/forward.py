"""One forward pass of a layer stack or of an LM head, tabulated by rows for one placement."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from specfleet.hardware.constants import kernel_constants
from specfleet.hardware.experts import expert_gemms
from specfleet.hardware.gemmtable import GemmTable, read_table
from specfleet.hardware.interconnect import all_reduce_s
from specfleet.hardware.kernels import (
    ELEMENTWISE_FLOOR_S,
    Array,
    AttentionShape,
    DecodeAttention,
    GemmParts,
    LatentShape,
    PrefillAttention,
    Rates,
    decode_attention,
    elementwise_s,
    gemm,
    latent_decode_attention,
    prefill_attention,
)
from specfleet.hardware.model import LayerGroup, ModelSpec
from specfleet.hardware.placement import KV_TYPES, Placement


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

    def times(self, scale: float) -> Forward:
        """All times multiplied."""
        return Forward(*(scale * time for time in self))


def rows_up_to(largest: int) -> Array:
    """Row counts 1 to `largest`; tables put a zero in front of what they compute from them."""
    return np.arange(1, largest + 1, dtype=np.float64)


@cache
def fp8_table(constants: str, engine: str) -> GemmTable | None:
    """The measured FP8 GEMMs of a GPU under an engine, against the formula there; None if there are none."""
    found = kernel_constants(constants, engine)
    if found.gemm_table is None:
        return None
    sheet = found.datasheet

    def formula(rows: Array, columns: int, depth: int) -> Array:
        parts = gemm(
            rows, columns, depth, weight_bytes=1, constants=found.gemm["fp8"],
            rates=Rates(sheet.bytes_per_s, sheet.flops_per_s["fp8"], sheet.sms),
        )  # fmt: skip
        return parts.floor_s + parts.stream_s + parts.extra_s

    return read_table(found.gemm_table, formula)


def linear(placement: Placement, rows: Array, columns: int, depth: int, dtype: str = "bfloat16") -> GemmParts:
    """One GEMM of this placement in `dtype`, at the served FLOP rate."""
    accelerator, profile = placement.accelerator, placement.profile
    factor: Array | float = 1.0
    if dtype in placement.constants.residuals:
        measured_rows, factors = placement.constants.residuals[dtype]
        factor = np.interp(np.log(rows), np.log(measured_rows), factors)
    elif dtype == "fp8" and profile.fp8_gemm_table:
        table = fp8_table(accelerator.constants, profile.kernels)
        factor = table.at(columns, depth, rows) if table else 1.0
    rates = Rates(
        accelerator.hbm_bytes_per_s,
        accelerator.flops_per_s[dtype] * profile.arithmetic_rate,
        accelerator.sms,
    )
    constants, weight_bytes = placement.constants.gemm[dtype], 1 if dtype == "fp8" else 2
    return gemm(
        rows, columns, depth, weight_bytes=weight_bytes, constants=constants, rates=rates, factor=factor
    )


def layer_stack(
    placement: Placement, model: ModelSpec, tp: int, quantization: str | None, largest: int, drafts: int = 0
) -> Forward:
    """All layers of `model` without attention, for 0 to `largest` rows.

    A layer is its GEMMs (four in a dense model), two norms (read and write hidden state and residual), one
    activation (read gate and up, write their product) and, on several GPUs, two all-reduces of the hidden
    state. `drafts`: of the 1 + drafts tokens of a sequence, how alike they route (`experts.py`).
    """
    rows = rows_up_to(largest)
    total = [np.zeros_like(rows) for _ in Forward._fields]
    for group in model.layer_groups(tp):
        for column, part in zip(
            total, _layer(placement, model, tp, quantization, group, drafts, rows), strict=True
        ):
            column += group.layers * part
    return Forward(*map(with_zero, total))


def _layer(
    placement: Placement, model: ModelSpec, tp: int, quantization: str | None, group: LayerGroup,
    drafts: int, rows: Array,
) -> Forward:  # fmt: skip
    """One layer of a group; rows as given."""
    dtype = "fp8" if model.stored_as(quantization) == "fp8" else "bfloat16"
    parts = [linear(placement, rows, n, k, dtype) for n, k in group.gemms]
    kernels = 3 if group.mlp_width else 2
    if group.router:
        parts.append(linear(placement, rows, *group.router))
        parts.append(expert_gemms(placement, model, tp, quantization, rows, drafts))
        kernels += 1
    norm_bytes = 8.0 * model.hidden_size * rows
    routed = model.num_experts_per_tok * model.moe_intermediate_size // tp if group.router else 0
    activation_bytes = 6.0 * (group.mlp_width + routed) * rows
    bandwidth = placement.accelerator.hbm_bytes_per_s
    elementwise = 2.0 * elementwise_s(norm_bytes, bandwidth) + elementwise_s(activation_bytes, bandwidth)
    floor = sum((part.floor_s for part in parts), np.full_like(rows, kernels * ELEMENTWISE_FLOOR_S))
    stream = sum((part.stream_s for part in parts), np.zeros_like(rows))
    extra = sum((part.extra_s for part in parts), elementwise)
    return Forward(floor, stream, extra, 2.0 * reduce_s(placement, tp, rows * (2 * model.hidden_size)))


def lm_head(placement: Placement, vocab_size: int, hidden_size: int, tp: int, largest: int) -> Forward:
    """LM head in BF16 for 0 to `largest` rows, and on several GPUs the gather of its logits."""
    rows = rows_up_to(largest)
    columns = vocab_size // tp
    part = linear(placement, rows, columns, hidden_size)
    gather = reduce_s(placement, tp, rows * (2 * columns))
    return Forward(*(with_zero(column) for column in (part.floor_s, part.stream_s, part.extra_s, gather)))


def reduce_s(placement: Placement, tp: int, message_bytes: Array) -> Array:
    """Seconds of one all-reduce among `tp` GPUs; a gather is priced by the same law. Zero on one GPU."""
    law = placement.all_reduce_law(tp)
    return all_reduce_s(message_bytes, law) if law else np.zeros_like(message_bytes)


def decode_coefficients(placement: Placement, model: ModelSpec, tp: int) -> DecodeAttention:
    """Decode attention of all layers of `model` on one GPU."""
    kv_dtype = KV_TYPES[placement.kv_element_bytes]
    constants = placement.constants.decode[kv_dtype, placement.attention]
    heads, kv_bytes = model.num_heads // tp, placement.kv_element_bytes
    if model.kv_lora_rank:
        latent = LatentShape(model.num_layers, heads, model.kv_lora_rank, model.qk_rope_head_dim, kv_bytes)
        return latent_decode_attention(latent, constants, _attention_rates(placement))
    shape = AttentionShape(
        model.num_layers,
        heads,
        model.kv_heads(tp),
        model.head_dim,
        kv_bytes,
        windowed=model.num_windowed_layers,
    )
    return decode_attention(shape, constants, placement.accelerator.hbm_bytes_per_s)


def _attention_rates(placement: Placement) -> Rates:
    gpu = placement.accelerator
    return Rates(gpu.hbm_bytes_per_s, gpu.flops_per_s["bfloat16"], gpu.sms)


def prefill_coefficients(placement: Placement, model: ModelSpec, tp: int) -> PrefillAttention:
    """Prefill attention of all layers of `model` on one GPU; runs in BF16 at the measured FLOP rate.

    With latent attention every head has keys and values of its own, made from the latent, in 16 bits.
    """
    heads = model.num_heads // tp
    kv_heads, head_dim, kv_bytes = model.kv_heads(tp), model.head_dim, placement.kv_element_bytes
    if model.kv_lora_rank:
        kv_heads, head_dim, kv_bytes = heads, (model.head_dim + model.v_head_dim) // 2, 2
    shape = AttentionShape(
        model.num_layers,
        heads,
        kv_heads,
        head_dim,
        kv_bytes,
        windowed=model.num_windowed_layers,
        window=model.sliding_window,
    )
    return prefill_attention(shape, placement.constants.prefill, _attention_rates(placement))


def with_zero(column: Array) -> Array:
    """`column` behind a zero, so that index = rows."""
    return np.concatenate(([0.0], column))
