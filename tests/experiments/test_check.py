"""`specfleet check`: the budget and the lines that a vLLM user looks for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.experiments.run.check import check as checked
from specfleet.experiments.schema.blocks.memory import Memory, given
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.words.as_json import json_text
from specfleet.experiments.words.check import check_text
from specfleet.hardware.memory import GIB
from specfleet.sim.simulation import simulate

SERVE = "model: llama-3.1-8b-instruct, gpu: h100-sxm, max_model_len: 8192, gpu_memory_utilization: 0.95"
ROOT = Path(__file__).parents[2]
RUNNER = "specfleet.sim.simulation"
WORKLOAD = "num_prompts: 8, max_concurrency: 4, input_len: 700, output_len: 100"


def check(tmp_path: Path, serve: str = SERVE, workload: str = WORKLOAD, more: str = "") -> tuple[str, bool]:
    file = tmp_path / "experiment.yaml"
    file.write_text(f"name: check\nserve: {{{serve}}}\nworkload: {{{workload}}}\n{more}", encoding="utf-8")
    found = checked(file, ())
    return check_text(found), found.fits


def test_the_lines_of_vllm_are_there(tmp_path: Path) -> None:
    text, fits = check(tmp_path, f"{SERVE}, engine: vllm-0.19")
    lines = text.splitlines()
    assert fits
    assert "GPU KV cache size: 476,016 tokens" in lines
    assert "Maximum concurrency for 8,192 tokens per request: 58.11x" in lines


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        ("check", {"rich", "pandas", "matplotlib", "multiprocessing", RUNNER, "simpy"}),
        ("run", {"rich", "pandas", "matplotlib", "multiprocessing"}),
    ],
)
def test_a_command_waits_for_no_library_that_it_does_not_use(
    tmp_path: Path, command: str, unused: set[str]
) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(f"serve: {{{SERVE}}}\nworkload: {{{WORKLOAD}}}\n", encoding="utf-8")
    more = (
        ["--no-plots", "--jobs", "1", "--quiet", "--out", str(tmp_path / "run")] if command == "run" else []
    )
    code = (
        "import sys\nfrom specfleet.experiments.cli.main import main\n"
        f"try:\n    main({[command, str(file), *more]!r})\n"
        f"finally:\n    print('imported:', sorted({unused!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_every_term_of_the_budget_is_printed(tmp_path: Path) -> None:
    text, _ = check(tmp_path)
    for term in (
        "usable (0.95 of 79.19 GiB)",
        "weights",
        "activations",
        "beyond torch",
        "CUDA graphs",
        "KV cache",
    ):
        assert f"\n{term}" in text
    assert "131,072 B = 2 x 32 layers x 8 KV heads x 128 x 2 B" in text
    assert "KV of one 8,192-token request" in text and "1.000 GiB (1.074 GB)" in text


def test_the_workloads_own_mean_length_gets_a_second_concurrency_line(tmp_path: Path) -> None:
    text, _ = check(tmp_path, f"{SERVE}, engine: vllm-0.19, num_gpu_blocks_override: 2666")
    assert "Maximum concurrency for 800 tokens per request: 53.32x (this workload's mean)" in text


@pytest.mark.parametrize(("engine", "assumed"), [("", True), (", engine: vllm-0.33", False)])
def test_a_plan_without_a_version_says_which_one_it_assumes(
    tmp_path: Path, engine: str, assumed: bool
) -> None:
    text, _ = check(tmp_path, SERVE + engine)
    assert "engine vllm-0.33" in text
    assert ("(assumed: serve.engine is not given)" in text) == assumed


def test_a_swept_engine_is_not_an_assumed_one(tmp_path: Path) -> None:
    text, _ = check(tmp_path, more="sweep: {axes: {serve.engine: [vllm-0.15, vllm-0.17]}}\n")
    assert "assumed" not in text
    assert text.count("GPU KV cache size") == 2


def test_a_length_beyond_the_pool_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(InputFaults) as caught:
        check(tmp_path, f"{SERVE}, engine: vllm-0.19, num_gpu_blocks_override: 500")
    text = caught.value.render()
    assert "serve.max_model_len: " in text and "GPU KV cache size: 8,000 tokens" in text
    assert "max_model_len 8,192 does not fit" in text
    assert "needs 8,192 tokens (1.00 GiB), the KV cache has 8,000 (0.98 GiB)" in text
    assert "largest max_model_len that fits is 8,000" in text
    assert "give the KV cache more (num_gpu_blocks_override" in text and "raise gpu_memory" not in text


def test_the_memory_of_the_workloads_concurrency_is_told(tmp_path: Path) -> None:
    text, _ = check(tmp_path, f"{SERVE}, engine: vllm-0.19")
    assert "Least gpu_memory_utilization for 4 requests of 8,192 tokens (4.00 GiB): 0.267" in text
    assert "more than the GPU has" not in text


def test_what_no_gpu_could_hold_says_so(tmp_path: Path) -> None:
    text, _ = check(
        tmp_path, workload="num_prompts: 800, max_concurrency: 400, input_len: 700, output_len: 100"
    )
    assert "for 400 requests of 8,192 tokens (400.00 GiB)" in text and "more than the GPU has" in text


def test_the_memory_block_speaks_gib() -> None:
    assert given(None) is None
    found = given(Memory(device_gib=79.19, available_gib=6.51))
    assert found is not None and found.available == round(6.51 * GIB)
    assert (found.device, found.weights) == (round(79.19 * GIB), None)


def test_a_sweep_says_what_differs_between_its_points_and_the_rest_once(tmp_path: Path) -> None:
    axes = "workload.max_concurrency: [1, 4, 64, 256], serve.max_num_seqs: [64, 128]"
    text, _ = check(tmp_path, more=f"sweep: {{axes: {{{axes}}}}}\n")
    assert "workload.max_concurrency: 1, 4, 64, 256" in text and "serve.max_num_seqs: 64, 128" in text
    assert text.count("\nweights ") == 1 and text.count("\nusable ") == 1
    first, second = (block.splitlines() for block in text.split("Memory of one GPU, ")[1:])
    assert (
        first[0] == "max num seqs = 64:" and second[0] == "max num seqs = 128, what differs from the first:"
    )
    assert not {line for line in second[1:-2] if "mean" not in line} & set(first)
    assert "for 1 to 256 requests of 8,192 tokens (1.00 to 256.00 GiB)" in text
    assert "more than the GPU has from" in text and len(text.splitlines()) < 40


def test_the_points_are_there_as_plain_values(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    more = "sweep: {axes: {workload.max_concurrency: [1, 400]}}\n"
    file.write_text(f"name: check\nserve: {{{SERVE}}}\nworkload: {{{WORKLOAD}}}\n{more}", encoding="utf-8")
    facts = json.loads(json_text(checked(file, ()).facts()))
    assert facts["fits"] and [point["axes"] for point in facts["points"]] == [
        {"workload.max_concurrency": 1},
        {"workload.max_concurrency": 400},
    ]
    first, second = facts["points"]
    assert first["kv_cache_tokens"] == second["kv_cache_tokens"] > 0
    assert first["least_gpu_memory_utilization"] < 1 < second["least_gpu_memory_utilization"]
    assert first["memory_gib"]["KV cache"] == pytest.approx(
        first["num_gpu_blocks"] * first["block_size"] * first["kv_bytes_per_token"] / GIB, rel=1e-3
    )


SUFFIX = "speculative_config: {method: suffix, num_speculative_tokens: 4}"
LOOKED_UP = "acceptance: {conditional_acceptance: 0.6, proposal_probability: 0.4, concentration: 18}\n"


def test_what_will_be_stepped_is_said_before_it_runs_and_is(tmp_path: Path) -> None:
    text, _ = check(tmp_path, f"{SERVE}, long_prefill_token_threshold: 256, {SUFFIX}", more=LOOKED_UP)
    said = "will be stepped, 2 to 25 times as long: long_prefill_token_threshold"
    assert said in text
    found = checked(tmp_path / "experiment.yaml", ())
    assert found.points[0].facts()["stepped_because"] == "long_prefill_token_threshold"
    config = found.points[0].point.config
    ran = simulate(build(config).scenario, requests(config, seed=0), 0)
    assert (ran.stepped_because, ran.stepped_share) == (found.points[0].stepped_because, 1.0)


SHORT = SERVE.replace("0.95", "{share}") + f", {SUFFIX}, draft_policy: {{policy}}"
CROWD = "num_prompts: 200, max_concurrency: 100, input_len: 900, output_len: 300"


@pytest.mark.parametrize(
    ("policy", "followed"), [("temperature_gate: {limit: 0.5}", True), ("goodput: {}", False)]
)
def test_what_is_stepped_once_kv_is_short_is_said_before_it_runs(
    tmp_path: Path, policy: str, followed: bool
) -> None:
    drafts = "acceptance: {conditional_acceptance: 0.6}\n"
    for share, short in (("0.95", False), ("0.32", not followed)):
        serve = SHORT.replace("{share}", share).replace("{policy}", f"{{{policy}}}")
        text, _ = check(tmp_path, serve, CROWD, drafts)
        assert ("will be stepped" in text) == short
        (point,) = checked(tmp_path / "experiment.yaml", ()).points
        config = point.point.config
        ran = simulate(build(config).scenario, requests(config, seed=0), 0)
        assert ran.stepped_share == float(short)
        assert not short or point.stepped_because.startswith(ran.stepped_because)


def test_of_what_the_calendar_takes_nothing_is_said(tmp_path: Path) -> None:
    ngram = SUFFIX.replace("suffix", "ngram")
    for serve, more in ((SERVE, ""), (f"{SERVE}, {ngram}", LOOKED_UP), (f"{SERVE}, {SUFFIX}", LOOKED_UP)):
        text, _ = check(tmp_path, serve, more=more)
        assert "stepped" not in text
