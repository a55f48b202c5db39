"""The bill by class: what the drafts of a class do to the P99 of each, on the same requests and luck."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from specfleet.experiments.load.bill import switched_off
from specfleet.experiments.load.config import load, load_experiment
from specfleet.experiments.load.sweep import expand, with_ends
from specfleet.experiments.page.write import write_report
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.experiments.run.bill import BillEntry, entries
from specfleet.experiments.run.run import Run
from specfleet.experiments.run.runner import run_task
from specfleet.experiments.run.traffic import Served
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.words.by_class import bill_sentences, bill_table
from specfleet.experiments.words.run import run_facts, run_text
from specfleet.sim.scenario import RunResult
from specfleet.sim.simulation import simulate
from specfleet.sim.statistics.series import F64

FILE = """\
seed: 1
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 4096
  speculative_config:
    {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
run: {bill: true}
workload:
  num_prompts: 200
  mix:
    chat: {request_rate: 14, input_len: 200, output_len: 60,
           acceptance: {conditional_acceptance: 0.5, concentration: 18}}
    code: {request_rate: 6, input_len: 900, output_len: 100,
           acceptance: {conditional_acceptance: 0.8, concentration: 18}}
"""
KEYS = ("ttft", "tpot", "e2el")


def file(**serve: Any) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(FILE)
    data["serve"] |= serve
    return data


def point(given: dict[str, Any]) -> Experiment:
    return expand(load_experiment(given))[0].config


def simulated(config: Experiment) -> RunResult:
    return simulate(build(config).scenario, requests(config, 3), 3)


def test_a_bill_leaves_out_the_drafts_of_one_class_after_the_other() -> None:
    (only,) = expand(load_experiment(file()))
    assert {name: p.id for name, p in only.switched_off.items()} == {
        "chat": "point,without=chat",
        "code": "point,without=code",
    }
    assert [p.id for p in with_ends([only])] == ["point", "point,without=chat", "point,without=code"]
    policy = only.switched_off["code"].config.serve.draft_policy
    assert policy is not None and policy.by_class == {"chat": 3, "code": 0}
    assert switched_off(point(file() | {"run": {"bill": False}})) == {}


def test_the_bill_of_a_class_that_does_not_draft_is_zero_exactly() -> None:
    config = point(file(draft_policy={"by_class": {"code": 0}}))
    off = switched_off(config)
    assert list(off) == ["chat"]
    drafts = config.serve.model_copy(update={"draft_policy": off["chat"].serve.draft_policy})
    assert drafts.draft_policy is not None and drafts.draft_policy.by_class == {"chat": 0, "code": 0}
    once, again = (Served.of(simulated(config).requests) for _ in range(2))
    found = list(entries("code", ("chat", "code"), [once], [again], 0.02))
    assert len(found) == 6
    assert all(each.with_ms == each.without_ms and each.side == "neither" for each in found)
    assert all(each.columns()[f"bill:code:{each.who}:p99_{each.latency}_ms"] == 1.0 for each in found)


def test_both_sides_of_a_bill_meet_the_same_requests_and_luck() -> None:
    config = point(file())
    having, lacking = simulated(config), simulated(switched_off(config)["code"])
    chat = having.requests["class_id"] == 0
    for name in ("prompt_tokens", "output_tokens", "accepted_tokens", "verifications"):
        assert np.array_equal(having.requests[name][chat], lacking.requests[name][chat]), name
    assert not lacking.requests["draft_tokens"][~chat].any()
    assert having.requests["draft_tokens"][~chat].all()


def served(ttft_s: F64, tpot_s: float = 0.01) -> Served:
    """Requests of two classes in turn."""
    n = len(ttft_s)
    ids = np.arange(n, dtype=np.float64)
    classes, tokens = np.asarray(ids % 2, dtype=np.float64), np.full(n, 11.0)
    sent = np.asarray(0.1 * ids, dtype=np.float64)
    first = sent + ttft_s
    return Served(ids, classes, tokens, sent, first, first + 10 * tpot_s)


@pytest.mark.parametrize(
    ("factor", "side"), [(1.3, "pays"), (0.7, "gains"), (1.0, "neither"), (1.001, "neither")]
)
def test_a_ratio_says_who_pays(factor: float, side: str) -> None:
    ttft = 0.1 + 0.05 * np.random.default_rng(1).random(8000)
    found = list(entries("code", ("chat", "code"), [served(ttft * factor)], [served(ttft)], 0.02))
    assert [(each.who, each.latency) for each in found] == [(w, k) for w in ("chat", "code") for k in KEYS]
    first = found[0]
    assert first.side == side and first.with_ms == pytest.approx(factor * first.without_ms)
    if factor != 1.0:
        assert first.ratio is not None
        assert first.ratio.low - 1e-6 <= factor <= first.ratio.high + 1e-6
    assert found[1].side == "neither"


def test_few_requests_settle_nothing() -> None:
    ttft = 0.1 + 0.05 * np.random.default_rng(1).random(30)
    found = list(entries("code", ("chat",), [served(ttft[::-1].copy())], [served(ttft)], 0.02))
    assert found[0].side == "not settled"


def entry(whose: str, who: str, latency: str, ratio: float, side: str) -> dict[str, object]:
    return BillEntry(whose, who, latency, 100.0, 100.0 * ratio, None, side).columns()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        (("pays", "neither", "neither"), "chat pays for code's drafts: P99 TTFT x 1.20"),
        (("gains", "not settled", "gains"), "chat gains by code's drafts: P99 TTFT x 1.20, P99 E2E x 1.20"),
        (("pays", "gains", "neither"), "chat pays for code's drafts: P99 TTFT x 1.20; chat gains by code's"),
        (("neither",) * 3, "chat neither pays for code's drafts nor gains by them"),
        (("neither", "not settled", "neither"), "whether chat pays for code's drafts is not settled"),
    ],
)
def test_a_sentence_says_who_pays_for_whom(sides: tuple[str, ...], said: str) -> None:
    row: dict[str, object] = {"point": "p", "workload.max_concurrency": 8}
    for latency, side in zip(KEYS, sides, strict=True):
        row |= entry("code", "chat", latency, 1.2, side) | entry("code", "code", latency, 0.5, "gains")
    (sentence,) = bill_sentences([row], ["workload.max_concurrency"])
    assert sentence.startswith(f"max concurrency = 8: {said}") and "code gains" not in sentence.replace(
        "by code", ""
    )
    table = bill_table([row], ["workload.max_concurrency"], None)
    assert table is not None and re.search(r"8\s+code\s+chat\s+100 -> 120\s+1\.20", table)


FAULTS = {
    "workload.mix=null workload.input_len=9 workload.output_len=9 acceptance={conditional_acceptance: 0.5}": (
        r"run\.bill: is between traffic classes, and there is one"
    ),
    "report.requests=none": r"run\.bill: is read off the requests",
    "serve.draft_policy={goodput: {}}": r"run\.bill: switches drafts off class by class, and a policy",
    "serve.draft_tree={shape: [2, 1]} serve.speculative_config.num_speculative_tokens=4": (
        r"run\.bill: switches chains of drafts off"
    ),
}


@pytest.mark.parametrize("changes", FAULTS)
def test_a_bill_that_cannot_be_made_is_a_fault_with_its_line(tmp_path: Path, changes: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(FILE)
    texts = re.split(r" (?=[a-z.]+_?[a-z_.]*=)", changes)
    with pytest.raises(InputFaults, match=rf"x\.yaml:8: {FAULTS[changes]}"):
        load(path, texts)


def test_a_run_prints_its_bill_writes_it_and_shows_it_on_its_page(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FILE)
    finished = Run(tmp_path / "x.yaml", out=tmp_path / "out")
    for task in finished.prepare(resume=False):
        run_task(task)
    rows = finished.summary()
    text = run_text(finished, rows)
    assert "Bill by class: P99 without -> with" in text
    table = text.partition("Bill by class")[2]
    assert [line.split()[:2] for line in table.splitlines()[3:7]] == [
        [whose, who] for whose in ("chat", "code") for who in ("chat", "code")
    ]
    assert run_facts(finished, rows)["bill"] == bill_sentences(rows, [])
    head = (finished.folder / "summary.csv").read_text().partition("\n")[0]
    assert "bill:code:chat:p99_ttft_ms_without" in head
    finished.release()
    page = write_report(finished.folder).read_text()
    assert "Bill by class: P99 without" in page
    again = Run(tmp_path / "x.yaml", out=tmp_path / "out")
    assert again.prepare(resume=True) == []
