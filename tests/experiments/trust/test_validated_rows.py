"""What is shipped and what was measured beside the repository is predicted within its bars."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from measured_rows import write

from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.validate.points import (
    Readout,
    pool_tokens,
    scenario,
)
from specfleet.experiments.validate.runs import predict
from specfleet.experiments.validate.score import block
from specfleet.experiments.validate.tables import read_csv
from specfleet.experiments.validate.validation import PUBLISHED, Validation, read_points, validate


def test_the_shipped_table_is_small_complete_and_names_its_sources() -> None:
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    servers: dict[str, int] = {}
    for row in rows:
        servers[row["config_id"]] = servers.get(row["config_id"], 0) + 1
        assert row["source"]
    assert len(rows) <= 60
    assert max(servers.values()) <= 3
    found = read_csv(PUBLISHED, frozen=False)
    assert len(found.points) == len(rows)
    for one in found.points:
        assert scenario(one).engine.num_gpu_blocks > 1


def test_served_points_take_the_closed_form_and_say_what_they_assume(tmp_path: Path) -> None:
    row = {
        "system": "h100_sxm", "backend": "vllm", "model": "llama-3.3-70b", "dtype": "fp8",
        "tensor_parallel_size": "4", "max_concurrency": "8", "input_len": "1024", "output_len": "1024",
        "measured_tpot_ms": "12.5", "measured_ttft_ms": "200",
    }  # fmt: skip
    found = read_csv(write(tmp_path / "served.csv", [row]), frozen=False)
    (one,) = found.points
    assert one.closed_form
    assert one.assumptions
    assert set(predict(one, 1, None).predicted) == {"tpot_mean_ms"}


FIXED = (
    *(f"q32lrz-ic-nosd-c{c}" for c in (1, 16, 128)),
    *(f"q32lrz-ic-e3-k{k}-c{c}" for k in (1, 3, 6) for c in (1, 16, 64)),
    *(f"q32lrz-ic-dm1.7b-k{k}-c{c}" for k in (1, 4) for c in (4, 64)),
    *(f"q32lrz-mt-dm1.7b-k3-c{c}" for c in (2, 16)),
    *(f"l70tp2-ic-nosd-c{c}" for c in (2, 32)),
    *(f"l70tp2-ic-e3-k{k}-c{c}" for k in (3, 7) for c in (4,)),
    *(f"l70tp2-ic-dm1b-k{k}-c{c}" for k in (3, 6) for c in (16,)),
)
"""The rows scored on every change: each server, small and large loads."""


@pytest.fixture
def subset(shared: Path) -> Readout:
    """The fixed rows."""
    readout = read_points([shared / "validation" / "h100_vllm_specdec.csv"], None, frozen=False)
    chosen = [one for one in readout.points if one.name in FIXED]
    return Readout(chosen, readout.skipped, readout.errors)


def test_the_fixed_rows_are_predicted_within_their_bars(subset: Readout) -> None:
    assert len(subset.points) == len(FIXED) == 24
    found = validate(subset, seeds=1, jobs=2, mode="given", method=None, reporter=Reporter(24, quiet=True))
    assert isinstance(found, Validation)
    assert not found.errors
    errors = block(found.scored)
    for metric, mean, worst in (
        ("tpot_mean_ms", 3.0, 8.0),
        ("itl_mean_ms", 3.0, 8.0),
        ("output_throughput", 4.0, 12.0),
        ("tpot_p99_ms", 8.0, 25.0),
        ("ttft_mean_ms", 5.0, 25.0),
        ("kv_pool_tokens", 2.0, 2.0),
        ("ttft_steps", 0.1, 0.3),
    ):
        assert errors[metric]["mean_abs_pct"] <= mean, metric
        assert errors[metric]["worst_abs_pct"] <= worst, metric


def test_every_pool_of_the_shared_file_is_within_two_percent(shared: Path) -> None:
    readout = read_points([shared / "validation" / "h100_vllm_specdec.csv"], None, frozen=False)
    assert len(readout.points) == 218
    for one in readout.points:
        assert pool_tokens(one.placement) == pytest.approx(one.measured["kv_pool_tokens"], rel=0.02), one.name


def test_served_groups_are_within_seven_percent(shared: Path) -> None:
    readout = read_points([shared / "validation" / "served_tpot.csv"], None, frozen=False)
    assert len(readout.points) == 241
    found = validate(readout, seeds=1, jobs=1, mode="given", method=None, reporter=Reporter(0, quiet=True))
    campaigns = {one.point.campaign for one in found.scored}
    for campaign in campaigns:
        group = block(one for one in found.scored if one.point.campaign == campaign)
        assert group["tpot_mean_ms"]["mean_abs_pct"] <= 7.0, campaign
