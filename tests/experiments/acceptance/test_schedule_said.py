"""What a schedule of K says of its CUDA graphs, and with whom vLLM has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.load.config import load
from specfleet.experiments.schema.faults import InputFaults

FILE = """
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  speculative_config:
    {METHOD, num_speculative_tokens: 3, num_speculative_tokens_per_batch_size: [[1, 8, 3], [9, 64, 1]]}
acceptance: {conditional_acceptance: 0.7}
workload: {input_len: 100, output_len: 20, num_prompts: 10, max_concurrency: 4}
"""
HEAD = "model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"


def notices(folder: Path, method: str) -> str:
    (folder / "k.yaml").write_text(FILE.replace("METHOD", method))
    return "\n".join(load(folder / "k.yaml").notices)


def test_piecewise_graphs_of_the_old_runner_are_not_priced_and_said(tmp_path: Path) -> None:
    assert "piecewise" not in notices(tmp_path, f"method: eagle3, {HEAD}")
    said = notices(tmp_path, f"method: eagle3, {HEAD}, parallel_drafting: true")
    assert "piecewise; what that costs is not priced" in said and "#49548" in said


def test_suffix_drafts_have_no_schedule(tmp_path: Path) -> None:
    with pytest.raises(InputFaults, match="vLLM reads past it with method suffix, and keeps one K"):
        notices(tmp_path, "method: suffix")
