"""`engine: trtllm` in an experiment: its names, its defaults, whose settings it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.load.config import load, load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.built import Built, build
from specfleet.experiments.schema.faults import InputFaults

SERVE = """\
serve:
  engine: trtllm
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_seq_len: 8192
"""
REST = "workload: {input_len: 100, output_len: 50, max_concurrency: 2, num_prompts: 4}\n"


def written(folder: Path, more: str = "", rest: str = REST, serve: str = SERVE) -> Path:
    path = folder / "x.yaml"
    path.write_text(serve + more + rest)
    return path


def built(path: Path) -> Built:
    return build(expand(load_experiment(path))[0].config)


def faults(path: Path) -> str:
    with pytest.raises(InputFaults) as caught:
        load_experiment(path)
    return str(caught.value)


def test_its_names_say_what_this_packages_names_say(tmp_path: Path) -> None:
    theirs = written(
        tmp_path,
        "  tp_size: 2\n  max_batch_size: 64\n  max_num_tokens: 4096\n  disable_overlap_scheduler: true\n"
        "  kv_cache_config:\n    free_gpu_memory_fraction: 0.8\n    tokens_per_block: 64\n"
        "    enable_block_reuse: false\n"
        "  scheduler_config:\n    capacity_scheduler_policy: MAX_UTILIZATION\n"
        "    context_chunking_policy: FIRST_COME_FIRST_SERVED\n",
    )
    text = resolved(load_experiment(theirs))
    ours = tmp_path / "y.yaml"
    ours.write_text(
        "name: x\n"
        + SERVE.replace("max_seq_len", "max_model_len")
        + "  tensor_parallel_size: 2\n  max_num_seqs: 64\n  max_num_batched_tokens: 4096\n"
        "  async_scheduling: false\n  gpu_memory_utilization: 0.8\n  block_size: 64\n"
        "  enable_prefix_caching: false\n  capacity_scheduler_policy: MAX_UTILIZATION\n" + REST
    )
    assert resolved(load_experiment(ours)) == text
    again = tmp_path / "x2.yaml"
    again.write_text(text)
    assert resolved(load_experiment(again)) == text


def test_left_out_are_its_own_defaults(tmp_path: Path) -> None:
    engine = built(written(tmp_path)).scenario.engine
    assert engine.reserves_max_tokens and engine.cuts_prompts_at_blocks and not engine.static_batching
    assert engine.block_size == 32 and engine.async_scheduling


@pytest.mark.parametrize(
    ("policy", "reserves", "static"),
    [("GUARANTEED_NO_EVICT", True, False), ("MAX_UTILIZATION", False, False), ("STATIC_BATCH", True, True)],
)
def test_each_policy_has_its_switches(tmp_path: Path, policy: str, reserves: bool, static: bool) -> None:
    engine = built(written(tmp_path, f"  capacity_scheduler_policy: {policy}\n")).scenario.engine
    assert (engine.reserves_max_tokens, engine.static_batching) == (reserves, static)


def test_policies_are_swept_by_either_name(tmp_path: Path) -> None:
    for key in ("capacity_scheduler_policy", "scheduler_config.capacity_scheduler_policy"):
        axis = f"sweep: {{axes: {{serve.{key}: [GUARANTEED_NO_EVICT, STATIC_BATCH]}}}}\n"
        points = expand(load_experiment(written(tmp_path, rest=REST + axis)))
        assert [p.config.serve.capacity_scheduler_policy for p in points] == [
            "GUARANTEED_NO_EVICT",
            "STATIC_BATCH",
        ]


def test_its_share_of_memory_is_of_what_weights_and_activations_leave(tmp_path: Path) -> None:
    whole, half = (
        dict(built(written(tmp_path, f"  kv_cache_config: {{free_gpu_memory_fraction: {f}}}\n")).budget.lines)
        for f in (1.0, 0.5)
    )
    assert half["KV cache"] == whole["KV cache"] // 2
    taken = sum(size for name, size in whole.items() if name not in ("device", "KV cache"))
    assert whole["KV cache"] == whole["device"] - taken


@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        ("  capacity_scheduler_policy: NO_EVICT\n", 6, "GUARANTEED_NO_EVICT"),
        ("  scheduler_config: {context_chunking_policy: EQUAL_PROGRESS}\n", 6, "is not simulated; use FIRST"),
        ("  scheduler_config: {policy: 1}\n", 6, "is not simulated; use capacity_scheduler_policy"),
        ("  kv_cache_config: 0.9\n", 6, "must be a mapping"),
        ("  max_num_seqs: 8\n  max_batch_size: 8\n", 7, "which is given too; keep one"),
        ("  watermark: 0.1\n", 6, "is a setting of vLLM's scheduler"),
        ("  max_num_tokens: 32\n  max_batch_size: 8\n", 6, "whole KV blocks of 32 tokens"),
    ],
)
def test_what_it_cannot_be_told_is_refused_where_it_was_typed(
    tmp_path: Path, more: str, line: int, said: str
) -> None:
    text = faults(written(tmp_path, more))
    assert said in text
    assert f"x.yaml:{line}" in text


@pytest.mark.parametrize("engine", ["vllm-0.33", "sglang"])
def test_other_engines_refuse_its_policy(tmp_path: Path, engine: str) -> None:
    serve = SERVE.replace("trtllm", engine).replace("max_seq_len", "max_model_len")
    text = faults(written(tmp_path, "  capacity_scheduler_policy: MAX_UTILIZATION\n", serve=serve))
    assert "belongs to engine: trtllm" in text


def test_prompts_are_cut_unless_told_otherwise_and_that_is_said(tmp_path: Path) -> None:
    def said(more: str) -> bool:
        return any("TensorRT-LLM cuts them only" in text for text in load(written(tmp_path, more)).notices)

    assert said("")
    assert not said("  enable_chunked_prefill: true\n")
    assert not said("  enable_chunked_prefill: false\n")


def test_without_chunks_a_step_need_not_hold_the_longest_sequence(tmp_path: Path) -> None:
    more = "  enable_chunked_prefill: false\n  max_num_tokens: 4096\n"
    assert built(written(tmp_path, more)).scenario.engine.max_num_batched_tokens == 4096
    pausing = more + "  capacity_scheduler_policy: MAX_UTILIZATION\n"
    assert "must fit in one step" in faults(written(tmp_path, pausing))
