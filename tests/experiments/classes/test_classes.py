"""Classes of traffic in a file: what each has of its own, how results come by class, and what is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from specfleet.experiments.load.config import load, load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.plan.planner import Planner
from specfleet.experiments.point.build import requests, source
from specfleet.experiments.point.built import build
from specfleet.experiments.run.run import Run
from specfleet.experiments.run.runner import run_task
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.words.answer import compared
from specfleet.experiments.words.by_class import class_answer
from specfleet.experiments.words.run import run_text
from specfleet.sim.config import Slo
from specfleet.sim.metrics.columns import benchmark, by_class
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.simulation import simulate
from specfleet.sim.summarise import summarise

SERVE = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "h100-sxm",
    "max_model_len": 4096,
    "enable_prefix_caching": False,
    "speculative_config": {
        "method": "eagle3",
        "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "num_speculative_tokens": 3,
    },
}
CHAT = {
    "input": {"uniform": {"low": 100, "high": 400}},
    "output": {"uniform": {"low": 20, "high": 120}},
    "acceptance": {"conditional_acceptance": 0.5, "concentration": 18},
}
CODE = {
    "input_len": 900,
    "output_len": 150,
    "temperature": 0.7,
    "acceptance": {"conditional_acceptance": 0.8, "concentration": 18, "burst": {"rho": 0.6, "sigma": 0.8}},
}
K = "serve.speculative_config.num_speculative_tokens"


def file(**workload: Any) -> dict[str, Any]:
    """An experiment of two classes."""
    rates = {"chat": {"request_rate": 14.0, **CHAT}, "code": {"request_rate": 6.0, **CODE}}
    return deepcopy({"seed": 1, "serve": SERVE, "workload": {"num_prompts": 250, "mix": rates, **workload}})


def point(given: dict[str, Any]) -> Experiment:
    return expand(load_experiment(given))[0].config


def in_yaml(tmp_path: Path, data: dict[str, Any]) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def test_the_calendar_gives_what_stepping_gives_where_luck_goes_by_class() -> None:
    config = point(file())
    result = simulate(build(config).scenario, requests(config, 3), 3, every_turn=True)
    assert result.stepped_because == "" and requests(config, 3).luck_id is not None


@pytest.mark.parametrize("drafts", [{"chat": 0}, {"chat": 1, "code": 2}, {"code": 0}])
@pytest.mark.parametrize("ahead", [False, True])
def test_the_calendar_gives_what_stepping_gives_where_drafts_go_by_class(
    drafts: dict[str, int], ahead: bool
) -> None:
    policy = {"async_scheduling": ahead, "draft_policy": {"by_class": drafts}}
    config = point(file(num_prompts=120) | {"serve": {**SERVE, **policy}})
    result = simulate(build(config).scenario, requests(config, 3), 3, every_turn=True)
    assert result.stepped_because == "" and result.stepped_share == 0.0
    for place, name in enumerate(("chat", "code")):
        mine = result.requests["class_id"] == place
        rounds, made = (result.requests[key][mine].sum() for key in ("verifications", "draft_tokens"))
        assert made <= drafts.get(name, 3) * rounds and bool(made) == bool(drafts.get(name, 3))


def test_a_run_that_forgets_its_requests_has_the_same_luck() -> None:
    config = point(file())
    scenario = build(config).scenario
    kept = simulate(scenario, requests(config, 3), 3)
    summary = summarise(scenario, source(config, 3), 3, portion=64)
    assert summary.whole is None
    assert summary.benchmark().output_throughput == pytest.approx(benchmark(kept).output_throughput, rel=1e-9)
    assert summary.rounds_by_accepted == kept.rounds_by_accepted
    ours, theirs = summary.by_class(), by_class(kept, ("chat", "code"))
    for name in ours:
        assert ours[name].p99_e2el_ms == pytest.approx(theirs[name].p99_e2el_ms, rel=1e-3)
        assert ours[name].mean_e2el_ms == pytest.approx(theirs[name].mean_e2el_ms, rel=1e-9)


def test_a_request_has_its_luck_whoever_else_is_there() -> None:
    found = []
    for rate in (0.0, 6.0):
        data = file()
        data["workload"]["mix"]["code"]["request_rate"] = rate
        config = point(data)
        result = simulate(build(config).scenario, requests(config, 3), 3)
        chat = result.requests["class_id"] == 0
        names = ("verifications", "accepted_tokens", "prompt_tokens", "output_tokens")
        found.append([result.requests[name][chat] for name in names])
    n = min(len(columns[0]) for columns in found)
    assert n > 100
    for alone, among in zip(*found, strict=True):
        assert np.array_equal(alone[:n], among[:n])


def test_a_class_whose_neighbour_has_share_0_is_the_run_of_it_alone() -> None:
    mixed = file(request_rate=12.0)
    mixed["workload"]["mix"] = {"chat": {"share": 1.0, **CHAT}, "code": {"share": 0.0, **CODE}}
    alone = {k: v for k, v in CHAT.items() if k != "acceptance"}
    plain = {
        "seed": 1,
        "serve": SERVE,
        "acceptance": CHAT["acceptance"],
        "workload": {"num_prompts": 250, "request_rate": 12.0, **alone},
    }
    a, b = (simulate(build(c).scenario, requests(c, 3), 3) for c in map(point, (mixed, plain)))
    for name, column in b.requests.items():
        assert np.array_equal(a.requests[name], column, equal_nan=column.dtype.kind == "f"), name


def test_the_order_of_the_classes_changes_their_numbers_alone() -> None:
    one, other = file(), file()
    other["workload"]["mix"] = dict(reversed(other["workload"]["mix"].items()))
    a, b = (simulate(build(c).scenario, requests(c, 3), 3) for c in map(point, (one, other)))
    for name, column in a.requests.items():
        there = 1 - b.requests[name] if name == "class_id" else b.requests[name]
        assert np.array_equal(column, there, equal_nan=column.dtype.kind == "f"), name


def test_bare_shares_are_drawn_as_ever_and_one_class_spelled_out_makes_all_of_them_classes() -> None:
    lengths = {"input_len": 100, "output_len": 20, "max_concurrency": 4}
    bare = point(
        {"serve": {**SERVE, "speculative_config": None}, "workload": {**lengths, "mix": {"a": 0.7, "b": 0.3}}}
    )
    assert bare.workload.classes == {}
    spelled = point(
        {
            "serve": {**SERVE, "speculative_config": None},
            "workload": {**lengths, "mix": {"a": 0.7, "b": {"share": 0.3, "output_len": 9, "input_len": 5}}},
        }
    )
    tables = [requests(config, 1) for config in (bare, spelled)]
    assert tables[0].luck_id is None and np.array_equal(tables[0].class_id, tables[1].class_id)
    assert set(tables[1].output_tokens[tables[1].class_id == 1]) == {9}
    assert set(tables[1].output_tokens[tables[1].class_id == 0]) == {20}


def test_an_acceptance_may_stand_in_its_class_or_with_the_others(tmp_path: Path) -> None:
    inside, outside = file(), file()
    classes = outside["workload"]["mix"].items()
    outside["acceptance"] = {name: each.pop("acceptance") for name, each in classes}
    a, b = (resolved(load_experiment(given)) for given in (inside, outside))
    assert yaml.safe_load(a)["acceptance"] == yaml.safe_load(b)["acceptance"]
    assert a == b
    path = tmp_path / "again.yaml"
    path.write_text(a)
    assert resolved(load_experiment(path)) == a


def test_the_acceptance_of_a_class_can_be_swept_and_scaled_where_it_stands() -> None:
    key = "workload.mix.chat.acceptance.conditional_acceptance"
    points = expand(load_experiment(file() | {"sweep": {"axes": {key: [0.3, 0.6]}}}))
    found = [p.config.acceptance for p in points]
    assert all(isinstance(each, dict) for each in found)
    assert [each["chat"].conditional_acceptance for each in found] == [0.3, 0.6]  # type: ignore[index]
    scaled = point(file() | {"acceptance": {"scale": 0.5}})
    assert isinstance(scaled.acceptance, dict) and scaled.acceptance["code"].scale == 0.5


RATES = "workload.mix.chat.request_rate"
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "twice in the class's name": (
        {"acceptance": {"chat": {"conditional_acceptance": 0.5}}},
        r"workload\.mix\.chat\.acceptance: acceptance\.chat \(line \d+\) says the same of chat",
    ),
    "twice for all": (
        {"acceptance": {"conditional_acceptance": 0.5}},
        r"x\.yaml:\d+: workload\.mix\.chat\.acceptance: acceptance \(line \d+\) says the same of chat",
    ),
    "share and rate": (
        {"workload.mix.chat.share": 0.5},
        r"mix\.chat\.share: says how much there is of chat twice",
    ),
    "kinds": (
        {"workload.mix.chat": {"share": 0.5, **CHAT}},
        r"mix\.chat: chat has a share and code a request_rate",
    ),
    "nothing said": ({"workload.mix.chat": CHAT}, r"mix\.chat: has neither share nor request_rate"),
    "nothing sent": (
        {RATES: 0, "workload.mix.code.request_rate": 0},
        r"workload\.mix: every class has rate 0",
    ),
    "shares": (
        {"workload.mix": {"chat": {"share": 0.5, **CHAT}, "code": {"share": 0.4, **CODE}}},
        r"workload\.mix: shares add up to 0\.9",
    ),
    "a share is no stream": (
        {
            "workload.mix": {
                "chat": {"share": 0.5, "burstiness": 0.3, **CHAT},
                "code": {"share": 0.5, **CODE},
            }
        },
        r"mix\.chat\.burstiness: belongs to a class with a stream of its own",
    ),
    "no lengths": (
        {"workload.mix.chat": {"request_rate": 3, "acceptance": CHAT["acceptance"]}},
        r"mix\.chat: has no lengths",
    ),
    "two sources": ({"workload.mix.code.preset": "mt-bench"}, r"mix\.code\.output_len: lengths come from"),
    "nobody's lengths": ({"workload.preset": "mt-bench"}, r"workload\.preset: every class of the mix has"),
    "no such preset": (
        {"workload.mix.code": {"request_rate": 1, "preset": "mt-bnch", "acceptance": CODE["acceptance"]}},
        r"mix\.code\.preset: no workload preset",
    ),
    "too long": ({"workload.mix.code.input_len": 5000}, r"mix\.code\.input_len: prompts of up to 5000"),
    "no file": (
        {
            "workload.mix.code": {"request_rate": 1, "trace": "no.csv", "acceptance": CODE["acceptance"]},
        },
        r"mix\.code\.trace: there is no file",
    ),
    "priority": ({"workload.mix.code.priority": 3}, r"mix\.code\.priority: 3 is refused by vLLM"),
    "an slo without limits": ({"workload.mix.code.slo": {}}, r"mix\.code\.slo: has no limit"),
    "a colon": (
        {"workload.mix": {"a:b": {"request_rate": 1, **CHAT}, "code": {"request_rate": 1, **CODE}}},
        r"'a:b' cannot name a class",
    ),
    "an acceptance at fault": (
        {"workload.mix.chat.acceptance.concentration": -1},
        r"x\.yaml:\d+: acceptance\.chat\.concentration: must be more than 0",
    ),
    "an unknown key": ({"workload.mix.chat.inputlen": 3}, r"mix\.chat\.inputlen: .*did you mean input_len"),
    "a plan": (
        {"workload.mix.chat.slo": {"tpot_ms": 9}, "slo": {"p99_tpot_ms": 20}, "plan": {}},
        r"mix\.chat\.slo: is of one class, and a plan meets slo: of all requests",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_mix_cannot_say_is_a_fault_with_its_line(tmp_path: Path, name: str) -> None:
    changes, said = FAULTS[name]
    data = file()
    for key, value in deepcopy(changes).items():
        here = data
        *above, last = key.split(".")
        for part in above:
            here = here[part]
        here[last] = value
    with pytest.raises(InputFaults, match=said) as found:
        load(in_yaml(tmp_path, data))
    assert all(fault.line > 0 for fault in found.value.faults)


def test_each_class_is_held_to_limits_of_its_own() -> None:
    data = file() | {"slo": {"tpot_ms": 9.0, "ttft_ms": 300.0}}
    data["workload"]["mix"]["code"]["slo"] = {"ttft_ms": 60.0}
    config = point(data)
    built = build(config)
    result = simulate(built.scenario, requests(config, 3), 3)
    counted = Counted.of(result.requests)
    chat = (counted.tpot_s <= 9e-3) & (counted.ttft_s <= 0.3) & (counted.class_id == 0)
    code = (counted.ttft_s <= 60e-3) & (counted.class_id == 1)
    found = by_class(result, ("chat", "code"), built.slo)
    assert found["chat"].slo_attainment == chat.sum() / (counted.class_id == 0).sum()
    assert found["code"].slo_attainment == code.sum() / (counted.class_id == 1).sum()
    assert benchmark(result, built.slo).slo_attainment == (chat | code).sum() / len(counted.sent_s)
    assert 0 < code.sum() < (counted.class_id == 1).sum()


def test_a_class_without_limits_in_a_file_without_any_meets_them() -> None:
    slo = Slo(by_class=(None, Slo(ttft_s=0.0)))
    assert slo.allowed("ttft_s", np.array([0, 1])).tolist() == [np.inf, 0.0]  # type: ignore[union-attr]
    assert Slo(tpot_s=2.0).allowed("tpot_s", np.array([0, 1])) == 2.0


def test_rates_of_classes_are_proportions_of_the_rate_of_all() -> None:
    twice = point(file(request_rate=40.0))
    assert twice.workload.request_rate == 40.0
    one, two = requests(point(file()), 1), requests(twice, 1)
    assert two.arrival_s == pytest.approx(one.arrival_s / 2.0)
    assert np.array_equal(one.class_id, two.class_id)


def test_a_plan_scales_the_streams_of_all_classes() -> None:
    data = file() | {"slo": {"p99_tpot_ms": 200.0}, "plan": {"candidates": {"tensor_parallel_size": [1]}}}
    this = Planner(data, []).planned
    assert this.traffic.rate == 20.0
    trial = this.traffic.trial(this.every[0].config, 2, 0, 400)
    table = trial.table()
    assert len(table) / table.arrival_s[-1] == pytest.approx(10.0, rel=0.2)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.3, 1.5, "chat gains 1.40 times"),
        (0.9, 0.95, "chat loses (0.93 times)"),
        (0.99, 1.01, "chat gains nothing (1.00 times)"),
        (0.9, 1.2, "chat is not settled (1.05 times, 0.90 to 1.20)"),
    ],
)
def test_a_class_gains_loses_or_is_not_settled(low: float, high: float, said: str) -> None:
    key, middle = "speedup:class:chat:p99_tpot_ms", (low + high) / 2
    verdict = "pays" if low > 1.02 else "does not" if high < 1.02 else "not settled"
    mine = {key: middle, f"{key}_low": low, f"{key}_high": high, f"{key}_verdict": verdict}
    whole: dict[str, Any] = {"speedup_p99_tpot": 1.1, "speedup_p99_tpot_verdict": "pays", "p99_tpot_ms": 9.0}
    rows = [
        {"point": f"K={k}", K: k, "class:chat:p99_tpot_ms": 1.0, **whole, **(mine if k else {})}
        for k in (0, 3)
    ]
    assert class_answer(compared(rows, [K], K, {K: 0})) == f"By class, K = 3, P99 TPOT: {said}."


def test_over_loads_the_answer_by_class_is_where_it_pays() -> None:
    load, key = "workload.max_concurrency", "speedup:class:code:p99_tpot_ms"
    rows = [
        {
            **{"point": f"{x},{k}", load: x, K: k, "class:code:p99_tpot_ms": 1.0, "p99_tpot_ms": 9.0},
            **{"speedup_p99_tpot": 1.1, "speedup_p99_tpot_verdict": "pays"},
            **({key: gain, f"{key}_verdict": "pays" if gain > 1.02 else "does not"} if k else {}),
        }
        for x, gain in ((8, 1.4), (64, 0.9))
        for k in (0, 3)
    ]
    said = class_answer(compared(rows, [load, K], load, {K: 0}))
    assert said == "By class, P99 TPOT: for code it pays up to 8, stops between 8 and 64 (concurrency)."


def test_a_run_says_who_gains_and_where_the_time_of_each_class_goes(tmp_path: Path) -> None:
    data = file(num_prompts=2500) | {"slo": {"tpot_ms": 30.0}, "sweep": {"axes": {K: [0, 3]}}}
    finished = Run(data, out=tmp_path / "out")
    for task in finished.prepare(resume=False):
        run_task(task)
    text = run_text(finished, finished.summary())
    assert text.splitlines()[1].startswith("By class, K = 3, P99 TPOT: chat is not settled (1.1")
    assert "; code is not settled (1.8" in text.splitlines()[1]
    table = text.partition("By traffic class:")[2]
    assert "SLO met" in table and "P99 E2E" in table
    engine = json.loads(next((finished.folder / "points").glob("*3,seed=*/engine.json")).read_text())
    assert engine["class_names"] == ["chat", "code"]
    splits = engine["tpot_split_by_class"]
    for split in splits.values():
        parts = sum(value for name, value in split["p99"].items() if name != "tpot_ms")
        assert parts == pytest.approx(split["p99"]["tpot_ms"])
    assert splits["code"]["p50"]["tpot_ms"] < splits["chat"]["p50"]["tpot_ms"]


def test_a_k_that_is_the_same_for_all_classes_is_one_k_for_all() -> None:
    policies = []
    for drafts in ({"chat": 3, "code": 3}, {"chat": 0, "code": 0}, {"chat": 0}):
        given = file() | {"serve": {**SERVE, "draft_policy": {"by_class": drafts}}}
        policies.append(build(point(given)).scenario.policy)
    assert policies[0] is None
    assert policies[1] is not None and policies[1].name == "batch_size"
    assert policies[2] is not None and policies[2].parameters == {"drafts": {"chat": 0}}


@pytest.mark.parametrize(
    ("drafts", "said"),
    [
        ({"chit": 1}, r"by_class: chit is no traffic class of this workload; did you mean chat"),
        ({"chat": 4}, r"by_class: 4 drafts for chat are more than num_speculative_tokens, 3"),
        ({}, r"by_class: must have at least 1"),
    ],
)
def test_drafts_by_class_are_of_classes_that_there_are(
    tmp_path: Path, drafts: dict[str, int], said: str
) -> None:
    data = file() | {"serve": {**SERVE, "draft_policy": {"by_class": drafts}}}
    with pytest.raises(InputFaults, match=rf"x\.yaml:\d+: serve\.draft_policy\.{said}"):
        load(in_yaml(tmp_path, data))
