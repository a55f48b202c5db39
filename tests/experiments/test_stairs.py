"""The stairs that `explain --figure` draws: where the target's pass jumps, and where each K stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.figures.explain import draw_explanation
from specfleet.experiments.run.explain import Explanation, explain_file
from specfleet.experiments.run.stairs import stairs
from specfleet.experiments.words.explain import explain_text

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


def test_points_beside_the_line_are_said_to_have_graphs_of_their_own(tmp_path: Path) -> None:
    """Builds before 0.33 round every graph up to 1 + K, so that each K has its own."""
    explained(tmp_path, "llama-3.3-70b-instruct-fp8", 32)
    older = explain_file(tmp_path / "one.yaml", ["serve.engine=vllm-2026-01"], 32, 2048, 5)
    assert stairs(older).own_graphs
    assert not stairs(explained(tmp_path, "llama-3.3-70b-instruct-fp8", 32)).own_graphs


@pytest.mark.parametrize("spread", [18, ".inf"])
def test_the_acceptance_of_a_step_is_what_the_file_states_however_requests_differ(
    tmp_path: Path, spread: object
) -> None:
    explained(tmp_path, "llama-3.3-70b-instruct", 32)
    given = [f"acceptance.concentration={spread}"]
    said = explain_file(tmp_path / "one.yaml", given, 32, 2048, None)
    assert said.acceptance_length == pytest.approx(1 + 0.75 + 0.55 + 0.4, rel=2e-3)
    less = [*given, "acceptance.context_multiplier=[[1024, 1.0], [4096, 0.8]]"]
    lower = explain_file(tmp_path / "one.yaml", less, 32, 2048, None)
    if spread == ".inf":
        assert lower.acceptance_length == pytest.approx(1 + 0.75 * 0.9 + 0.55 * 0.9**2 + 0.4 * 0.9**3)
    assert lower.acceptance_length < said.acceptance_length  # type: ignore[operator]


def test_a_step_of_more_drafts_than_were_measured_has_the_predicted_length_and_says_so(
    tmp_path: Path,
) -> None:
    explained(tmp_path, "llama-3.3-70b-instruct", 32)
    said = explain_file(tmp_path / "one.yaml", (), 32, 2048, 5)
    assert said.predicted is not None and said.acceptance_length == pytest.approx(
        said.predicted.value, rel=2e-3
    )
    assert 2.7 < said.predicted.low < said.predicted.value < said.predicted.high < 3.5
    text = " ".join(explain_text(said).split())
    assert f"predicted at K = 5, is {said.acceptance_length:.2f} tokens a round (90 % interval" in text
    assert explain_file(tmp_path / "one.yaml", (), 32, 2048, None).predicted is None


def test_a_batch_that_fills_the_seats_is_refused_with_the_limit(tmp_path: Path) -> None:
    explained(tmp_path, "llama-3.3-70b-instruct", 32)
    with pytest.raises(ValueError, match="max_num_seqs 64"):
        explain_file(tmp_path / "one.yaml", ["serve.max_num_seqs=64"], 64, 2048, None)
