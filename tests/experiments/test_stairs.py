"""The stairs that `explain --figure` draws: where the target's pass jumps, and where each K stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.figures.explain import draw_explanation
from specfleet.experiments.run.explain import Explanation, explain_file
from specfleet.experiments.run.stairs import stairs

FILE = """
serve:
  model: {model}
  gpu: h100-sxm
  tensor_parallel_size: 4
  speculative_config:
    {{method: eagle3, model: yuhuili/EAGLE3-LLaMA3.3-Instruct-70B, num_speculative_tokens: 3}}
acceptance: {{by_position: [0.75, 0.55, 0.4]}}
workload: {{input: {{fixed: 1000}}, output: {{fixed: 300}}, max_concurrency: 32}}
"""


def explained(tmp_path: Path, model: str, batch: int) -> Explanation:
    (tmp_path / "one.yaml").write_text(FILE.format(model=model))
    return explain_file(tmp_path / "one.yaml", (), batch, 2048, None)


def test_in_fp8_a_fourth_draft_of_32_sequences_crosses_the_stair_at_128_rows(tmp_path: Path) -> None:
    found = stairs(explained(tmp_path, "llama-3.3-70b-instruct-fp8", 32))
    assert 128 in found.edges
    by_k = {k: (rows, milliseconds) for k, rows, milliseconds in found.drafts}
    assert by_k[3][0] == 128 and by_k[4][1] > 1.25 * by_k[3][1]
    wide = {k: ms for k, _, ms in stairs(explained(tmp_path, "llama-3.3-70b-instruct", 32)).drafts}
    assert wide[4] < 1.15 * wide[3], "in 16 bits there is hardly one"


@pytest.mark.parametrize("batch", [7, 32])
def test_each_k_stands_on_the_stairs_or_on_a_graph_of_its_own(tmp_path: Path, batch: int) -> None:
    found = stairs(explained(tmp_path, "llama-3.3-70b-instruct", batch))
    line = dict(zip(found.rows, found.pass_ms, strict=True))
    assert [rows for _, rows, _ in found.drafts] == [batch * (1 + k) for k, _, _ in found.drafts]
    for _, rows, milliseconds in found.drafts:
        assert milliseconds == pytest.approx(line[rows], rel=0.03)


def test_the_figure_has_the_bars_and_the_stairs(tmp_path: Path) -> None:
    draw_explanation(explained(tmp_path, "llama-3.3-70b-instruct-fp8", 32), tmp_path / "out" / "step.svg")
    assert 'id="axes_2"' in (tmp_path / "out" / "step.svg").read_text()
