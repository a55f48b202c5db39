"""What a drafter adds to a step: its first pass over the target's tokens, then one pass a draft token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardware.forward import (
    decode_coefficients,
    layer_stack,
    linear,
    lm_head,
    prefill_coefficients,
    rows_up_to,
    with_zero,
)
from hardware.kernels import Array, PrefillAttention
from hardware.placement import Placement


class DrafterTables(NamedTuple):
    """Seconds, tabulated by rows.

    `first_s`: layers (and the EAGLE-3 `fc`) of the first pass; `later_s`: layers of each further pass;
    `each_s`: LM head, logits gather, attention of the sequences and launch, once a pass; `kv_token_s`: a KV
    token and pass. The first pass also prefills (`prefill`) and holds `first_extra_rows` more a sequence.
    """

    first_s: Array
    later_s: Array
    each_s: Array
    kv_token_s: float
    prefill: PrefillAttention
    first_extra_rows: int


def drafter_tables(placement: Placement) -> DrafterTables | None:
    """Tables of the placement's drafter; None when nothing drafts on the GPU (plain decoding, n-gram).

    `cost(passes) = first(rows of the target's pass) + (passes - 1) later(R) + passes x each(R) + attention`,
    R = sequences in the step. A draft model appends the sampled token to its first pass: R more rows. The
    launch constant (profile `draft_launch_s`) covers the metadata and the sampling between two passes.
    A parallel drafter proposes all K in its one pass: K - 1 more rows a sequence, K logit rows.
    """
    drafter, tp = placement.drafter, placement.draft_tensor_parallel_size
    if drafter is None or drafter.model is None:
        return None
    model = drafter.model
    at_once = placement.num_speculative_tokens if drafter.parallel_drafting else 1
    extra_rows = at_once - 1 + (1 if drafter.method == "draft_model" else 0)
    largest = placement.max_num_batched_tokens + extra_rows * placement.max_num_seqs
    layers = layer_stack(placement, model, tp, "bfloat16", largest).total_s
    first = layers.copy()
    if fc := drafter.fc_gemm(tp):
        parts = linear(placement, rows_up_to(largest), *fc)
        first = first + with_zero(parts.floor_s + parts.stream_s + parts.extra_s)
    most_logits = at_once * placement.max_num_seqs
    head = lm_head(placement, drafter.draft_vocab_size, model.hidden_size, tp, most_logits).total_s
    attention = decode_coefficients(placement, model, tp)
    sequences = np.arange(placement.max_num_seqs + 1, dtype=np.float64)
    per_sequence = attention.sequence_s + at_once * attention.query_token_s
    fixed = placement.profile.draft_launch_s + attention.floor_s
    each = head[::at_once] + fixed + per_sequence * sequences
    prefill = prefill_coefficients(placement, model, tp)
    return DrafterTables(first, layers, each, attention.kv_token_s, prefill, extra_rows)
