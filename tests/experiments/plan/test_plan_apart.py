"""Prompts on GPUs of their own as a plan's candidates: which splits are tried, and what is bought."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.experiments.load.config import load
from specfleet.experiments.plan.asking import Laboratory
from specfleet.experiments.plan.deploy.winner import winning_pools
from specfleet.experiments.plan.deploy.write import write_deployment
from specfleet.experiments.plan.fleet.apart import (
    NEAREST,
    Needs,
    cheapest_apart,
    split_lines,
    splits_as_json,
    why_apart,
)
from specfleet.experiments.plan.fleet.report import chosen_sentence
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.planner import Planner
from specfleet.experiments.plan.search import Search
from specfleet.experiments.plan.seen import judge
from specfleet.experiments.schema.faults import InputFaults

FILE = """
name: apart
seed: 1
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  engine: vllm-0.33
  max_model_len: 16384
  enable_prefix_caching: false
acceptance: {conditional_acceptance: 0.7, concentration: 18, source: assumed}
deployment: {router: least_outstanding}
workload: {input_len: 8192, output_len: 32, request_rate: 4, num_prompts: 400, num_warmups: 20}
slo: {p95_ttft_ms: 4000, p95_tpot_ms: 14}
plan:
  also_at: []
  candidates:
    disaggregated: [{}]
"""


class SplitPlanner(Planner):
    """Finds the winner, and studies nothing but splits of it."""

    def _study(self, laboratory: Laboratory, search: Search, say: Callable[[str], None]) -> None:
        self._part(search)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """The plan, as far as splits go."""
    folder = tmp_path_factory.mktemp("apart")
    (folder / "apart.yaml").write_text(FILE)
    planner = SplitPlanner(folder / "apart.yaml", (), folder / "out")
    planner.prepare(resume=False)
    this = planner.execute(1, lambda _: None)
    planner.finish()
    return this


@given(st.floats(0.01, 20), st.floats(0.01, 20), st.integers(2, 40))
def test_no_split_is_tried_that_cannot_do(prefill: float, decode: float, replicas: int) -> None:
    need = Needs(prefill, decode)
    splits = need.splits(replicas)
    assert all(x + y == replicas and x >= prefill and y >= decode for x, y in splits)
    assert len(splits) == min(NEAREST, max(replicas - need.fewest + 1, 0))


def test_splits_are_of_no_more_replicas_than_the_plan_has_and_judged_as_a_whole(
    made: Planned,
) -> None:
    this = made
    assert this.winner is not None and this.winner.high is not None
    (usual,) = this.splits
    assert usual.tried and not usual.refusal
    for fleet in usual.tried:
        first, other = fleet.parts
        assert (first.name, other.name) == ("prefill", "decode")
        assert first.replicas + other.replicas <= this.winner.high
        assert fleet.judged is not None and fleet.judged.verdict == judge(fleet.runs).verdict
    (found,) = json.loads(json.dumps(splits_as_json(this.splits, 0)))
    assert (found["kv_transfer"]["overlap"], len(found["tried"])) == ("after", len(usual.tried))


def test_a_split_that_needs_fewer_gpus_is_bought_and_can_be_started(made: Planned, tmp_path: Path) -> None:
    """Long prompts keep replicas that do both from 14 ms a token: fewer of them do apart."""
    this = made
    assert this.winner is not None and this.winner.high is not None
    best = cheapest_apart(this.splits)
    assert best is not None and best.best is not None
    assert best.best.gpus < this.winner.high
    assert this.fleets.chosen is best.best
    base = this.winner.candidate.replica_usd * this.winner.high
    bought = chosen_sentence(this.fleets, base, "least_outstanding", 0)
    assert (
        bought.startswith("Cheaper with prompts on GPUs of their own: prefill: ")
        and "decode: 1 x (" in bought
    )
    (said,) = why_apart(this.splits, base, this.whole)
    assert "Prompts on GPUs of their own cost" in said and "against replicas that do both" in said
    assert "prefill + 1 decode" in " ".join(split_lines(this.splits))
    pools, router = winning_pools(this)
    assert [pool.role for pool in pools] == ["prefill", "decode"]
    assert sum(pool.replicas for pool in pools) == best.best.gpus
    written = {path.name for path in write_deployment(pools, router, tmp_path)}
    assert {"commands.sh", "proxy.py"} <= written


def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "apart.yaml").write_text(
        FILE.replace("plan:\n", "plan:\n  objective: headroom\n  max_gpus: 4\n")
    )
    with pytest.raises(InputFaults, match=r"disaggregated: are tried to buy less"):
        load(tmp_path / "apart.yaml", ())
