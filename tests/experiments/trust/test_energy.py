"""Energy of a run: by hand, against plain decoding, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.experiments.run.costs.energy import COST, GPU_MS, RANGE, energy_of
from specfleet.experiments.run.costs.ratio import ENERGY, energy_against, energy_ratio
from specfleet.experiments.run.pools import steps_of
from specfleet.experiments.run.results import Row
from specfleet.experiments.words.answer import Compared
from specfleet.experiments.words.costs.energy import FROM, energy_said
from specfleet.hardware.power.draw import IDLE_SHARE, KINDS, SHARES
from specfleet.sim.simulation import simulate

FILE = (
    "serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm}\n"
    "workload: {input_len: 200, output_len: 20, max_concurrency: 2, num_prompts: 12}\n"
    "client: none\n"
)


def found(folder: Path, *overrides: str) -> tuple[dict[str, float], float, int]:
    """The energy of a run, how long it took, and its tokens."""
    file = folder / "x.yaml"
    file.write_text(FILE)
    config = expand(load_experiment(file, overrides))[0].config
    built = build(config)
    result = simulate(built.scenario, requests(config, 0), 0)
    ends = np.asarray(result.iterations["end_s"])
    took = float(ends.max() - np.asarray(result.iterations["start_s"]).min())
    return energy_of(built, steps_of(result, built)), took, int(result.iterations["output_tokens"].sum())


def test_joules_watts_dollars_and_shares_of_a_run_are_one_sum(tmp_path: Path) -> None:
    figures, took, tokens = found(tmp_path)
    assert tokens == 12 * 20
    assert figures[GPU_MS] == pytest.approx(1e3 * took / tokens)
    assert figures[COST] == pytest.approx(1e6 * 3.9 / 3600 * took / tokens)
    assert figures[ENERGY] == pytest.approx(figures["mean_gpu_w"] * took / tokens)
    shares = {kind: figures[f"gpu_{kind}_share"] for kind in KINDS}
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.02), "one engine that is never idle"
    drawn = IDLE_SHARE + (1 - IDLE_SHARE) * sum(SHARES[kind].middle * shares[kind] for kind in KINDS)
    assert figures["mean_gpu_w"] == pytest.approx(700 * drawn)
    assert figures[RANGE[0]] < figures[RANGE[1]] < figures[RANGE[2]]


def test_twice_the_gpus_with_nothing_to_do_add_their_idle_power(tmp_path: Path) -> None:
    one, took, tokens = found(tmp_path, "workload.max_concurrency=1", "workload.num_prompts=3")
    two, took_two, _ = found(
        tmp_path, "workload.max_concurrency=1", "workload.num_prompts=3", "deployment.replicas=2"
    )
    assert took_two == pytest.approx(took)
    assert two[ENERGY] - one[ENERGY] == pytest.approx(70.0 * took / tokens)


def test_a_gpu_of_unknown_board_power_has_a_price_and_no_joules(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(FILE)
    config = expand(load_experiment(file))[0].config
    built = build(config)
    steps = steps_of(simulate(built.scenario, requests(config, 0), 0), built)
    (pool,) = built.pools
    figures = energy_of(replace(built, pools=(replace(pool, tdp_w=None),)), steps)
    assert figures.keys() == {COST, GPU_MS}
    figures = energy_of(replace(built, pools=(replace(pool, per_hour_usd=None),)), steps)
    assert COST not in figures and ENERGY in figures


FIGURES = st.builds(
    lambda shares, joules: {
        **{f"gpu_{kind}_share": share for kind, share in zip(KINDS, shares, strict=True)},
        ENERGY: joules,
    },
    st.lists(st.floats(0.0, 0.33), min_size=3, max_size=3),
    st.floats(1e-3, 1e3),
)


@given(FIGURES, FIGURES)
def test_a_ratio_lies_in_its_range_and_turned_round_is_one_over_it(
    mine: dict[str, float], plain: dict[str, float]
) -> None:
    ratio, turned = energy_ratio(mine, plain), energy_ratio(plain, mine)
    assert ratio is not None and turned is not None
    assert ratio[0] <= ratio[1] * (1 + 1e-12) and ratio[1] <= ratio[2] * (1 + 1e-12)
    assert ratio == pytest.approx((1 / turned[2], 1 / turned[1], 1 / turned[0]))


@given(FIGURES, st.floats(0.1, 10.0))
def test_the_same_use_of_a_gpu_for_less_time_is_a_ratio_without_a_range(
    plain: dict[str, float], factor: float
) -> None:
    ratio = energy_ratio({**plain, ENERGY: factor * plain[ENERGY]}, plain)
    assert ratio == pytest.approx((factor, factor, factor))


def test_no_energy_is_compared_where_a_seed_has_none() -> None:
    known = {**{f"gpu_{kind}_share": 0.2 for kind in KINDS}, ENERGY: 1.0}
    assert energy_against([(known, known), ({}, known)]) == {}
    assert set(energy_against([(known, known)]).values()) == {1.0}


def said(ratios: dict[int, tuple[float, float, float]]) -> list[str]:
    """The sentences of K = 3 over loads."""
    names = ("energy_x_plain_low", "energy_x_plain", "energy_x_plain_high")
    rows: tuple[Row, ...] = tuple(
        {"load": load, "K": k, **(dict(zip(names, ratio, strict=True)) if k else {})}
        for load, ratio in ratios.items()
        for k in (0, 3)
    )
    return energy_said([Compared(rows, {"K": 0}, "load")], 0.02)


def test_energy_is_saved_where_the_whole_range_is_below_one_and_costs_where_it_is_above() -> None:
    first, source = said({1: (0.5, 0.52, 0.55), 64: (0.93, 0.99, 1.04), 256: (1.03, 1.05, 1.08)})
    assert "0.52 (0.50 to 0.55) at 1" in first
    assert first.endswith("it saves energy at 1; costs energy at 256; is not settled at 64.")
    assert source == FROM


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert said({}) == []
