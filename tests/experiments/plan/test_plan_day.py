"""A plan's day: where its rates come from, what fleets cost over it, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.experiments.load.config import load
from specfleet.experiments.plan.asking import Laboratory
from specfleet.experiments.plan.capacity import Capacity
from specfleet.experiments.plan.fleet.day import DayPlan, day_as_json, day_of
from specfleet.experiments.plan.fleet.figure import day_figure
from specfleet.experiments.plan.fleet.hours import hour_figures
from specfleet.experiments.plan.fleet.report import day_lines, day_sentence
from specfleet.experiments.plan.planner import Planner
from specfleet.experiments.plan.search import Entry
from specfleet.experiments.plan.seen import Allowed, TrialFigures
from specfleet.experiments.plan.traffic import Trial
from specfleet.experiments.plan.trials import measure
from specfleet.experiments.point.bounds import Bound
from specfleet.experiments.point.days import DAYS, STRETCHES, hourly, peak_of, stretches_of
from specfleet.experiments.schema.blocks.plan import Day, Plan
from specfleet.experiments.schema.faults import InputFaults
from specfleet.sim.simulation import RunResult

FILE = """
name: day
serve: {model: llama-3.1-8b-instruct, gpu: h100-sxm, max_model_len: 2048, max_num_seqs: 64}
workload: {input_len: 100, output_len: 20, num_prompts: 200}
slo: {p99_ttft_ms: 300, p99_tpot_ms: 14}
plan:
  day: {preset: azure-code-2024, mean_per_s: 10, faster: 48}
  candidates:
    autoscale: [{metric: concurrency, provision_s: 5, load_s: 5}, {metric: ttft, target: 100, provision_s: 5}]
