"""Names that no file system takes, and figures of which there are none: said in a sentence, wherever."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import specfleet as sf
from specfleet.experiments.cli.main import app
from specfleet.experiments.load.config import load, load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.plan.seen import Allowed, TrialFigures, judge
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.experiments.run.explain import explain_file
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.words.explain import explain_text
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import simulate

RUNNER = CliRunner()
HEAD = """\
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_num_seqs: 8, max_model_len: 1024}
workload: {input_len: 60, output_len: 12, num_prompts: 16, max_concurrency: 4}
"""
DRAFTS = (
    "serve.speculative_config={model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}",
    "acceptance={conditional_acceptance: 0.7, concentration: 18}",
)
PLACES = (
    "workload={{trace: {0}, max_concurrency: 4}}",
    "workload={{trace: {{file: {0}}}, max_concurrency: 4}}",
    "acceptance={{replay: {0}}}",
    "serve.model={{hf_config: {0}}}",
    "serve.engine={0}",
    "plugins=[{{file: {0}}}]",
    "plugins=[{0}]",
    "serve.gpu={0}",
    "serve.cost_model={0}",
)
"""Keys that may hold the name of a file."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small experiment."""
    path = tmp_path / "x.yaml"
    path.write_text(HEAD)
    return path


@pytest.mark.parametrize("name", ["d" * 300 + ".py", "/".join(["d" * 200] * 30) + ".csv", '"a\\0b.py"', "."])
@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_no_file_system_takes_is_refused_at_its_key(file: Path, place: str, name: str) -> None:
    with pytest.raises(InputFaults) as caught:
        load(file, (*DRAFTS, place.format(name)))
    key = place.partition("=")[0].partition(".")[0]
    assert any(fault.key.startswith(key) for fault in caught.value.faults)


def test_a_nul_in_a_mapping_is_refused_at_its_key() -> None:
    with pytest.raises(sf.UserError, match="NUL"):
        sf.load({"serve": {"model": "a\0b"}})


def test_an_experiment_s_own_name_may_be_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = RUNNER.invoke(app, ["check", "d" * 5000 + ".yaml"])
    assert done.exit_code == 2 and "File name too long" in done.stderr


def test_explain_says_by_the_same_verdict_whether_drafts_pay_in_a_step(file: Path) -> None:
    drafts = (
        "serve.speculative_config={method: ngram, num_speculative_tokens: 3}",
        "acceptance={conditional_acceptance: 0.7, concentration: 18, proposal_probability: 1}",
    )
    few = explain_file(file, drafts, 4, 200, None)
    assert few.gain is not None and few.acceptance_length is not None and few.drafting is not None
    assert few.gain.value == few.acceptance_length * few.plain.total_ms / few.drafting.total_ms
    found = explain_file(file, drafts, 4, 200, 0)
    assert (found.gain, found.verdict) == (None, None)
    for ratio, said in ((1.021, "pays"), (1.019, "does not pay")):
        found = replace(few, acceptance_length=ratio * few.drafting.total_ms / few.plain.total_ms)
        assert f"drafting {said} (a gain counts from 2 % on)" in explain_text(found)


def test_explain_takes_as_many_sequences_as_the_engine_where_none_are_named(file: Path) -> None:
    assert explain_file(file, (), None, 200, None).batch == 7
    assert explain_file(file, ("serve.max_num_seqs=256",), None, 200, None).batch == 64
    with pytest.raises(ValueError, match="at most 7"):
        explain_file(file, (), 64, 200, None)


@pytest.mark.parametrize(
    ("rate", "said"), [("null", True), (".inf", True), ("5", False)], ids=["closed", "at once", "spread"]
)
def test_a_burstiness_that_spreads_nothing_is_said(file: Path, rate: str, said: bool) -> None:
    notices = load(file, ("workload.burstiness=0.5", f"workload.request_rate={rate}")).notices
    assert any("burstiness has no effect" in notice for notice in notices) == said


