"""Measured experts: which line stands for what, and that it is priced as measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specfleet.hardware import catalog
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
        assert sum(part[0] for part in parts) == pytest.approx(seconds, rel=1e-6)


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