"""
AT = Capacity(12.0, 0.0, False, 40, "p99_tpot_ms", "decode compute", ())


def entry(folder: Path, text: str = FILE, high: int = 3) -> tuple[Plan, Entry]:
    """The plan of a file, and its one candidate with so many replicas."""
    (folder / "day.yaml").write_text(text)
    planned = Planner(folder / "day.yaml", (), folder / "out").planned
    return planned.plan, Entry(planned.every[0], Bound(20.0, 1.0, "TPOT"), high - 1, high)


class Toy:
    """A laboratory whose days have a ratio, and two replicas in every hour."""

    def __init__(self, *ratios: float) -> None:
        self.ratios = ratios
        self.asked: list[Trial] = []

    def run(self, trials: Sequence[Trial]) -> list[TrialFigures]:
        """A ratio a seed, the same for every autoscaler."""
        self.asked += trials
        hours = {f"hour:{h}:replicas": 2.0 for h in range(24)} | {
            f"hour:{h}:p99_ttft_ms": 0.5 for h in range(24)
        }
        return [
            TrialFigures({"day:p99_ttft_ms": r, "failed": 0.0, **hours}) for r in self.ratios[: len(trials)]
        ]


def made(folder: Path, *ratios: float, text: str = FILE) -> DayPlan:
    """The day of a file in a toy laboratory."""
    plan, winner = entry(folder, text)
    found = day_of(cast("Laboratory", Toy(*ratios)), plan, winner, AT, "round_robin", (1, 2)[: len(ratios)])
    assert found is not None
    return found


@pytest.mark.parametrize("name", DAYS)
def test_a_day_by_name_has_the_published_mean_and_ratio_of_hours(name: str) -> None:
    plan = Plan(day=Day.model_validate({"preset": name}))
    rates = stretches_of(plan)
    assert rates is not None and len(rates) == STRETCHES
    hours = hourly(rates)
    assert rates.mean() == pytest.approx(DAYS[name].mean_per_s, rel=1e-9)
    assert hours.max() / hours.min() == pytest.approx(DAYS[name].peak_to_trough, rel=0.06)
    assert abs(int(hours.argmax()) - 20) <= 1


@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 500.0), st.floats(0.1, 10.0), st.sampled_from(sorted(DAYS)))
def test_another_size_keeps_the_shape_and_growth_counts(mean: float, growth: float, name: str) -> None:
    plain = stretches_of(Plan(day=Day.model_validate({"preset": name})))
    sized = stretches_of(Plan(day=Day.model_validate({"preset": name, "mean_per_s": mean}), growth=growth))
    assert plain is not None and sized is not None
    assert sized / sized.mean() == pytest.approx(plain / plain.mean())
    assert sized.mean() == pytest.approx(mean * growth)


def test_a_log_is_counted_by_five_minutes_and_its_busiest_hour_is_planned_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    minutes = np.sort(rng.integers(0, 1440, 4000))
    rows = [f"2024-05-14 {m // 60:02d}:{m % 60:02d}:10.5+00:00,10,5" for m in minutes]
    rows += ["2024-05-15 00:00:01.5+00:00,10,5"]
    log = tmp_path / "week.csv"
    log.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    plan = Plan(day=Day(trace=str(log), date="2024-05-14"))
    rates = stretches_of(plan)
    assert rates is not None
    assert np.rint(rates * 300).tolist() == np.histogram(minutes, np.arange(0, 1441, 5))[0].tolist()
    assert peak_of(plan) == pytest.approx(np.bincount(minutes // 60).max() / 3600, rel=1e-3)
    assert stretches_of(Plan(day=Day(trace=str(log)))) == pytest.approx(rates)
    with pytest.raises(ValueError, match=r"no whole day 2024-05-15; whole days in it: 2024-05-14"):
        stretches_of(Plan(day=Day(trace=str(log), date="2024-05-15")))


def test_a_fleet_over_the_day_costs_its_replicas_and_the_cheapest_that_meets_the_slo_is_chosen(
    tmp_path: Path,
) -> None:
    day = made(tmp_path, 0.8, 0.9)
    fixed, switched, first, second = day.fleets
    assert fixed.gpu_hours == 72.0 and fixed.usd == pytest.approx(72 * 3.9)
    needed = [min(max(int(np.ceil(rate / 12.0)), 1), 3) for rate in day.rates]
    assert switched.replicas == tuple(needed)
    assert first.gpu_hours == second.gpu_hours == 48.0
    assert (first.verdict, first.ratio, first.limit) == ("met", 0.9, "p99_ttft_ms")
    assert day.chosen is first and first.scaling is not None
    assert (first.scaling.target, first.scaling.max) == (28.0, 5)
    said = day_sentence(day)
    assert "33 % is saved" in said and "$187.20" in said


@pytest.mark.parametrize(("ratios", "verdict"), [((0.8, 1.2), "not settled"), ((1.1, 1.2), "missed")])
def test_what_does_not_hold_on_every_seed_is_not_chosen(
    tmp_path: Path, ratios: tuple[float, float], verdict: str
) -> None:
    day = made(tmp_path, *ratios)
    assert [fleet.verdict for fleet in day.fleets[2:]] == [verdict, verdict]
    assert day.chosen is None and "no way to follow the load" in day_sentence(day)


def test_the_day_is_printed_drawn_and_kept(tmp_path: Path) -> None:
    from specfleet.experiments.figures.data import Shown

    day = made(tmp_path, 0.8, 0.9)
    lines = "\n".join(day_lines(day)).splitlines()
    assert "climbs 48 times as steep" in lines[0]
    assert (
        sum(line.split()[0].isdigit() and len(line.split()[0]) == 2 for line in lines if line.strip()) == 24
    )
    found = day_as_json(day)
    assert found is not None and found["chosen"] == "concurrency 28, 1 to 5"
    told = Shown("day", None, None, (), (), (), {}, 1, "", "x", {})
    figure = day_figure(day, told)
    assert len(figure.axes) == 3
    assert list(day_lines(None)) == [] and day_sentence(None) == "" and day_as_json(None) is None


def test_a_day_too_long_is_not_simulated_and_says_so(tmp_path: Path) -> None:
    day = made(tmp_path, 0.8, text=FILE.replace("mean_per_s: 10, faster: 48", "mean_per_s: 400, faster: 1"))
    assert all("give plan.day.mean_per_s" in fleet.refusal for fleet in day.fleets[2:])
    assert "not simulated" in "\n".join(day_lines(day))


def test_replicas_that_cannot_be_scaled_are_named_with_the_reason(tmp_path: Path) -> None:
    plan, winner = entry(tmp_path)
    found = day_of(cast("Laboratory", Toy(0.5)), plan, winner, AT, "prefix_affinity", (1,))
    assert found is not None
    assert all("remembers replicas by number" in fleet.refusal for fleet in found.fleets[2:])


def test_hours_of_a_run_add_up_to_the_day() -> None:
    sent = np.arange(0.0, 24.0, 0.01)
    ttft = np.where(sent < 12.0, 100.0, 300.0)
    limits = {"p50_ttft_ms": Allowed(0.5, "ttft", 200.0), "p99_ttft_ms": Allowed(0.99, "ttft", 200.0)}
    fixed = SimpleNamespace(parts=(), scenario=SimpleNamespace(deployment=SimpleNamespace(replicas=4)))
    found = hour_figures(cast("RunResult", fixed), 1.0, sent, {"ttft": ttft}, limits)
    assert found["day:p99_ttft_ms"] == 1.5
    assert [found[f"hour:{h}:p50_ttft_ms"] for h in (0, 11, 12, 23)] == [0.5, 0.5, 1.5, 1.5]
    assert {found[f"hour:{h}:replicas"] for h in range(24)} == {4.0}


def test_a_simulated_day_keeps_no_series_and_pays_for_what_was_up(tmp_path: Path) -> None:
    plan, winner = entry(tmp_path)
    toy = Toy(0.5)
    day_of(cast("Laboratory", toy), plan, winner, AT, "round_robin", (1,))
    trial = toy.asked[0]
    assert trial.hour_s == 75.0
    shorter = trial.config.workload.model_copy(update={"num_prompts": 1500})
    run = measure(replace(trial, config=trial.config.model_copy(update={"workload": shorter})))
    assert not run.series and run["hour:0:replicas"] >= 1.0
    assert max(run[f"hour:{h}:replicas"] for h in range(24)) <= 5.0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("preset: azure-code-2024", "preset: azure", "azure-conv-2024"),
        ("preset: azure-code-2024, ", "", "exactly one of preset and trace"),
        ("preset: azure-code-2024", "trace: none.csv", "cannot be read"),
        ("preset: azure-code-2024", "preset: azure-code-2024, date: 2024-05-14", "is of a log"),
        ("metric: ttft, target: 100", "metric: ttft", "needs a target"),
        ("  day: {preset: azure-code-2024, mean_per_s: 10, faster: 48}\n", "", "follows the load of a day"),
        ("num_prompts: 200", "num_prompts: 200, request_rate: 4", "both say how much is asked"),
        ("plan:\n", "plan:\n  schedule: [[0, 3]]\n", "both say what a day is"),
    ],
)
def test_a_day_that_is_none_is_a_fault_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "day.yaml").write_text(FILE.replace(old, new))
    with pytest.raises(InputFaults, match=said) as found:
        load(tmp_path / "day.yaml")
    assert all(fault.line > 3 for fault in found.value.faults)
