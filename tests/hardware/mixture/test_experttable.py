"""Measured experts: which line stands for what, and that it is priced as measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specfleet.hardware import catalog
from specfleet.hardware.layers.feedforward import ExpertMlp
from specfleet.hardware.mixture.choosing import CHOSEN_EXPERT_S, choosing_s
from specfleet.hardware.mixture.experts import expert_gemms
from specfleet.hardware.mixture.table import Mixture, lines_of, measured, nearest, order, stored_kind
from specfleet.hardware.placement import Placement

QWEN = Mixture(2048, 768, 8, 128)
GPUS = ("h100_sxm", "h200_sxm", "b200_sxm")


def placed(model: str, gpu: str, engine: str, **options: int | str) -> Placement:
    profile = replace(catalog.engine_profile(engine), arithmetic_rate=1.0)
    return Placement.of(catalog.model(model), catalog.accelerator(gpu), profile, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", GPUS)
def test_times_grow_with_the_tokens_and_no_line_is_twice_there(gpu: str) -> None:
    for lines in lines_of(gpu).values():
        versions = [line.version for line in lines]
        assert versions == sorted(set(versions), key=order)
        for line in lines:
            assert (np.diff(line.seconds) >= 0).all() and (line.seconds > 0).all()
            assert len(line.tokens) >= 8


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "tp", "ep"),
    [
        ("gpt-oss-120b", "h100-sxm", "vllm-0.33", 1, 1),
        ("gpt-oss-120b", "h100-sxm", "sglang", 4, 1),
        ("deepseek-v3", "h200", "vllm-0.19", 8, 8),
        ("minimax-m2.5", "h200", "trtllm", 8, 8),
        ("qwen3-30b-a3b", "b200", "vllm-0.33", 1, 1),
    ],
)
def test_a_mixture_that_was_measured_is_priced_as_measured(
    model: str, gpu: str, engine: str, tp: int, ep: int
) -> None:
    place = placed(model, gpu, engine, tensor_parallel_size=tp, expert_parallel_size=ep)
    group = next(group for group in place.model.layer_groups(tp) if group.experts)
    assert group.experts is not None
    experts = group.experts
    shape = (place.model.hidden_size, experts.width, experts.per_token, experts.experts)
    split = place.expert_split(tp)
    assert split == (tp // ep, ep)
    mixture = Mixture(*shape, 3, *split)
    profile, stored = place.profile, stored_kind(place.model, group.expert_format)
    found = measured(place.accelerator.constants, profile.kernels, profile.kernel_version, stored, mixture)
    assert found is not None and found.mixture == mixture
    for tokens, seconds in zip(found.line.tokens, found.line.seconds, strict=True):
        parts = expert_gemms(place, place.model, tp, group, np.array([tokens]), 0)
        choosing = choosing_s(experts, 1) if found.line.chosen else 0.0
        assert sum(part[0] for part in parts) == pytest.approx(seconds + choosing, rel=1e-6)


def test_of_several_releases_the_first_that_is_not_older_stands() -> None:
    def version(engine: str, release: str, gpu: str = "h200_sxm") -> tuple[str, str]:
        found = measured(gpu, engine, release, "bfloat16", QWEN)
        assert found is not None
        return found.line.version, found.constants

    assert version("vllm", "0.11") == ("0.19.0", "h200_sxm")
    assert version("vllm", "0.20")[0] == version("vllm", "0.33")[0] == version("vllm", "")[0] == "0.24.0"
    assert version("vllm", "0.11", "h100_sxm") == ("0.19.0", "h200_sxm"), (
        "the same chip has the older release"
    )
    assert version("vllm", "0.33", "h100_sxm") == ("0.24.0", "h100_sxm")
    assert version("sglang", "0.5.6")[0] == "0.5.10" and version("sglang", "")[0] == "0.5.14"


@pytest.mark.parametrize(
    ("engine", "release"),
    [("sglang-0.4", "0.5.10"), ("sglang-2025", "0.5.10"), ("sglang", "0.5.14"), ("vllm-0.11", "0.19.0")],
)
def test_a_profile_takes_the_kernels_of_its_time(engine: str, release: str) -> None:
    assert f" {release} on h200_sxm" in placed("qwen3-30b-a3b", "h200", engine).expert_kernels


def test_a_mixture_without_a_line_takes_the_nearest_of_its_split() -> None:
    glm = Mixture(5120, 1536, 8, 160, 3, 8)
    found = measured("h200_sxm", "vllm", "0.33", "bfloat16", glm)
    assert found is not None and found.mixture[4:] == glm[4:]
    assert found.mixture[:4] in ((6144, 2560, 8, 160), (4096, 1536, 8, 128))
    assert nearest(Mixture(64, 64, 1, 2), [QWEN]) is None, "nothing is alike"
    assert nearest(QWEN._replace(matrices=2), [QWEN]) is None, "an expert without a gate is another kernel"
    assert measured("a100_sxm", "vllm", "", "bfloat16", QWEN) is None


def test_the_placement_says_whose_times_price_the_experts() -> None:
    assert (
        "experts as measured in vllm 0.24.0 on h100_sxm"
        in placed("qwen3-30b-a3b", "h100-sxm", "vllm-0.33").notes
    )
    assert "nearest" in placed("glm-4.5-air", "h100-sxm", "vllm-0.33", tensor_parallel_size=4).expert_kernels
    assert "formula" in placed("qwen3-30b-a3b", "a100-80gb", "vllm-0.33").expert_kernels


@pytest.mark.parametrize(
    ("checkpoint", "stored", "kind"),
    [
        ("fp8", "fp8", "fp8_block"),
        (None, "fp8", "fp8"),
        ("fp8", "bf16", "bf16"),
        ("fp8", "int4_g128", "int4"),
        (None, "mxfp4", "mxfp4"),
    ],
)
def test_fp8_of_a_checkpoint_has_scales_by_block_and_that_of_the_engine_one_a_tensor(
    checkpoint: str | None, stored: str, kind: str
) -> None:
    model = replace(catalog.model("qwen3-30b-a3b"), checkpoint_quantization=checkpoint)
    assert stored_kind(model, stored) == kind


@pytest.mark.parametrize("name", ["glm-4.5-air-fp8", "glm-4.6-fp8"])
def test_experts_with_a_scale_a_channel_are_priced_as_those_with_one_a_tensor(name: str) -> None:
    model = catalog.model(name)
    assert not model.fp8_scales_by_block and stored_kind(model, "fp8") == "fp8"
    assert stored_kind(replace(model, fp8_scales_by_block=True), "fp8") == "fp8_block"


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200", "b200"])
@pytest.mark.parametrize("engine", ["vllm-0.33", "vllm-0.19", "sglang", "trtllm"])
@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "qwen3-235b-a22b", "glm-4.6", "mixtral-8x7b"])
def test_experts_of_half_the_bytes_are_no_slower_where_bytes_decide(gpu: str, engine: str, name: str) -> None:
    tokens = np.array([32.0, 64.0])

    def seconds(stored: str | None) -> np.ndarray:
        model = replace(catalog.model(name), checkpoint_quantization=stored)
        profile = catalog.engine_profile(engine)
        place = Placement.of(model, catalog.accelerator(gpu), profile, tensor_parallel_size=2)
        group = next(group for group in model.layer_groups(2) if group.experts)
        total: np.ndarray = np.sum(expert_gemms(place, model, 2, group, tokens, 0), axis=0)
        return total

    sixteen = seconds(None)
    assert (seconds("fp8") < 1.05 * sixteen).all()
    assert (seconds("int4_g128") < 1.05 * sixteen).all()
    place = placed(name, gpu, engine, tensor_parallel_size=2, quantization="fp8")
    group = next(group for group in place.model.layer_groups(2, "fp8") if group.experts)
    by_engine = np.sum(expert_gemms(place, place.model, 2, group, tokens, 0), axis=0)
    assert (by_engine < 1.05 * sixteen).all(), "timed before it was tuned"


def test_kernels_that_two_engines_share_stand_for_each_other_where_one_was_not_timed() -> None:
    model = replace(catalog.model("qwen3-235b-a22b"), checkpoint_quantization="int4_g128")
    place = Placement.of(
        model, catalog.accelerator("h200"), catalog.engine_profile("vllm-0.33"), tensor_parallel_size=2
    )
    assert place.expert_kernels.startswith("experts as measured in sglang 0.5.10 on h200_sxm")
    kimi = measured("h200_sxm", "vllm", "0.33", "int4", Mixture(7168, 2048, 8, 384))
    assert kimi is not None and kimi.engine == "vllm", "its own times before another's"
    assert measured("h200_sxm", "vllm", "0.33", "nvfp4", Mixture(4096, 1536, 8, 128)) is None


def test_choosing_takes_a_kernel_or_two_and_five_with_a_bias_in_011() -> None:
    plain, odd = ExpertMlp(128, 8, 768), ExpertMlp(160, 8, 2560)
    biased = ExpertMlp(160, 8, 1536, router_bias=True)
    assert choosing_s(plain, 5) == pytest.approx(8 * 0.62e-6), "no bias, no kernels for one"
    assert choosing_s(odd, 1) == pytest.approx(8 * 0.62e-6 + 3e-6), "softmax apart: no power of two"
    assert choosing_s(biased, 1) == pytest.approx(8 * 0.62e-6)
    assert choosing_s(biased, 5) == pytest.approx(8 * 0.62e-6 + 4 * 3e-6)
    assert choosing_s(ExpertMlp(512, 10, 512), 1) == 10 * CHOSEN_EXPERT_S


@pytest.mark.parametrize("gpu", GPUS)
def test_which_times_lack_the_choice_follows_engine_release_type_and_split(gpu: str) -> None:
    for (engine, dtype, mixture), lines in lines_of(gpu).items():
        for line in lines:
            if engine == "trtllm" or (engine == "vllm" and line.version == "0.24.0") or "mxfp4" in dtype:
                assert not line.chosen, "timed as a layer, with scores"
            elif engine == "vllm":
                assert line.chosen
            elif mixture.ep == 1:
                assert not line.chosen, "SGLang chooses in front of the kernel"
            elif line.version == "0.5.10" and dtype != "int4_wo":
                assert line.chosen, "choices of one rank, made beforehand"


def test_the_choice_is_priced_as_launches_of_the_layer_where_the_table_lacks_it() -> None:
    old, new = (
        placed("glm-4.6", "h200", name, tensor_parallel_size=8) for name in ("vllm-0.11", "vllm-0.15")
    )
    tokens = np.array([4.0])

    def floor(place: Placement) -> float:
        group = next(group for group in place.model.layer_groups(8) if group.experts)
        return float(expert_gemms(place, place.model, 8, group, tokens, 0).floor_s[0])

    assert floor(old) - floor(new) == pytest.approx(4 * 3e-6), "sigmoid, correction, a second kernel, a cast"
    assert "choosing them besides by a law" in old.expert_kernels
    assert "besides" not in placed("glm-4.6", "h200", "vllm-0.33", tensor_parallel_size=8).expert_kernels


@pytest.mark.parametrize(
    ("name", "biased"),
    [
        *[("deepseek-v3", True), ("deepseek-v3.2", True), ("glm-4.6", True), ("glm-5.2-fp8", True)],
        *[("kimi-k2-instruct", True), ("minimax-m2.5", True), ("nemotron-3-nano", True)],
        *[("qwen3-235b-a22b", False), ("gpt-oss-120b", False), ("mixtral-8x7b", False)],
        *[("qwen3-next-80b-a3b-instruct", False), ("llama-4-scout", False), ("deepseek-v2-lite", False)],
    ],
)
def test_a_model_says_whether_its_router_has_a_correction(name: str, biased: bool) -> None:
    experts = {run.experts.router_bias for run in catalog.model(name).runs if run.experts}
    assert experts == {biased}
