"""From a pasted command line to an experiment, and vLLM's flags as keys of `serve:`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from server_lines import HEAD, MODEL, keys, refusal, served
from typer.testing import CliRunner

from specfleet.experiments.cli.main import app
from specfleet.experiments.load.config import load
from specfleet.experiments.load.from_line import translate
from specfleet.experiments.load.presets import file_or_preset, preset_files
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import placement
from specfleet.experiments.schema.faults import InputFaults


def test_a_line_becomes_a_file_that_loads_and_says_what_was_assumed(tmp_path: Path) -> None:
    this = translate(
        f"vllm serve {MODEL} -tp 2 --port 9 --max-model-len 8k --spec-method ngram --spec-tokens 3"
    )
    path = tmp_path / "a.yaml"
    path.write_text(this.text())
    serve = load(path).experiment.serve
    assert (serve.tensor_parallel_size, serve.max_model_len, serve.max_num_seqs) == (2, 8000, 1024)
    assert yaml.safe_load(this.text())["serve"]["gpu"] == "h100-sxm"
    for said in ("no GPU", "port", "traffic is assumed", "acceptance is that of profile ngram-llama-3.1-8b"):
        assert any(said in note for note in this.notes), said


@pytest.mark.parametrize(
    ("fields", "method", "k"),
    [
        ({"method": "eagle3", "model": HEAD, "num_speculative_tokens": 4}, "eagle3", 4),
        ({"method": "suffix"}, "suffix", 24),
        ({"model": HEAD, "num_speculative_tokens": "2"}, "eagle3", 2),
        ({"method": "ngram_gpu", "num_speculative_tokens": 3}, "ngram", 3),
        ({"method": "dflash", "model": "z-lab/some-DFlash-b16", "num_speculative_tokens": 7}, "dflash", 7),
        (
            {"method": "eagle3", "model": "someone/unheard-of-eagle3", "num_speculative_tokens": 1},
            "eagle3",
            1,
        ),
    ],
)
def test_a_speculative_config_is_taken_as_vllm_takes_it(fields: dict[str, Any], method: str, k: int) -> None:
    config = served(f"vllm serve {MODEL} -sc '{json.dumps(fields)}'").speculative_config
    assert config is not None
    assert (config.method, config.num_speculative_tokens) == (method, k)


def test_every_refused_flag_of_a_line_is_named_at_once() -> None:
    with pytest.raises(InputFaults) as caught:
        translate(
            f"vllm serve {MODEL} -dcp 2 --enforce-eager --enable-lora --max-loras 3 --stream-interval 4"
        )
    text = str(caught.value)
    for flag in (
        "--decode-context-parallel-size",
        "--enforce-eager",
        "--enable-lora",
        "--max-loras",
        "--stream-interval",
    ):
        assert flag in text


def test_a_benchmark_s_line_brings_the_traffic() -> None:
    text = (
        f"vllm serve {MODEL} &\nvllm bench serve --model {MODEL} --dataset-name random --random-input-len 300"
        " --random-output-len 40 --num-prompts 70 --max-concurrency 5 --request-rate inf"
    )
    workload = load(translate(text, gpu="h100-sxm").data).experiment.workload
    assert (workload.input_len, workload.output_len, workload.num_prompts) == (300, 40, 70)
    assert workload.max_concurrency == 5


def test_an_sglang_line_becomes_keys_and_a_tree_its_three_numbers() -> None:
    line = (
        f"python -m sglang.launch_server --model-path {MODEL} --tp 2 --context-length 4096 --page-size 16"
        f" --speculative-algorithm EAGLE3 --speculative-draft-model-path {HEAD} --speculative-num-steps 3"
        " --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --port 1 --disable-radix-cache"
    )
    serve = served(line)
    assert (serve.engine, serve.tensor_parallel_size, serve.max_model_len) == ("sglang", 2, 4096)
    assert serve.speculative_config is not None and serve.speculative_config.num_speculative_tokens == 3
    assert not serve.enable_prefix_caching and serve.max_num_seqs == 48
    assert "max_num_seqs" not in translate(line, gpu="h100-sxm").data["serve"]  # a plain baseline takes more
    tree = translate(line.replace("topk 1", "topk 4").replace("tokens 4", "tokens 8"), gpu="h100-sxm")
    assert tree.data["serve"]["draft_tree"] == {"sglang": {"steps": 3, "topk": 4, "num_draft_tokens": 8}}
    with pytest.raises(InputFaults, match="--pp-size"):
        translate(line + " --pp-size 2")


def test_flags_that_change_nothing_are_no_faults_and_are_listed_once() -> None:
    loaded = keys(
        **{"port": 8000, "served_model_name": ["a", "b"], "trust-remote-code": True, "dtype": "auto"},
        max_model_len="64k",
        no_enable_prefix_caching=True,
        max_loras=4,
    )
    serve = loaded.experiment.serve
    assert (serve.max_model_len, serve.enable_prefix_caching, serve.dtype) == (64000, False, "bfloat16")
    [notice] = [notice for notice in loaded.notices if "without effect" in notice]
    assert all(name in notice for name in ("port", "served_model_name", "trust_remote_code", "max_loras"))


def test_flags_that_would_change_the_answer_are_refused_with_the_reason() -> None:
    assert "has not been timed" in refusal(enforce_eager=True)
    assert "did you mean max_num_seqs" in refusal(max_num_seq=2)
    assert "no valid JSON" in refusal(hf_overrides="{") or "JSON" in refusal(hf_overrides="{")


def test_short_flags_and_other_spellings_mean_what_they_mean_to_vllm() -> None:
    loaded = keys(spec_method="eagle3", spec_model=HEAD, spec_tokens=2, **{"device-memory-utilization": 0.8})
    config = loaded.experiment.serve.speculative_config
    assert config is not None and config.num_speculative_tokens == 2
    assert loaded.experiment.serve.gpu_memory_utilization == 0.8
    assert keys(performance_mode="throughput").experiment.serve.max_num_seqs == 2048
    assert "stands in speculative_config too" in refusal(
        spec_tokens=2, speculative_config={"method": "ngram", "num_speculative_tokens": 3}
    )


def test_graph_sizes_are_left_as_they_are_given() -> None:

    serve = expand(keys(cudagraph_capture_sizes=[1, 6, 64]).experiment)[0].config.serve
    assert placement(serve).capture_sizes == (1, 6, 64)


def test_a_request_rate_may_be_spelled_inf() -> None:
    workload = {"input_len": 10, "output_len": 5, "request_rate": "inf"}
    loaded = load({"serve": {"model": MODEL, "gpu": "h100-sxm", "max_model_len": 512}, "workload": workload})
    assert loaded.experiment.workload.request_rate == float("inf")


def test_a_config_is_seen_from_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        **{"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 512},
        **{"vocab_size": 1000, "max_position_embeddings": 2048, "num_key_value_heads": 2},
    }
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "config.json").write_text(json.dumps(config))
    path = tmp_path / "inner" / "a.yaml"
    path.write_text(
        "serve: {model: {hf_config: config.json}, gpu: h100-sxm}\nworkload: {input_len: 10, output_len: 5}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load(path).experiment.serve.model == {"hf_config": str(path.with_name("config.json"))}


def test_presets_are_reached_by_name_and_a_file_of_that_name_comes_first(tmp_path: Path) -> None:
    assert {"demo", "starter", "plan-llama70b"} <= set(preset_files())
    assert file_or_preset(Path("demo")) == preset_files()["demo"]
    assert file_or_preset(tmp_path) == tmp_path


def test_the_commands_take_a_line_a_preset_and_a_short_help(tmp_path: Path) -> None:
    run = CliRunner()
    assert "demo" in run.invoke(app, ["init", "--list"]).output
    out = tmp_path / "a.yaml"
    made = run.invoke(
        app, ["init", str(out), "--from", "-", "--gpu", "h200"], input=f"vllm serve {MODEL} -tp 2\n"
    )
    assert made.exit_code == 0 and load(out).experiment.serve.gpu == "h200"
    assert run.invoke(app, ["init", str(out), "--preset", "demo"]).exit_code == 2, "never overwrites"
    shown = run.invoke(app, ["init", "--from", f"vllm serve {MODEL} --max-num-seqs 7", "--json"])
    assert json.loads(shown.output)["settings"]["max_num_seqs"] == 7
    assert run.invoke(app, ["init", "--from", "vllm serve nobody/nothing"]).exit_code == 2
    assert run.invoke(app, ["run", "-h"]).exit_code == 0
    for kind, heading in (
        ("models", "held by"),
        ("accelerators", "$ an hour"),
        ("acceptance", "tokens a round"),
    ):
        assert heading in run.invoke(app, ["catalog", kind]).output
    assert run.invoke(app, ["run"]).exit_code == 2


def test_the_catalogue_says_that_sglang_s_limits_follow_the_gpu_and_numbers_for_the_others() -> None:
    lines = CliRunner().invoke(app, ["catalog", "engines"]).output.splitlines()
    rows = {line.split()[0]: line for line in lines[2:] if line.strip()}
    assert rows["sglang"].count("by GPU") == rows["sglang-2025"].count("by GPU") == 3
    assert "by GPU" not in rows["vllm-0.33"] and "1,024" in rows["vllm-0.33"]


@pytest.mark.parametrize(
    ("bench", "prompt", "output"),
    [
        ("vllm bench serve --dataset-name random --random-input-len 1000 --random-output-len 200", 1000, 200),
        (
            "vllm bench serve --random-input-len 1000 --random_output_len=200 --random-range-ratio 0.2",
            (800, 1200),
            (160, 240),
        ),
        (
            "python3 -m sglang.bench_serving --dataset-name random --random-input 1000 --random-output 200"
            " --random-range-ratio 0.2",
            (200, 1000),
            (40, 200),
        ),
        (
            "python3 -m sglang.bench_serving --dataset-name random --random-input-len 1000"
            " --random-output-len 200 --random-range-ratio 1",
            1000,
            200,
        ),
    ],
)
def test_the_range_ratio_of_a_benchmark_means_what_its_tool_means(
    bench: str, prompt: int | tuple[int, int], output: int | tuple[int, int]
) -> None:
    workload = load(translate(f"vllm serve {MODEL} &\n{bench}", gpu="h100-sxm").data).experiment.workload
    for fixed, spread, wanted in (
        (workload.input_len, workload.input, prompt),
        (workload.output_len, workload.output, output),
    ):
        if isinstance(wanted, int):
            assert (fixed, spread) == (wanted, None)
        else:
            assert spread is not None and spread.uniform is not None
            assert (spread.uniform.low, spread.uniform.high) == wanted
    assert workload.closed_loop and workload.max_concurrency is None, "without a rate all are offered at once"


@pytest.mark.parametrize("rest", ["--random-range-ratio 1", "--random-range-ratio -1", "--max-concurrency 0"])
def test_a_benchmark_out_of_its_tool_s_range_is_refused(rest: str) -> None:
    with pytest.raises(InputFaults, match="must be"):
        translate(f"vllm serve {MODEL} &\nvllm bench serve {rest}", gpu="h100-sxm")


def test_json_that_lost_its_quotes_on_the_way_is_read_and_said() -> None:
    config = json.dumps({"method": "eagle3", "model": HEAD, "num_speculative_tokens": 2})
    this = translate(f"vllm serve {MODEL} --speculative-config {config} --max-num-seqs 7", gpu="h100-sxm")
    quoted = translate(f"vllm serve {MODEL} --speculative-config '{config}' --max-num-seqs 7", gpu="h100-sxm")
    assert this.data == quoted.data and this.data["serve"]["max_num_seqs"] == 7
    assert any("without quotes" in note for note in this.notes) and not any(
        "without quotes" in note for note in quoted.notes
    )


def test_the_traffic_assumed_has_spread_lengths_that_fit_the_server() -> None:
    for length in (64, 1024, 8192):
        workload = load(translate(f"vllm serve {MODEL} --max-model-len {length}", gpu="h100-sxm").data)
        lengths = workload.experiment.workload
        assert lengths.input is not None and lengths.input.uniform is not None
        assert lengths.output is not None and lengths.output.uniform is not None
        assert lengths.input.uniform.high + lengths.output.uniform.high <= length
        assert lengths.output.uniform.low < lengths.output.uniform.high


def test_a_line_of_an_older_build_follows_that_build() -> None:
    config = '{"method": "medusa", "model": "medusa-llama-3.1-8b", "num_speculative_tokens": 3}'
    line = f"vllm serve {MODEL} --max-model-len 4k --speculative-config '{config}'"
    old = translate(line, gpu="h100-sxm", engine="vllm-0.15")
    assert load(old.data).experiment.serve.engine == "vllm-0.15"
    assert old.data["serve"]["max_model_len"] == 4000
    with pytest.raises(InputFaults, match="medusa"):
        translate(line, gpu="h100-sxm")
    head = f"vllm serve {MODEL} --spec-method eagle3 --spec-model {HEAD} --spec-tokens 3"
    skips = load(translate(head, gpu="h100-sxm", engine="vllm-0.15").data).experiment.serve
    assert skips.speculative_config is not None and skips.speculative_config.num_speculative_tokens == 3


@pytest.mark.parametrize(
    ("line", "engine", "said"),
    [
        (f"vllm serve {MODEL}", "vllm-9", "unknown engine"),
        (f"vllm serve {MODEL}", "sglang", "not started by a line of vllm"),
        (
            f"python -m sglang.launch_server --model-path {MODEL}",
            "vllm-0.33",
            "not started by a line of sglang",
        ),
        (f"vllm serve {MODEL} --speculative-config.model {HEAD}", "vllm-0.15", "method and num_speculative"),
    ],
)
def test_a_build_that_a_line_does_not_start_is_refused(line: str, engine: str, said: str) -> None:
    with pytest.raises(InputFaults, match=said):
        translate(line, gpu="h100-sxm", engine=engine)


@pytest.mark.parametrize(
    ("line", "profile"),
    [
        (
            "moonshotai/Kimi-K2.5 -tp 8 --spec-method eagle3 --spec-model x/kimi-eagle3 --spec-tokens 3",
            "golden-kimi",
        ),
        (
            "Qwen/Qwen3-32B-FP8 --spec-method eagle3 --spec-model x/Qwen3-eagle3 --spec-tokens 3",
            "eagle3-qwen3-32b",
        ),
        ("Qwen/Qwen3-30B-A3B --spec-method ngram --spec-tokens 4", "ngram-llama-3.1-8b-chat"),
    ],
)
def test_a_line_takes_the_acceptance_measured_nearest_to_it(line: str, profile: str) -> None:
    this = translate(f"vllm serve {line}", gpu="h200")
    assert this.data["acceptance"]["profile"].startswith(profile)
    assert load(this.data).experiment.acceptance is not None


def test_look_up_deeper_than_was_measured_is_predicted_and_said_to_be() -> None:
    this = translate("vllm serve Qwen/Qwen3-30B-A3B --spec-method suffix", gpu="h200")
    assert this.data["acceptance"]["profile"].startswith("ngram-")
    assert any("acceptance is predicted beyond K = 8: at K = 24" in said for said in load(this.data).notices)


@pytest.mark.parametrize(
    "flag",
    [
        "--random-input-len 0",
        "--request-rate -3",
        "--burstiness 0",
        "--num-prompts 0",
        "--random-prefix-len -1",
    ],
)
def test_a_benchmark_of_nothing_is_refused_and_not_taken_for_its_default(flag: str) -> None:
    with pytest.raises(InputFaults, match=f"{flag.split()[0]} must be"):
        translate(f"vllm serve {MODEL}\nvllm bench serve --random-output-len 20 {flag}")


def test_an_sglang_line_without_its_drafter_is_refused_at_the_flag_to_add() -> None:
    line = f"python -m sglang.launch_server --model-path {MODEL} --speculative-algorithm EAGLE3"
    with pytest.raises(InputFaults, match="--speculative-draft-model-path: EAGLE3 needs a drafter"):
        translate(line)
    notes = translate(f"{line} --speculative-draft-model-path {HEAD}").notes
    assert any("SGLang prints yours as accept len" in note for note in notes)
    assert not any("vLLM" in note for note in notes)


def test_a_file_that_is_not_there_is_said_to_be_none(tmp_path: Path) -> None:
    missing = tmp_path / "serve.sh"
    shown = CliRunner().invoke(app, ["init", str(tmp_path / "a.yaml"), "--from", str(missing)])
    assert shown.exit_code == 2
    assert f"{missing} is no file that can be read as text" in shown.output.replace("\n", "")
