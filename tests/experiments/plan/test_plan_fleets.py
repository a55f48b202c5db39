"""Routers and pools around a plan's winner: one small plan, made once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from specfleet.experiments.load.config import load
from specfleet.experiments.plan.answer import answer
from specfleet.experiments.plan.deploy.winner import winning_pools
from specfleet.experiments.plan.fleet.fleets import TriedFleet, best_router, of_classes, shares_of, together
from specfleet.experiments.plan.fleet.report import chosen_sentence, fleet_lines
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.planner import Planner
from specfleet.experiments.plan.seen import judge
from specfleet.experiments.plan.traffic import Traffic, Trial
from specfleet.experiments.plan.write import write_plan
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.schema.pools import pool_experiments

FILE = """
name: fleet
seed: 1
serve: {model: llama-3.1-8b-instruct, gpu: h100-sxm, max_model_len: 2048, max_num_seqs: 64}
acceptance:
  code: {by_position: [0.9, 0.8, 0.7], concentration: 18, source: assumed}
  chat: {by_position: [0.2, 0.05, 0.01], concentration: 18, source: assumed}
workload:
  mix:
    code: {share: 0.4, input_len: 300, output_len: 120}
    chat: {share: 0.6, input_len: 100, output_len: 60}
  request_rate: 150
  num_prompts: 240
  num_warmups: 30