@pytest.mark.parametrize(
    ("warmups", "said"),
    [("17", True), ("16", False), ("{per_concurrency: 5}", True), ("{per_concurrency: 4}", False)],
)
def test_more_warmups_than_requests_that_count_are_said(file: Path, warmups: str, said: bool) -> None:
    notices = load(file, (f"workload.num_warmups={warmups}",)).notices
    assert any("most of the run does not count" in notice for notice in notices) == said
    found = RUNNER.invoke(app, ["check", str(file), f"workload.num_warmups={warmups}"])
    assert found.exit_code == 0 and ("most of the run does not count" in found.output) == said


def test_one_point_is_one_point(file: Path) -> None:
    said = RUNNER.invoke(app, ["check", str(file)]).output
    assert said.splitlines()[0].endswith(": 1 point x 1 replication")
    swept = ["check", str(file), "sweep.axes.serve.max_num_seqs=[4, 8]", "replications=2"]
    assert RUNNER.invoke(app, swept).output.splitlines()[0].endswith(": 2 points x 2 replications")
    assert repr(sf.load(file)).endswith("1 point x 1 seed>")


def test_no_draft_accepted_can_be_stated_in_both_ways(file: Path) -> None:
    by_position = (DRAFTS[0], "acceptance={by_position: [0, 0, 0], concentration: 18}")
    conditional = (DRAFTS[0], "acceptance={conditional_acceptance: 0, concentration: 18}")
    made = []
    for way in (by_position, conditional):
        point = expand(load_experiment(file, way))[0].config
        built, table = build(point), requests(point, 0)
        made.append(benchmark(simulate(built.scenario, table, 0)).numbers())
    assert made[0] == made[1] and made[0]["spec_decode_acceptance_length"] == 1.0


def test_answers_of_one_token_have_no_pause_and_are_scored_by_what_they_have(file: Path) -> None:
    serve, result = file.with_name("s.yaml"), file.with_name("r.json")
    serve.write_text(HEAD.replace("output_len: 12", "output_len: 1"))
    times = {"mean_ttft_ms": 30.0, "median_ttft_ms": 30.0, "mean_tpot_ms": 0.0, "mean_itl_ms": 0.0}
    counts = {"completed": 16, "max_concurrency": 1, "total_input_tokens": 960, "total_output_tokens": 16}
    result.write_text(json.dumps(counts | times | {"median_itl_ms": 0.0, "output_throughput": 30.0}))
    words = ["validate", str(result), "--serve", str(serve), "--seeds", "1", "--jobs", "1", "--quiet"]
    for more in ([], ["--free"]):
        done = RUNNER.invoke(app, [*words, *more])
        assert done.exit_code == 0 and "ttft_mean_ms" in done.stdout, done.output


def test_a_limit_on_a_pause_that_nobody_makes_is_not_settled() -> None:
    runs = [TrialFigures({}, {"itl": []}, {"p99_itl_ms": Allowed(0.99, "itl", 30.0)}, weights={"itl": []})]  # type: ignore[dict-item]
    judged = judge(runs)
    assert judged.verdict == "not settled" and "nothing is known of p99_itl_ms" in judged.why


@pytest.mark.parametrize("changes", [("serve.max_num_seqs=256",), ("serve.max_num_batched_tokens=64",)])
def test_a_gpu_of_ones_own_is_checked_with_more_drafts_than_a_step_has_room_for(
    file: Path, changes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    gpu = "serve.gpu={base: h100-sxm, hbm_bytes_per_s: 3.0e12}"
    drafts = "serve.speculative_config={method: ngram, num_speculative_tokens: 100}"
    found = RUNNER.invoke(app, ["check", str(file), gpu, drafts, DRAFTS[1], *changes])
    assert found.exit_code == 0, found.output
    run = RUNNER.invoke(app, ["run", str(file), gpu, drafts, DRAFTS[1], *changes, "--no-plots", "-q"])
    assert run.exit_code == 0, run.output
