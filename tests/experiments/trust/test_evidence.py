"""Every sentence on what is backed follows from the table of evidence, over the whole catalogue."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from specfleet.experiments.load.config import load, load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.schema.lookups import acceptance_profile, acceptance_profile_names
from specfleet.experiments.words.backing import CAVEATS, backed, backing_of_points, not_backed
from specfleet.experiments.words.contradicted import contradicted
from specfleet.experiments.words.evidence import (
    OWN,
    RECORDED,
    SERVED,
    SUBJECTS,
    TABLE,
    Used,
    backing_of,
    nearest,
    used_by,
)
from specfleet.hardware import catalog
from specfleet.hardware.model import DrafterSpec
from specfleet.hardware.placement import Placement

METHODS = ("none", "ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp", "medusa")
FORMATS = ("mxfp4", "nvfp4", "mxfp8", "int4_g128", "int4_g128z", "int8", "nf4")
"""Of which no kernel was measured."""


@cache
def placed(model: str, gpu: str, engine: str, weights: str | None, gpus: int) -> Placement | None:
    """One plain engine of the catalogue; None where its parts do not go together."""
    try:
        return Placement.of(
            catalog.model(model),
            catalog.accelerator(gpu),
            catalog.engine_profile(engine),
            quantization=weights,
            tensor_parallel_size=gpus,
        )
    except ValueError:
        return None


@cache
def product() -> tuple[Used, ...]:
    """Models x GPUs x engines x methods x weights, on one and four GPUs (two without
    peer-to-peer), short and long contexts.

    Of models whose size lies in the same ranges of the table one stands for all.
    """
    alike: dict[tuple[bool, ...], float] = {}
    kinds = [catalog.names(kind) for kind in ("models", "accelerators", "engines")]
    plain = set()
    for model, gpu, engine, weights, gpus in itertools.product(*kinds, (None, "fp8"), (1, 2, 4)):
        place = placed(model, gpu, engine, weights, gpus)
        if place is None or (gpus == 2 and place.accelerator.linked(2)):
            continue
        this = used_by(place, "none", tree=False, context_tokens=300, batch=32)
        measured = tuple(row.holds("parameters", this.parameters) for row in TABLE)
        plain.add(replace(this, parameters=alike.setdefault(measured, this.parameters)))
    found = {
        replace(this, method=method, k=0 if method == "none" else 3, context_tokens=context)
        for this, method, context in itertools.product(plain, METHODS, (300.0, 3000.0))
    }
    return tuple(found)


@cache
def told_apart() -> tuple[Used, ...]:
    """Of runs of the product under an engine that lie outside the same fields of every row one stands for
    all."""
    found: dict[object, Used] = {}
    for this in product():
        found.setdefault((this.engine, bool(contradicted(this)), *(row.outside(this) for row in TABLE)), this)
    return tuple(found.values())


@cache
def every_format() -> tuple[Used, ...]:
    """The product in short contexts, plain and with a head, with all kinds of weights and of attention."""
    attentions = ("full", "windowed", "latent", "compressed", "recurrent")
    others = [{"weights": kind} for kind in FORMATS] + [{"attention": kind} for kind in attentions]
    others += [{"kernels": OWN, "weights": "nvfp4"}]
    base = {
        replace(this, weights="bfloat16", attention="full", experts=False)
        for this in product()
        if this.method in ("none", "eagle3") and this.context_tokens == 300
    }
    return tuple({replace(this, **other) for this in base for other in others})  # type: ignore[arg-type]


@cache
def yes(this: Used) -> list[str]:
    return backed(this)


@cache
def no(this: Used) -> list[str]:
    return not_backed(this)


def used(**changes: object) -> Used:
    """A run in the middle of what was served with speculation."""
    place = placed("qwen3-32b", "h100-94gb", "vllm-2026-01", None, 1)
    assert place is not None
    this = used_by(place, "eagle3", tree=False, context_tokens=300, batch=32)
    return replace(this, **{"k": 3, **changes})  # type: ignore[arg-type]


def where(**changes: object) -> str:
    return " ".join(not_backed(used(**changes)))


def test_the_whole_catalogue_is_there() -> None:
    there = product()
    assert {this.engine for this in there} == set(catalog.names("engines"))
    assert {this.gpu for this in there} == set(catalog.names("accelerators"))
    assert {this.method for this in there} == set(METHODS)
    assert {this.weights for this in there} >= {"bfloat16", "fp8", "mxfp4"}
    assert {this.attention for this in there} >= {"full", "windowed", "latent"}


def test_no_sentence_is_said_without_evidence_that_holds() -> None:
    by_sentence = {row.says: row for row in TABLE}
    for this in told_apart():
        for says in yes(this):
            assert not by_sentence[says].outside(this), (this, says)


def test_no_subject_is_used_outside_its_ranges_without_a_caveat_for_each_field() -> None:
    for this in told_apart():
        said = no(this)
        for subject in SUBJECTS:
            if backing_of(this, subject):
                continue
            row = nearest(this, subject)
            outside = row.outside(this)
            texts = [CAVEATS[subject, name](this, row) for name in outside]
            assert outside and all(text in said for text in texts if text)
            told = any(texts) or contradicted(this) or "kernels" in outside
            assert told, (this, subject, outside)


def test_served_runs_of_another_engine_are_not_what_a_run_is_told_to_differ_from() -> None:
    """An 8B under vLLM differs from vLLM's runs in its size, not from TensorRT-LLM's in its engine."""
    for this in product():
        engines = nearest(this, SERVED).ranges["engine"]
        if this.rules in ("vllm", "trtllm") and not this.drafts:
            assert any(str(engine).startswith(this.rules) for engine in engines), this


def test_weights_of_which_nothing_was_measured_are_named_and_never_backed() -> None:
    found = [this for this in every_format() if this.weights in FORMATS and this.kernels != OWN]
    assert {this.weights for this in found} == set(FORMATS)
    for this in found:
        said = no(this)
        assert any(f"kernels with {this.weights} weights" in text for text in said), this
        assert any(f"with {this.weights.upper()} weights" in text for text in said), this
        assert not any(says.startswith(("kernel times", "served")) for says in yes(this)), this


def test_attention_of_which_nothing_was_measured_is_named_and_never_backed() -> None:
    words = {
        "windowed": "sliding-window attention",
        "latent": "latent attention",
        "compressed": "compressed attention",
        "recurrent": "layers that keep a state",
    }
    found = [this for this in every_format() if this.attention != "full"]
    assert {this.attention for this in found} == set(words)
    for this in found:
        assert any(words[this.attention] in text for text in no(this)), this
        assert not any(says.startswith(("kernel times", "served")) for says in yes(this)), this


def test_a_caveat_names_kernels_of_ones_own_only_where_they_are() -> None:
    own = next(row for row in TABLE if row.says == "kernel times (your own GPU's)")
    for this in every_format():
        assert (nearest(this, "kernel times") == own) <= (this.kernels == OWN)


def test_weights_are_called_by_the_part_that_was_measured_least() -> None:
    names = list(catalog.names("models"))
    kinds = {}
    for name in names:
        place = placed(name, "b200", "vllm-0.33", None, 8)
        if place is not None:
            kinds[name] = used_by(place, "none", tree=False, context_tokens=300, batch=32).weights
    parts = {
        name: {catalog.model(name).stored_as(None) or "bfloat16"}
        | {kind for run in catalog.model(name).runs for _, kind in run.formats}
        for name in kinds
    }
    assert len(kinds) > 20
    for name, kind in kinds.items():
        unmeasured = parts[name] - {"bfloat16", "fp8"}
        assert kind in (unmeasured or parts[name])
        assert unmeasured or (kind == "fp8") == ("fp8" in parts[name]), name


def test_every_field_that_a_row_bounds_has_a_caveat() -> None:
    for row in TABLE:
        assert {(row.subject, name) for name in row.ranges} <= {
            *CAVEATS,
            ("host", "fitted"),
            ("kernel times", "kernels"),
        }


def sentences(this: Used) -> Iterator[tuple[str, bool]]:
    yield from ((says, True) for says in yes(this))
    yield from ((says, False) for says in no(this))


def test_a_scheduler_that_was_not_replayed_is_never_called_backed() -> None:
    for this in told_apart():
        said = any(says.startswith("scheduler decisions") for says in yes(this))
        assert said <= (this.engine in RECORDED)
        if this.engine == "trtllm":
            assert any("the scheduler of trtllm" in text for text in no(this))


def test_what_was_served_on_an_h100_is_said_of_no_other_gpu() -> None:
    for this in told_apart():
        if not this.gpu.startswith("h100"):
            assert not any("H100" in says for says in yes(this)), this


def test_served_runs_with_speculation_back_nothing_beyond_them() -> None:
    for this in told_apart():
        if any("EAGLE-3 and draft models" in says for says in yes(this)):
            assert (this.weights, this.kv, this.attention, this.experts) == (
                "bfloat16",
                "bfloat16",
                "full",
                False,
            )
            assert this.gpu.startswith("h100") and this.context_tokens <= 600
            assert this.link == "one" or (this.link == "host" and this.gpus == 2)
            assert this.method in ("none", "eagle3", "draft_model")


def test_fp8_by_name_says_what_fp8_by_quantization_says() -> None:
    for gpu, engine in itertools.product(("h100-sxm", "h200", "l40s"), catalog.names("engines")):
        both = [placed("qwen3-32b", gpu, engine, "fp8", 1), placed("qwen3-32b-fp8", gpu, engine, None, 1)]
        said = []
        for place in both:
            assert place is not None
            this = replace(used_by(place, "eagle3", False, 300, 32), k=3)
            said.append(list(sentences(this)))
            assert any("FP8 weights with speculation" in text for text, _ in said[-1])
        assert said[0] == said[1]


def test_a_plan_names_weights_that_are_fp8_by_name() -> None:
    serve = {"model": "Qwen/Qwen3-32B-FP8", "gpu": "h100-sxm"}
    config = load_experiment({"serve": serve, "workload": {"input_len": 9, "output_len": 9}})
    one = Candidate("h100-sxm", 1, None, "none", "", 0, 3.0, expand(config)[0].config)
    assert one.weights == "fp8"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu": "l40s", "h100": False}, "served runs with speculation on l40s (those measured are on H100)"),
        ({"weights": "fp8"}, "FP8 weights with speculation"),
        ({"kv": "fp8"}, "an FP8 KV cache"),
        ({"attention": "latent"}, "latent attention"),
        ({"attention": "windowed"}, "sliding-window attention"),
        ({"experts": True}, "mixture-of-experts steps"),
        ({"link": "peers", "gpus": 4}, "tensor parallelism over NVLink"),
        ({"link": "host", "gpus": 4}, "4 GPUs a replica"),
        (
            {"context_tokens": 2500.0},
            "long contexts with speculation (mean prompt and output here 2500",
        ),
        ({"batch": 400.0}, "400 sequences at once (served runs have up to 256)"),
        ({"method": "eagle"}, "0.93 and 0.94 were measured"),
        ({"method": "mtp"}, "served runs with mtp"),
        ({"k": 12}, "12 drafts a round"),
        ({"tree": True}, "trees of drafts"),
        ({"parameters": 8e9}, "a model of 8B parameters"),
        ({"engine": "sglang", "kernels": "sglang"}, "served runs with speculation of sglang"),
        ({"engine": "vllm-0.33"}, "host time and memory of vLLM 0.33 itself"),
        (
            {"engine": "sglang", "kernels": "sglang", "rules": "sglang"},
            "host time of sglang (from a handful of published steps",
        ),
    ],
)
def test_a_field_outside_its_range_has_its_caveat_and_none_inside(
    changes: dict[str, object], said: str
) -> None:
    assert said in where(**changes) and said not in where()


def test_a_run_over_several_engines_is_backed_by_what_backs_all_of_them(tmp_path: Path) -> None:
    file = {
        "serve": {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm"},
        "workload": {"input_len": 100, "output_len": 20, "max_concurrency": 4},
        "sweep": {"axes": {"serve.engine": ["vllm-0.33", "trtllm"]}},
    }
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(file))
    configs = [point.config for point in expand(load_experiment(path))]
    alone = backing_of_points(configs[:1], 120, 4)
    assert any("scheduler decisions" in text for text in alone if text.startswith("Backed"))
    both = backing_of_points(configs, 120, 4)
    assert not any("scheduler decisions" in text for text in both if text.startswith("Backed"))
    assert any("the scheduler of trtllm" in text for text in both)


def test_trees_are_recorded_of_sglang_and_its_rules_never_stand_for_others() -> None:
    said = " ".join(backed(used(engine="sglang", kernels="sglang", rules="sglang", tree=True)))
    assert "scheduler decisions (recorded SGLang" in said
    assert not any("scheduler decisions" in text for text in backed(used(tree=True)))
    own = " ".join(not_backed(used(engine="mine", kernels="sglang", rules="sglang")))
    assert "the scheduler of mine (replayed" in own
    assert "vLLM's rules stand in" in " ".join(not_backed(used(engine="mine", kernels="trtllm")))


def test_tensorrt_llm_s_scheduler_is_said_to_be_by_documentation_and_no_other_is() -> None:
    engines = {this.engine: " ".join(no(this)) for this in told_apart()}
    assert {name for name, said in engines.items() if "by documentation, not by record" in said} == {"trtllm"}


def test_host_time_fitted_to_ones_own_results_is_backed_by_them() -> None:
    assert "host time (fitted to your own results)" in backed(used(fitted=True))
    assert not any("host time" in text for text in not_backed(used(fitted=True, engine="vllm-0.33")))


def test_a_drafter_of_the_catalogue_is_of_a_method_looked_at() -> None:
    methods = {catalog.drafter(name).method for name in catalog.names("drafters")}
    assert methods <= set(METHODS)
    assert isinstance(catalog.drafter("ngram"), DrafterSpec)


def notices(tmp_path: Path, **changes: str) -> str:
    file = {
        "serve": {
            "model": changes.get("model", "Qwen/Qwen3-32B"),
            "gpu": "h200",
            "max_model_len": 2048,
            "speculative_config": {
                "method": changes.get("method", "eagle3"),
                "model": changes.get("drafter", "RedHatAI/Qwen3-32B-speculator.eagle3"),
                "num_speculative_tokens": 3,
            },
        },
        "acceptance": {"profile": changes["profile"]},
        "workload": {"preset": changes.get("preset", "instructcoder"), "max_concurrency": 4},
    }
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(file))
    return " ".join(text for text in load(path).notices if "was measured on" in text)


def test_a_profile_of_another_model_method_or_data_set_is_said(tmp_path: Path) -> None:
    said = notices(tmp_path, profile="eagle-llama-3.1-8b-gsm8k")
    for named in (
        "Llama-3.1-8B-Instruct with eagle with gsm8k",
        "Qwen/Qwen3-32B with eagle3 with instructcoder",
    ):
        assert named in said
    assert "eagle3" in notices(tmp_path, profile="draft-qwen3-1.7b-for-32b-code-edit")
    assert "mt-bench" in notices(tmp_path, profile="eagle3-qwen3-32b-code-edit", preset="mt-bench")


@pytest.mark.parametrize("model", ["Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8"])
def test_a_profile_of_the_files_own_is_not_remarked_on(tmp_path: Path, model: str) -> None:
    assert notices(tmp_path, profile="eagle3-qwen3-32b-code-edit", model=model) == ""


@pytest.mark.parametrize("name", acceptance_profile_names())
def test_a_profile_carries_its_model_method_and_data_set(name: str) -> None:
    there = acceptance_profile(name).measured_on
    assert there is not None and all((there.model, there.method, there.dataset))
