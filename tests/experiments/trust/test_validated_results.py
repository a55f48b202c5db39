"""Results of a benchmark become measured points, with what their files and the server's arguments state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.validate.bench import read_bench, read_benches
from specfleet.experiments.validate.command import validate_command

BENCH = {
    "completed": 16,
    "failed": 0,
    "total_input_tokens": 2400,
    "total_output_tokens": 1600,
    "max_concurrency": 4,
    "request_rate": "inf",
    "mean_tpot_ms": 34.5,
    "mean_itl_ms": 34.5,
    "output_throughput": 110.0,
}
ARGS = """
serve:
  model: Qwen/Qwen3-32B
  gpu: h100-94gb
  speculative_config: {method: eagle3, model: RedHatAI/Qwen3-32B-speculator.eagle3, num_speculative_tokens: 3}
"""


def test_a_benchmark_result_with_the_servers_arguments_is_a_point(tmp_path: Path) -> None:
    serve = tmp_path / "args.yaml"
    serve.write_text(ARGS, encoding="utf-8")
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(BENCH), encoding="utf-8")
    with pytest.raises(InputFaults, match="drafts without an acceptance"):
        read_bench(path, serve)
    plain_server = tmp_path / "plain.yaml"
    plain_server.write_text(ARGS.split("  speculative_config")[0], encoding="utf-8")
    plain = read_bench(path, plain_server)
    assert (plain.k, plain.max_concurrency, plain.workload.num_prompts) == (0, 4, 16)
    assert (plain.workload.input.mean, plain.workload.output.mean) == (150, 100)
    rates = {"spec_decode_per_position_acceptance_rates": [0.7, 0.5], "spec_decode_num_drafts": 500}
    lengths = {"input_lens": list(range(100, 200)), "output_lens": list(range(50, 150))}
    path.write_text(json.dumps(BENCH | rates | lengths), encoding="utf-8")
    drafted = read_bench(path, serve)
    assert drafted.k == 2
    assert drafted.acceptance is not None
    assert drafted.acceptance.by_position == (0.7, 0.5)
    assert drafted.workload.input.mean == pytest.approx(149.5, abs=1)
    assert validate_command([path], serve=serve, seeds=1, jobs=1, quiet=True) == 0


def test_a_result_without_counters_keeps_the_drafter_and_acceptance_of_the_file(tmp_path: Path) -> None:
    serve, path = tmp_path / "args.yaml", tmp_path / "bench.json"
    serve.write_text(f"{ARGS}acceptance: {{by_position: [0.7, 0.5, 0.3], concentration: 18}}\n")
    path.write_text(json.dumps(BENCH), encoding="utf-8")
    kept = read_bench(path, serve)
    assert kept.k == 3 and kept.acceptance is not None and kept.acceptance.by_position == (0.7, 0.5, 0.3)
    assert any("drafter and acceptance are those of args.yaml" in text for text in kept.assumptions)
    path.write_text(json.dumps(BENCH | {"spec_decode_num_drafts": 0}), encoding="utf-8")
    assert read_bench(path, serve).k == 0


def test_beside_results_with_counters_one_without_is_of_a_plain_server(tmp_path: Path) -> None:
    serve, paths = tmp_path / "args.yaml", [tmp_path / "plain.json", tmp_path / "drafting.json"]
    serve.write_text(ARGS, encoding="utf-8")
    counters = {"spec_decode_per_position_acceptance_rates": [0.7, 0.5], "spec_decode_num_drafts": 500}
    paths[0].write_text(json.dumps(BENCH), encoding="utf-8")
    paths[1].write_text(json.dumps(BENCH | counters), encoding="utf-8")
    benches = read_benches(paths, serve)
    assert [point.k for point in benches.points] == [0, 2]
    assert any("does not draft" in text for text in benches.points[0].assumptions)
    assert "read as vllm bench serve, 1 result (--format vllm-bench)" in benches.said[0]


def test_what_a_result_does_not_state_and_the_file_neither_is_asked_for(tmp_path: Path) -> None:
    serve, path = tmp_path / "args.yaml", tmp_path / "log.txt"
    serve.write_text(ARGS.split("  speculative_config")[0], encoding="utf-8")
    path.write_text(
        "INFO Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 400.0 tokens/s, "
        "Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.0%\n"
    )
    with pytest.raises(InputFaults) as caught:
        read_bench(path, serve)
    said = caught.value.render()
    assert "add workload.num_prompts to" in said and "add workload.input_len and workload.output_len" in said
    with serve.open("a") as file:
        file.write("workload: {num_prompts: 40, input_len: 100, output_len: 50}\n")
    point = read_bench(path, serve)
    assert point.max_concurrency == 8 and point.measured["tpot_mean_ms"] == pytest.approx(20.0)


def test_a_point_with_data_parallel_attention_needs_arguments_with_ranks(tmp_path: Path) -> None:
    serve, path = tmp_path / "args.yaml", tmp_path / "agg.json"
    serve.write_text(ARGS.split("  speculative_config")[0], encoding="utf-8")
    point = {"hw": "h200", "tp": 8, "dp_attention": "true", "conc": 4, "isl": 1024, "osl": 128}
    path.write_text(json.dumps(point | {"tput_per_gpu": 5.0, "median_tpot": 0.02}))
    with pytest.raises(InputFaults, match="dp_attention: is true: its attention is data-parallel, and"):
        read_bench(path, serve)


def test_a_result_without_arguments_or_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(InputFaults, match="--serve"):
        validate_command([path], quiet=True)
    with pytest.raises(InputFaults, match="JSON of no tool that can be read"):
        validate_command([path], serve=path, quiet=True)
    path.write_text(json.dumps(BENCH | {"total_output_tokens": "many"}), encoding="utf-8")
    with pytest.raises(InputFaults, match="lacks total_output_tokens"):
        validate_command([path], serve=path, quiet=True)
