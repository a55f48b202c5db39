"""Candidates whose layers lie on stages: what they cost, are called, and can do at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
serve: {engine: vllm-0.33, model: MODEL, gpu: l40s, max_model_len: 4096}
workload: {input_len: 200, output_len: 40, request_rate: 30, num_prompts: 120}
slo: {p99_ttft_ms: 2000, p99_tpot_ms: 200}
plan:
  max_gpus: 8
  prices_per_hour_usd: {l40s: 1.0}
  candidates:
    tensor_parallel_size: [1, 2, 4]
    pipeline_parallel_size: [1, 2, 4]
"""


def every(tmp_path: Path, model: str = "Qwen/Qwen2.5-14B-Instruct") -> dict[str, Candidate]:
    path = tmp_path / "stages.yaml"
    path.write_text(FILE.replace("MODEL", model))
    given: dict[str, Any] = {"model": model, "gpu": "l40s", "max_model_len": 4096}
    return {c.id: c for c in candidates(load_experiment(path), given)}


def test_stages_are_counted_with_all_their_gpus_and_named(tmp_path: Path) -> None:
    found = every(tmp_path)
    assert list(found) == [
        "1 x l40s bf16, plain",
        "2 x l40s (PP 2) bf16, plain",
        "4 x l40s (PP 4) bf16, plain",
        "2 x l40s bf16, plain",
        "4 x l40s (PP 2, TP 2) bf16, plain",
        "8 x l40s (PP 4, TP 2) bf16, plain",
        "4 x l40s bf16, plain",
        "8 x l40s (PP 2, TP 4) bf16, plain",
        "16 x l40s (PP 4, TP 4) bf16, plain",
    ]
    wide = found["8 x l40s (PP 4, TP 2) bf16, plain"]
    assert (wide.gpus, wide.replica_usd, wide.most_replicas) == (8, 8.0, 1)
    assert "more GPUs than the plan allows" in found["16 x l40s (PP 4, TP 4) bf16, plain"].refusal
    assert len({c.kind for c in found.values()}) == len(found)
    assert build(wide.config).gpus == 8
    assert "--tensor-parallel-size 2 --pipeline-parallel-size 4" in server_text(wide.config)


def test_layers_of_several_kinds_cannot_be_dealt_out_and_a_plan_says_so(tmp_path: Path) -> None:
    found = every(tmp_path, "openai/gpt-oss-20b")
    refused = {c.id: c.refusal for c in found.values() if c.pipeline_parallel_size == 2}
    assert refused and all("are of several kinds" in reason for reason in refused.values())


@pytest.mark.parametrize("stages", ["2 x l40s (PP 2)", "4 x l40s (PP 4)"])
def test_no_simulated_pipeline_beats_its_bound(tmp_path: Path, stages: str) -> None:
    """Flooded with 120 short requests it is full for a part of the time: above a third of the bound."""
    this = every(tmp_path)[f"{stages} bf16, plain"].config
    most = bound(this, MeanLengths.of(requests(this, 0))).rate
    trial = Traffic.of(this).scaled(100.0).trial(this, 1, 0)
    assert most / 3 < measure(trial)["request_throughput"] <= most


def test_a_limit_on_a_token_counts_all_stages(tmp_path: Path) -> None:
    """One request alone passes both halves: no limit below the whole pass can be met, fast as a stage is."""
    this = every(tmp_path)["2 x l40s (PP 2) bf16, plain"].config
    lengths = MeanLengths.of(requests(this, 0))
    assert this.slo is not None
    tight = this.model_copy(update={"slo": this.slo.model_copy(update={"p99_tpot_ms": 30.0})})
    assert bound(tight, lengths).rate == 0.0 and bound(tight, lengths).limit.startswith("TPOT: one request")


def test_stages_in_place_of_ways_to_cut_are_one_step_away(tmp_path: Path) -> None:
    found = every(tmp_path)
    away = {other.id: step for step, other in steps(found["2 x l40s bf16, plain"], list(found.values()))}
    assert away == {
        "1 x l40s bf16, plain": "tp",
        "4 x l40s bf16, plain": "tp",
        "2 x l40s (PP 2) bf16, plain": "stages",
        "4 x l40s (PP 2, TP 2) bf16, plain": "stages",
        "8 x l40s (PP 4, TP 2) bf16, plain": "stages",
    }
