"""Presets: their lengths are those of their sources, and each says where it comes from."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from scipy import stats

from specfleet.workloads.build import build_requests
from specfleet.workloads.lengths import Capped, Empirical, Scaled
from specfleet.workloads.profiles import PresetError, preset, preset_from, preset_names

DRAWS = 100_000


def test_the_five_presets_are_there() -> None:
    assert preset_names() == (
        "azure-code-2023",
        "azure-conv-2023",
        "chat-sharegpt",
        "instructcoder",
        "mt-bench",
    )


@pytest.mark.parametrize(
    ("name", "prompt_mean", "output_mean", "tolerance"),
    [
        ("azure-conv-2023", 1155, 211, 0.01),
        ("azure-code-2023", 2048, 27.9, 0.03),
        ("instructcoder", 171.2, 140.2, 0.01),
        ("mt-bench", 75.98, 256, 0.005),
        ("chat-sharegpt", 217, 199, 0.01),
    ],
)
def test_drawn_lengths_have_the_means_of_the_source(
    name: str, prompt_mean: float, output_mean: float, tolerance: float
) -> None:
    table = build_requests(preset(name).workload(DRAWS), 0)
    assert table.prompt_tokens.mean() == pytest.approx(prompt_mean, rel=tolerance)
    assert table.output_tokens.mean() == pytest.approx(output_mean, rel=tolerance)


@pytest.mark.parametrize("name", ["azure-conv-2023", "azure-code-2023", "instructcoder", "chat-sharegpt"])
def test_drawn_lengths_have_the_stated_rank_correlation(name: str) -> None:
    chosen = preset(name)
    table = build_requests(chosen.workload(DRAWS), 1)
    ranks = stats.spearmanr(table.prompt_tokens, table.output_tokens).statistic
    assert ranks == pytest.approx(chosen.rank_correlation, abs=0.03)


@pytest.mark.parametrize(
    ("name", "prompt_p99", "output_p99"), [("azure-conv-2023", 4142, 601), ("azure-code-2023", 7436, 251)]
)
def test_azure_tails_are_those_of_the_trace(name: str, prompt_p99: int, output_p99: int) -> None:
    table = build_requests(preset(name).workload(DRAWS), 2)
    tails = stats.scoreatpercentile(table.prompt_tokens, 99), stats.scoreatpercentile(table.output_tokens, 99)
    assert tails == pytest.approx((prompt_p99, output_p99), rel=0.03)


def test_a_third_of_instructcoder_outputs_reach_the_cap_and_the_rest_stop_by_themselves() -> None:
    table = build_requests(preset("instructcoder").workload(DRAWS), 0)
    assert (table.max_tokens == 200).all()
    assert (table.output_tokens == 200).mean() == pytest.approx(0.33, abs=0.01)


def test_instructcoder_stretches_to_the_mean_of_the_larger_model() -> None:
    assert Capped(Scaled(preset("instructcoder").output, 1.08), 200).mean == pytest.approx(146, rel=0.005)


def test_chat_pairs_keep_to_the_filter_of_vllm() -> None:
    table = build_requests(preset("chat-sharegpt").workload(DRAWS), 0)
    assert table.prompt_tokens.min() >= 4 and table.prompt_tokens.max() <= 1024
    assert (table.prompt_tokens + table.output_tokens).max() <= 2048


def test_mt_bench_has_its_80_questions_and_their_total() -> None:
    chosen = preset("mt-bench")
    assert chosen.num_prompts == 80
    assert chosen.input.mean * 80 == pytest.approx(6078, rel=0.005)


@pytest.mark.parametrize("name", ["azure-conv-2023", "azure-code-2023"])
def test_azure_presets_state_the_attribution_they_owe(name: str) -> None:
    assert "CC-BY-4.0" in preset(name).licence
    assert "Patel et al." in preset(name).licence and "Azure Public Dataset" in preset(name).licence
    assert preset(name).request_rate is not None and preset(name).burstiness is not None


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    chosen = preset(name)
    assert chosen.name == name
    assert min(len(chosen.description), len(chosen.source), len(chosen.licence)) > 20
    assert chosen.max_tokens <= chosen.output.maximum


@pytest.mark.parametrize(
    ("name", "trace"),
    [
        ("azure-conv-2023", "azure-2023-conv"),
        ("azure-code-2023", "azure-2023-code"),
        ("instructcoder", "specbench-instructcoder"),
    ],
)
def test_the_typed_tables_equal_the_published_percentiles(shared: Path, name: str, trace: str) -> None:
    with (shared / "traces/derived/length_quantiles.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["trace"] == trace]
    for law, column in ((preset(name).input, "input_tokens"), (preset(name).output, "output_tokens")):
        table = [(float(r["percentile"]), float(r["value"])) for r in rows if r["field"] == column]
        assert law == Empirical(tuple(p for p, _ in table), tuple(v for _, v in table))
        assert len(table) == 105


def test_an_unknown_preset_names_the_closest() -> None:
    with pytest.raises(PresetError, match="no workload preset 'azure-conv'; closest: azure-conv-2023"):
        preset("azure-conv")
    with pytest.raises(PresetError, match="closest: azure-code-2023, azure-conv-2023, chat-sharegpt"):
        preset("??")


GOOD: dict[str, object] = {
    "description": "d",
    "source": "s",
    "licence": "l",
    "input": 5,
    "output": 6,
    "rank_correlation": 0.0,
    "max_tokens": 6,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_token": 6}, "did you mean 'max_tokens'"),
        ({"max_tokens": 0}, "max_tokens must be a positive number"),
        ({"max_tokens": 6.5}, "max_tokens must be a whole number"),
        ({"request_rate": "fast"}, "request_rate must be a positive number, got 'fast'"),
        ({"rank_correlation": "high"}, "rank_correlation must be a number"),
    ],
)
def test_a_malformed_preset_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preset_from("x", GOOD | change)


def test_a_preset_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match="needs source"):
        preset_from("x", {key: value for key, value in GOOD.items() if key != "source"})
