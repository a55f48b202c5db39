"""Runs that go on until they are settled: how far, together with what, and the same however they are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from specfleet.experiments.load.config import load
from specfleet.experiments.load.rules.sizes import longest
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.run import growth
from specfleet.experiments.run.growth import LOOKS, Sighting, Together, groups, looked
from specfleet.experiments.run.known import AT_MOST, NOT_KNOWN, Loose, loose
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import Row, number, read_results
from specfleet.experiments.run.run import Run
from specfleet.experiments.run.runner import simulate_into
from specfleet.experiments.run.traffic import Served
from specfleet.experiments.schema.blocks.until import HalfWidths
from specfleet.experiments.schema.yamlfile import Value
from specfleet.experiments.words.run import run_text
from specfleet.sim.statistics.stopping import RunLengths, going_on, turned

FILE = """
name: small
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, engine: vllm-0.33,
        speculative_config: {method: ngram, num_speculative_tokens: 3}}
acceptance: {conditional_acceptance: 0.3, concentration: 18, proposal_probability: 1.0}
workload: {input: {lognormal: {mu: 4, sigma: 0.5, max: 400}},
           output: {lognormal: {mu: 2.5, sigma: 0.5, max: 60}}, max_concurrency: 8}
run: {at_most: 4000, precision: {p99: 10 %}}
sweep: {axes: {workload.max_concurrency: [2, 8], serve.speculative_config.num_speculative_tokens: [0, 3]}}
"""


def made(
    out: Path, changes: Mapping[str, Value] = MappingProxyType({}), jobs: int = 1, resume: bool = False
) -> tuple[Run, list[Row]]:
    """A run of `FILE` with some keys changed, and its rows."""
    run = Run(yaml.safe_load(FILE), tuple(changes.items()), out)
    todo = run.prepare(resume)
    run.execute(todo, jobs, Reporter(len(todo), quiet=True))
    rows = run.summary()
    run.release()
    return run, rows


def files(folder: Path) -> dict[str, bytes]:
    """What a run left, but for what says who made it."""
    every = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in every if not p.name.startswith(".")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Row], Path]:
    """A run in this process."""
    folder = tmp_path_factory.mktemp("growth") / "one"
    run, rows = made(folder)
    return run, rows, folder


def test_a_point_and_what_it_is_compared_with_have_the_same_requests(
    whole: tuple[Run, list[Row], Path],
) -> None:
    counts = {(r["workload.max_concurrency"], number(r, "num_prompts")) for r in whole[1]}
    assert len(counts) == 2, "one number of requests a load"
    assert all(growth.LEAST < count <= 4000 for _, count in counts)


def test_a_run_stops_where_every_figure_is_known_and_every_ratio_settled_or_within_the_least_gain(
    whole: tuple[Run, list[Row], Path],
) -> None:
    for row in whole[1]:
        if number(row, "num_prompts") < 4000:
            assert row[NOT_KNOWN] == ""
        for name in ("speedup_output_throughput", "speedup_mean_tpot", "speedup_p99_tpot"):
            width = (number(row, f"{name}_high") - number(row, f"{name}_low")) / 2.0
            assert row[f"{name}_verdict"] != "not settled" or width <= 0.02


def test_the_bytes_do_not_depend_on_the_number_of_processes(
    whole: tuple[Run, list[Row], Path], tmp_path: Path
) -> None:
    made(tmp_path / "two", jobs=2)
    assert files(tmp_path / "two") == files(whole[2])


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes_and_makes_nothing_twice(
    whole: tuple[Run, list[Row], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated: list[Path] = []
    stop_after = 6

    def counted(path: Path, *args: Any) -> None:
        if len(simulated) == stop_after:
            raise KeyboardInterrupt
        simulated.append(path)
        simulate_into(path, *args)

    monkeypatch.setattr(growth, "simulate_into", counted)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "cut")
    assert any((tmp_path / "cut" / LOOKS).iterdir())
    before, stop_after = list(simulated), 1000
    simulated.clear()
    made(tmp_path / "cut", resume=True)
    assert simulated and not set(before) & set(simulated)
    assert files(tmp_path / "cut") == files(whole[2])
    assert not (tmp_path / "cut" / LOOKS).exists()


def test_what_is_not_known_as_well_as_asked_is_said(tmp_path: Path) -> None:
    changes: dict[str, Value] = {
        "run.precision.p99": 0.001,
        "run.at_most": 2000,
        "sweep.axes.workload.max_concurrency": (8,),
    }
    run, rows = made(tmp_path / "run", changes)
    said = run_text(run, rows)
    assert "Simulations went on for 2,000 requests, of 2,000 at most (run.at_most)." in said
    told = re.search(r"Not known as well as asked, means within 2 %, P99 within 0.1 %: (.*)\.", said)
    assert told is not None and "K = 3: P99 TPOT (within" in told[1]
    assert "workload.num_prompts" not in said, "more of that settles nothing here"
    read = read_results(tmp_path / "run")
    assert [row[AT_MOST] for row in read.rows] == [2000, 2000]


def test_a_fixed_number_of_requests_stays_fixed_and_says_that_run_changes_nothing() -> None:
    loaded = load(yaml.safe_load(FILE), (("workload.num_prompts", 300),))
    assert not any(point.config.workload.goes_on for point in expand(loaded.experiment))
    assert groups(expand(loaded.experiment), loaded.experiment.report.baseline) == []
    assert any("workload.num_prompts fixes the number of requests" in notice for notice in loaded.notices)


@pytest.mark.parametrize(
    "changes",
    [
        {"workload.max_concurrency": None, "sweep.axes": {}},
        {"report.requests": "none", "sweep.axes": {}},
        {"workload.phases": ({"num_prompts": 50},), "sweep.axes": {}},
    ],
)
def test_what_has_a_size_of_its_own_does_not_go_on(changes: dict[str, Value]) -> None:
    loaded = load(yaml.safe_load(FILE), tuple(changes.items()))
    (point,) = expand(loaded.experiment)
    assert not point.config.workload.goes_on
    assert any(notice.startswith("run (precision, at_most) changes nothing") for notice in loaded.notices)


def test_nobody_grows_beyond_what_memory_holds() -> None:
    changes: dict[str, Value] = {"workload.output": {"fixed": 5000}, "run.at_most": 1_000_000_000}
    loaded = load(yaml.safe_load(FILE), tuple(changes.items()))
    longs = [longest(point.config) for point in expand(loaded.experiment)]
    assert longs == [10_000, 10_000, 40_000, 40_000], "25 million iterations"


def served(seconds: float, others: float = 0.0, n: int = 4000) -> Served:
    """Requests a second apart, of which every second one takes `others` longer; 101 tokens each."""
    at = np.arange(n, dtype=np.float64)
    took = np.where(at % 2, seconds, seconds + others)
    tokens = np.full(n, 101.0)
    return Served(at, np.zeros(n), tokens, at, at + 0.1, at + 0.1 + 100.0 * took)


def test_a_figure_is_loose_until_its_interval_is_as_narrow_as_asked() -> None:
    found = loose([served(0.01, others=0.01, n=60)], HalfWidths(mean=0.001, p99=None))
    assert [each.figure for each in found] == ["mean TPOT"]
    assert found[0].longer > 1.0
    assert loose([served(0.01, n=60)], HalfWidths(mean=0.001, p99=None)) == []


def test_a_ratio_at_the_least_gain_itself_is_not_run_after() -> None:
    loaded = load(yaml.safe_load(FILE))
    plain, drafting = expand(loaded.experiment)[:2]
    group = Together((plain, drafting), {drafting.id: plain})
    seen = {(plain.id, 0): served(0.0102), (drafting.id, 0): served(0.01)}
    assert looked(group, seen, 0.02).longer == 0.0


def two() -> tuple[Together, str, str]:
    """A plain point and one that is compared with it, and their names."""
    plain, drafting = expand(load(yaml.safe_load(FILE)).experiment)[:2]
    return Together((plain, drafting), {drafting.id: plain}), plain.id, drafting.id


def test_a_verdict_that_a_longer_run_turns_round_is_looked_at_again() -> None:
    group, plain, drafting = two()
    better = {(plain, 0): served(0.015), (drafting, 0): served(0.01)}
    worse = {(plain, 0): served(0.01), (drafting, 0): served(0.015)}
    looks = [looked(group, seen, 0.02) for seen in (better, worse, worse)]
    assert [look.longer for look in looks] == [0.0] * 3
    assert "pays" in looks[0].decided.values(), "or nothing could turn round"
    assert turned(looks[0].decided, looks[1].decided)
    lookout = going_on(RunLengths(1000, 100_000))
    assert [next(lookout), *(lookout.send(look) for look in looks)] == [1000, 1250, 1875, 2344]
    with pytest.raises(StopIteration) as ended:
        lookout.send(looks[2])
    assert ended.value.value == (True, 2344, 4)


def test_what_keeps_a_run_going_is_named_with_its_point() -> None:
    group, plain, drafting = two()
    loose_ = {(plain, 0): served(0.01, others=0.05, n=100), (drafting, 0): served(0.01, n=100)}
    found = looked(group, loose_, 0.02)
    assert found.longer > 1.0 and re.fullmatch(rf"P99 \w+ .* at {plain}|.* at {drafting}", found.why)
    near = {(plain, 0): served(0.0102, others=0.004), (drafting, 0): served(0.0102, others=0.0035)}
    wide = looked(group, near, 0.0001)
    assert wide.longer > 0.0 and wide.why.endswith((f"at {drafting}", f"at {plain}"))
    task = SimpleNamespace(id=f"{drafting},seed=0")
    assert Sighting(task, 3000, found.why).id == f"{task.id}, 3,000 requests, for {found.why}"  # type: ignore[arg-type]


def test_the_simulations_of_a_run_say_in_progress_what_they_are_made_for(tmp_path: Path) -> None:
    names: list[str] = []

    class Heard(Reporter):
        def finished(self, name: str) -> None:
            names.append(name)

    run = Run(yaml.safe_load(FILE), (("sweep.axes.workload.max_concurrency", (8,)),), tmp_path / "one")
    todo = run.prepare(False)
    run.execute(todo, 1, Heard(len(todo), quiet=True))
    run.release()
    first, later = (
        [n for n in names if "2,000 requests" in n],
        [n for n in names if "2,000 requests" not in n],
    )
    assert all(name.endswith("2,000 requests") for name in first)
    assert later and all(re.search(r" requests, for (.+ at \S+|the same once more)$", n) for n in later)


def test_what_is_said_of_a_loose_figure_is_never_what_was_asked_for() -> None:
    assert Loose("P99 TTFT", 0.0503, 1.0).said == "P99 TTFT (within 5.1 %)"
    assert Loose("P99 TTFT", inf, 1.0).said == "P99 TTFT (too little seen)"


def test_of_a_saturated_point_no_precision_is_asked_and_none_is_missed(tmp_path: Path) -> None:
    load_: dict[str, Value] = {"workload.max_concurrency": None, "workload.request_rate": 900.0}
    run, rows = made(tmp_path / "a", {**load_, "sweep": {}, "run.at_most": 2000})
    assert [row["state"] for row in rows] == ["saturated"]
    assert [row[NOT_KNOWN] for row in rows] == [""]
    assert "Not known as well" not in run_text(run, rows)
