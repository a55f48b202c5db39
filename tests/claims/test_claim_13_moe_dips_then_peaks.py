"""Claim 13: the gain of a mixture of experts dips and peaks, and stays below a dense model's."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome

PRESET = "claim-13-moe-gain-dips-then-peaks"
DENSE = "{method: eagle3, model: yuhuili/EAGLE3-LLaMA3.3-Instruct-70B}"


def test_the_gain_falls_rises_and_falls_again(tmp_path: Path) -> None:
    assert outcome(PRESET, tmp_path).missed == []


def test_at_32_sequences_a_dense_model_gains_more_from_the_same_acceptance(tmp_path: Path) -> None:
    alone = ["claim=null", "serve.gpu=b200", "sweep.axes.workload.max_concurrency=[32]"]
    dense = ["serve.model=meta-llama/Llama-3.3-70B-Instruct", f"serve.speculative_config={DENSE}"]
    experts = outcome(PRESET, tmp_path / "experts", *alone)
    whole = outcome(PRESET, tmp_path / "dense", *alone, *dense)
    gains = [
        found.figure("speedup_output_throughput", num_speculative_tokens=3) for found in (experts, whole)
    ]
    assert 1.1 < gains[0] < gains[1] - 0.15
