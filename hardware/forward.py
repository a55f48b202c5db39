"""One forward pass of a layer stack or of an LM head, tabulated by rows for one placement."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from specfleet.hardware.constants import kernel_constants
from specfleet.hardware.gemmtable import GemmTable, gemm_by_rows, read_table, rows_table
from specfleet.hardware.interconnect import GATHER, SCATTER, all_reduce_s, collective_s
from specfleet.hardware.kernels import ELEMENTWISE_FLOOR_S, Array, GemmParts, Rates, elementwise_s, gemm
from specfleet.hardware.layers.attention import GroupedAttention
from specfleet.hardware.layers.formats import SIXTEEN, weight_format
from specfleet.hardware.layers.plain import LayerGroup
from specfleet.hardware.mixture.experts import expert_gemms
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import Placement

NORM_SUM_BYTES = 8
"""A float32 sum of squares for a row's queries and one for its keys, in one all-reduce (vLLM #31493) between
the kernel that sums and the one that scales (SGLang #14416)."""


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


def linear(placement: Placement, rows: Array, columns: int, depth: int, stored: str = SIXTEEN) -> GemmParts:
    """One GEMM of this placement with weights `stored` in a format, at the served FLOP rate."""
    accelerator, profile = placement.accelerator, placement.profile
    law, peak = placement.kernel_law(stored)
    factor: Array | float = 1.0
    if law in placement.constants.residuals:
        measured_rows, factors = placement.constants.residuals[law]
        factor = np.interp(np.log(rows), np.log(measured_rows), factors)
    elif stored == "fp8" and profile.fp8_gemm_table:
        table = fp8_table(accelerator.constants, profile.kernels)
        factor = table.at(columns, depth, rows) if table else 1.0
    rates = Rates(
        accelerator.hbm_bytes_per_s,
        accelerator.flops_per_s[peak] * profile.arithmetic_rate,
        accelerator.sms,
    )
    constants = placement.constants.gemm[law]
    if stored == SIXTEEN and profile.bf16_gemm_table and law not in placement.constants.residuals:
        by_rows = rows_table(accelerator.constants)
        if by_rows is not None:
            return gemm_by_rows(rows, columns, depth, by_rows, constants, rates)
    weight = weight_format(stored).weight_bytes
    return gemm(
        rows, columns, depth, weight_bytes=weight, constants=constants, rates=rates,
        factor=factor, input_bytes=weight if law == "fp8" else 2,
    )  # fmt: skip


def layer_stack(
    placement: Placement, model: ModelSpec, tp: int, quantization: str | None, largest: int, drafts: int = 0
) -> Forward:
    """All layers of `model` without attention, for 0 to `largest` rows.

    A layer is its GEMMs (four in a dense model), a norm before mixer and MLP (read and write hidden state and
    residual), one activation (read gate and up, write their product) and, on several GPUs, an all-reduce of
    the hidden state behind each of the two. `drafts`: of the 1 + drafts tokens of a sequence, how alike they
    route (`mixture/experts.py`).
    """
    rows = rows_up_to(largest)
    total = [np.zeros_like(rows) for _ in Forward._fields]
    for group in model.layer_groups(tp, quantization):
        for column, part in zip(total, _layer(placement, model, tp, group, drafts, rows), strict=True):
            column += group.layers * part
    return Forward(*map(with_zero, total))


def _layer(
    placement: Placement, model: ModelSpec, tp: int, group: LayerGroup, drafts: int, rows: Array
) -> Forward:
    """One layer of a group; rows as given."""
    parts = [
        linear(placement, rows, n, k, stored)
        for (n, k), stored in zip(group.gemms, group.formats, strict=True)
    ]
    kernels, routed = group.norms + bool(group.mlp_width), 0
    if experts := group.experts:
        parts.append(linear(placement, rows, *experts.router_gemm(model.hidden_size)))
        parts.append(expert_gemms(placement, model, tp, group, rows, drafts))
        routed = experts.per_token * experts.width // tp
        kernels += 1
    norm_bytes = 8.0 * model.hidden_size * rows
    activation_bytes = 6.0 * (group.mlp_width + routed) * rows
    bandwidth = placement.accelerator.hbm_bytes_per_s
    elementwise = group.norms * elementwise_s(norm_bytes, bandwidth) + elementwise_s(
        activation_bytes, bandwidth
    )
    floor = sum((part.floor_s for part in parts), np.full_like(rows, kernels * ELEMENTWISE_FLOOR_S))
    stream = sum((part.stream_s for part in parts), np.zeros_like(rows))
    extra = sum((part.extra_s for part in parts), elementwise)
    links = group.norms * reduce_s(placement, tp, rows * (2 * model.hidden_size))
    if group.experts:
        links = links + exchange_s(placement, tp, rows, model.hidden_size)
    if tp > 1 and any(isinstance(m, GroupedAttention) and m.norm_over_heads for m in group.run.mixers):
        links = links + reduce_s(placement, tp, rows * NORM_SUM_BYTES)
        floor = floor + 2 * ELEMENTWISE_FLOOR_S
    return Forward(floor, stream, extra, links)


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


def exchange_s(placement: Placement, tp: int, rows: Array, hidden: int) -> Array:
    """Seconds in which data-parallel ranks bring their `rows` tokens each to the experts, and back.

    The hidden states of all ranks are gathered, and the experts' sums scattered: vLLM's default
    (`allgather_reducescatter`), and SGLang's without another backend. Zero for one rank, whose experts, whole
    or cut, see its tokens anyway and are summed by the layer's all-reduce.
    """
    ranks = placement.data_parallel_size
    if ranks == 1 or tp != placement.tensor_parallel_size:
        return np.zeros_like(rows)
    everything = rows * (2 * hidden * ranks)
    gpu = placement.accelerator.constants
    return collective_s(gpu, GATHER, ranks, everything) + collective_s(gpu, SCATTER, ranks, everything)


def with_zero(column: Array) -> Array:
    """`column` behind a zero, so that index = rows."""
    return np.concatenate(([0.0], column))
