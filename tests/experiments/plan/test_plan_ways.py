"""Engines, trees and policies as candidates: what each is, and that none beats its bound."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from specfleet.experiments.load.config import load
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.deploy.pool import DeployedPool
from specfleet.experiments.plan.flags import server_command, unsaid
from specfleet.experiments.plan.fleet.scaled import differences
from specfleet.experiments.plan.neighbours import steps
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.planner import Planner
from specfleet.experiments.plan.report import _refusals
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.plan.trials import measure
from specfleet.experiments.point.bounds import MeanLengths, bound
from specfleet.experiments.schema.faults import InputFaults

FILE = """
name: ways
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_model_len: 4096, max_num_seqs: 64}
acceptance: {conditional_acceptance: 0.7, concentration: 18, temperature_multiplier: [[0.0, 1.0], [1.0, 0.4]]}
workload: {input_len: 200, output_len: 60, request_rate: 20, num_prompts: 250, temperature: 0.9}
slo: {p99_ttft_ms: 500, p99_tpot_ms: 25}
plan:
  candidates:
    engine: [vllm-0.33, sglang]
    drafting:
      - speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}
        num_speculative_tokens: [3]
        draft_tree: [{shape: [2, 2]}, {sglang: {steps: 3, topk: 4, num_draft_tokens: 8}}]
        draft_policy: [null, {temperature_gate: {limit: 0.7}}]
