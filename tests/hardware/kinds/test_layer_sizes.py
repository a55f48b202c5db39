"""Every kind of layer by hand: projections, cache, FLOP and small weights; no two sizes alike."""

from __future__ import annotations

from typing import Any

import pytest

from specfleet.hardware.configs.reader import _beside_layers
from specfleet.hardware.layers.attention import (
    CompressedAttention,
    GroupedAttention,
    Indexer,
    LatentAttention,
)
from specfleet.hardware.layers.parts import Cache
from specfleet.hardware.layers.positions import Rope
from specfleet.hardware.layers.recurrent import GatedDelta, Lightning, Mamba, ShortConv

HIDDEN = 10
INDEX = Indexer(heads=3, head_dim=256, topk=5)
SMALL = Indexer(heads=3, head_dim=129, topk=5, query_rank=7)


def gemms(layer: Any, tp: int = 1) -> dict[str, tuple[int, int]]:
    """Projections by role: (N, K)."""
    return {part.role: part.gemm for part in layer.parts(HIDDEN, tp)}


def sizes(layer: Any, tp: int = 1) -> tuple[float, float, int]:
    """FLOP of a (query, key) pair and of a token, and weights outside of projections."""
    return layer.pair_flops(tp), layer.token_flops(tp), layer.small_parameters


def test_an_indexer_reads_its_rank_or_the_hidden_state_and_stores_a_scale_a_block_of_128() -> None:
    assert {p.role: p.gemm for p in INDEX.parts(HIDDEN)} == {
        **{"index_q": (3 * 256, 10), "index_k": (256, 10), "index_w": (3, 10)}
    }
    assert {p.role: p.gemm for p in SMALL.parts(HIDDEN)}["index_q"] == (3 * 129, 7)
    assert (INDEX.key_bytes, SMALL.key_bytes) == (256 + 8, 129 + 8)
    assert Indexer(1, 128, 1).key_bytes == 132


def test_grouped_heads_are_split_over_gpus_and_kv_heads_never_below_one() -> None:
    layer = GroupedAttention(heads=8, kv_heads=2, head_dim=6, v_head_dim=5, input_multiple=2)
    assert gemms(layer) == {"qkv": (8 * 6 + 2 * 6 + 2 * 5, 20), "o": (10, 8 * 5)}
    assert gemms(layer, 4) == {"qkv": (2 * 6 + 6 + 5, 20), "o": (10, 2 * 5)}
    assert layer.cache(1) == Cache("full", 2 * 11) and layer.cache(4) == Cache("full", 11)
    assert layer.pair_flops(2) == 2.0 * 4 * 11 and layer.small_parameters == 0
    assert (layer.reach, layer.value_dim, GroupedAttention(8, 2, 6).value_dim) == (0, 5, 6)


def test_gates_shared_keys_and_windows_of_grouped_heads() -> None:
    assert gemms(GroupedAttention(8, 2, 6, gate="full"))["qkv"] == (2 * 48 + 24, 10)
    assert gemms(GroupedAttention(8, 2, 6, gate="head"))["qkv"] == (48 + 24 + 8, 10)
    assert gemms(GroupedAttention(8, 2, 6, one_projection=True))["qkv"] == (48 + 12, 10)
    shares = GroupedAttention(8, 2, 6, shares_cache=True)
    assert gemms(shares)["qkv"] == (48, 10) and shares.cache(1) == Cache("full")
    window = GroupedAttention(8, 2, 6, window=9, chunked=True)
    assert window.cache(1) == Cache("chunked", 24, 9) and window.reach == 9
    assert window.unwindowed == GroupedAttention(8, 2, 6)
    sparse = GroupedAttention(8, 2, 6, sparse=4, index=SMALL)
    assert sparse.cache(1) == Cache("full", 24, index_elements=129, index_bytes=137) and sparse.reach == 4
    assert gemms(sparse)["index_k"] == (129, 10)


