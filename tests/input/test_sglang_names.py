"""`engine: sglang` in an experiment: its names, its automatic values, whose settings it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.load.config import load, load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.built import Built, build
from specfleet.experiments.schema.faults import InputFaults

SERVE = """\
serve:
  engine: sglang
  model_path: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  context_length: 8192
"""
EAGLE = """\
  speculative_algorithm: EAGLE3
  speculative_draft_model_path: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
"""
CHAIN = EAGLE + "  speculative_num_steps: 3\n  speculative_eagle_topk: 1\n  speculative_num_draft_tokens: 4\n"
REST = """\
acceptance: {conditional_acceptance: 0.7, concentration: 18}
workload: {input_len: 100, output_len: 50, max_concurrency: 2, num_prompts: 4}
"""
NO_DRAFTS = REST.partition("\n")[2]


def written(folder: Path, more: str = "", rest: str = REST, serve: str = SERVE) -> Path:
    path = folder / "x.yaml"
    path.write_text(serve + more + rest)
    return path


def built(path: Path) -> Built:
    return build(expand(load_experiment(path))[0].config)


def test_its_names_say_what_this_packages_names_say(tmp_path: Path) -> None:
    theirs = written(
        tmp_path,
        "  tp_size: 2\n  max_running_requests: 64\n  chunked_prefill_size: 4096\n"
        "  mem_fraction_static: 0.85\n"
        "  page_size: 16\n  disable_radix_cache: true\n  kv_cache_dtype: fp8_e5m2\n"
        "  max_total_tokens: 32000\n  schedule_policy: lpm\n  schedule_conservativeness: 0.5\n"
        "  disable_overlap_schedule: true\n" + CHAIN,
    )
    text = resolved(load_experiment(theirs))
    ours = tmp_path / "y.yaml"
    ours.write_text(
        "name: x\nserve:\n  engine: sglang\n  model: meta-llama/Llama-3.1-8B-Instruct\n  gpu: h100-sxm\n"
        "  max_model_len: 8192\n  tensor_parallel_size: 2\n  max_num_seqs: 64\n"
        "  max_num_batched_tokens: 4096\n"
        "  gpu_memory_utilization: 0.85\n  block_size: 16\n  enable_prefix_caching: false\n"
        "  kv_cache_dtype: fp8\n  num_gpu_blocks_override: 2000\n  async_scheduling: false\n"
        "  sglang: {schedule_policy: lpm, schedule_conservativeness: 0.5}\n"
        "  speculative_config:\n"
        "    {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}\n" + REST
    )
    assert resolved(load_experiment(ours)) == text
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert resolved(load_experiment(again)) == text


def test_what_it_decides_by_itself_follows_gpu_and_drafts(tmp_path: Path) -> None:
    plain = load_experiment(written(tmp_path, rest=NO_DRAFTS)).serve
    assert (plain.max_num_seqs, plain.max_num_batched_tokens, plain.gpu_memory_utilization) == (
        4096,
        8192,
        0.83,
    )
    assert (plain.block_size, plain.async_scheduling) == (1, True)
    drafted = load_experiment(written(tmp_path, CHAIN)).serve
    assert drafted.max_num_seqs == 48


def test_the_memory_share_follows_a_chunk_that_is_given_and_stays_where_the_share_is(tmp_path: Path) -> None:
    shares = []
    for more in ("chunked_prefill_size: 16384", "chunked_prefill_size: -1", "mem_fraction_static: 0.7"):
        shares.append(load_experiment(written(tmp_path, f"  {more}\n", rest=NO_DRAFTS)).serve)
    assert [serve.gpu_memory_utilization for serve in shares] == [0.677, 0.685, 0.7]


def test_drafts_of_a_llama_are_a_tree_of_five_steps_unless_said_otherwise(tmp_path: Path) -> None:
    engine = built(written(tmp_path, EAGLE)).scenario.engine
    assert engine.sglang is not None
    assert (engine.sglang.speculative_num_steps, engine.sglang.speculative_eagle_topk) == (5, 4)
    assert engine.num_speculative_tokens == 7


def test_a_pool_has_no_null_page_and_chunks_can_be_switched_off(tmp_path: Path) -> None:
    path = written(tmp_path, "  max_total_tokens: 3000\n  chunked_prefill_size: -1\n", rest=NO_DRAFTS)
    engine = built(path).scenario.engine
    assert engine.usable_tokens == 3000
    assert engine.sglang is not None and engine.sglang.chunked_prefill_size == -1


def test_steps_can_be_swept_under_its_own_name(tmp_path: Path) -> None:
    sweep = "sweep: {axes: {serve.speculative_num_steps: [0, 3], serve.max_running_requests: [8, 64]}}\n"
    points = expand(load_experiment(written(tmp_path, CHAIN, REST + sweep)))
    assert [p.config.serve.max_num_seqs for p in points] == [8, 64, 8, 64]
    assert [p.config.serve.speculative_config is None for p in points] == [True, True, False, False]


@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        (
            "  max_num_seqs: 4\n  max_running_requests: 4\n",
            7,
            "is max_num_seqs, which is given too; keep one",
        ),
        ("  max_running_requests: many\n", 6, "max_num_seqs"),
        ("  speculative_num_steps: 3\n", 6, "needs speculative_algorithm"),
        ("  speculative_algorithm: DFLASH\n", 6, "not simulated; use one of EAGLE"),
        (EAGLE + "  speculative_num_steps: 3\n", 8, "give speculative_num_steps, speculative_eagle_topk"),
        ("  watermark: 0.1\n", 6, "is a setting of vLLM's scheduler"),
        ("  scheduling_policy: priority\n", 6, "use serve.sglang.enable_priority_scheduling"),
        ("  schedule_policy: dfs\n", 6, "use one of fcfs, lpm"),
        ("  chunked_prefill_size: 60000\n", 6, "leaves no memory for weights and KV; use a smaller one"),
    ],
)
def test_a_fault_names_the_line_that_was_typed(tmp_path: Path, more: str, line: int, said: str) -> None:
    with pytest.raises(InputFaults) as caught:
        load(written(tmp_path, more))
    assert any(fault.line == line and said in str(fault) for fault in caught.value.faults), str(caught.value)


def test_its_names_mean_nothing_to_another_engine(tmp_path: Path) -> None:
    serve = SERVE.replace("sglang", "vllm-0.33").replace("model_path", "model")
    serve = serve.replace("context_length", "max_model_len")
    with pytest.raises(InputFaults, match="max_running_requests"):
        load(written(tmp_path, "  max_running_requests: 4\n", serve=serve))
    with pytest.raises(InputFaults, match="belongs to engine: sglang"):
        load(written(tmp_path, "  sglang: {schedule_policy: lpm}\n", serve=serve))


def test_the_limit_of_48_is_said_where_the_load_reaches_it(tmp_path: Path) -> None:
    busy = REST.replace("max_concurrency: 2", "max_concurrency: 64")
    (said,) = [n for n in load(written(tmp_path, CHAIN, busy)).notices if "48" in n]
    assert "max_running_requests" in said
    assert not [n for n in load(written(tmp_path, CHAIN)).notices if "48" in n]
    given = CHAIN + "  max_running_requests: 64\n"
    assert not [n for n in load(written(tmp_path, given, busy)).notices if "48" in n]


def test_a_model_that_is_no_name_is_the_only_thing_wrong(tmp_path: Path) -> None:
    text = SERVE.replace("meta-llama/Llama-3.1-8B-Instruct", "1e12").replace("  context_length: 8192\n", "")
    with pytest.raises(InputFaults) as raised:
        load(written(tmp_path, rest=NO_DRAFTS, serve=text))
    assert [fault.message for fault in raised.value.faults] == ["must be a name or a mapping, not 1e+12"]
