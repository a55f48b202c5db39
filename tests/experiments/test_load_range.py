"""`sweep.load` finds loads from idle to past saturation, says how, and leaves an ordinary axis behind."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.experiments.load.config import load, resolved
from specfleet.experiments.load.load_range import PAST, concurrencies, rates_between
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.experiments.schema.faults import InputFaults
from specfleet.sim.simulation import simulate

SERVE = "serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm}\n"
OPEN = (
    SERVE
    + "workload: {input_len: 512, output_len: 64, request_rate: 1, num_prompts: 400}\nsweep: {load: auto}\n"
)
CLOSED = SERVE + "workload: {input_len: 512, output_len: 64, num_prompts: 400}\nsweep: {load: auto}\n"
CONCURRENCY, RATE, SPEED = "workload.max_concurrency", "workload.request_rate", "workload.speed"


def written(folder: Path, text: str) -> Path:
    """The text as a file."""
    file = folder / "x.yaml"
    file.write_text(text)
    return file


@given(st.floats(1e-3, 1e4), st.floats(1.0, 50.0))
def test_rates_rise_from_a_twentieth_of_the_weakest_to_past_the_strongest(
    weakest: float, ratio: float
) -> None:
    loads = rates_between(weakest, weakest * ratio)
    assert all(a < b for a, b in pairwise(loads))
    assert loads[0] == pytest.approx(weakest / 20, rel=0.06)
    assert loads[-1] == pytest.approx(1.15 * weakest * ratio, rel=0.06)
    assert any(0.85 <= load / weakest <= 0.95 for load in loads)


@given(st.floats(1.0, 1e6))
def test_concurrencies_begin_with_one_user_and_end_between_1_25_and_2_5_times_those_who_decode(
    users: float,
) -> None:
    loads = concurrencies(users)
    assert loads[0] == 1
    assert all(math.log2(load).is_integer() for load in loads)
    assert all(a < b <= 4 * a for a, b in pairwise(loads))
    assert PAST * users <= loads[-1] <= max(2 * PAST * users, 2)


def served_share(text: str, folder: Path, place: int) -> float:
    """Of what is offered, the share served at one of the loads found."""
    point = expand(load(written(folder, text)).experiment)[place].config
    table = requests(point, 0)
    result = simulate(build(point).scenario, table, 0)
    last_s = float(result.requests["last_chunk_s"].max())
    return float(table.arrival_s[-1]) / last_s


def test_the_smallest_rate_is_served_as_it_comes_and_the_largest_is_not(tmp_path: Path) -> None:
    assert served_share(OPEN, tmp_path, 0) > 0.99
    assert served_share(OPEN, tmp_path, -1) < 0.97


def test_the_loads_become_an_axis_the_first_and_the_completed_file_has_it_and_no_load(tmp_path: Path) -> None:
    text = OPEN.replace("{load: auto}", "{load: auto, axes: {serve.block_size: [16, 32]}}")
    found = load(written(tmp_path, text))
    assert list(found.experiment.sweep.axes) == [RATE, "serve.block_size"]
    assert found.experiment.report.x == RATE
    assert "load:" not in resolved(found.experiment).partition("sweep:")[2].partition("report:")[0]
    again = load(written(tmp_path, resolved(found.experiment)))
    assert again.experiment == found.experiment
    assert any(notice.startswith(f"sweep.load: {RATE} is ") for notice in found.notices)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (OPEN, RATE),
        (CLOSED, CONCURRENCY),
        (CLOSED.replace("load: auto", "load: request_rate"), RATE),
        (
            OPEN.replace("request_rate: 1", "request_rate: .inf").replace(
                "load: auto", "load: max_concurrency"
            ),
            CONCURRENCY,
        ),
    ],
)
def test_the_axis_is_what_the_workload_has_or_what_is_named(tmp_path: Path, text: str, key: str) -> None:
    assert next(iter(load(written(tmp_path, text)).experiment.sweep.axes)) == key


def test_a_trace_on_its_own_times_is_replayed_faster(tmp_path: Path) -> None:
    rows = "".join(f"{second},512,64\n" for second in range(100))
    (tmp_path / "log.csv").write_text("t,n,m\n" + rows)
    trace = "{file: log.csv, columns: {arrival_s: t, input_tokens: n, output_tokens: m}, time_unit: s}"
    rate = load(written(tmp_path, OPEN)).experiment.sweep.axes[RATE]
    traced = load(written(tmp_path, SERVE + f"workload: {{trace: {trace}}}\nsweep: {{load: auto}}\n"))
    assert list(traced.experiment.sweep.axes) == [SPEED]
    assert traced.experiment.sweep.axes[SPEED] == pytest.approx(rate), "one request a second was recorded"


def test_more_replicas_take_more_load(tmp_path: Path) -> None:
    one = load(written(tmp_path, OPEN)).experiment.sweep.axes[RATE]
    four = load(written(tmp_path, OPEN + "deployment: {replicas: 4}\n")).experiment.sweep.axes[RATE]
    assert four[-1] == pytest.approx(4 * float(str(one[-1])), rel=0.06)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            OPEN.replace("load: auto", "load: auto, axes: {workload.request_rate: [1, 2]}"),
            "keep one of the two",
        ),
        (OPEN.replace("load: auto", "load: max_concurrency"), "stay idle; set workload.request_rate to .inf"),
        (OPEN.replace("load: auto", "load: speed"), "there is none; write auto"),
        (
            SERVE
            + "workload: {input_len: 9, output_len: 9, phases: [{num_prompts: 5}]}\nsweep: {load: auto}\n",
            "phases",
        ),
        (
            OPEN + "plan: {gpus_available: {h100-sxm: 2}}\nslo: {ttft_ms: 100}\n",
            "a plan finds the loads",
        ),
        (OPEN.replace("input_len: 512", "input_len: 512000"), "max_model_len"),
    ],
)
def test_what_does_not_go_with_a_load_that_is_found_is_said_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(InputFaults, match=said) as caught:
        load(written(tmp_path, text))
    assert "x.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "key"),
    [
        (
            "{mix: {a: {request_rate: 2, input_len: 99, output_len: 9}, "
            "b: {request_rate: 1, input_len: 9, output_len: 9}}}",
            RATE,
        ),
        (
            "{input_len: 99, output_len: 9, request_rate: 3, "
            "arrivals: {diurnal: {peak_to_trough: 2, period_s: 600}}}",
            RATE,
        ),
        ("{input_len: 99, output_len: 9, max_concurrency: 4, think_time_s: {fixed: 5}}", CONCURRENCY),
    ],
)
def test_rates_of_classes_and_rates_that_change_are_rates(tmp_path: Path, workload: str, key: str) -> None:
    file = written(tmp_path, SERVE + f"workload: {workload}\nsweep: {{load: auto}}\nreport: {{x: {key}}}\n")
    found = load(file).experiment
    assert list(found.sweep.axes) == [key] and found.report.x == key


def test_users_who_think_are_counted_as_users(tmp_path: Path) -> None:
    closed = CLOSED.replace("num_prompts", "max_concurrency: 4, num_prompts")
    busy = load(written(tmp_path, closed)).experiment.sweep.axes[CONCURRENCY]
    slow = closed.replace("num_prompts", "think_time_s: {fixed: 60}, num_prompts")
    thinking = load(written(tmp_path, slow)).experiment.sweep.axes[CONCURRENCY]
    assert float(str(thinking[-1])) >= 4 * float(str(busy[-1]))


def test_pools_and_an_autoscaler_count_with_all_they_may_have(tmp_path: Path) -> None:
    one = load(written(tmp_path, OPEN)).experiment.sweep.axes[RATE]
    pools = "deployment: {pools: {a: {replicas: 1}, b: {replicas: 3}}}\n"
    scaled = "deployment: {autoscale: {metric: concurrency, target: 9, min: 1, max: 4, provision_s: 0}}\n"
    for deployment in (pools, scaled):
        four = load(written(tmp_path, OPEN + deployment)).experiment.sweep.axes[RATE]
        assert float(str(four[-1])) == pytest.approx(4 * float(str(one[-1])), rel=0.06)


def test_what_prompts_share_is_not_computed_again_so_more_of_them_are_served(tmp_path: Path) -> None:
    shared = OPEN.replace("input_len: 512", "input_len: 52, prefix: {tokens: 460}")
    own, found = (load(written(tmp_path, text)).experiment.sweep.axes[RATE] for text in (OPEN, shared))
    assert float(str(found[-1])) > 1.5 * float(str(own[-1]))


def test_sessions_are_refused_since_no_mean_says_what_they_find(tmp_path: Path) -> None:
    text = CLOSED.replace(
        "num_prompts: 400", "max_concurrency: 4, sessions: {turns: {fixed: 3}, think_time_s: {fixed: 1}}"
    )
    with pytest.raises(InputFaults, match=r"x\.yaml:3: sweep\.load: does not know how much"):
        load(written(tmp_path, text))
