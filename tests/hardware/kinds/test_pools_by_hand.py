"""Pools, tensors and formats of rarer drafters and checkpoints, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specfleet.hardware import catalog
from specfleet.hardware.attentioncost import _latent
from specfleet.hardware.configs.keys import ConfigError
from specfleet.hardware.configs.reader import rope_of
from specfleet.hardware.configs.storage import _compressed, _weights_only
from specfleet.hardware.heads import dflash_for, eagle3_for, medusa_for
from specfleet.hardware.hybrid import pool_shape
from specfleet.hardware.layers.attention import Indexer, LatentAttention
from specfleet.hardware.layers.positions import Rope
from specfleet.hardware.layers.recurrent import GatedDelta
from specfleet.hardware.layers.stack import LayerRun
from specfleet.hardware.memory import _factors, kv_factors
from specfleet.hardware.memorypeak import _drafter_tensors
from specfleet.hardware.placement import Placement

LLAMA = catalog.model("llama-3.1-8b")


def placed(model: str = "llama-3.1-8b", engine: str = "vllm-0.33", **options: Any) -> Placement:
    gpu, profile = catalog.accelerator("h100-sxm"), catalog.engine_profile(engine)
    return Placement.of(catalog.model(model), gpu, profile, **options)


def test_sglang_counts_each_layer_of_a_drafter_as_one_of_the_target_s() -> None:
    token = 2 * 32 * 8 * 128 * 2
    assert pool_shape(placed(engine="sglang")).bytes_per_slot == token
    for made, layers in ((eagle3_for(LLAMA), 1), (dflash_for(LLAMA), 5)):
        drafting = placed(engine="sglang", drafter=made, num_speculative_tokens=3)
        assert pool_shape(drafting).bytes_per_slot == token + token * layers // 32
        assert kv_factors(drafting).endswith(f"128 x 2 B x (1 + {layers} / 32)")


def test_a_pool_that_grows_with_no_token_still_has_slots() -> None:
    state = LayerRun(4, (GatedDelta(2, 4, 8, 16, 3),), None)
    gpu, profile = catalog.accelerator("h100-sxm"), catalog.engine_profile("sglang")
    assert pool_shape(Placement.of(replace(LLAMA, stack=(state,)), gpu, profile)).bytes_per_slot == 1


def test_what_a_token_holds_is_said_in_the_singular_and_the_plural() -> None:
    few = replace(LLAMA, num_layers=2, num_kv_heads=2)
    assert _factors(few, 1, 2) == "2 x 2 layers x 2 KV heads x 128 x 2 B"
    assert _factors(few, 2, 1) == "2 x 2 layers x 1 KV head x 128 x 1 B"
    assert _factors(replace(few, num_layers=1), 2, 2) == "2 x 1 layer x 1 KV head x 128 x 2 B"


def test_an_indexer_of_unmeasured_latent_attention_reads_its_keys_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Placement, "latent_constants", lambda self, indexed: None)
    plain, here = LatentAttention(16, 512, 128, 64, 128), placed()
    sparse = replace(plain, index=Indexer(heads=4, head_dim=128, topk=2048))
    without, found = (_latent(here, mixer, 6, 0, 2) for mixer in (plain, sparse))
    constants = here.constants.decode["bfloat16", here.attention]
    rate = 3.35e12 * constants.bandwidth_share
    assert found.kv_token_s - without.kv_token_s == pytest.approx(6 * 132 / rate, rel=1e-9)
    assert found.floor_s - without.floor_s == pytest.approx(6 * constants.floor_s, rel=1e-9)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"type": "yarn", "factor": 4, "original_max_position_embeddings": 32_768}, ("yarn", 4.0, 32_768)),
        ({"rope_type": "linear", "factor": 2.5}, ("linear", 2.5, 0)),
        ({"type": "dynamic"}, ("dynamic", 1.0, 0)),
        ({"rope_type": "default", "factor": 4.0}, None),
        ({"type": "mrope", "factor": 4.0}, None),
        ({"type": "linear", "factor": True}, None),
        ({"type": "linear", "factor": "4"}, None),
        ({"factor": 4.0}, None),
        ({"full_attention": {"type": "linear", "factor": 8.0}, "sliding": {"type": "x"}}, ("linear", 8.0, 0)),
    ],
)
def test_positions_are_stretched_as_the_file_says_and_else_not(
    said: dict[str, Any], expected: tuple[str, float, int] | None
) -> None:
    for name in ("rope_parameters", "rope_scaling"):
        found = rope_of({}, {name: said}, "llama")
        assert found == Rope(*expected or ())
        assert rope_of({}, {name: said}, "gemma3") == Rope()


def test_medusa_heads_are_squares_and_lm_heads() -> None:
    head = 2 * 128_256 * 4096
    assert [*_drafter_tensors(medusa_for(LLAMA), 1)] == [(2 * 4096**2, 4), (head, 4)]
    assert [*_drafter_tensors(catalog.drafter("ngram"), 1)] == []


def test_a_group_that_names_all_linear_layers_is_everybody_s() -> None:
    weights = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}

    def stored(*targets: str) -> list[tuple[bool, str]]:
        groups = {"g": {"targets": list(targets), "weights": weights}}
        return [(g.targets is None, g.stored) for g in _compressed({"config_groups": groups}, {}).groups]

    assert stored("Linear") == stored("re:.*experts.*", "FusedMoE") == stored() == [(True, "int4_g32")]
    assert stored("re:.*experts.*") == [(False, "int4_g32")]
    packed = _compressed({"format": "mxfp4-pack-quantized"}, {})
    assert [(group.targets, group.stored) for group in packed.groups] == [(None, "mxfp4")]
    with pytest.raises(ValueError, match="no config_groups"):
        _compressed({"format": "pack-quantized"}, {})


@pytest.mark.parametrize(("ep", "fits"), [(1, True), (2, True), (4, True), (8, False), (3, False)])
def test_ranks_of_experts_divide_the_gpus_and_the_experts(ep: int, fits: bool) -> None:
    split: dict[str, Any] = {"tensor_parallel_size": 4, "expert_parallel_size": ep}
    if fits:
        assert placed("qwen3-30b-a3b", **split).expert_parallel_size == ep
    else:
        with pytest.raises(ValueError, match="must divide the 4 GPUs and the 128 experts"):
            placed("qwen3-30b-a3b", **split)


def test_weights_run_by_the_nearest_measured_law_at_a_peak_that_the_gpu_has() -> None:
    here = placed()

    def laws(**peaks: float) -> list[tuple[str, str]]:
        gpu = replace(here.accelerator, flops_per_s={"bfloat16": 1e15, **peaks})
        on = replace(here, accelerator=gpu)
        return [on.kernel_law(stored) for stored in ("bfloat16", "fp8", "int8", "nvfp4", "int4_g128")]

    half = ("bfloat16", "bfloat16")
    assert laws() == [half] * 5, "the law of FP8 is measured, and this GPU has no peak for it"
    assert laws(fp8=2e15) == [half, ("fp8", "fp8"), ("fp8", "fp8"), half, half]
    assert laws(nvfp4=4e15) == [half, half, half, ("fp8", "nvfp4"), half]
    assert laws(int8=2e15, fp8=2e15) == [half, ("fp8", "fp8"), ("fp8", "int8"), half, half]


@pytest.mark.parametrize("drafts", [1, 5, 7])
def test_blocks_hold_a_state_with_what_each_draft_adds_to_it_and_one_a_draft(drafts: int) -> None:
    """A state of 2 MiB fills whole blocks: what drafts add, inputs to the convolution, needs one more."""
    state = GatedDelta(16, 32, 128, 128, 4)
    model = replace(LLAMA, stack=(LayerRun(4, (state,), None), *LLAMA.runs))
    gpu, profile = catalog.accelerator("h100-sxm"), catalog.engine_profile("vllm-0.33")
    own = catalog.drafter("eagle3-llama3.1-instruct-8b")
    found = pool_shape(Placement.of(model, gpu, profile, drafter=own, num_speculative_tokens=drafts))
    cache = state.cache(1)
    held = cache.state_bytes + drafts * cache.draft_state_bytes
    least = 4 * (1 + drafts) * held
    assert least <= found.sequence_slots * found.bytes_per_slot < 3 * least


@pytest.mark.parametrize("tp", [1, 2])
def test_the_tensors_of_a_head_are_its_layer_s_its_fusion_and_what_is_its_own(
    tp: int,
) -> None:
    own = catalog.drafter("eagle3-llama3.1-instruct-8b")
    found = [*_drafter_tensors(own, tp)]
    fc = own.fc_gemm(tp)
    assert fc is not None and (2 * fc[0] * fc[1], 1) in found
    assert own.model is not None
    assert found[-2:] == [
        (2 * own.head_parameters(tp), int(own.own_lm_head)),
        (own.model.embedding_bytes(tp), int(own.own_embedding)),
    ]
    layers = sum(n * k for group in own.model.layer_groups(tp, None) for n, k in group.gemms)
    assert sum(size * n for size, n in found[:-3]) == 2 * layers * own.model.num_layers


@pytest.mark.parametrize(("bits", "known"), [(1, False), (2, True), (8, True), (9, False)])
def test_weights_have_two_bits_at_least_and_eight_at_most(bits: int, known: bool) -> None:
    block: Any = {"bits": bits, "group_size": 64, "sym": True}
    if known:
        assert _weights_only(block, {}).groups[0].stored == f"int{bits}_g64"
    else:
        with pytest.raises(ConfigError, match="no whole numbers from 2"):
            _weights_only(block, {})


def test_the_share_of_kv_in_windows_is_that_of_their_layers() -> None:
    """Gemma 3: of 62 layers every sixth is full."""
    model = catalog.model("gemma-3-27b-it")
    assert model.num_layers == 62 and model.num_windowed_layers == 52
    assert model.share_in_reach("auto", 1) == pytest.approx(52 / 62)
    assert LLAMA.share_in_reach("auto", 1) == 0.0
