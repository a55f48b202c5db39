"""Costs of the rarer kinds worked by hand: indexers, states, experts, drafters, and fits at their bounds."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest

from specfleet.hardware import catalog
from specfleet.hardware.attentioncost import _decode, _prefill, _state, decode_coefficients
from specfleet.hardware.configs.storage import _by_scheme
from specfleet.hardware.constants import GemmConstants
from specfleet.hardware.draftercost import drafter_costs
from specfleet.hardware.fitting import GemmTimes, fit_gemm, gemm_s
from specfleet.hardware.forward import lm_head
from specfleet.hardware.heads import _last_kind, dflash_for
from specfleet.hardware.kernels import NO_PREFILL, Rates
from specfleet.hardware.layers.attention import CompressedAttention, GroupedAttention, Indexer
from specfleet.hardware.layers.feedforward import DenseMlp
from specfleet.hardware.layers.recurrent import GatedDelta
from specfleet.hardware.layers.stack import LayerRun
from specfleet.hardware.leastsquares import _STEP, _normal_equations
from specfleet.hardware.memory import _kinds
from specfleet.hardware.mixture.experts import PEAK_SHARE, ROUTING_KERNELS, ExpertLaw
from specfleet.hardware.mixture.routing import LARGEST_NORMAL, busiest_rank, effective_tokens
from specfleet.hardware.mixture.table import Mixture
from specfleet.hardware.placement import Placement

BYTES_S, FLOP_S = 3.35e12, 989.4e12


def placed(**options: Any) -> Placement:
    gpu, profile = catalog.accelerator("h100-sxm"), catalog.engine_profile("vllm-0.33")
    return Placement.of(catalog.model("llama-3.1-8b"), gpu, profile, tensor_parallel_size=2, **options)


PLAIN = placed()
EAGLE = placed(drafter=catalog.drafter("eagle3-llama3.1-instruct-8b"), num_speculative_tokens=3)


def test_an_indexer_reads_its_key_of_every_token_on_top_of_the_attention() -> None:
    plain = GroupedAttention(heads=12, kv_heads=4, head_dim=64)
    sparse = replace(plain, index=Indexer(heads=2, head_dim=128, topk=64))
    constants = PLAIN.constants.decode["bfloat16", PLAIN.attention]
    without, found = (_decode(PLAIN, mixer, 5, 0, 2) for mixer in (plain, sparse))
    assert found.kv_token_s - without.kv_token_s == pytest.approx(
        5 * 132 / (BYTES_S * constants.bandwidth_share), rel=1e-9
    )
    assert found.floor_s - without.floor_s == pytest.approx(5 * constants.floor_s, rel=1e-9)
    assert found._replace(kv_token_s=0.0, floor_s=0.0) == without._replace(kv_token_s=0.0, floor_s=0.0)


def test_a_state_is_read_and_written_once_a_sequence_and_once_a_token() -> None:
    mixer = GatedDelta(key_heads=2, value_heads=4, key_dim=8, value_dim=16, kernel=3)
    held = 2 * 2 * (2 * 2 * 8 + 4 * 16) // 2 + 2 * 8 * 16 * 2
    found = _state(PLAIN, mixer, 7, 2)
    assert found.sequence_s == found.query_token_s == pytest.approx(7 * held / (BYTES_S * 0.6), rel=1e-12)
    assert found.floor_s == pytest.approx(7 * 2 * 3e-6, rel=1e-12) and found.kv_token_s == 0.0
    scanned = NO_PREFILL._replace(floor_s=7 * 2 * 3e-6, query_token_s=7 * 6 * 2 * 8 * 16 / (FLOP_S * 0.3))
    assert _prefill(PLAIN, mixer, 7, 0, 0, 2) == pytest.approx(scanned, rel=1e-3)


def test_compressed_attention_computes_a_prompt_with_its_heads_on_the_gpu() -> None:
    mixer = CompressedAttention(heads=48, head_dim=96, q_rank=64, o_groups=4, o_rank=32, window=128)
    found, constants = _prefill(PLAIN, mixer, 3, 0, 0, 2), PLAIN.constants.prefill
    rate = PLAIN.accelerator.flops_per_s["bfloat16"] * constants.peak_share
    assert found.pair_s == pytest.approx(3 * 4 * 24 * 96 / rate, rel=1e-12)
    assert found.full_tiles == pytest.approx(132 / 24)
    assert (found.windowed_share, found.window) == (1.0, 128)


def test_eight_bit_integers_are_int8_only_where_some_group_quantises_its_input() -> None:
    weights = {"num_bits": 8, "type": "int", "group_size": 64}
    groups: dict[str, Any] = {"a": {"weights": weights, "input_activations": None}, "b": "none"}
    assert _by_scheme(weights, {"config_groups": groups}) == "int8_g64"
    groups["c"] = {"input_activations": {"num_bits": 8}}
    assert _by_scheme(weights, {"config_groups": groups}) == "int8"
    assert _by_scheme(weights | {"num_bits": 4, "symmetric": False}, {"config_groups": groups}) == "int4_g64z"


def test_a_drafter_in_one_pass_has_rows_for_all_its_drafts() -> None:
    block = placed(drafter=dflash_for(PLAIN.model), num_speculative_tokens=4, max_num_seqs=8)
    tables = drafter_costs(block)
    assert tables is not None and tables.first_extra_rows == 3
    assert len(tables.first_s) == block.largest_step + 3 * 8 + 1
    eagle = drafter_costs(EAGLE)
    assert eagle is not None and eagle.first_extra_rows == 0
    assert len(eagle.first_s) == EAGLE.largest_step + 1


def test_a_drafter_s_pass_launches_runs_its_head_and_reads_its_sequences() -> None:
    found, drafter = drafter_costs(EAGLE), EAGLE.drafter
    assert found is not None and drafter is not None and drafter.model is not None
    tp = EAGLE.draft_tensor_parallel_size
    attention = decode_coefficients(EAGLE, drafter.model, tp)
    head = lm_head(EAGLE, drafter.draft_vocab_size, drafter.model.hidden_size, tp, 8).total_s
    assert attention.floor_s > 0.0
    for sequences in (0, 1, 8):
        each = 0.25e-3 + attention.floor_s + sequences * (attention.sequence_s + attention.query_token_s)
        assert found.each_s[sequences] == pytest.approx(head[sequences] + each, rel=1e-12)


def test_an_mtp_module_has_the_last_feed_forward_of_many() -> None:
    wide = [LayerRun(2, (), DenseMlp(width)) for width in (10, 20, 30)]
    attention, state = GroupedAttention(4, 2, 8), GatedDelta(2, 4, 8, 16, 3)
    runs = (
        wide[0],
        LayerRun(1, (replace(attention, heads=8),), None),
        wide[1],
        LayerRun(3, (attention,), None),
    )
    target = replace(PLAIN.model, stack=(*runs, wide[2], LayerRun(1, (state,), None)))
    assert _last_kind(target) == LayerRun(1, (attention,), DenseMlp(30))
    states = replace(PLAIN.model, stack=(LayerRun(4, (state,), None),))
    assert _last_kind(states) == LayerRun(1, (state,), None)


def test_memory_names_the_kinds_of_a_drafter_that_has_layers() -> None:
    own = [line for line in _kinds(EAGLE) if line.startswith("drafter: ")]
    assert len(own) == len(_kinds(EAGLE)) - len(_kinds(PLAIN)) > 0
    ngram = placed(drafter=catalog.drafter("ngram"), num_speculative_tokens=3)
    assert _kinds(ngram) == _kinds(PLAIN)


def test_correlated_drafts_route_as_fewer_tokens() -> None:
    rows = np.array([8.0, 100.0])
    assert effective_tokens(rows, 3, 0.5).tolist() == [8 * 2.5 / 4, 100 * 2.5 / 4]
    assert effective_tokens(rows, 3, 0.0).tolist() == rows.tolist()
    assert effective_tokens(rows, 3, 1.0).tolist() == [2.0, 25.0]
    assert effective_tokens(rows, 0, 0.7).tolist() == rows.tolist()


def test_the_busiest_of_two_ranks_in_closed_form() -> None:
    found = busiest_rank(np.array([1.0, 2.0]), 8, 1, 2, np.array([3.0, 4.0]))
    spread = [sqrt(4 * (7 / 8 - 6 / 8)), sqrt(4 * ((7 / 8) ** 2 - (6 / 8) ** 2))]
    above = LARGEST_NORMAL[2]
    assert found.distinct == pytest.approx(
        [4 * (1 / 8) + above * spread[0], 4 * (15 / 64) + above * spread[1]]
    )
    assert found.visits == pytest.approx([c / 2 + above * sqrt(c / 2) for c in (3.0, 4.0)])


def test_the_work_of_experts_term_by_term() -> None:
    gemm = GemmConstants(4e-6, 0.5, 0.8, 3.0, 0.5, 2.0)
    law = ExpertLaw(Mixture(64, 32, 2, 8, 3, tp=2), 8.5, gemm, 1e12, 1e15)
    rows, tokens = np.array([10.0]), np.array([4.0])
    found = law.parts(rows, tokens)
    distinct, visits, one = 8 * (1 - 0.75**4), 20.0, 16
    moved = distinct * 3 * 64 * one * 8.5 / 8 + visits * 2 * (2 * 64 + 4 * one)
    assert found.floor_s == pytest.approx(2 * 4e-6 + ROUTING_KERNELS * 3e-6)
    assert found.stream_s == pytest.approx(moved / 5e11)
    arithmetic = visits * 2 * 3 * 64 * one / (1e15 * 0.8 * PEAK_SHARE)
    assert found.extra_s == pytest.approx(arithmetic + 2 * 3 * (10 * 64 + visits * one) / 5e11)


def test_the_weight_of_waves_is_fitted_within_its_bounds() -> None:
    rates, law = Rates(3.35e12, 989e12, 132), GemmConstants(3e-6, 0.8, 0.7, 3.0, 2.5, 0.0)
    shapes = [(m, n, 4096) for n in (2048, 4096, 12_288) for m in (1, 16, 128, 300, 1000, 2000, 4096)]
    grid = np.array(shapes, dtype=np.float64).T
    times = GemmTimes(grid[0], grid[1], grid[2], np.ones(len(shapes)))
    assert fit_gemm(times._replace(seconds=gemm_s(times, law, rates)), rates).wave_weight == 1.5


def test_a_difference_steps_up_and_at_the_upper_bound_down() -> None:
    asked: list[np.ndarray] = []

    def residuals(point: np.ndarray) -> np.ndarray:
        asked.append(point.copy())
        return np.array([point[0] ** 2, 3.0 * point[1]])

    size, high = np.array([2.0, 4.0]), np.array([3.5, 5.0])
    point = np.array([3.0, 5.0])
    at = residuals(point)
    gradient, curvature = _normal_equations(residuals, point, at, size, high, scale=1e9)
    assert asked[1].tolist() == [3.0 + _STEP * 2.0, 5.0]
    assert asked[2].tolist() == [3.0, 5.0 - _STEP * 4.0]
    assert gradient == pytest.approx([2 * 3 * 2 * 9, 3 * 4 * 15], rel=1e-5)
    assert curvature == pytest.approx(np.diag([12.0**2, 12.0**2]), rel=1e-5)
