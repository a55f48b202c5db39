"""What a drafter adds to a step: its first pass over the target's tokens, then one pass a draft token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specfleet.hardware.attentioncost import decode_coefficients, prefill_coefficients
from specfleet.hardware.forward import layer_stack, linear, lm_head, rows_up_to, with_zero
from specfleet.hardware.kernels import NO_PREFILL, Array, PrefillAttention
from specfleet.hardware.model import DrafterSpec
from specfleet.hardware.placement import Placement

TREE_KV_MOVE_S = 40e-6
"""Gathering the KV of accepted nodes off the first branch, once a round of a tree: assumed, 20 to 60 us; the
bytes alone are under 1 us a sequence (3 tokens x 131 kB, read and written at 3 TB/s)."""


class DrafterTables(NamedTuple):
    """Seconds, tabulated by rows.

    `first_s`: layers (and `fc`) of the first pass; `later_s`: layers (with EAGLE-1 and MTP also `fc`) of each
    further pass; `each_s`: LM head, logits gather, attention of the sequences and launch, once a pass;
    `kv_token_s`: a KV token and pass (`window_token_s`: in windowed layers). The first pass also prefills
    (`prefill`) and holds `first_extra_rows` more a sequence.
    """

    first_s: Array
    later_s: Array
    each_s: Array
    kv_token_s: float
    window_token_s: float
    prefill: PrefillAttention
    first_extra_rows: int


def drafter_tables(placement: Placement) -> DrafterTables | None:
    """`drafter_costs` at the profile's `kernel_time_scale`."""
    tables, scale = drafter_costs(placement), placement.profile.kernel_time_scale
    if tables is None or scale == 1.0:
        return tables
    return DrafterTables(
        first_s=scale * tables.first_s,
        later_s=scale * tables.later_s,
        each_s=scale * tables.each_s,
        kv_token_s=scale * tables.kv_token_s,
        window_token_s=scale * tables.window_token_s,
        prefill=tables.prefill.times(scale),
        first_extra_rows=tables.first_extra_rows,
    )


def drafter_costs(placement: Placement) -> DrafterTables | None:
    """Tables of the placement's drafter; None when nothing drafts on the GPU (plain, n-gram, suffix).

    `cost(passes) = first(rows of the target's pass) + (passes - 1) later(R) + passes x each(R) + attention`,
    R = sequences in the step. A draft model appends the sampled token to its first pass: R more rows. The
    launch constant (profile `draft_launch_s`) covers the metadata and the sampling between two passes,
    `draft_extend_launch_s` the first pass where it alone is launched kernel by kernel.
    A parallel drafter proposes all K in its one pass: K - 1 more rows a sequence, K logit rows. Where a tree
    is drafted (`draft_pass_tokens`), `later` and `each` are means over passes of different width.
    """
    drafter, tp = placement.drafter, placement.draft_tensor_parallel_size
    if drafter is None or not drafter.on_gpu:
        return None
    if drafter.model is None:
        return _medusa_tables(placement, drafter, tp)
    model = drafter.model
    at_once = placement.num_speculative_tokens if drafter.parallel_drafting else 1
    extra_rows = at_once - 1 + (1 if drafter.method == "draft_model" else 0)
    widths = placement.draft_pass_tokens or (1,)
    largest = max(
        placement.largest_step + extra_rows * placement.max_num_seqs,
        max(widths) * placement.max_num_seqs,
    )
    layers = layer_stack(placement, model, tp, None, largest).total_s
    first, later = with_zero(layers[1:] + placement.profile.draft_extend_launch_s), layers
    if fc := drafter.fc_gemm(tp):
        parts = linear(placement, rows_up_to(largest), *fc)
        fused = with_zero(parts.floor_s + parts.stream_s + parts.extra_s)
        first = first + fused
        later = later + fused if drafter.fuses_every_pass else later
    if max(widths) > 1:
        first = first + TREE_KV_MOVE_S
    later = _mean_over(widths[1:] or widths, later)
    most_logits = max(at_once, *widths) * placement.max_num_seqs
    head = lm_head(placement, drafter.draft_vocab_size, model.hidden_size, tp, most_logits).total_s
    attention = decode_coefficients(placement, model, tp)
    sequences = np.arange(placement.max_num_seqs + 1, dtype=np.float64)
    per_sequence = attention.sequence_s + at_once * attention.query_token_s * sum(widths) / len(widths)
    fixed = _launch_s(placement, widths) + attention.floor_s
    logits = _mean_over([at_once * width for width in widths], head)
    each = logits[: placement.max_num_seqs + 1] + fixed + per_sequence * sequences
    prefill = prefill_coefficients(placement, model, tp)
    return DrafterTables(
        first, later, each, attention.kv_token_s, attention.window_token_s, prefill, extra_rows
    )


def _launch_s(placement: Placement, widths: Sequence[int]) -> float:
    """What a pass takes beyond its kernels; one of a tree chooses among branches."""
    profile = placement.profile
    return (profile.draft_tree_launch_s if max(widths) > 1 else 0.0) or profile.draft_launch_s


def _mean_over(widths: Sequence[int], table: Array) -> Array:
    """By sequences, the mean of a table by rows over passes in which each brings `width` rows."""
    shortest = (len(table) - 1) // max(widths) + 1
    total = sum((table[::width][:shortest] for width in widths), np.zeros(shortest))
    return total / len(widths)


def _medusa_tables(placement: Placement, drafter: DrafterSpec, tp: int) -> DrafterTables:
    """Medusa: one head a draft, a square layer and an LM head over the last hidden states, in one pass."""
    sequences = rows_up_to(placement.max_num_seqs)
    width = drafter.target_hidden_size
    square = linear(placement, sequences, width, width)
    head = lm_head(placement, drafter.draft_vocab_size, width, tp, placement.max_num_seqs).total_s
    one = with_zero(square.floor_s + square.stream_s + square.extra_s) + head
    heads = len(placement.draft_pass_tokens) or placement.num_speculative_tokens
    each = heads * one + placement.profile.draft_launch_s
    nothing = np.zeros(placement.largest_step + 1)
    return DrafterTables(nothing, nothing, each, 0.0, 0.0, NO_PREFILL, 0)
