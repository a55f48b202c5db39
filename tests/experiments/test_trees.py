"""Trees of drafts in an experiment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specfleet.experiments.load.config import load
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import drafted_tree
from specfleet.experiments.point.built import build
from specfleet.experiments.schema.faults import InputFaults
from specfleet.sim.speculation.acceptance import survival_table
from specfleet.sim.speculation.spec import AcceptanceSpec
from specfleet.sim.speculation.spread import LEVELS
from specfleet.sim.speculation.tree_survival import tree_survival
from specfleet.sim.speculation.trees import chain, rank_vector, shape

TEXT = """
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  engine: sglang
  max_model_len: 8192
  speculative_config: {{method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B{config}}}
  draft_tree: {tree}
  {serve}
acceptance: {acceptance}
workload: {{input_len: 100, output_len: 50, max_concurrency: 2, num_prompts: 4}}
"""
ALPHA = "{conditional_acceptance: 0.7, concentration: 18}"


def written(folder: Path, tree: str, acceptance: str = ALPHA, config: str = "", serve: str = "") -> Path:
    path = folder / "tree.yaml"
    path.write_text(TEXT.format(tree=tree, acceptance=acceptance, config=config, serve=serve))
    return path


@pytest.mark.parametrize(
    ("tree", "nodes", "passes"),
    [
        ("{shape: [2, 2, 2]}", 14, (1, 2, 4)),
        ("{paths: [[0], [1], [0, 0]]}", 3, (1, 1)),
        ("{shape: [1, 1, 1]}", 3, (1, 1, 1)),
        ("{sglang: {steps: 3, topk: 4, num_draft_tokens: 16}}", 15, None),
        ("{optimal: 20, max_depth: 5}", 20, None),
    ],
)
def test_every_form_becomes_nodes_that_the_target_verifies(
    tmp_path: Path, tree: str, nodes: int, passes: tuple[int, ...] | None
) -> None:
    point = expand(load(written(tmp_path, tree)).experiment)[0].config
    drafted = drafted_tree(point.serve)
    assert drafted is not None and drafted.num_nodes == nodes
    assert point.serve.speculative_config is not None
    assert point.serve.speculative_config.num_speculative_tokens == nodes
    built = build(point)
    assert built.scenario.engine.speculative is not None
    assert built.scenario.engine.speculative.draft_passes == drafted.depth
    if passes is not None:
        assert drafted.pass_tokens == passes


def test_a_chain_stated_as_a_tree_accepts_as_a_chain() -> None:
    plain = AcceptanceSpec(conditional_acceptance=0.7, concentration=18.0)
    stated = AcceptanceSpec(conditional_acceptance=0.7, concentration=18.0, tree=chain(3))
    assert survival_table(stated, 3) == pytest.approx(survival_table(plain, 3))


def test_requests_alike_accept_a_tree_as_the_closed_form_says() -> None:
    tree = shape([2, 2, 2])
    table = tree_survival(tree, np.full((LEVELS, 3), 0.7))
    assert table[0] == pytest.approx(tree.survival([rank_vector(0.7, 2)] * 3))


@pytest.mark.parametrize(
    ("tree", "more", "said"),
    [
        ("{shape: [2], optimal: 4}", {}, "must be exactly one of shape, paths, optimal and sglang"),
        ("{paths: [[0], [1, 0]]}", {}, "has no parent in the tree"),
        ("{shape: [2, 2]}", {"config": ", num_speculative_tokens: 3"}, "3 are not the 6 nodes of the tree"),
        ("{shape: [2, 2]}", {"serve": "draft_policy: {goodput: {}}"}, "drafted whole or not at all"),
        ("{shape: [1, 1, 1]}", {"acceptance": "{by_position: [0.7, 0.5]}"}, "3"),
        ("{sglang: {steps: 2, topk: 1, num_draft_tokens: 9}}", {}, "topk 1 is a chain"),
        ("{shape: [2], max_depth: 2}", {}, "belongs to optimal"),
    ],
)
def test_what_cannot_be_drafted_is_refused_with_a_reason(
    tmp_path: Path, tree: str, more: dict[str, str], said: str
) -> None:
    with pytest.raises(InputFaults) as faults:
        load(written(tmp_path, tree, **more))
    assert said in faults.value.render()


def test_a_tree_beside_swept_k_is_drafted_where_k_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, "{shape: [2, 2]}")
    path.write_text(
        path.read_text() + "sweep: {axes: {serve.speculative_config.num_speculative_tokens: [0, null]}}\n"
    )
    plain, drafting = expand(load(path).experiment)
    assert (plain.config.serve.draft_tree, plain.config.serve.speculative_config) == (None, None)
    assert build(drafting.config).scenario.engine.num_speculative_tokens == 6
