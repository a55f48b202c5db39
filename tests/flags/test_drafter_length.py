"""A drafter that reaches less far than its target: what each engine build makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.load.config import Loaded, load
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.faults import InputFaults

HEAD = "method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
DRAFT = "method: draft_model, model: meta-llama/Llama-3.2-1B-Instruct"


def loaded(folder: Path, fields: str, **serve: object) -> Loaded:
    usual = {
        "model": "llama-3.1-8b-instruct",
        "gpu": "h100-sxm",
        "engine": "vllm-0.33",
        "max_model_len": 16384,
    }
    keys = usual | serve
    given = ", ".join(f"{key}: {value}" for key, value in keys.items())
    path = folder / "x.yaml"
    path.write_text(
        f"serve: {{{given},"
        f" speculative_config: {{{fields}, num_speculative_tokens: 3}}}}\n"
        "acceptance: {conditional_acceptance: 0.7}\n"
        "workload: {input_len: 100, output_len: 100, max_concurrency: 2, num_prompts: 10}\n"
    )
    return load(path)


def serve(folder: Path, fields: str, **changes: object) -> Serve:
    return expand(loaded(folder, fields, **changes).experiment)[0].config.serve


def drafter_limit(of: Serve) -> int | None:
    assert of.speculative_config is not None
    return of.speculative_config.max_model_len


def test_the_newest_build_drafts_with_a_head_at_any_length_and_older_ones_up_to_its_positions(
    tmp_path: Path,
) -> None:
    new, old = serve(tmp_path, HEAD), serve(tmp_path, HEAD, engine="vllm-2026-01")
    assert (new.max_model_len, drafter_limit(new)) == (16384, None)
    assert (old.max_model_len, drafter_limit(old)) == (16384, 2048)


def test_a_shorter_draft_model_lowers_the_engine_of_the_newest_build_alone(tmp_path: Path) -> None:
    fields = f"{DRAFT}, max_model_len: 4096"
    new, old = serve(tmp_path, fields), serve(tmp_path, fields, engine="vllm-2026-01")
    assert (new.max_model_len, drafter_limit(new)) == (4096, 4096)
    assert (old.max_model_len, drafter_limit(old)) == (16384, 4096)
    assert any("lowered from 16384 to 4096" in notice for notice in loaded(tmp_path, fields).notices)


def test_a_length_above_the_head_s_is_refused_and_the_target_s_own_is_taken(tmp_path: Path) -> None:
    with pytest.raises(InputFaults, match="above the 2048 positions of the drafter"):
        loaded(tmp_path, f"{HEAD}, max_model_len: 4096")
    whole = loaded(tmp_path, f"{HEAD}, max_model_len: 16384")
    assert any("changes nothing" in notice for notice in whole.notices)


@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp", "glm4_moe_mtp"])
def test_mtp_needs_no_model_and_has_many_names(tmp_path: Path, method: str) -> None:
    of = serve(
        tmp_path, f"method: {method}", model="deepseek-ai/DeepSeek-V3", gpu="h200", tensor_parallel_size=8
    )
    assert of.speculative_config is not None
    assert of.speculative_config.method == "mtp"
    assert of.speculative_config.model == {"mtp_for": "deepseek-ai/DeepSeek-V3"}


def test_ngram_is_scheduled_ahead_in_the_newest_build_and_suffix_in_none(tmp_path: Path) -> None:
    modes = {
        (engine, method): serve(tmp_path, f"method: {method}", engine=engine).async_scheduling
        for engine in ("vllm-0.33", "vllm-2026-01")
        for method in ("ngram", "ngram_gpu", "suffix")
    }
    assert {key for key, ahead in modes.items() if ahead} == {
        ("vllm-0.33", "ngram"),
        ("vllm-0.33", "ngram_gpu"),
    }


def test_medusa_is_refused_where_it_is_gone(tmp_path: Path) -> None:
    fields = "method: medusa, model: {medusa_for: llama-3.1-8b-instruct}"
    with pytest.raises(InputFaults, match="no method medusa any more"):
        loaded(tmp_path, fields)
    assert loaded(tmp_path, fields, engine="vllm-2026-01")


def test_mtp_of_a_model_without_such_layers_is_refused_with_its_line_and_taken_where_they_are_stated(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.yaml"
    text = (
        "serve:\n  model: MODEL\n  gpu: h100-sxm\n  max_model_len: 2048\n"
        "  speculative_config: {method: mtp, num_speculative_tokens: 2}\n"
        "acceptance: {conditional_acceptance: 0.7, concentration: 18}\n"
        "workload: {input_len: 100, output_len: 20, max_concurrency: 4, num_prompts: 8}\n"
    )
    path.write_text(text.replace("MODEL", "meta-llama/Llama-3.1-8B-Instruct"))
    with pytest.raises(InputFaults) as caught:
        load(path)
    (fault,) = caught.value.faults
    assert str(fault).startswith(f"{path}:5: serve.speculative_config.method: ")
    assert "has no MTP layers to draft with; use another method (eagle3, draft_model, ngram)" in str(fault)
    path.write_text(text.replace("MODEL", "{base: meta-llama/Llama-3.1-8B-Instruct, mtp_layers: 1}"))
    assert load(path).experiment.serve.speculative_config
    named = "{mtp_for: meta-llama/Llama-3.1-8B-Instruct, name: me/heads}"
    path.write_text(
        text.replace("MODEL", "meta-llama/Llama-3.1-8B-Instruct").replace("mtp,", f"mtp, model: {named},")
    )
    assert load(path).experiment.serve.speculative_config
