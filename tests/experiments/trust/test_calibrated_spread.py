"""The spread between requests that `calibrate` fits: its interval holds the truth of our own output."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from specfleet.experiments.calibrate.command import acceptance_yaml, calibrate_command
from specfleet.experiments.calibrate.fit import calibrate
from specfleet.experiments.calibrate.spread import (
    FittedSpread,
    Relation,
    fitted_spread,
    relation,
)
from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.validate.bench import read_bench, read_benches
from specfleet.experiments.validate.points import MeasuredPoint, scenario
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import simulate
from specfleet.workloads.build import build_requests

TRUTHS = (9.0, 18.0, 50.0, 200.0, math.inf)
SEEDS = range(20, 28)

SERVE = """
serve:
  engine: vllm-0.33
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 4096
  speculative_config:
    method: eagle3
    model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
    num_speculative_tokens: 3
"""


def result(concurrency: int, rates: tuple[float, ...] = (0.7, 0.5, 0.36), n: int = 120) -> dict[str, object]:
    """What a benchmark prints beside its times."""
    plain: dict[str, object] = {
        "completed": n,
        "total_input_tokens": 300 * n,
        "total_output_tokens": 100 * n,
        "max_concurrency": concurrency,
        "request_rate": "inf",
        "mean_tpot_ms": 1.0,
        "mean_itl_ms": 1.0,
    }
    if not rates:
        return plain
    return plain | {
        "spec_decode_per_position_acceptance_rates": rates,
        "spec_decode_acceptance_length": 1.0 + sum(rates),
        "spec_decode_num_drafts": 1000,
    }


def simulated(point: MeasuredPoint, concentration: float, seed: int) -> dict[str, float]:
    """The figures of the point's server with a spread."""
    acceptance = {"": replace(point.acceptance, concentration=concentration)} if point.acceptance else {}
    built = replace(scenario(point), acceptance=acceptance)
    return dict(benchmark(simulate(built, build_requests(point.workload, seed), seed)).numbers())


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[MeasuredPoint]:
    """Two loads of one server, without times yet."""
    folder = tmp_path_factory.mktemp("spread")
    (folder / "args.yaml").write_text(SERVE, encoding="utf-8")
    found = []
    for concurrency in (8, 32):
        path = folder / f"c{concurrency}.json"
        path.write_text(json.dumps(result(concurrency)), encoding="utf-8")
        found.append(read_bench(path, folder / "args.yaml"))
    return found


@pytest.fixture(scope="module")
def at(points: list[MeasuredPoint]) -> Relation:
    """P99 / mean against the spread, of both."""
    return relation(points)


def test_the_interval_holds_the_truth_on_our_own_output(points: list[MeasuredPoint], at: Relation) -> None:
    # A draw counts for both loads: the same requests and luck, as in a user's own results.
    held = {}
    for truth in TRUTHS:
        fits = []
        for seed in SEEDS:
            figures = [simulated(point, truth, seed) for point in points]
            measured = [math.log(one["p99_tpot_ms"] / one["mean_tpot_ms"]) for one in figures]
            fits.append(at.spread(float(np.mean(measured)), len(points)))
        held[truth] = sum(one.low <= truth <= one.high for one in fits)
    assert all(n >= len(SEEDS) - 2 for n in held.values()), held
    assert sum(held.values()) >= 0.9 * len(SEEDS) * len(TRUTHS), held


@pytest.mark.parametrize("truth", [9.0, math.inf])
def test_the_command_writes_the_spread_that_made_the_results(truth: float, tmp_path: Path) -> None:
    serve, paths = tmp_path / "args.yaml", []
    serve.write_text(SERVE, encoding="utf-8")
    for concurrency, rates in ((1, ()), (64, ()), (8, (0.7, 0.5, 0.36)), (32, (0.7, 0.5, 0.36))):
        path = tmp_path / f"c{concurrency}-{len(rates)}.json"
        path.write_text(json.dumps(result(concurrency, rates)), encoding="utf-8")
        paths.append(path)
    for path, point in zip(paths, read_benches(paths, serve).points, strict=True):
        figures = simulated(point, truth, 3)
        times = {key: value for key, value in figures.items() if key.endswith("_ms")}
        path.write_text(json.dumps(json.loads(path.read_text()) | times), encoding="utf-8")
    assert calibrate_command(paths, serve=serve, out=tmp_path / "mine.yaml", fit="scale") == 0
    block = yaml.safe_load((tmp_path / "mine.acceptance.yaml").read_text(encoding="utf-8"))
    low, high = block["concentration_range"]
    assert low <= truth <= high
    assert low <= block["concentration"] <= high
    assert low > 2.5, "says something"
    experiment = tmp_path / "next.yaml"
    experiment.write_text(
        SERVE + yaml.safe_dump({"acceptance": block, "workload": {"input_len": 9, "output_len": 9}}),
        encoding="utf-8",
    )
    load_experiment(experiment)


def test_more_spread_reads_as_less_concentration_and_what_is_beyond_as_the_end(at: Relation) -> None:
    fits = [at.spread(ratio, 1) for ratio in (0.0, 0.2, 0.4, 0.6, 9.0)]
    values = [one.concentration for one in fits]
    assert values == sorted(values, reverse=True)
    assert fits[0].concentration == fits[0].high == math.inf
    assert fits[-1].concentration == fits[-1].low == pytest.approx(2.5)
    assert all(one.low <= one.concentration <= one.high for one in fits)
    assert all(one.low < one.high for one in fits), "however far beyond, luck is left"


def test_results_of_the_same_prompts_are_not_counted_as_many(points: list[MeasuredPoint]) -> None:
    # The same result twice scatters as it does once: no more is known.
    few = replace(points[0], workload=replace(points[0].workload, num_prompts=20))
    np.testing.assert_allclose(relation([few, few]).drawn, relation([few]).drawn)


def test_without_a_p99_or_drafts_nothing_is_fitted_and_nothing_is_written(
    points: list[MeasuredPoint],
) -> None:
    mean = replace(points[0], measured={"tpot_mean_ms": 10.0, "itl_mean_ms": 20.0})
    assert fitted_spread([mean]) is None
    assert fitted_spread([replace(mean, acceptance=None)]) is None
    text = acceptance_yaml([mean], calibrate([mean, mean], ["scale"]), None)
    assert "concentration" not in yaml.safe_load(text)


def test_an_interval_that_is_one_number_is_no_range() -> None:
    assert FittedSpread(18.04, 18.01, 18.04, 3).block() == {"concentration": 18.0}
    block = FittedSpread(math.inf, 97.24, math.inf, 3).block()
    assert block == {"concentration": math.inf, "concentration_range": [97.2, math.inf]}
