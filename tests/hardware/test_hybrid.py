"""Pools that layers of several kinds share: groups as vLLM makes them, what a sequence holds of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.hardware import catalog
from specfleet.hardware.heads import MAKERS
from specfleet.hardware.hfconfig import model_from_config
from specfleet.hardware.hybrid import PoolShape, pool_shape
from specfleet.hardware.memory import GIB, kv_budget
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import Placement
from specfleet.sim.kvlayout import KvLayout

BASE: dict[str, Any] = {
    "hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "vocab_size": 32_000, "max_position_embeddings": 262_144,
}  # fmt: skip
NEXT = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip


def read(**changes: Any) -> ModelSpec:
    return model_from_config({**BASE, **changes}, name="m", source="")


def place(model: ModelSpec, **options: Any) -> Placement:
    profile = catalog.engine_profile(options.pop("profile", "vllm-0.33"))
    return Placement.of(model, catalog.accelerator("h200"), profile, **options)


def test_layers_that_keep_everything_have_a_slot_a_token_and_nothing_else() -> None:
    shape = pool_shape(place(catalog.model("llama-3.1-8b")))
    assert (shape.bytes_per_slot, shape.mixed) == (131_072, False)
    assert kv_budget(place(catalog.model("llama-3.1-8b"))).shape is None


def test_equal_numbers_make_two_groups_and_the_window_is_held_once() -> None:
    shape = pool_shape(place(catalog.model("gpt-oss-120b")))
    assert shape.bytes_per_slot == 18 * 2 * 8 * 64 * 2
    assert (shape.window_tokens, shape.window_per_1024) == (128, 1024)
    assert [shape.held(n) for n in (64, 128, 10_000)] == [128, 256, 10_128]


def test_uneven_numbers_are_padded_to_whole_groups() -> None:
    model = read(model_type="gemma3", num_hidden_layers=62, sliding_window=1024)
    shape = pool_shape(place(model))
    assert shape.bytes_per_slot == 10 * 2 * 2 * 256 * 2
    assert shape.window_per_1024 == 6 * 1024  # 52 layers in groups of 10
    nearly = pool_shape(place(read(model_type="gpt_oss", num_hidden_layers=11, num_local_experts=4,
                                   num_experts_per_tok=2, sliding_window=128)))  # fmt: skip
    assert (nearly.bytes_per_slot, nearly.window_per_1024) == (6 * 2 * 2 * 256 * 2, 1024)


def test_a_state_takes_whole_blocks_of_attention_stretched_to_hold_it() -> None:
    shape = pool_shape(place(read(**NEXT)))
    state, token = 3 * 2 * 8192 + 32 * 128 * 128 * 2, 2 * 2 * 256 * 2
    block = 16 * -(-state // (16 * token))
    assert block == 544
    assert (shape.bytes_per_slot, shape.sequence_slots) == (12 * token, 3 * block)


def test_drafts_keep_a_state_each() -> None:
    target = read(**NEXT)
    head = MAKERS["mtp_for"](target)
    shape = pool_shape(place(target, drafter=head, num_speculative_tokens=2))
    assert shape.sequence_slots > 2.9 * pool_shape(place(target)).sequence_slots * 12 / 13


def test_before_the_hybrid_manager_windows_were_kept_in_full() -> None:
    shape = pool_shape(place(catalog.model("gpt-oss-20b"), profile="vllm-0.6"))
    assert (shape.bytes_per_slot, shape.mixed) == (24 * 2 * 8 * 64 * 2, False)


@given(
    slots=st.integers(1, 10**6),
    window=st.integers(0, 5000),
    per=st.integers(0, 9000),
    more=st.integers(0, 900),
)
def test_the_longest_sequence_fits_and_one_more_token_does_not(
    slots: int, window: int, per: int, more: int
) -> None:

    shape = PoolShape(1024, window, per, more)
    longest = shape.longest(slots)
    assert longest == 0 or shape.held(longest) <= slots
    assert shape.held(longest + 1) > slots


@given(
    tokens=st.lists(st.integers(0, 10**6), min_size=1), window=st.integers(0, 9000), per=st.integers(0, 9000)
)
def test_the_simulator_and_the_budget_hold_the_same(tokens: list[int], window: int, per: int) -> None:

    layout, shape = KvLayout(window, per, 7), PoolShape(1, window, per, 7)
    assert [layout.held(n) for n in tokens] == [shape.held(n) for n in tokens]
    assert layout.held_each(np.array(tokens)).tolist() == [shape.held(n) for n in tokens]


def test_the_budget_says_what_each_kind_keeps() -> None:
    budget = kv_budget(place(read(**NEXT)), kv_cache_memory_bytes=GIB)
    text = budget.render(131_072)
    assert "36 with a state: 39,518,208 B a sequence" in text
    assert "12 full: 24,576 B a token" in text
    assert budget.refusal(budget.largest_max_model_len) is None
    assert budget.refusal(budget.largest_max_model_len + 1) is not None


@pytest.mark.parametrize("field", ["window_tokens", "window_per_1024", "sequence_slots"])
def test_a_layout_holds_no_less_than_nothing(field: str) -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        KvLayout(**{field: -1})
