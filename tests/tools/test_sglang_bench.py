"""SGLang's `bench_serving`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.experiments.cli.main import main
from specfleet.experiments.tools.read import read_tool
from specfleet.experiments.validate.bench import read_benches

LINE: dict[str, object] = {
    **{"tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": float("inf")},
    **{"max_concurrency": 8, "sharegpt_output_len": None, "random_input_len": 1024, "duration": 30.0},
    **{"completed": 80, "total_input_tokens": 40000, "total_output_tokens": 20000, "request_throughput": 2.6},
    **{"total_output_tokens_retokenized": 19950, "output_throughput": 660.0, "mean_e2e_latency_ms": 2500.0},
    **{"mean_ttft_ms": 60.0, "median_ttft_ms": 55.0, "p99_ttft_ms": 110.0, "mean_tpot_ms": 9.0},
    **{
        "median_tpot_ms": 8.8,
        "p99_tpot_ms": 12.0,
        "mean_itl_ms": 9.1,
        "p99_itl_ms": 30.0,
        "concurrency": 7.4,
    },
    **{"accept_length": 2.8},
}


def test_a_line_a_run_with_acceptance_and_without_its_itl(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    arguments = {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4, "tp_size": 2}
    lines = [LINE, LINE | {"max_concurrency": None, "accept_length": None, "request_rate": 4.0}]
    lines.append(LINE | {"server_info": arguments})
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    reading = read_tool(path)
    assert reading.format == "sglang-bench" and len(reading.results) == 3
    first, second, third = reading.results
    assert (
        first.acceptance_length == pytest.approx(2.8) and first.drafts is None and first.request_rate == "inf"
    )
    assert first.numbers["mean_tpot_ms"] == 9.0 and not any("itl" in key for key in first.numbers)
    assert any("no step" in note for note in first.notes)
    assert (second.counted, second.drafts, second.request_rate, second.max_concurrency) == (
        False,
        None,
        "4.0",
        None,
    )
    assert third.drafts == 3 and third.served["tp"] == 2


def test_a_server_that_reports_one_token_a_round_counts_no_drafts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(LINE | {"accept_length": 1.0}))
    (found,) = read_tool(path).results
    assert found.acceptance_length is None and not found.counted


def test_a_point_under_sglang_has_the_keys_and_the_itl_of_its_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "serve: {engine: sglang, gpu: h100-sxm, model: meta-llama/Llama-3.1-8B-Instruct, "
        "max_model_len: 4096, speculative_config: {method: eagle3, "
        "model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, "
        "num_speculative_tokens: 3}}\n"
        "acceptance: {acceptance_length: 2.4, measured_at_k: 3, source: x}\n"
        "workload: {input_len: 200, output_len: 40, max_concurrency: 4, num_prompts: 20}\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file), "--quiet", "--no-plots", "--out", str(tmp_path / "out")])
    assert not ended.value.code
    ours = min(tmp_path.rglob("sglang_bench.json"))
    found, vllm = (json.loads((ours.parent / name).read_text()) for name in (ours.name, "bench.json"))
    assert found["accept_length"] == vllm["spec_decode_acceptance_length"]
    assert found["mean_itl_ms"] == pytest.approx(found["mean_tpot_ms"], rel=0.05) != vllm["mean_itl_ms"]
    assert found["concurrency"] <= 4
    (read,) = read_tool(ours).results
    assert read.acceptance_length == found["accept_length"]
    assert read.numbers["mean_ttft_ms"] == vllm["mean_ttft_ms"]


def test_a_server_stated_in_sglang_s_names_takes_what_the_result_counted(tmp_path: Path) -> None:
    serve = tmp_path / "server.yaml"
    serve.write_text(
        "serve: {engine: sglang, gpu: h100-sxm, model_path: meta-llama/Llama-3.1-8B-Instruct, "
        "context_length: 4096, speculative_algorithm: EAGLE3, speculative_num_steps: 3, "
        "speculative_draft_model_path: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, speculative_eagle_topk: 1, "
        "speculative_num_draft_tokens: 4}\n"
        "acceptance: {acceptance_length: 2.4, measured_at_k: 3, concentration: 18, source: x}\n"
        "workload: {input_len: 200, output_len: 40, max_concurrency: 4, num_prompts: 20}\n"
    )
    for k in (0, 2):
        out = str(tmp_path / f"out-{k}")
        with pytest.raises(SystemExit) as ended:
            main(["run", str(serve), f"serve.speculative_num_steps={k}", "-q", "--no-plots", "--out", out])
        assert not ended.value.code
    benches = sorted(path for path in tmp_path.rglob("bench.json") if "latest" not in str(path))
    plain, drafting = read_benches(benches, serve).points
    assert plain.k == 0 and drafting.k == 2