def test_latent_attention_keeps_one_latent_on_every_gpu() -> None:
    layer = LatentAttention(heads=8, kv_rank=7, nope_dim=5, rope_dim=3, v_head_dim=4, q_rank=9, gated=True)
    assert gemms(layer, 2) == {
        **{"a": (9 + 7 + 3, 10), "q_b": (4 * 8, 9), "kv_b": (4 * (5 + 4), 7)},
        **{"gate": (4 * 4, 10), "o": (10, 4 * 4)},
    }
    plain = LatentAttention(heads=8, kv_rank=7, nope_dim=5, rope_dim=3, v_head_dim=4, sparse=6, index=SMALL)
    assert gemms(plain) | {} == {
        **{"a": (7 + 3, 10), "q_b": (8 * 8, 10), "kv_b": (8 * 9, 7), "o": (10, 8 * 4)},
        **{part.role: part.gemm for part in SMALL.parts(HIDDEN)},
    }
    assert layer.cache(2) == Cache("latent", 10)
    assert plain.cache(2) == Cache("latent", 10, index_elements=129, index_bytes=137)
    assert layer.pair_flops(2) == 2.0 * 4 * (8 + 4)
    assert (layer.reach, plain.reach, layer.small_parameters) == (0, 6, 0)


def test_compressed_attention_reads_a_window_and_one_entry_a_ratio() -> None:
    layer = CompressedAttention(8, 6, q_rank=9, o_groups=4, o_rank=5, window=7, ratio=3, index=SMALL)
    assert gemms(layer, 2) == {
        **{"a": (9 + 6, 10), "q_b": (4 * 6, 9), "o_a": (2 * 5, 8 * 6 // 4), "o_b": (10, 2 * 5)},
        **{
            "compress": (2 * 2 * 6, 10),
            "index_k": (4 * 129, 10),
            "index_q": (3 * 129, 9),
            "index_w": (3, 10),
        },
    }
    assert gemms(layer, 8)["o_a"] == (5, 12), "a group at least"
    whole = CompressedAttention(8, 6, q_rank=9, o_groups=4, o_rank=5, window=7, ratio=3)
    assert gemms(whole)["compress"] == (2 * 6, 10)
    held = 7 * 6 * 2
    assert layer.cache(1) == Cache("latent", 2, index_elements=43, index_bytes=45, state_bytes=held)
    assert whole.cache(1) == Cache("latent", 2, state_bytes=held)
    near = CompressedAttention(8, 6, q_rank=9, o_groups=4, o_rank=5, window=7)
    assert near.cache(1, 1) == Cache("state", state_bytes=7 * 6) and "compress" not in gemms(near)
    assert layer.pair_flops(2) == 4.0 * 4 * 6
    assert (layer.small_parameters, near.small_parameters) == (3 * 2 * 6, 0)


@pytest.mark.parametrize(
    ("gates", "small"),
    [
        ("low_rank", {"gates_a": (2 * 5 + 2, 10), "gates_b": (2 * 3 + 2 * 5, 5)}),
        ("output", {"gates_a": (2 * 5 + 5 + 2, 10), "gates_b": (2 * 3, 5)}),
        ("full", {"gates_a": (2 * 3 + 2 * 5 + 2, 10)}),
    ],
)
def test_gates_of_a_delta_rule(gates: str, small: dict[str, tuple[int, int]]) -> None:
    layer = GatedDelta(key_heads=2, value_heads=4, key_dim=3, value_dim=5, kernel=4, gates=gates)
    assert gemms(layer, 2) == {"in": ((2 * 2 * 3 + 4 * 5) // 2, 10), "o": (10, 2 * 5)} | small


def test_a_delta_rule_holds_a_matrix_a_value_head_and_the_columns_of_its_convolution() -> None:
    layer = GatedDelta(key_heads=2, value_heads=4, key_dim=3, value_dim=5, kernel=4, state_element_bytes=4)
    width = 2 * 2 * 3 + 4 * 5
    assert gemms(layer) == {"in": (width + 20, 10), "gates": (8, 10), "o": (10, 20)}
    held = 3 * 2 * (width // 2) + 2 * 3 * 5 * 4
    assert layer.cache(2) == Cache("state", state_bytes=held, draft_state_bytes=2 * (width // 2))
    assert sizes(layer, 2) == (0.0, 6.0 * 2 * 3 * 5, 4 * width)


def test_mamba_holds_a_state_a_channel_and_its_columns() -> None:
    layer = Mamba(heads=4, head_dim=6, state_dim=5, groups=2, kernel=3, state_element_bytes=4)
    width = 4 * 6 + 2 * 2 * 5
    assert gemms(layer, 2) == {"in": (12 + width // 2 + 2, 10), "o": (10, 12)}
    held = 2 * 2 * (width // 2) + 2 * 6 * 5 * 4
    assert layer.cache(2) == Cache("state", state_bytes=held, draft_state_bytes=2 * (width // 2))
    assert sizes(layer, 2) == (0.0, 6.0 * 2 * 6 * 5, 4 * width + 24)


def test_lightning_holds_a_square_a_head_and_a_short_convolution_its_columns() -> None:
    layer = Lightning(heads=4, head_dim=6)
    assert gemms(layer, 2) == {"qkv": (36, 10), "gate": (12, 10), "o": (10, 12)}
    assert layer.cache(2) == Cache("state", state_bytes=2 * 36 * 4)
    assert sizes(layer, 2) == (0.0, 4.0 * 2 * 36, 24)
    conv = ShortConv(width=12, kernel=3)
    assert gemms(conv, 2) == {"in": (18, 10), "o": (10, 6)}
    assert conv.cache(2) == Cache("state", state_bytes=2 * 12, draft_state_bytes=12)
    assert sizes(conv, 2) == (0.0, 2.0 * 3 * 12 / 2, 36)


def test_a_token_takes_its_elements_in_their_type_and_its_index_as_it_is() -> None:
    assert Cache("latent", 7, index_elements=3, index_bytes=5).bytes_per_token(2) == 19


def test_positions_lengthen_where_their_kind_does() -> None:
    assert [Rope(kind, 4.0, 100).longest(1000, True) for kind in ("linear", "dynamic", "ntk")] == [4000] * 3
    assert [Rope(kind, 4.0, 100).longest(1000, True) for kind in ("llama3", "longrope")] == [1000] * 2
    yarn = Rope("yarn", 4.0, 100)
    assert (yarn.longest(1000, True), yarn.longest(1000, False)) == (400, 1000)
    assert Rope("yarn", 4.0).longest(1000, True) == 1000


def test_weights_beside_the_layers_are_counted_by_family() -> None:
    inputs = {"hidden_size_per_layer_input": 3, "vocab_size": 13}
    per_layer = 13 * 5 * 3 + 7 * 5 * 3 + 5 * 2 * 3 * 7
    altup = 2 * (4 - 1) * 7 * 7 + 5 * (2 * 64 + 4 + 1) * 7
    streams = 5 * 2 * (2 * (2 + 2)) * 2 * 7
    assert _beside_layers(inputs, "gemma4", 5, 7) == per_layer
    more = per_layer + (17 - 13) * 5 * 3
    assert _beside_layers(inputs | {"vocab_size_per_layer_input": 17}, "gemma4", 5, 7) == more
    assert _beside_layers(inputs, "gemma3n", 5, 7) == per_layer + altup
    named = {"altup_num_inputs": 2, "laurel_rank": 9}
    assert _beside_layers(named, "gemma3n", 5, 7) == 2 * 7 * 7 + 5 * (18 + 2 + 1) * 7
    assert _beside_layers(inputs, "llama", 5, 7) == _beside_layers({}, "gemma4", 5, 7) == 0
    assert _beside_layers({"hc_mult": 2}, "deepseek_v4", 5, 7) == streams
