"""Routed experts of one mixture-of-experts layer: which are read, and what their GEMMs take."""

from __future__ import annotations

import numpy as np

from specfleet.hardware.kernels import ELEMENTWISE_FLOOR_S, Array, GemmParts
from specfleet.hardware.layers.formats import weight_format
from specfleet.hardware.layers.plain import LayerGroup
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import Placement

ROUTING_KERNELS = 5
"""Beside the two grouped GEMMs: choose, count and sort, activate, sum; what one token takes in the tables."""

PEAK_SHARE = 0.7
"""Of the dense GEMM's FLOP rate: grouped GEMMs are slower at many tokens."""


def distinct_experts(tokens: Array, num_experts: int, per_token: int) -> Array:
    """Expected distinct experts that `tokens` tokens use in one layer, `N (1 - (1 - k/N)^t)`.

    Routing is uniform and independent; the tokens may be fractional, which is how correlated tokens are
    counted. Source: MoESD, arXiv 2505.19645, and others.
    """
    return num_experts * (1.0 - (1.0 - per_token / num_experts) ** tokens)


def effective_tokens(rows: Array, drafts: int, correlation: float) -> Array:
    """Independent tokens in `rows` rows of sequences with 1 + `drafts` tokens: `B (1 + (1 - c) K)`."""
    return rows * ((1.0 + (1.0 - correlation) * drafts) / (1.0 + drafts))


def expert_gemms(
    placement: Placement, model: ModelSpec, tp: int, group: LayerGroup, rows: Array, drafts: int
) -> GemmParts:
    """Both grouped GEMMs of one layer for `rows` tokens, each through its experts.

    Memory: every distinct expert is streamed once, every token's input, gate and up, product and output go
    through memory. Arithmetic: 6 h I FLOP a token and expert, added to the reading rather
    than hidden behind it. Bandwidth share and floors are those of the dense GEMM of the same type. Against
    the expert tables of aiconfigurator-core 0.12 (uneven routing), 1 to 512 tokens: mean error 11 %
    (Qwen3-30B), 7 % (Qwen3-235B, FP8), 17 % (gpt-oss-120b, MXFP4).
    """
    experts, stored = group.experts, group.expert_format
    assert experts is not None
    law, peak_name = placement.kernel_law(stored)
    constants, gpu = placement.constants.gemm[law], placement.accelerator
    width, hidden = experts.width / tp, experts.latent or model.hidden_size
    independent = effective_tokens(rows, drafts, placement.routing_correlation)
    distinct = distinct_experts(independent, experts.experts, experts.per_token)
    visits = rows * experts.per_token
    weights = experts.expert_parameters(model.hidden_size) * weight_format(stored).bits / (8 * tp)
    moved = distinct * weights + visits * (2.0 * (2 * hidden + 4 * width))
    rate = gpu.hbm_bytes_per_s * constants.bandwidth_share
    stream = moved / rate
    peak = gpu.flops_per_s[peak_name] * placement.profile.arithmetic_rate * constants.peak_share * PEAK_SHARE
    arithmetic = visits * ((6.0 if experts.gated else 4.0) * hidden * width) / peak
    quantise = constants.quantise_passes * 3.0 * (rows * hidden + visits * width) / rate
    floor = 2 * constants.floor_s + ROUTING_KERNELS * ELEMENTWISE_FLOOR_S
    return GemmParts(np.full_like(rows, floor), stream, arithmetic + quantise)
