"""Without a given spread between requests P99 is a band, and a verdict on it must hold at both ends."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from specfleet.experiments.load.config import load, load_experiment, resolved
from specfleet.experiments.load.sweep import Point, expand, with_ends
from specfleet.experiments.page.write import write_report
from specfleet.experiments.run.band import bands
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import Row
from specfleet.experiments.run.run import Run
from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.words.run import run_text

K = "serve.speculative_config.num_speculative_tokens"
FILE: dict[str, dict[str, object]] = {
    "serve": {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "h100-sxm",
        "max_model_len": 2048,
        "max_num_seqs": 64,
        "speculative_config": {
            "method": "eagle3",
            "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
            "num_speculative_tokens": 3,
        },
    },
    "acceptance": {"by_position": [0.55, 0.33, 0.2]},
    "workload": {
        "input": {"uniform": {"low": 20, "high": 60}},
        "output": {"uniform": {"low": 150, "high": 250}},
        "num_prompts": 400,
        "max_concurrency": 16,
    },
    "sweep": {"axes": {K: [0, 3]}},
}


def written(folder: Path, **changes: object) -> Path:
    path = folder / "x.yaml"
    path.write_text(yaml.safe_dump({**FILE, **changes}))
    return path


def points(folder: Path, acceptance: object) -> tuple[Point, ...]:
    return expand(load_experiment(written(folder, acceptance=acceptance)))


def run(folder: Path, **changes: object) -> tuple[Run, list[Row]]:
    this = Run(written(folder, **changes), out=folder / "out")
    todo = this.prepare(resume=False)
    this.execute(todo, 1, Reporter(len(todo), quiet=True))
    rows = this.summary()
    this.release()
    return this, rows


def spread(point: Point) -> float:
    assert isinstance(point.config.acceptance, Process)
    return point.config.acceptance.concentration


def test_without_a_spread_a_drafting_point_has_one_more_end_and_a_plain_one_none(tmp_path: Path) -> None:
    plain, drafting = points(tmp_path, {"conditional_acceptance": 0.6})
    assert not plain.ends
    assert [spread(end) for end in drafting.ends] == [math.inf] and spread(drafting) == 18.0
    assert [one.id for one in with_ends((plain, drafting))] == [
        plain.id,
        drafting.id,
        f"{drafting.id},spread=narrowest",
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"conditional_acceptance": 0.6, "concentration": 18},
        {"conditional_acceptance": 0.6, "concentration": math.inf},
        {"profile": "eagle-llama-3.1-8b-chat"},
        {"profile": "golden-qwen3.5-397b-mtp-plain", "concentration": 18},
    ],
)
def test_a_spread_that_is_given_or_fitted_in_a_profile_has_no_ends(tmp_path: Path, given: object) -> None:
    assert with_ends(points(tmp_path, given)) == points(tmp_path, given)


def test_a_profile_whose_spread_was_not_measured_has_ends(tmp_path: Path) -> None:
    assert points(tmp_path, {"profile": "golden-qwen3.5-397b-mtp-plain"})[1].ends


def test_a_calibrated_spread_is_bounded_on_both_sides(tmp_path: Path) -> None:
    given = {"conditional_acceptance": 0.6, "concentration": 20, "concentration_range": [14, 31]}
    assert [spread(end) for end in points(tmp_path, given)[1].ends] == [14, 31]


def test_classes_go_to_their_ends_together_and_one_that_is_given_stays(tmp_path: Path) -> None:
    chat, code = {"conditional_acceptance": 0.5}, {"conditional_acceptance": 0.8, "concentration": 30}
    workload = {**FILE["workload"], "mix": {"chat": 0.5, "code": 0.5}}
    found = expand(
        load_experiment(written(tmp_path, acceptance={"chat": chat, "code": code}, workload=workload))
    )
    (end,) = found[1].ends
    assert isinstance(end.config.acceptance, dict)
    assert {name: process.concentration for name, process in end.config.acceptance.items()} == {
        "chat": math.inf,
        "code": 30,
    }


@pytest.mark.parametrize("given", [[18, 18], [50, 20]])
def test_a_range_that_does_not_rise_is_refused(tmp_path: Path, given: list[float]) -> None:
    with pytest.raises(InputFaults, match="rise"):
        points(tmp_path, {"conditional_acceptance": 0.6, "concentration_range": given})


def test_a_range_without_the_spread_of_the_figures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFaults, match="does not hold concentration"):
        points(tmp_path, {"conditional_acceptance": 0.6, "concentration": 9, "concentration_range": [18, 50]})


def test_what_is_assumed_is_said_and_the_resolved_file_has_the_same_ends(tmp_path: Path) -> None:
    loaded = load(written(tmp_path))
    assert any("P99 is a band" in notice for notice in loaded.notices)
    again = tmp_path / "again.yaml"
    again.write_text(resolved(loaded.experiment))
    assert [p.id for p in with_ends(expand(load_experiment(again)))] == [
        p.id for p in with_ends(expand(loaded.experiment))
    ]


def test_p99_is_a_band_in_the_summary_the_terminal_and_the_page(tmp_path: Path) -> None:
    this, (_, row) = run(tmp_path)
    alike = run(tmp_path, acceptance={**FILE["acceptance"], "concentration": math.inf})[1][1]
    low, high = row["p99_tpot_ms_least"], row["p99_tpot_ms_most"]
    assert low == alike["p99_tpot_ms"] and high == row["p99_tpot_ms"]
    assert isinstance(low, float) and isinstance(high, float) and high > 1.1 * low
    shown = f"{low:.1f}-{high:.1f}"
    this, rows = run(tmp_path)
    text = run_text(this, rows)
    assert shown in text and "P99 is a band" in text
    page = tmp_path / "report.html"
    write_report(tmp_path / "out", page)
    assert shown in page.read_text()


def test_a_verdict_that_differs_between_the_ends_is_not_settled_until_the_spread_is_given(
    tmp_path: Path,
) -> None:
    rows = {"report": {"least_gain": 0.25}, "workload": {**FILE["workload"], "num_prompts": 2000}}
    this, (_, row) = run(tmp_path, **rows)
    at = {
        c: run(tmp_path, acceptance={**FILE["acceptance"], "concentration": c}, **rows)[1][1][
            "speedup_p99_tpot_verdict"
        ]
        for c in (18, math.inf)
    }
    assert at == {18: "does not", math.inf: "pays"}
    assert row["speedup_p99_tpot_verdict"] == "not settled"
    this, again = run(tmp_path, **rows)
    assert "state the spread between requests" in run_text(this, again)


def test_ends_that_agree_leave_the_verdict_and_widen_its_interval() -> None:
    key = "speedup_p99_tpot"
    one: Row = {key: 1.5, f"{key}_low": 1.4, f"{key}_high": 1.6, f"{key}_verdict": "pays"}
    other: Row = {key: 1.8, f"{key}_low": 1.7, f"{key}_high": 1.9, f"{key}_verdict": "pays"}
    found = {**one, **bands(one, [other])}
    assert (found[f"{key}_low"], found[f"{key}_high"], found[f"{key}_verdict"]) == (1.4, 1.9, "pays")
    assert (found[f"{key}_least"], found[f"{key}_most"]) == (1.5, 1.8)
    assert f"{key}_unsettled_by" not in found


def test_a_run_whose_spread_is_given_has_no_columns_of_a_band(tmp_path: Path) -> None:
    row = run(tmp_path, acceptance={**FILE["acceptance"], "concentration": 18})[1][1]
    assert not any(key.endswith(("_least", "_most")) for key in row)