"""


def every(folder: Path, text: str = FILE) -> dict[str, Candidate]:
    """The candidates of a file by name."""
    (folder / "ways.yaml").write_text(text)
    planner = Planner(folder / "ways.yaml", (), folder / "out")
    return {c.id: c for c in planner.planned.every}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Candidate]:
    """Those of the file above."""
    return every(tmp_path_factory.mktemp("ways"))


def test_every_engine_with_every_way_to_draft_is_named_apart(found: dict[str, Candidate]) -> None:
    ways = ["plain", "eagle3 K = 3", "eagle3 K = 6 tree 2x2", "eagle3 K = 7 tree of 3 steps, top 4, 8 tokens"]
    gated = [f"{way} temperature_gate (limit 0.7)" for way in ways[1:]]
    engines = ["1 x h100-sxm bf16 vllm-0.33", "1 x h100-sxm bf16 sglang"]
    assert set(found) == {f"{engine}, {way}" for engine in engines for way in [*ways, *gated]}
    assert len({(c.kind, c.drafting, c.k) for c in found.values()}) == len(found)


def test_what_an_engine_does_not_do_is_named_with_the_reason(found: dict[str, Candidate]) -> None:
    for name, candidate in found.items():
        sglang, tree, gate = ("sglang," in name, "tree" in name, "gate" in name)
        said = "no trees" if tree and not sglang else "too slow for a search" if gate and sglang else ""
        assert (said in candidate.refusal) if said else candidate.refusal == ""


def test_a_tree_of_sglang_s_own_is_started_as_it_was_simulated(found: dict[str, Candidate]) -> None:
    grown = found["1 x h100-sxm bf16 sglang, eagle3 K = 7 tree of 3 steps, top 4, 8 tokens"].config
    options = dict(itertools.pairwise(server_command(grown)))
    assert (options["--speculative-num-steps"], options["--speculative-eagle-topk"]) == ("3", "4")
    assert options["--speculative-num-draft-tokens"] == "8"
    assert unsaid(grown) == ()
    fixed = found["1 x h100-sxm bf16 sglang, eagle3 K = 6 tree 2x2"].config
    assert any("grows its own" in clause for clause in DeployedPool("p", fixed, 1).missing())


def test_a_tree_is_as_deep_as_its_longest_branch(found: dict[str, Candidate]) -> None:
    assert found["1 x h100-sxm bf16 sglang, eagle3 K = 6 tree 2x2"].depth == 2
    assert found["1 x h100-sxm bf16 sglang, eagle3 K = 3"].depth == 3


def test_another_engine_is_one_step_away(found: dict[str, Candidate]) -> None:
    mine = found["1 x h100-sxm bf16 vllm-0.33, eagle3 K = 3"]
    away = {other.id: step for step, other in steps(mine, list(found.values()))}
    assert away["1 x h100-sxm bf16 sglang, eagle3 K = 3"] == "engine"
    other = found["1 x h100-sxm bf16 sglang, plain"]
    assert list(differences(mine, other)) == ["engine sglang for vllm-0.33", "no drafts for eagle3 K = 3"]


def test_no_tree_gate_or_plain_engine_beats_its_bound(found: dict[str, Candidate]) -> None:
    for candidate in found.values():
        if candidate.refusal:
            continue
        traffic = Traffic.of(candidate.config).scaled(50.0)
        trial = traffic.trial(candidate.config, 1, 0)
        top = bound(candidate.config, MeanLengths.of(trial.table()))
        assert measure(trial)["request_throughput"] <= top.rate, candidate.id


def test_a_policy_that_may_leave_off_is_bound_by_its_best_k(tmp_path: Path) -> None:
    text = FILE.replace("conditional_acceptance: 0.7", "conditional_acceptance: 0.02")
    made = every(tmp_path, text.replace("{temperature_gate: {limit: 0.7}}", "{goodput: {}}"))
    lengths = MeanLengths(200.0, 60.0, 230.0, 200.0)
    rates = {
        way: bound(made[f"1 x h100-sxm bf16 vllm-0.33, {way}"].config, lengths).rate
        for way in ("plain", "eagle3 K = 3", "eagle3 K = 3 goodput")
    }
    assert rates["eagle3 K = 3"] < rates["eagle3 K = 3 goodput"] == rates["plain"]


def test_classes_that_accept_unlike_are_bound_by_the_one_that_accepts_most(tmp_path: Path) -> None:
    classes = "acceptance: {code: {conditional_acceptance: 0.9, concentration: 18}, "
    classes += "chat: {conditional_acceptance: 0.1, concentration: 18}}"
    text = FILE.replace(next(line for line in FILE.splitlines() if line.startswith("acceptance")), classes)
    text = text.replace("num_prompts: 250", "mix: {code: 0.95, chat: 0.05}, num_prompts: 250")
    mine = every(tmp_path, text)["1 x h100-sxm bf16 vllm-0.33, eagle3 K = 3"]
    trial = Traffic.of(mine.config).scaled(50.0).trial(mine.config, 1, 0)
    assert measure(trial)["request_throughput"] <= bound(mine.config, MeanLengths.of(trial.table())).rate


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[vllm-0.33, sglang]", "[vllm-0.33, vllm-0.33]", "has vllm-0.33 twice"),
        ("[vllm-0.33, sglang]", "[vllm-1]", "vllm-1"),
        ("{shape: [2, 2]}", "{}", "not exactly one of shape"),
        ("{temperature_gate: {limit: 0.7}}", "{oracle: {}}", "reads the future"),
        ("{temperature_gate: {limit: 0.7}}", "{goodput: {}, bandit: {}}", "not exactly one policy"),
    ],
)
def test_what_cannot_be_asked_is_a_fault_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "ways.yaml").write_text(FILE.replace(old, new))
    with pytest.raises(InputFaults, match=said) as found:
        load(tmp_path / "ways.yaml")
    assert all(fault.line > 8 for fault in found.value.faults)


def test_an_engine_that_can_be_had_is_not_said_to_be_none_for_a_tree_that_it_has_not(
    found: dict[str, Candidate],
) -> None:
    this = SimpleNamespace(every=tuple(found.values()))
    lines = list(_refusals(cast("Planned", this)))
    assert len(lines) == 2 and "1 x h100-sxm bf16 vllm-0.33, eagle3 K = 6 tree 2x2" in lines[0]
    assert "not to be had: 1 x h100-sxm bf16 vllm-0.33:" not in " ".join(lines)
