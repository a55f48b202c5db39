"""Rows of offline tables and of servers that spread their experts; acceptance that has to be derived."""

from __future__ import annotations

import csv
import math
import os
import re
from pathlib import Path

import pytest

from specfleet.experiments.validate.points import SPEEDUP, Readout
from specfleet.experiments.validate.report import validation_text
from specfleet.experiments.validate.runs import predict
from specfleet.experiments.validate.validation import Validation, read_points

SHARED = Path(os.environ.get("SPECFLEET_SHARED", Path(__file__).parents[3] / "shared")) / "validation"

OFFLINE = {
    **{"record_id": "r", "target_model": "Llama-3.1-8B-Instruct", "gpu": "1x H100", "tp": "1"},
    **{
        "batch_size": "8",
        "engine": "SGLang v0.4.4",
        "method": "none",
        "isl_osl": "200/400",
        "output_throughput_tok_s": "1100",
    },
}
DRAFTING = OFFLINE | {
    **{"method": "eagle3", "K": "3", "acceptance_length": "2.5", "throughput_speedup_vs_none": "1.6"},
    **{"draft_model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"},
}


def table(path: Path, *rows: dict[str, str]) -> Readout:
    """Reads rows written as a table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    return read_points([path], None, False)


def test_an_offline_row_is_priced_in_closed_form_and_its_ratio_is_scored(tmp_path: Path) -> None:
    plain, drafting = table(tmp_path / "t.csv", OFFLINE, DRAFTING).points
    assert plain.closed_form and plain.concurrency == 8 and set(plain.measured) == {"output_throughput"}
    assert set(drafting.measured) == {"output_throughput", SPEEDUP}
    found = [predict(point, 1, None).predicted for point in (plain, drafting)]
    ratio = found[1]["output_throughput"] / found[0]["output_throughput"]
    assert found[1][SPEEDUP] == pytest.approx(ratio, rel=0.02), (
        "the ratio is to the plain row's own throughput"
    )
    assert 1.0 < found[1][SPEEDUP] < 2.5


def test_a_tree_verifies_its_nodes_in_as_many_passes_as_it_is_deep(tmp_path: Path) -> None:
    tree = DRAFTING | {"K": "", "config_note": "3/4/16"}
    (point,) = table(tmp_path / "t.csv", tree).points
    assert (point.k, point.tree_passes) == (15, 3)


def test_without_cards_only_a_ratio_is_scored_and_assumptions_are_said(tmp_path: Path) -> None:
    bare = DRAFTING | {"tp": "", "isl_osl": ""}
    readout = table(tmp_path / "t.csv", bare, OFFLINE | {"tp": ""})
    (point,) = readout.points
    assert set(point.measured) == {SPEEDUP}
    assert any("the fewest that hold the model as fast as it was (1)" in text for text in point.assumptions)
    assert any("lengths not stated" in text for text in point.assumptions)
    assert list(readout.skipped) == ["cards are not stated, nor a ratio to plain decoding"]


def test_what_ran_on_replicas_or_stages_is_priced_as_that_and_experts_where_there_are_some(
    tmp_path: Path,
) -> None:
    rows = [OFFLINE | {key: "8"} for key in ("ep", "dp", "pp")] + [OFFLINE | {"dp": "1", "ep": "1"}]
    mixture = OFFLINE | {"target_model": "Qwen3-30B-A3B", "n_gpus": "8", "tp": "8", "ep": "8"}
    readout = table(tmp_path / "t.csv", *rows, mixture)
    placed = [point.placement for point in readout.points]
    assert [(place.expert_parallel_size, place.pipeline_parallel_size) for place in placed] == [
        *((1, 1), (1, 8)),  # ranks of a dense model are replicas; stages
        *((1, 1), (8, 1)),
    ]
    (said,) = readout.why.values()
    assert "no experts to share" in said


SERVED = {
    **{"target_model": "Llama-3.1-8B-Instruct", "gpu": "h100-sxm", "tp": "1", "engine": "vLLM"},
    **{
        "method": "eagle3",
        "draft_model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "K": "3",
        "num_prompts": "80",
    },
    **{"request_rate_rps": "inf", "max_concurrency": "8", "mean_input_tokens_per_request": "200"},
    **{"mean_output_tokens_per_request": "100", "tpot_mean_ms": "4.0", "tpot_median_ms": "3.9"},
}


@pytest.mark.parametrize(
    ("columns", "length", "said"),
    [
        ({"accepted_tokens": "1500", "draft_rounds": "1000"}, 2.5, "accepted tokens over rounds"),
        ({"accepted_tokens": "1500", "draft_tokens": "3000"}, 2.5, "accepted over drafted, times K"),
        ({"draft_acceptance_rate": "0.5"}, 2.5, "accepted over drafted, times K"),
        ({"itl_mean_ms": "9.0"}, 2.25, "mean ITL (a step) over mean TPOT (a token)"),
    ],
)
def test_an_empty_acceptance_is_derived_and_said(
    tmp_path: Path, columns: dict[str, str], length: float, said: str
) -> None:
    (point,) = table(tmp_path / "t.csv", SERVED | columns).points
    assert point.acceptance is not None and point.acceptance.acceptance_length == pytest.approx(length)
    assert any(said in text for text in point.assumptions)
    assert point.measured["tpot_median_ms"] == 3.9


def test_an_acceptance_that_nothing_says_is_asked_for(tmp_path: Path) -> None:
    readout = table(tmp_path / "t.csv", SERVED)
    assert not readout.points and list(readout.skipped) == ["accept_pos1 is empty"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared measurements are not here")
def test_every_row_of_the_served_points_is_scored_or_says_why_not() -> None:
    path = SHARED / "serving_points.csv"
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    readout = read_points([path], None, False)
    assert len(readout.points) + len(readout.why) == len(rows) and not readout.errors
    stated = {
        id(row): re.search(r"--(?:ep|expert-parallel)[-_]size[ =](\d+)", row["serve_flags"]) for row in rows
    }
    spread = sum(int(row["ep"] or (found[1] if (found := stated[id(row)]) else 1)) > 1 for row in rows)
    assert sum(point.placement.expert_parallel_size > 1 for point in readout.points) == spread > 0
    ratios = [p for p in readout.points if SPEEDUP in p.measured]
    assert len(readout.points) >= 380 and not any("num_prompts is" in why for why in readout.why.values())
    assert len(ratios) > 100 and all(math.isfinite(p.measured[SPEEDUP]) for p in ratios)


SAID = {
    **{"record_id": "r", "target_model": "Llama-3.1-8B FP8", "target_weights_dtype": "FP8 (ModelOpt)"},
    **{"gpu": "H100 SXM 80GB / H200 141GB", "config_note": "H200 TP1", "n_gpus": "1", "method": "none"},
    **{"engine": "TensorRT-LLM 1.0 PyTorch backend, trtllm-bench max throughput"},
    **{"dataset": "random tokens, fixed ISL/OSL, 1500-30000 requests", "isl_osl": "128/256"},
    "output_throughput_tok_s": "26000",
}


def test_what_a_row_says_in_words_is_read_and_what_is_assumed_of_it_is_said(tmp_path: Path) -> None:
    (point,) = table(tmp_path / "t.csv", SAID).points
    assert (point.placement.accelerator.name, point.placement.tensor_parallel_size) == ("h200", 1)
    assert not point.closed_form and point.workload.num_prompts == 1500
    assert math.isinf(point.workload.request_rate) and point.max_concurrency is None
    assert (point.workload.input.mean, point.workload.output.mean) == (128, 256)
    assert point.assumptions == ("r: of 1500 to 30000 requests the fewest",)
    two = SAID | {"config_note": "TP1"}
    assert "unknown GPU" in "".join(table(tmp_path / "t.csv", two).why.values()), (
        "no card is chosen for a row"
    )


def test_a_closed_loop_of_which_only_the_users_are_stated_is_priced_in_closed_form(tmp_path: Path) -> None:
    users = OFFLINE | {"batch_size": "", "max_concurrency": "16", "tp": "", "n_gpus": "1"}
    each = {"output_throughput_tok_s": "", "output_throughput_tok_s_per_gpu": "900"}
    one, two = table(tmp_path / "t.csv", users, users | each | {"n_gpus": "2"}).points
    assert one.closed_form and one.concurrency == 16 and one.placement.tensor_parallel_size == 1
    assert two.measured == {"output_throughput": 1800.0}
    assert predict(one, 1, None).predicted["output_throughput"] > 0.0
    seats = OFFLINE | {"batch_size": "", "dataset": "MT-Bench offline, max_num_seqs 1"}
    (alone,) = table(tmp_path / "t.csv", seats).points
    assert alone.closed_form and alone.concurrency == 1


def test_a_row_without_any_load_says_so_and_words_never_overrule_a_cell(tmp_path: Path) -> None:
    none = OFFLINE | {"batch_size": ""}
    (why,) = table(tmp_path / "t.csv", none).why.values()
    assert why == "no load is stated: neither num_prompts, batch_size, max_concurrency nor a rate"
    stated = SAID | {"gpu": "h100-sxm", "tp": "2", "num_prompts": "10", "mean_input_tokens_per_request": "9"}
    (point,) = table(tmp_path / "t.csv", stated | {"mean_output_tokens_per_request": "5"}).points
    assert (point.placement.accelerator.name, point.placement.tensor_parallel_size) == ("h100-sxm", 2)
    assert (point.workload.num_prompts, point.workload.input.mean) == (10, 9)


@pytest.mark.parametrize(
    ("method", "drafter", "found"),
    [("EAGLE-1", "", "eagle"), ("speculative", "me/sglang-EAGLE-LLaMA3", "eagle"), ("EAGLE-3", "", "eagle3"),
     ("speculative", "me/EAGLE3-x", "eagle3"), ("speculative", "", "eagle3")],
)  # fmt: skip
def test_a_head_that_no_catalogue_has_is_of_the_kind_that_its_row_names(
    tmp_path: Path, method: str, drafter: str, found: str
) -> None:
    row = DRAFTING | {"method": method, "draft_model": drafter}
    (point,) = table(tmp_path / "t.csv", row).points
    assert point.method == found


def test_a_link_is_no_card(tmp_path: Path) -> None:
    (point,) = table(tmp_path / "t.csv", OFFLINE | {"gpu": "4x H100, NVLink", "tp": "4"}).points
    assert point.placement.accelerator.name == "h100-sxm"


def test_rows_in_closed_form_are_summed_up_by_what_served_them_with_bias(tmp_path: Path) -> None:
    readout = table(tmp_path / "t.csv", OFFLINE, DRAFTING, DRAFTING | {"throughput_speedup_vs_none": "9"})
    scored = [predict(point, 1, None) for point in readout.points]
    said = validation_text(Validation(scored))
    table_ = said[said.index("in closed form") :].split("\n\n")[0]
    gains = [one.errors()[SPEEDUP] for one in scored[1:]]
    mean, worst, bias = sum(map(abs, gains)) / 2, max(map(abs, gains)), sum(gains) / 2
    assert f"{mean:.1f} ({worst:.1f}) {bias:+.1f}" in table_
    assert len(table_.splitlines()) == 3