slo: {p95_ttft_ms: 300, p95_tpot_ms: 14}
plan:
  also_at: []
  candidates:
    router: [least_outstanding, random]
    pools: [{fast: [code], plain: [chat]}]
    drafting:
      - speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}
        num_speculative_tokens: [3]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Planned, Path]:
    """The plan, and its folder."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "fleet.yaml").write_text(FILE)
    planner = Planner(folder / "fleet.yaml", (), folder / "out")
    planner.prepare(resume=False)
    this = planner.execute(1, lambda _: None)
    write_plan(this, planner.folder)
    planner.finish()
    return this, planner.folder


def test_the_plan_s_own_router_is_first_and_every_listed_one_is_simulated(made: tuple[Planned, Path]) -> None:
    this, _ = made
    assert this.winner is not None and this.winner.high is not None and this.winner.high > 1
    assert [fleet.router for fleet in this.fleets.routers] == ["round_robin", "least_outstanding", "random"]
    for fleet in this.fleets.routers:
        assert fleet.judged is not None and fleet.judged.verdict == judge(fleet.runs).verdict
        assert fleet.parts[0].replicas <= this.winner.high


def test_pools_are_sized_for_their_own_requests_and_simulated_together(made: tuple[Planned, Path]) -> None:
    this, _ = made
    ((name, fleet),) = this.fleets.pools
    assert name == "fast = code | plain = chat"
    assert [part.name for part in fleet.parts] == ["fast", "plain"]
    assert [part.rate for part in fleet.parts] == pytest.approx([60.0, 90.0])
    assert fleet.parts[0].candidate.k == 3
    assert fleet.cost == pytest.approx(sum(p.replicas * p.candidate.replica_usd for p in fleet.parts))
    assert fleet.judged is not None and fleet.judged.verdict in ("met", "not settled")
    sent = Traffic.of(this.experiment).whole(together(fleet), 2, 1).table()
    assert len(sent) > 240


def test_each_pool_of_the_whole_has_its_own_engine_and_drafter(made: tuple[Planned, Path]) -> None:
    fleet = made[0].fleets.pools[0][1]
    plain = next(candidate for candidate in made[0].every if not candidate.k)
    fleet = replace(fleet, parts=(fleet.parts[0], replace(fleet.parts[1], candidate=plain)))
    pools = pool_experiments(together(fleet))
    assert {name: each.serve.speculative_config is not None for name, each in pools.items()} == {
        "fast": True,
        "plain": False,
    }
    assert {name: each.deployment.replicas for name, each in pools.items()} == {
        part.name: part.replicas for part in fleet.parts
    }


def test_requests_of_some_classes_keep_their_lengths_and_their_share(made: tuple[Planned, Path]) -> None:
    config = made[0].every[-1].config
    assert shares_of(config) == {"code": 0.4, "chat": 0.6}
    alone, share = of_classes(config, ["code"])
    assert share == pytest.approx(0.4)
    table = Trial(alone, 1).table()
    assert set(table.prompt_tokens.tolist()) == {300}
    assert alone.workload.gap_shape == pytest.approx(1.0)
    regular = config.model_copy(update={"workload": config.workload.model_copy(update={"burstiness": 4.0})})
    assert of_classes(regular, ["code"])[0].workload.gap_shape == pytest.approx(1.0 / (0.1 + 0.6))


def test_what_is_chosen_is_in_the_answer_the_json_and_the_deployment_files(
    made: tuple[Planned, Path],
) -> None:
    this, folder = made
    found = json.loads((folder / "plan.json").read_text())["fleets"]
    assert [each["router"] for each in found["routers"]] == ["round_robin", "least_outstanding", "random"]
    pools, router = winning_pools(this)
    chosen = this.fleets.chosen
    said = answer(this)
    if chosen is None:
        assert found["chosen"] is None and len(pools) == 1 and "Behind" not in said
    else:
        assert found["chosen"]["per_hour_usd"] == pytest.approx(chosen.cost)
        assert router == chosen.router and f"${chosen.cost:.2f}/h" in said
    names = {
        d["metadata"]["name"] for d in yaml.safe_load_all((folder / "deploy/kubernetes.yaml").read_text())
    }
    assert {pool.name for pool in pools} <= names


def test_a_cheaper_fleet_is_bought_and_a_dearer_one_is_not(made: tuple[Planned, Path]) -> None:
    fleets = made[0].fleets
    pooled = fleets.pools[0][1]
    cheap = replace(fleets, chosen=replace(pooled, cost=1.0))
    assert "Cheaper in pools: fast: " in chosen_sentence(cheap, 4.0, "round_robin", 0)
    assert "75 % less" in chosen_sentence(cheap, 4.0, "round_robin", 0)
    assert chosen_sentence(replace(fleets, chosen=None), 4.0, "round_robin", 0) == ""
    text = "\n".join(fleet_lines(fleets, 0))
    assert "fast = code | plain = chat" in text and "least_outstanding" in text


def test_of_routers_that_cost_the_same_the_plan_s_own_stays_unless_another_has_clearly_more_room(
    made: tuple[Planned, Path],
) -> None:
    first = made[0].fleets.routers[0]
    twin = replace(first, router="twin")
    best, even = best_router([first, twin])
    assert best is first and even == [twin]
    fewer = replace(twin, cost=first.cost / 2)
    assert best_router([first, fewer]) == (fewer, [])
    refused: list[TriedFleet] = [replace(first, judged=None)]
    assert best_router(refused) == (None, [])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "{fast: [code], plain: [chat]}",
            "{fast: [code], plain: [cht]}",
            "names cht, which is no class; did you mean chat",
        ),
        ("{fast: [code], plain: [chat]}", "{fast: [code, chat], plain: [chat]}", "has chat twice"),
        ("{fast: [code], plain: [chat]}", "{fast: [code]}", "at least 2"),
        ("[least_outstanding, random]", "[least]", "least"),
        ("  also_at: []", "  objective: headroom\n  max_gpus: 4", "are tried to buy less"),
        (
            "request_rate: 150",
            "request_rate: 150\n  arrivals: {diurnal: {peak_to_trough: 2}}",
            "one stream at one rate",
        ),
    ],
)
def test_pools_and_routers_that_cannot_be_are_faults_with_their_line(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE.replace(old, new))
    with pytest.raises(InputFaults, match=said) as found:
        load(file)
    assert all(fault.line > 8 for fault in found.value.faults)
