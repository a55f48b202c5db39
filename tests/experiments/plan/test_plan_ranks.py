"""Candidates whose replicas are ranks that share experts: what they cost, are called, and can do at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.plan.candidates import Candidate, candidates
from specfleet.experiments.plan.flags import server_text
from specfleet.experiments.plan.neighbours import steps
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.plan.trials import measure
from specfleet.experiments.point.bounds import MeanLengths, bound
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build

FILE = """
serve: {engine: vllm-0.33, model: MODEL, gpu: h200, max_model_len: 4096}
workload: {input_len: 200, output_len: 40, request_rate: 30, num_prompts: 120}
slo: {p99_ttft_ms: 2000, p99_tpot_ms: 40}
plan:
  max_gpus: 4
  prices_per_hour_usd: {h200: 5.0}
  candidates:
    tensor_parallel_size: [1, 2]
    data_parallel_size: [1, 2]
    enable_expert_parallel: [false, true]
"""


def every(tmp_path: Path, model: str = "Qwen/Qwen3-30B-A3B") -> list[Candidate]:
    path = tmp_path / "ranks.yaml"
    path.write_text(FILE.replace("MODEL", model))
    experiment = load_experiment(path)
    given: dict[str, Any] = {"model": model, "gpu": "h200", "max_model_len": 4096}
    return list(candidates(experiment, given))


def test_ranks_are_counted_with_all_their_gpus_and_named(tmp_path: Path) -> None:
    found = {c.id: c for c in every(tmp_path)}
    assert list(found) == [
        "1 x h200 bf16, plain",
        "2 x h200 (DP 2) bf16, plain",
        "2 x h200 (DP 2, EP) bf16, plain",
        "2 x h200 bf16, plain",
        "2 x h200 (EP) bf16, plain",
        "4 x h200 (DP 2, TP 2) bf16, plain",
        "4 x h200 (DP 2, TP 2, EP) bf16, plain",
    ]
    wide = found["4 x h200 (DP 2, TP 2, EP) bf16, plain"]
    assert (wide.gpus, wide.replica_usd, wide.most_replicas) == (4, 20.0, 1)
    assert found["2 x h200 (DP 2) bf16, plain"].most_replicas == 2
    assert len({c.kind for c in found.values()}) == len(found)
    built = build(wide.config)
    assert built.gpus == 4 and built.scenario.deployment.lockstep == 2
    text = server_text(wide.config)
    assert "--data-parallel-size 2" in text and "--enable-expert-parallel" in text


def test_a_dense_model_has_no_ranks_and_says_so(tmp_path: Path) -> None:
    found = every(tmp_path, "meta-llama/Llama-3.1-8B-Instruct")
    refused = {c.id: c.refusal for c in found if c.data_parallel_size > 1}
    assert refused and all("has no experts to share" in reason for reason in refused.values())


def test_no_simulated_group_beats_the_bound_of_its_ranks(tmp_path: Path) -> None:
    one, group = (next(c for c in every(tmp_path) if c.data_parallel_size == dp) for dp in (1, 2))
    lengths = MeanLengths.of(requests(group.config, 0))
    bounds = [bound(c.config, lengths) for c in (one, group)]
    assert bounds[1].rate > 1.5 * bounds[0].rate
    traffic = Traffic.of(group.config).scaled(100.0)
    figures = measure(traffic.trial(group.config, 1, 0))
    assert figures["request_throughput"] <= bounds[1].rate


def test_other_ranks_on_as_many_gpus_are_one_step_away(tmp_path: Path) -> None:
    found = every(tmp_path)
    pair = next(c for c in found if c.id == "2 x h200 (DP 2) bf16, plain")
    away = {other.id: step for step, other in steps(pair, found)}
    assert away == {
        "1 x h200 bf16, plain": "ranks",
        "2 x h200 (DP 2, EP) bf16, plain": "ranks",
        "2 x h200 bf16, plain": "ranks",
        "2 x h200 (EP) bf16, plain": "ranks",
        "4 x h200 (DP 2, TP 2) bf16, plain": "tp",
    }
