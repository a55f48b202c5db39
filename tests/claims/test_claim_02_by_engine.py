"""What every run with an EAGLE-1 head is told is what its engine predicts, and the pages say the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from claim_runs import outcome

from specfleet.experiments.words.contradicted import (
    EAGLE1_8B,
    EAGLE1_8B_MEASURED,
    contradicted,
)
from specfleet.experiments.words.evidence import Used, used_by
from specfleet.hardware import catalog
from specfleet.hardware.placement import Placement

ENGINES = catalog.names("engines")
ROOT = Path(__file__).parents[2]
ALONE = ("claim=null", "sweep.axes.acceptance.acceptance_length=[2.7]")


@cache
def used(engine: str, method: str, batch: float) -> Used:
    """Llama-3.1-8B on one H100 under an engine."""
    profile = catalog.engine_profile(engine)
    place = Placement.of(catalog.model("llama-3.1-8b-instruct"), catalog.accelerator("h100-sxm"), profile)
    return replace(used_by(place, method, tree=False, context_tokens=300, batch=batch), k=3)


def ratios(folder: Path, preset: str, engine: str, *overrides: str) -> list[float]:
    """Throughput with drafts, scheduled synchronously, over plain, scheduled asynchronously, by batch."""
    found = outcome(preset, folder, f"serve.engine={engine}", *overrides)
    batches = sorted({int(str(row["workload.max_concurrency"])) for row in found.rows})
    both = [
        [
            found.figure(
                "output_throughput", max_concurrency=batch, async_scheduling=ahead, num_speculative_tokens=k
            )
            for ahead, k in ((False, 3), (True, 0))
        ]
        for batch in batches
    ]
    return [drafted / plain for drafted, plain in both]


def test_every_engine_of_the_catalogue_has_its_figures() -> None:
    assert set(EAGLE1_8B) == set(ENGINES)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gain_of_an_eagle1_head_that_is_said_is_the_gain_that_the_engine_predicts(
    tmp_path: Path, engine: str
) -> None:
    at = "sweep.axes.workload.max_concurrency=[24, 32]"
    preset = "claim-02-eagle1-8b-chain-stops-paying"
    found = ratios(tmp_path, preset, engine, "claim=null", at)
    assert found == pytest.approx(EAGLE1_8B[engine], abs=0.006)
    assert all(ratio > measured * 1.05 for ratio, measured in zip(found, EAGLE1_8B_MEASURED, strict=True))
    said = " ".join(contradicted(used(engine, "eagle", 24)))
    a, b = EAGLE1_8B[engine]
    assert f"{a:.2f} and {b:.2f} times plain throughput are predicted under {engine} at 24 and 32" in said
    others = {f"{c:.2f} and {d:.2f} times" for c, d in EAGLE1_8B.values()} - {f"{a:.2f} and {b:.2f} times"}
    assert not any(other in said for other in others)


@pytest.mark.parametrize("engine", ["sglang-0.4", "sglang", "vllm-0.33"])
def test_an_eagle3_head_at_56_comes_out_within_12_percent_and_nothing_is_said_of_it(
    tmp_path: Path, engine: str
) -> None:
    at = "sweep.axes.workload.max_concurrency=[56]"
    preset = "claim-02-eagle3-8b-chain-pays-at-all-batches"
    (found,) = ratios(tmp_path, preset, engine, *ALONE, at)
    assert found == pytest.approx(1.34, rel=0.12)
    assert not any("EAGLE-3" in text for text in contradicted(used(engine, "eagle3", 56)))


@pytest.mark.parametrize("page", ["README.md", "docs/trust.md"])
def test_the_pages_say_what_a_run_says(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for engine in ("sglang", "vllm-0.33"):
        a, b = EAGLE1_8B[engine]
        assert f"{a:.2f} and {b:.2f} times plain throughput under `{engine}`" in text
    c, d = EAGLE1_8B_MEASURED
    assert f"{c:.2f} and {d:.2f} were measured" in text


def test_a_profile_of_ones_own_is_told_the_figures_of_the_engine_whose_rules_it_takes() -> None:
    for rules, engine in (("sglang", "sglang"), ("vllm", "vllm-0.33")):
        this = replace(used("vllm-0.33", "eagle", 24), engine="mine", rules=rules)
        assert f"under {engine} at 24" in " ".join(contradicted(this))
