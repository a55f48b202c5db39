"""`trtllm-serve` lines: what they say is what the file says, and what a plan prints is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.defaults import filled
from specfleet.experiments.load.from_line import translate
from specfleet.experiments.plan.flags import server_text, unsaid
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults

LINE = "trtllm-serve meta-llama/Llama-3.1-8B-Instruct"
OPTIONS = """\
enable_chunked_prefill: true
disable_overlap_scheduler: true
max_batch_size: 64
kv_cache_config:
  {free_gpu_memory_fraction: 0.8, tokens_per_block: 64, enable_block_reuse: false, dtype: fp8}
scheduler_config:
  capacity_scheduler_policy: MAX_UTILIZATION
  context_chunking_policy: FIRST_COME_FIRST_SERVED
speculative_config:
  {decoding_type: Eagle, max_draft_len: 3, speculative_model_dir: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}
cuda_graph_config: {enable_padding: true}
"""
SAID = {
    "enable_chunked_prefill": True,
    "async_scheduling": False,
    "max_num_seqs": 64,
    "gpu_memory_utilization": 0.8,
    "block_size": 64,
    "enable_prefix_caching": False,
    "kv_cache_dtype": "fp8",
    "capacity_scheduler_policy": "MAX_UTILIZATION",
}


def refusal(text: str, here: Path | None = None) -> str:
    with pytest.raises(InputFaults) as caught:
        translate(text, here=here)
    return str(caught.value)


@pytest.mark.parametrize(
    "begins", ["cat > o.yml << 'EOF'\n", "cat <<EOF >o.yml\n", "cat << EOF > ${options}\n", None]
)
def test_options_are_read_from_the_text_or_from_the_file(tmp_path: Path, begins: str | None) -> None:
    name = "${options}" if begins and "$" in begins else "o.yml"
    if begins is None:
        (tmp_path / name).write_text(OPTIONS)
    written = "" if begins is None else f"{begins}{OPTIONS}EOF\n"
    text = f"{written}{LINE} --tp_size 2 --max_batch_size 128 --port 80 --extra_llm_api_options {name}"
    this = translate(text, here=tmp_path)
    serve = this.data["serve"]
    assert {key: serve[key] for key in SAID} == SAID and serve["tensor_parallel_size"] == 2
    assert serve["speculative_config"]["num_speculative_tokens"] == 3
    notes = " ".join(this.notes)
    assert "max_batch_size stands in place of max num seqs 128 of the flags" in notes
    assert "cuda_graph_config is read past" in notes and "without effect on the prediction: port" in notes
    loaded = load_experiment(this.data).serve
    assert (loaded.engine, loaded.capacity_scheduler_policy) == ("trtllm", "MAX_UTILIZATION")


def test_prompts_are_not_cut_unless_a_line_says_so() -> None:
    this = translate(LINE)
    assert this.data["serve"]["enable_chunked_prefill"] is False
    assert any("does not cut prompts unless" in note for note in this.notes)
    assert translate(f"{LINE} --enable_chunked_prefill").data["serve"]["enable_chunked_prefill"] is True


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--tp_sise 2", "did you mean --tp_size?"),
        ("--pp_size 2", "the nearest is --tp_size"),
        ("--backend tensorrt", "use pytorch"),
        ("--max_batch_size many", "'many'; give a value of type int"),
        ("--max_batch_size", "needs a value"),
        ("--config none.yaml", "none.yaml: No such file"),
        ("again", "is no flag"),
    ],
)
def test_a_line_that_cannot_be_simulated_is_refused_with_the_flag(
    tmp_path: Path, more: str, said: str
) -> None:
    assert said in refusal(f"{LINE} {more}", tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("enable_attention_dp: true", "data-parallel is not simulated under TensorRT-LLM"),
        ("kv_cache_config: {host_cache_size: 5}", "kv_cache_config.host_cache_size: is not simulated"),
        ("kv_cache_config: 5", "must be a mapping"),
        ("scheduler_config: {context_chunking_policy: EQUAL_PROGRESS}", "'EQUAL_PROGRESS' is not simulated"),
        ("speculative_config: {decoding_type: Lookahead}", "is 'Lookahead'; use one of Eagle3"),
        ("speculative_config: {decoding_type: MTP}", "max_draft_len: is missing"),
        ("speculative_config: {decoding_type: Eagle3, max_draft_len: 3}", "speculative_model: is missing"),
        ("- a", "must be a mapping of options"),
        ("a: [", "is no YAML"),
    ],
)
def test_options_that_cannot_be_simulated_are_refused_by_name(options: str, said: str) -> None:
    assert said in refusal(f"cat > o.yml << EOF\n{options}\nEOF\n{LINE} --config o.yml")


def test_an_engine_that_a_line_does_not_start_is_refused() -> None:
    with pytest.raises(InputFaults, match=r"sglang is not started by a line of trtllm"):
        translate(LINE, engine="sglang")
    older = translate("python -m sglang.launch_server --model-path Qwen/Qwen3-8B", engine="sglang-2025")
    assert older.data["serve"]["engine"] == "sglang-2025"


DRAFTS = st.sampled_from(
    [
        None,
        {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3},
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
        {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 2},
    ]
)


@settings(max_examples=25, deadline=None)
@given(
    drafts=DRAFTS,
    policy=st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"]),
    seqs=st.integers(1, 512),
    block=st.sampled_from([16, 32, 64]),
    blocks=st.one_of(st.none(), st.integers(1000, 5000)),
    flags=st.tuples(*[st.booleans()] * 4),
)
def test_what_a_plan_prints_for_it_is_read_back_whole(
    drafts: dict[str, object] | None,
    policy: str,
    seqs: int,
    block: int,
    blocks: int | None,
    flags: tuple[bool, bool, bool, bool],
) -> None:
    chunked, overlapped, cached, fp8 = flags
    serve = {
        "engine": "trtllm",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "h100-sxm",
        "max_model_len": 8192,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": 8192,
        "block_size": block,
        "num_gpu_blocks_override": blocks,
        "capacity_scheduler_policy": policy,
        "enable_chunked_prefill": chunked,
        "async_scheduling": overlapped,
        "enable_prefix_caching": cached,
        "kv_cache_dtype": "fp8" if fp8 else "auto",
        "speculative_config": drafts,
    }
    workload = {"input_len": 100, "output_len": 50, "max_concurrency": 2, "num_prompts": 4}
    data = {"serve": serve, "workload": workload}
    data |= {"acceptance": {"conditional_acceptance": 0.7}} if drafts else {}
    config = filled(Experiment.model_validate(data))
    again = translate(server_text(config), gpu="h100-sxm").data["serve"]
    assert filled(Experiment.model_validate(data | {"serve": again})).serve == config.serve
    assert unsaid(config) == ()


def test_what_it_has_no_option_for_is_said() -> None:
    serve = {
        "engine": "trtllm",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "h100-sxm",
        "quantization": "fp8",
        "max_cudagraph_capture_size": 64,
    }
    config = filled(
        Experiment.model_validate({"serve": serve, "workload": {"input_len": 9, "output_len": 9}})
    )
    assert [clause.split(",")[0] for clause in unsaid(config)] == [
        "quantization fp8",
        "max_cudagraph_capture_size",
    ]
