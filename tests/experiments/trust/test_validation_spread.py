"""Measured rows of several engines, ranks or stages: how they are read, and what they come to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.validate.bench import read_bench
from specfleet.experiments.validate.columns import CsvRow, bench_point
from specfleet.experiments.validate.offline import offline_point
from specfleet.experiments.validate.parallel import GpuSpread, spread
from specfleet.experiments.validate.points import MeasuredPoint, Unusable, scenario
from specfleet.experiments.validate.runs import predict

DENSE, MIXTURE = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B"
ROW = {
    "target_model": DENSE, "gpu": "h100-sxm", "tp": "1", "engine": "vLLM", "engine_version": "0.33.0",
    "method": "none", "num_prompts": "64", "request_rate_rps": "inf", "max_concurrency": "16",
    "mean_input_tokens_per_request": "100", "mean_output_tokens_per_request": "20", "ignore_eos": "true",
    "max_model_len_tokens": "4096", "tpot_mean_ms": "8", "output_throughput_tok_s": "2000",
}  # fmt: skip


def row(**cells: str) -> MeasuredPoint:
    return bench_point("row", CsvRow(ROW | cells), frozen=False)


def test_ranks_of_a_dense_model_are_replicas_and_of_a_mixture_step_together() -> None:
    dense, mixture = row(dp="4"), row(target_model=MIXTURE, dp="2", ep="2")
    assert (dense.replicas, dense.placement.data_parallel_size, dense.engines) == (4, 1, 4)
    assert (mixture.replicas, mixture.placement.data_parallel_size, mixture.engines) == (1, 2, 2)
    there = scenario(dense).deployment, scenario(mixture).deployment
    assert [(each.replicas, each.lockstep) for each in there] == [(4, 1), (2, 2)]
    assert {each.router for each in there} == {"least_outstanding"}
    alone = scenario(row()).deployment
    assert (alone.replicas, alone.router, alone.lockstep) == (1, "round_robin", 1)


@pytest.mark.parametrize(
    ("model", "tp", "dp", "flag", "there"),
    [
        (MIXTURE, 8, 1, True, GpuSpread(1, 8)),
        (MIXTURE, 8, 2, True, GpuSpread(4, 2)),
        (MIXTURE, 2, 4, False, GpuSpread(2, 4)),
        (DENSE, 2, 4, False, GpuSpread(2, 1, 4)),
    ],
)
def test_dp_attention_is_over_the_gpus_of_tp(
    model: str, tp: int, dp: int, flag: bool, there: GpuSpread
) -> None:
    assert spread(lookups.model(model), tp, dp, 1, flag) == there


def test_attention_of_a_dense_model_alone_is_not_data_parallel_and_ranks_divide_the_gpus() -> None:
    with pytest.raises(ValueError, match="has no experts"):
        spread(lookups.model(DENSE), 8, 1, 1, True)
    with pytest.raises(ValueError, match="3 ranks of DP attention do not divide 8 GPUs"):
        spread(lookups.model(MIXTURE), 8, 3, 1, True)
    with pytest.raises(Unusable, match="has no experts"):
        row(dp_attention="true")


def test_four_replicas_serve_four_times_the_users_of_one_alike() -> None:
    one, four = (
        predict(row(), 1, None),
        predict(row(dp="4", max_concurrency="64", num_prompts="256"), 1, None),
    )
    assert not one.failure and not four.failure
    ratio = four.predicted["output_throughput"] / one.predicted["output_throughput"]
    assert ratio == pytest.approx(4.0, rel=0.1)
    assert four.predicted["tpot_mean_ms"] == pytest.approx(one.predicted["tpot_mean_ms"], rel=0.1)


def test_ranks_and_stages_are_simulated_and_say_so_nowhere_else() -> None:
    ranks = predict(row(target_model=MIXTURE, dp="2", tp="1"), 1, None)
    assert not ranks.failure and ranks.predicted["tpot_mean_ms"] > 0
    stages = predict(row(pp="2"), 1, None)
    assert not stages.failure
    assert stages.predicted["tpot_mean_ms"] > 0.9 * predict(row(), 1, None).predicted["tpot_mean_ms"]


def test_in_closed_form_each_engine_has_its_share_of_the_sequences() -> None:
    cells = {"target_model": DENSE, "gpu": "h100-sxm", "engine": "vLLM", "method": "none", "tp": "1"}
    cells |= {"mean_input_tokens_per_request": "100", "mean_output_tokens_per_request": "200"}
    cells |= {"output_throughput_tok_s_per_gpu": "100"}
    one = offline_point("row", CsvRow(cells | {"batch_size": "16"}), False)
    four = offline_point("row", CsvRow(cells | {"batch_size": "64", "dp": "4"}), False)
    assert four.measured["output_throughput"] == 4 * one.measured["output_throughput"]
    found = [predict(point, 1, None).predicted["output_throughput"] for point in (one, four)]
    assert found[1] == pytest.approx(4 * found[0])
    with pytest.raises(Unusable, match="disagg"):
        offline_point("row", CsvRow(cells | {"batch_size": "16", "disagg": "true"}), False)
    staged = offline_point("row", CsvRow(cells | {"batch_size": "16", "pp": "2"}), False)
    assert "the closed form knows one stage" in predict(staged, 1, None).failure


ARGS = "serve: {model: Qwen/Qwen3-30B-A3B, gpu: h200, tensor_parallel_size: 1, data_parallel_size: 2}\n"
POINT = {
    "hw": "h200", "tp": 2, "dp_attention": "true", "conc": 4, "isl": 1024, "osl": 128, "tput_per_gpu": 5.0,
    "median_tpot": 0.02,
}  # fmt: skip


def test_a_result_with_dp_attention_is_scored_on_the_ranks_of_the_arguments(tmp_path: Path) -> None:
    serve, path = tmp_path / "args.yaml", tmp_path / "agg.json"
    serve.write_text(ARGS + "workload: {num_prompts: 8}\n")
    path.write_text(json.dumps(POINT))
    point = read_bench(path, serve)
    assert point.engines == 2 and not [text for text in point.assumptions if "GPUs" in text]
    path.write_text(json.dumps(POINT | {"tp": 8}))
    assert any("it ran on 8 GPUs in all and" in text for text in read_bench(path, serve).assumptions)
    serve.write_text("serve: {model: Qwen/Qwen3-30B-A3B, gpu: h200}\nworkload: {num_prompts: 8}\n")
    with pytest.raises(InputFaults, match="give data_parallel_size, and tensor_parallel_size of a rank"):
        read_bench(path, serve)
