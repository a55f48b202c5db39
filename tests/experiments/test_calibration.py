"""Calibration: it finds the numbers that made the results, or says which of them it cannot find."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from specfleet.experiments.calibrate import fit as calibration
from specfleet.experiments.calibrate.command import calibrate_command
from specfleet.experiments.calibrate.fit import (
    Calibrated,
    Numbers,
    Unidentified,
    calibrate,
    own_numbers,
    solve,
)
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.validate.bench import read_benches
from specfleet.experiments.validate.points import MeasuredPoint, scenario
from specfleet.hardware import catalog
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import simulate
from specfleet.workloads.build import build_requests

TRUE = Numbers(scale=1.12, step_s=1.4e-3, sequence_s=22e-6)
LOADS = ((1, 0), (64, 0), (256, 0), (8, 3), (64, 3), (128, 5))

SERVE = """
serve:
  engine: vllm-2026-01
  model: Qwen/Qwen3-32B
  gpu: h100-94gb
  max_model_len: 5000
  enable_prefix_caching: false
  speculative_config:
    method: eagle3
    model: RedHatAI/Qwen3-32B-speculator.eagle3
    num_speculative_tokens: 3
"""


def result(load: tuple[int, int]) -> dict[str, object]:
    """What a benchmark of a server would have printed, before its times are known."""
    c, k = load
    plain: dict[str, object] = {
        "completed": 3 * c + 16,
        "failed": 0,
        "total_input_tokens": 150 * (3 * c + 16),
        "total_output_tokens": 60 * (3 * c + 16),
        "max_concurrency": c,
        "request_rate": "inf",
        "burstiness": 1.0,
        "mean_tpot_ms": 1.0,
        "mean_itl_ms": 1.0,
    }
    if not k:
        return plain
    rates = [0.75 * 0.8**i for i in range(k)]
    return plain | {
        "spec_decode_per_position_acceptance_rates": rates,
        "spec_decode_acceptance_length": 1.0 + sum(rates),
        "spec_decode_num_drafts": 1000 * c,
    }


def on_true_machine(point: MeasuredPoint) -> dict[str, object]:
    """The benchmark of the point's server on a machine with other constants than the profile's."""
    built = scenario(point)
    cost = Calibrated(built.cost, own_numbers(point), TRUE)
    result = simulate(replace(built, cost=cost), build_requests(point.workload, 7), 7)
    return dict(benchmark(result).as_dict())


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """Server arguments and results of a machine with the TRUE numbers."""
    folder = tmp_path_factory.mktemp("bench")
    serve = folder / "args.yaml"
    serve.write_text(SERVE, encoding="utf-8")
    paths = []
    for c, k in LOADS:
        path = folder / f"c{c}-k{k}.json"
        path.write_text(json.dumps(result((c, k))), encoding="utf-8")
        paths.append(path)
    for path, point in zip(paths, read_benches(paths, serve).points, strict=True):
        keep = {key: value for key, value in on_true_machine(point).items() if key.endswith("_ms")}
        path.write_text(json.dumps(json.loads(path.read_text()) | keep), encoding="utf-8")
    return serve, paths


@pytest.fixture(scope="module")
def points(bench: tuple[Path, list[Path]]) -> list[MeasuredPoint]:
    """The results as points."""
    serve, paths = bench
    return list(read_benches(paths, serve).points)


def test_a_machine_with_other_constants_is_recovered(points: list[MeasuredPoint]) -> None:
    found = calibrate(points)
    assert found.numbers.scale == pytest.approx(TRUE.scale, rel=0.02)
    assert found.numbers.step_s == pytest.approx(TRUE.step_s, abs=0.5e-3)
    assert found.numbers.sequence_s == pytest.approx(TRUE.sequence_s, abs=5e-6)
    assert np.abs(found.errors_pct).max() < 1.5
    assert np.abs(found.left_out_pct).max() < 3.0
    assert np.abs(found.before_pct).mean() > 5.0


def test_a_number_left_out_keeps_the_profiles_value(points: list[MeasuredPoint]) -> None:
    found = calibrate(points, ["scale"])
    own = own_numbers(points[0])
    assert (found.numbers.step_s, found.numbers.sequence_s) == (own.step_s, own.sequence_s)
    assert np.abs(found.errors_pct).mean() < np.abs(found.before_pct).mean()


def test_the_acceptance_is_pooled_over_the_results(points: list[MeasuredPoint]) -> None:
    found = calibrate(points, ["scale"])
    assert found.by_position == pytest.approx([0.75 * 0.8**i for i in range(5)], rel=1e-6)


def test_one_load_does_not_identify_the_host(points: list[MeasuredPoint]) -> None:
    same = [replace(points[1], name=str(i)) for i in range(5)]
    with pytest.raises(Unidentified, match=r"60 sequences a step, one load.*--fit scale\)"):
        calibrate(same)


def test_too_few_results_are_refused_with_what_to_do(points: list[MeasuredPoint]) -> None:
    with pytest.raises(Unidentified, match="give at least 4 at different loads"):
        calibrate(points[:3])


def test_the_refusal_names_the_number_that_is_not_identified() -> None:
    measured = np.array([0.03, 0.03, 0.031, 0.032])
    design = np.array([[0.02, 1.0, 1.0], [0.02, 1.0, 2.0], [0.02, 1.0, 64.0], [0.02, 1.0, 128.0]])
    with pytest.raises(Unidentified, match=r"scale of kernel time|host time per step"):
        calibration.refuse_unidentified(design, measured, ["scale", "step", "sequence"])
    calibration.refuse_unidentified(design, measured, ["step", "sequence"])


def test_both_kinds_of_scheduling_are_not_mixed(points: list[MeasuredPoint]) -> None:
    other = replace(points[0], placement=replace(points[0].placement, async_scheduling=False))
    with pytest.raises(Unidentified, match="asynchronous"):
        calibrate([*points, other])


def test_a_number_below_zero_is_held_at_zero() -> None:
    design = np.array([[0.01 * n, 1.0, float(n)] for n in (1, 2, 5, 9)])
    design[:, 0] += np.array([0.0, 0.003, 0.001, 0.004])
    numbers, at_zero = solve(design, design @ np.array([1.1, -1e-3, 1e-5]), TRUE, calibration.NUMBERS)
    assert "step" in at_zero
    assert numbers.step_s == 0.0


def test_the_command_writes_a_profile_that_the_catalogue_takes(
    bench: tuple[Path, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve, paths = bench
    out = tmp_path / "mine.yaml"
    assert calibrate_command(paths, serve=serve, out=out) == 0
    assert "when left out" in capsys.readouterr().out
    written = yaml.safe_load(out.read_text(encoding="utf-8"))
    scale = written.pop("kernel_time_scale")
    assert scale == pytest.approx(TRUE.scale, rel=0.02)
    profile = catalog.engine_profile(written)
    assert profile.host_async_s == pytest.approx(TRUE.step_s, abs=0.5e-3)
    acceptance = yaml.safe_load((tmp_path / "mine.acceptance.yaml").read_text(encoding="utf-8"))
    assert acceptance["by_position"][0] == pytest.approx(0.75)
    assert acceptance["concentration_range"][0] <= 27.0 <= acceptance["concentration_range"][1]


def test_the_command_says_why_it_cannot(
    bench: tuple[Path, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve, paths = bench
    out = tmp_path / "mine.yaml"
    assert calibrate_command([paths[0], paths[-1]], serve=serve, out=out) == 1
    assert "cannot calibrate: 2 results" in capsys.readouterr().err
    assert not out.exists()


def test_an_unknown_number_is_the_users_fault(bench: tuple[Path, list[Path]], tmp_path: Path) -> None:
    serve, paths = bench
    with pytest.raises(InputFaults, match="names none to fit"):
        calibrate_command(paths, serve=serve, out=tmp_path / "x.yaml", fit="speed")
