"""Sums whose context is in a second word: as packed in one, and as stepped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_toys import ENGINE, World
from test_timeline import LAWS, SEEDS, choosing, prove, small_windows_and_blocks
from timeline_worlds import both, policies, worlds

from specfleet.sim.calendar.packing import Packing
from specfleet.sim.config import EngineConfig
from specfleet.sim.speculation.policy import PolicySpec

__all__ = ["small_windows_and_blocks"]

ONE_WORD = Packing.of.__func__  # type: ignore[attr-defined]


def in_two_words(
    cls: type[Packing], config: EngineConfig, growth: int, longest: int, shared: bool = False
) -> Packing | None:
    """A wide layout though one word would do."""
    narrow: Packing | None = ONE_WORD(cls, config, growth, longest, shared)
    if narrow is None or config.sliding_window:
        return narrow
    context, blocks, rows = (
        most.bit_length() for most in (longest + growth, narrow.blocks_mask, narrow.rows_mask)
    )
    masks = (1 << context) - 1, narrow.blocks_mask, narrow.rows_mask
    return Packing(context, context + blocks, context + blocks + rows, *masks, wide=True)


SHORT = st.sampled_from([(False, False), (True, False), (False, True)])
"""Whether KV, or the token budget, is short."""


@LAWS
@given(
    SHORT.flatmap(lambda short: worlds(("open", "closed", "balanced"), 2, *short)),
    st.none() | policies(),
    SEEDS,
)
def test_context_in_a_second_word_equals_stepping(world: World, policy: PolicySpec | None, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Packing, "of", classmethod(in_two_words))
        prove(choosing(world), seed, policy)


def test_thousands_of_sequences_over_a_large_pool_are_not_stepped() -> None:
    many = replace(ENGINE, max_num_seqs=4096, num_gpu_blocks=800_000)
    layout = Packing.of(many, 15, 5000)
    assert layout is not None and layout.wide
    ours, theirs = both(World([4000] * 9, [30] * 9, engine=replace(many, max_model_len=8192)), 0)
    assert ours.stepped_share == 0.0
    assert (ours.iterations["kv_tokens"] == theirs.iterations["kv_tokens"]).all()
