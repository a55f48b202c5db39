"""Routed experts of one mixture-of-experts layer: which are read, and what their GEMMs take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specfleet.hardware.constants import GemmConstants, kernel_constants
from specfleet.hardware.kernels import ELEMENTWISE_FLOOR_S, GemmParts
from specfleet.hardware.layers.feedforward import ExpertMlp
from specfleet.hardware.layers.formats import SIXTEEN, weight_format
from specfleet.hardware.layers.plain import LayerGroup
from specfleet.hardware.mixture.choosing import choosing_s
from specfleet.hardware.mixture.routing import Array, busiest_rank, effective_tokens
from specfleet.hardware.mixture.table import Mixture, StandIn, measured, mixture_of, stored_kind
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import Placement

ROUTING_KERNELS = 5
"""Beside the two grouped GEMMs: choose, count and sort, activate, sum; what one token takes in the tables."""

PEAK_SHARE = 0.7
"""Of the dense GEMM's FLOP rate: grouped GEMMs are slower at many tokens."""


class ExpertLaw(NamedTuple):
    """What the formula of the experts needs besides rows.

    `weight_bits` of one weight, scales included; `bytes_per_s` and `flops_per_s` of the GPU.
    """

    mixture: Mixture
    weight_bits: float
    constants: GemmConstants
    bytes_per_s: float
    flops_per_s: float

    def parts(self, rows: Array, tokens: Array) -> GemmParts:
        """Both grouped GEMMs of a layer on the busiest rank, for `rows` rows that route as `tokens` do.

        Rows are those of all ranks together. Memory: every distinct expert is streamed once, every visit's
        input, gate and up, product and output go through memory. Arithmetic: 6 h I FLOP a visit (4 without a
        gate), added to the reading rather than hidden behind it. Bandwidth share and floors are those of the
        dense GEMM of the same type.
        """
        hidden, width, per_token, experts, matrices, tp, ep = self.mixture
        one = width / tp
        load = busiest_rank(tokens, experts, per_token, ep, rows)
        weights = matrices * hidden * one * self.weight_bits / 8
        moved = load.distinct * weights + load.visits * (2.0 * (2 * hidden + 4 * one))
        rate = self.bytes_per_s * self.constants.bandwidth_share
        peak = self.flops_per_s * self.constants.peak_share * PEAK_SHARE
        arithmetic = load.visits * (2.0 * matrices * hidden * one) / peak
        quantise = self.constants.quantise_passes * 3.0 * (rows * hidden + load.visits * one) / rate
        floor = 2 * self.constants.floor_s + ROUTING_KERNELS * ELEMENTWISE_FLOOR_S
        return GemmParts(np.full_like(rows, floor), moved / rate, arithmetic + quantise)


def expert_gemms(
    placement: Placement, model: ModelSpec, tp: int, group: LayerGroup, rows: Array, drafts: int
) -> GemmParts:
    """Both grouped GEMMs of one layer for `rows` tokens on each rank, through the experts of all.

    Where the mixture was measured (`table.py`) its times stand, by tokens, for the formula's; the
    formula says how a time divides, what correlated drafts save, and what a GPU with another bandwidth or
    FLOP rate does. Times of experts that were chosen beforehand get what choosing takes (`choosing.py`), as a
    floor.
    """
    experts, stored = group.experts, group.expert_format
    assert experts is not None
    law = expert_law(placement, model, tp, experts, stored)
    together = rows * (placement.data_parallel_size if tp == placement.tensor_parallel_size else 1)
    independent = effective_tokens(together, drafts, placement.routing_correlation)
    parts = law.parts(together, independent)
    found = stand_in(placement, law.mixture, stored_kind(model, stored))
    if found is None:
        return parts
    factor = measured_factor(placement, law, found, together)
    floor, stream, extra = (factor * part for part in parts)
    if found.line.chosen:
        floor = floor + choosing_s(experts, placement.profile.kernels_choosing_with_bias)
    return GemmParts(floor, stream, extra)


def expert_law(placement: Placement, model: ModelSpec, tp: int, experts: ExpertMlp, stored: str) -> ExpertLaw:
    """The formula for a model's experts on this placement; `tp` is its own or its drafter's."""
    name, peak = placement.kernel_law(stored)
    gpu = placement.accelerator
    mixture = mixture_of(experts, model.hidden_size, *placement.expert_split(tp))
    return ExpertLaw(
        mixture,
        weight_format(stored).bits,
        placement.constants.gemm[name],
        gpu.hbm_bytes_per_s,
        gpu.flops_per_s[peak] * placement.profile.arithmetic_rate,
    )


def stand_in(placement: Placement, mixture: Mixture, stored: str) -> StandIn | None:
    """The measured line that prices a mixture of this type here, None where none is alike."""
    profile = placement.profile
    return measured(placement.accelerator.constants, profile.kernels, profile.kernel_version, stored, mixture)


def measured_factor(placement: Placement, law: ExpertLaw, found: StandIn, rows: Array) -> Array:
    """Measured time over the formula's for this mixture, or the nearest one that was."""
    profile, gpu = placement.profile, placement.accelerator
    sheet = kernel_constants(found.constants, profile.kernels).datasheet
    share = sheet.flops_per_s[SIXTEEN] / (gpu.flops_per_s[SIXTEEN] * profile.arithmetic_rate)
    there = law._replace(
        mixture=found.mixture, bytes_per_s=sheet.bytes_per_s, flops_per_s=share * law.flops_per_s
    )
    parts = there.parts(rows, rows)
    return found.line.at(rows) / (parts.floor_s + parts.stream_s + parts.extra_s)
