"""How many GPUs a table's rows ran on, where they do not say: what the bandwidth leaves possible."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.experiments.validate.points import MeasuredPoint
from specfleet.experiments.validate.tables import read_csv

SEVENTY, THIRTY = "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-30B-A3B"
PLAIN = {
    "record_id": "A", "target_model": SEVENTY, "gpu": "H200", "engine": "SGLang (Dec 2025)", "method": "none",
    "batch_size": "8", "output_throughput_tok_s": "450",
}  # fmt: skip
DRAFTS = {
    **PLAIN, "method": "eagle3", "draft_model": "an EAGLE-3 head", "K": "3", "tree_steps": "3",
    "tree_topk": "1", "verify_tokens_incl_root": "4", "acceptance_length": "2.5",
    "throughput_speedup_vs_none": "2", "output_throughput_tok_s": "900",
}  # fmt: skip
READ_S = 2 * 70.55e9 / 4.8e12
"""Seconds in which one H200 reads the weights of the 70B, some 141 GB."""


def points(folder: Path, *rows: dict[str, str]) -> list[MeasuredPoint]:
    path = folder / "rows.csv"
    header = sorted({key for each in rows for key in each})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        writer.writerows(rows)
    return list(read_csv(path, frozen=False).points)


def gpus(folder: Path, *rows: dict[str, str]) -> list[int]:
    return [each.placement.tensor_parallel_size for each in points(folder, *rows)]


def test_rows_that_two_gpus_could_not_read_the_weights_for_ran_on_four(tmp_path: Path) -> None:
    assert gpus(tmp_path, PLAIN, DRAFTS) == [2], "17.8 ms a step; a plain row without a ratio is not scored"
    fast = {**PLAIN, "output_throughput_tok_s": "600"}
    assert 8 / 600 < READ_S / 2 < 8 / 450, "13.3 ms, where two GPUs take 14.7 to read the weights"
    assert gpus(tmp_path, fast, DRAFTS) == [4], "its plain row says so, though its own is slow enough"
    assert gpus(tmp_path, {**fast, "record_id": "B"}, DRAFTS) == [2], "another record is another server"


def test_drafts_count_by_rounds_and_not_by_tokens(tmp_path: Path) -> None:
    round_s = 8 * 2.5 / 900
    assert round_s > READ_S / 2 > 8 / 900
    assert gpus(tmp_path, DRAFTS) == [2]
    assert gpus(tmp_path, {**DRAFTS, "output_throughput_tok_s": "1500"}) == [4]


def test_a_number_that_is_stated_stands_and_one_that_no_server_reaches_changes_nothing(
    tmp_path: Path,
) -> None:
    fast = {**PLAIN, "output_throughput_tok_s": "600"}
    assert gpus(tmp_path, fast, {**DRAFTS, "tp": "2"}) == [2]
    assert gpus(tmp_path, {**PLAIN, "output_throughput_tok_s": "99999"}, DRAFTS) == [2]


def test_of_a_mixture_the_experts_that_even_routing_meets_are_read(tmp_path: Path) -> None:
    mixture = {**DRAFTS, "target_model": THIRTY, "output_throughput_tok_s": "1000"}
    one = {**PLAIN, "target_model": THIRTY}
    assert gpus(tmp_path, {**one, "output_throughput_tok_s": "1300"}, mixture) == [1], "6.2 ms, 5.1 to read"
    assert gpus(tmp_path, {**one, "output_throughput_tok_s": "1700"}, mixture) == [2], "4.7 ms"


def test_what_was_assumed_is_said(tmp_path: Path) -> None:
    (point,) = points(tmp_path, {**PLAIN, "output_throughput_tok_s": "600"}, DRAFTS)
    assert "A: number of GPUs not stated, the fewest that hold the model as fast as it was (4)" in (
        point.assumptions
    )


@given(rates=st.lists(st.floats(100.0, 2000.0), min_size=2, max_size=2))
def test_faster_rows_never_ran_on_fewer(tmp_path_factory: pytest.TempPathFactory, rates: list[float]) -> None:
    folder = tmp_path_factory.mktemp("cards")
    slow, fast = (
        gpus(folder, {**PLAIN, "output_throughput_tok_s": f"{rate:.3f}"}, DRAFTS)[0] for rate in sorted(rates)
    )
    assert slow <= fast
