"""Validation: rows become scenarios by general rules, and errors are counted as documented."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_rows import write

from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.validate import profiles
from specfleet.experiments.validate.acceptance import predicted_acceptance
from specfleet.experiments.validate.columns import CsvRow, bench_point
from specfleet.experiments.validate.command import validate_command
from specfleet.experiments.validate.points import (
    METRICS,
    MeasuredPoint,
    Unusable,
)
from specfleet.experiments.validate.runs import Scored, closed_form, in_mode, predict, without_drafter
from specfleet.experiments.validate.sample import drawn_by_position, levelled_requests, matched
from specfleet.experiments.validate.score import block, by_load, ratios
from specfleet.hardware import catalog
from specfleet.hardware.placement import Placement
from specfleet.sim.speculation.depth import CountedAt, known
from specfleet.sim.speculation.families import FAMILIES
from specfleet.workloads.lengths import Capped

PLAIN = {
    "run_id": "plain-c4",
    "quality_flag": "ok",
    "campaign": "q32_tp1_lrz",
    "target_model": "Qwen/Qwen3-32B",
    "gpu": "NVIDIA H100 94GB (HGX board)",
    "gpu_hbm_peak_tb_per_s_assumed": "2.4",
    "tp": "1",
    "p2p": "n/a",
    "engine": "vLLM",
    "engine_version": "0.1.dev13107+ge1a34c3a5",
    "async_scheduling": "True",
    "max_num_seqs": "1024",
    "max_num_batched_tokens": "8192",
    "max_model_len_tokens": "5000",
    "gpu_memory_utilization": "0.9",
    "kv_pool_tokens": "69232",
    "method": "none",
    "K": "0",
    "dataset": "InstructCoder",
    "request_rate_rps": "4.0",
    "burstiness": "1.0",
    "max_concurrency": "4",
    "num_prompts": "20",
    "output_cap_tokens": "200",
    "mean_input_tokens_per_request": "144.5",
    "mean_output_tokens_per_request": "200.0",
    "tpot_mean_ms": "34.2",
    "tpot_p99_ms": "34.9",
    "output_throughput_tok_s": "115",
}
DRAFTED = PLAIN | {
    "run_id": "drafted-c4",
    "method": "eagle3",
    "draft_model": "RedHatAI/Qwen3-32B-speculator.eagle3",
    "K": "2",
    "draft_rounds": "2000",
    "acceptance_length_exact": "2.02",
    "accept_pos1": "0.62",
    "accept_pos2": "0.40",
    "tpot_mean_ms": "18.5",
    "tpot_p99_ms": "20",
    "output_throughput_tok_s": "210",
}


def point(cells: Mapping[str, str], frozen: bool = False) -> MeasuredPoint:
    """The point of a row."""
    return bench_point("test", CsvRow(cells), frozen)


def scored(cells: Mapping[str, str], **predicted: float) -> Scored:
    """A row with a prediction typed in."""
    return Scored(point(cells), predicted)


def test_what_a_servers_command_line_says_counts_where_a_column_does_not() -> None:
    said = "--model-path zai-org/GLM-4.5-Air --tp-size 4 --ep-size 4 --gpu-memory-utilization 0.85"
    glm = PLAIN | {"target_model": "zai-org/GLM-4.5-Air", "gpu": "H200", "tp": "4", "serve_flags": said}
    place = point(glm | {"gpu_memory_utilization": ""}).placement
    assert place.expert_parallel_size == 4 and place.gpu_memory_utilization == 0.85
    assert point(glm | {"ep": "1", "gpu_memory_utilization": "0.8"}).placement.expert_parallel_size == 1
    older = PLAIN | {"engine": "vLLM", "engine_version": "0.11.0", "async_scheduling": ""}
    assert not point(older).placement.async_scheduling
    assert point(older | {"serve_flags": "Qwen/Qwen3-32B --async-scheduling"}).placement.async_scheduling


def test_stages_of_another_engine_than_vllm_are_not_scored() -> None:
    with pytest.raises(Unusable, match="under vLLM's scheduler alone"):
        point(PLAIN | {"engine": "SGLang", "engine_version": "0.5.3", "serve_flags": "--pp-size 4"})


def test_hardware_comes_from_the_rows_columns() -> None:
    two = PLAIN | {"gpu": "NVIDIA H100 80GB", "gpu_mem_total_gib": "79.1", "p2p": "unavailable", "tp": "2"}
    place = point(two | {"gpu_hbm_peak_tb_per_s_assumed": "2.0"}).placement
    assert place.accelerator.name == "h100-sxm"
    assert place.accelerator.hbm_bytes == round(79.1 * 2**30)
    assert place.accelerator.hbm_bytes_per_s == pytest.approx(2.07e12)
    assert not place.accelerator.p2p
    assert place.tensor_parallel_size == 2


def test_a_bandwidth_class_that_was_not_fitted_is_taken_as_it_is() -> None:
    assert point(
        PLAIN | {"gpu_hbm_peak_tb_per_s_assumed": "2.9"}
    ).placement.accelerator.hbm_bytes_per_s == pytest.approx(2.9e12)


def test_frozen_takes_the_published_constants() -> None:
    place = point(PLAIN, frozen=True).placement
    assert place.accelerator.hbm_bytes_per_s == pytest.approx(2.4e12)
    assert (place.profile.host_async_s, place.profile.host_async_s_per_request) == pytest.approx(
        (0.5e-3, 15e-6)
    )
    assert (place.profile.host_sync_s, place.profile.host_sync_s_per_request) == pytest.approx(
        (2.1e-3, 28e-6)
    )
    assert place.profile.arithmetic_rate == 0.8


def test_the_host_belongs_to_the_campaign_and_an_unknown_one_keeps_the_profiles() -> None:
    own = profiles.engine("vllm-2026-01")
    faster = point(PLAIN | {"campaign": "q32_bs1_brev"}).placement.profile
    assert faster.host_sync_s == pytest.approx(0.9e-3)
    assert point(PLAIN | {"campaign": "somewhere else"}).placement.profile == own


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA H100 80GB HBM3 (SXM5)", "h100-sxm"),
        ("NVIDIA H100 80GB (form factor not stated; PCIe more likely than SXM)", "h100-sxm"),
        ("H100 PCIe", "h100-pcie"),
        ("H200 SXM 141GB (scheduler partition)", "h200"),
        ("b200_sxm", "b200"),
        ("h100-94gb", "h100-94gb"),
    ],
)
def test_a_gpu_is_known_by_what_stands_before_the_bracket(text: str, name: str) -> None:
    assert profiles.gpu(text).name == name


@pytest.mark.parametrize("text", ["H100 SXM 80GB / H200 141GB", "RTX 4090", "not stated (H100?)"])
def test_a_cell_that_names_no_gpu_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="unknown GPU"):
        profiles.gpu(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vLLM 0.1.dev13107+ge1a34c3a5", "vllm-2026-01"),
        ("vLLM 0.11.0", "vllm-0.11"),
        ("vLLM 0.33.0", "vllm-0.33"),
        ("SGLang 0.5.3", "sglang-2025"),
        ("SGLang v0.4.4", "sglang-0.4"),
        ("SGLang (version not stated, Dec 2025-era)", "sglang-2025"),
        ("SGLang 0.5.23", "sglang"),
        ("SGLang", "sglang"),
        ("TensorRT-LLM 1.2.0rc1", "trtllm"),
    ],
)
def test_an_engine_version_has_a_profile(text: str, name: str) -> None:
    assert profiles.engine(text).name == name


def test_a_ratio_to_plain_decoding_counts_each_side_by_its_own_loop() -> None:
    """SGLang of 2025 overlapped plain decoding and not its rounds; today both are."""
    loops = {}
    for engine in ("sglang-2025", "sglang"):
        place = Placement.of(
            catalog.model("llama-3.1-8b-instruct"),
            catalog.accelerator("h200"),
            catalog.engine_profile(engine),
            drafter=catalog.drafter("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
            num_speculative_tokens=3,
        )
        loops[engine] = place.async_scheduling, without_drafter(place).async_scheduling
    assert loops == {"sglang-2025": (False, True), "sglang": (True, True)}


def test_concentration_is_named_by_target_drafter_family_and_data() -> None:
    qwen, llama = profiles.model("Qwen/Qwen3-32B"), profiles.model("llama-3.3-70b")
    assert profiles.concentration(llama, "eagle3", "InstructCoder") == 18
    assert math.isinf(profiles.concentration(qwen, "draft_model", "InstructCoder"))
    assert profiles.concentration(qwen, "eagle3", "MT-Bench") == 50
    assert profiles.concentration(qwen, "eagle3", "a new data set") == 27


def test_every_row_lacking_what_it_needs_is_skipped_with_the_column() -> None:
    for column in ("gpu", "tp", "num_prompts", "mean_input_tokens_per_request"):
        with pytest.raises(Unusable, match=f"{column} is empty"):
            point(PLAIN | {column: ""})
    with pytest.raises(Unusable, match="accept_pos2 is empty"):
        point(DRAFTED | {"accept_pos2": "", "acceptance_length_exact": ""})
    with pytest.raises(Unusable, match="quality_flag is smoke"):
        point(PLAIN | {"quality_flag": "smoke"})


def test_what_the_engine_profile_knows_may_be_empty() -> None:
    row = {k: v for k, v in PLAIN.items() if k not in ("max_num_seqs", "async_scheduling", "run_id")}
    assert point(row).placement.async_scheduling


@pytest.mark.parametrize("column", ["target_model", "gpu", "engine"])
def test_an_unknown_name_is_an_error(column: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        point(PLAIN | {column: "never heard of"})


def test_outputs_at_the_cap_are_all_alike_and_others_keep_their_mean() -> None:
    assert point(PLAIN).workload.output.mean == 200.0
    law = point(PLAIN | {"mean_output_tokens_per_request": "146"}).workload.output
    assert isinstance(law, Capped)
    assert law.mean == pytest.approx(146, abs=0.5)
    assert law.maximum == 200


def test_prompts_have_the_rows_mean() -> None:
    assert point(PLAIN).workload.input.mean == pytest.approx(144.5, abs=0.5)


def test_lengths_drawn_have_the_laws_mean_and_the_seeds_order() -> None:
    spec = point(PLAIN | {"mean_output_tokens_per_request": "146", "num_prompts": "50"}).workload
    means = [levelled_requests(spec, seed).output_tokens.mean() for seed in range(4)]
    assert means == pytest.approx([spec.output.mean] * 4, rel=0.01)
    assert not np.array_equal(
        levelled_requests(spec, 0).prompt_tokens, levelled_requests(spec, 1).prompt_tokens
    )


@settings(max_examples=8, deadline=None)
@given(st.lists(st.floats(0.2, 0.95), min_size=1, max_size=5), st.sampled_from([5.0, 18.0, math.inf]))
def test_the_acceptance_drawn_is_the_one_measured(conditional: list[float], spread: float) -> None:
    target = tuple(np.cumprod(conditional).tolist())
    row = point(DRAFTED | {"num_prompts": "50"})
    assert row.acceptance is not None
    table = levelled_requests(row.workload, 3)
    spec = replace(row.acceptance, by_position=target, concentration=spread)
    drawn = drawn_by_position(matched(spec, len(target), table, 3), len(target), table, 3)
    assert drawn == pytest.approx(target, abs=0.02)


def test_predicted_acceptance_never_uses_the_row_nor_its_k() -> None:
    mine = point(DRAFTED)
    same_k = point(DRAFTED | {"max_concurrency": "8", "accept_pos1": "0.1", "accept_pos2": "0.1"})
    other_k = point(DRAFTED | {"K": "1", "accept_pos1": "0.5"})
    found = predicted_acceptance(mine, [mine, same_k, other_k])
    assert found is not None
    counted = CountedAt(1, (0.5,), rounds=other_k.rounds)
    assert found.by_position == known(FAMILIES["eagle3"], [counted]).by_position(2)
    stand_in = predicted_acceptance(mine, [mine, same_k])
    assert stand_in is not None
    assert stand_in.by_position == pytest.approx((0.1, 0.1))
    assert predicted_acceptance(mine, [mine]) is None


def test_rows_that_no_other_predicts_are_left_out_of_that_mode() -> None:
    points, lost = in_mode([point(PLAIN), point(DRAFTED)], "predicted")
    assert ([p.k for p in points], lost) == ([0], 1)


def test_errors_are_percent_and_steps_are_counted_in_steps() -> None:
    cells = PLAIN | {"ttft_median_ms": "105", "itl_median_ms": "35"}
    one = scored(cells, tpot_mean_ms=34.2 * 1.1, ttft_steps=3.25)
    assert one.errors() == pytest.approx({"tpot_mean_ms": 10.0, "ttft_steps": 0.25})


def test_a_median_gap_that_no_step_can_have_is_not_scored() -> None:
    both = PLAIN | {"ttft_median_ms": "105"}
    assert "itl_median_ms" in point(both | {"itl_median_ms": "0.1"}).measured
    read_together = point(both | {"itl_median_ms": "0.07"}).measured
    assert "itl_median_ms" not in read_together and "ttft_steps" not in read_together
    assert "ttft_median_ms" in read_together


def test_the_bands_split_at_64_and_an_open_loop_is_in_neither() -> None:
    rows = [
        scored(PLAIN | {"max_concurrency": c, "request_rate_rps": c}, tpot_mean_ms=34.2)
        for c in ("64", "128")
    ]
    rows.append(scored(PLAIN | {"max_concurrency": "", "request_rate_rps": "3"}, tpot_mean_ms=34.2))
    assert [len(by_load(rows, high)) for high in (False, True)] == [1, 1]
    assert block(rows)["tpot_mean_ms"]["n"] == 3


def test_mt_bench_at_32_users_is_kept_apart_in_throughput_only() -> None:
    cells = PLAIN | {"dataset": "MT-Bench", "max_concurrency": "32", "request_rate_rps": "32"}
    rows = [scored(cells, tpot_mean_ms=34.2, output_throughput=120.0)]
    assert set(block(rows)) == {"tpot_mean_ms"}
    assert set(block(rows, transient=True)) == {"output_throughput"}


def test_a_slow_down_is_right_when_the_prediction_is_below_the_plain_server() -> None:
    plain = scored(PLAIN, output_throughput=115.0, tpot_p99_ms=34.9)
    slow = DRAFTED | {"output_throughput_tok_s": "100", "tpot_p99_ms": "40"}
    seen = scored(slow, output_throughput=110.0, tpot_p99_ms=39.0)
    missed = scored(slow, output_throughput=120.0, tpot_p99_ms=30.0)
    found = ratios([plain, seen, missed])
    for metric in ("output_throughput", "tpot_p99_ms"):
        assert (found[metric]["n"], found[metric]["slowdowns"], found[metric]["slowdowns_right"]) == (2, 2, 1)
    itself = found["output_throughput"]
    assert (itself["itself_mean_abs_pct"], itself["itself_worst_abs_pct"]) == pytest.approx((15.0, 20.0))
    elsewhere = scored(PLAIN | {"campaign": "another"}, output_throughput=1.0)
    assert ratios([elsewhere, seen]) == {}


def test_the_closed_form_agrees_with_the_simulation_at_small_load() -> None:
    for cells in (PLAIN, DRAFTED):
        row = point(cells | {"request_rate_rps": "inf"})
        exact = predict(row, 2, "simulate").predicted["tpot_mean_ms"]
        assert closed_form(row)["tpot_mean_ms"] == pytest.approx(exact, rel=0.05)


def test_the_closed_form_refuses_an_open_loop() -> None:
    row = point(PLAIN | {"max_concurrency": "", "request_rate_rps": "3"})
    assert "closed loop" in predict(row, 1, "closed_form").failure


def test_the_json_has_the_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "points.csv", [PLAIN, DRAFTED, PLAIN | {"quality_flag": "bad"}])
    figure = tmp_path / "figure.svg"
    assert validate_command([path], seeds=1, jobs=1, as_json=True, figure=figure, quiet=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= {"overall", "c<=64", "c>64", "groups", "ratios", "rows_scored", "skipped"}
    assert set(found["overall"]) <= set(METRICS)
    keys = {"n", "median_abs_pct", "mean_abs_pct", "p90_abs_pct", "worst_abs_pct", "bias_pct"}
    assert set(found["overall"]["tpot_mean_ms"]) == keys
    assert found["rows_scored"] == 2
    assert found["skipped"] == [{"reason": "quality_flag is bad", "n": 1}]
    assert set(found["ratios"]["output_throughput"]) == {
        "n", "mean_abs_pct", "worst_abs_pct", "itself_mean_abs_pct", "itself_worst_abs_pct", "slowdowns",
        "slowdowns_right"
    }  # fmt: skip
    assert {"model", "gpu", "method", "k", "concurrency"} <= set(found["groups"][0]["group"])
    assert figure.exists()


def test_the_exit_status_tells_a_model_that_is_off(tmp_path: Path) -> None:
    path = write(tmp_path / "points.csv", [PLAIN])
    assert validate_command([path], seeds=1, jobs=1, quiet=True, max_mape=10.0) == 0
    assert validate_command([path], seeds=1, jobs=1, quiet=True, max_mape=0.01) == 1


def test_an_unknown_model_is_said_and_the_rest_is_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "points.csv", [PLAIN, PLAIN | {"target_model": "acme/none-of-yours"}])
    assert validate_command([path], seeds=1, jobs=1, quiet=True) == 2
    out, err = capsys.readouterr()
    assert "acme/none-of-yours" in err
    assert "1 rows scored" in out


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "other.csv", [{"a": "1"}])
    with pytest.raises(InputFaults, match="no column target_model"):
        validate_command([path], quiet=True)
    with pytest.raises(InputFaults, match="--mode"):
        validate_command([path], mode="guessed")
