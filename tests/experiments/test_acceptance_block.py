"""The `acceptance:` block of a file: every process can be written, and what makes no sense is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.load.config import load_experiment, resolved
from specfleet.experiments.load.rules.acceptance import acceptance_notices
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import acceptance_specs
from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults
from specfleet.sim.speculation.bursts import Burst, HotCold
from specfleet.sim.speculation.overlap import Overlap
from specfleet.sim.speculation.spec import AcceptanceSpec, context_knee

EAGLE3 = "model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3"
NGRAM = "method: ngram, num_speculative_tokens: 3"


def loaded(folder: Path, block: str, drafter: str = EAGLE3) -> Experiment:
    """An experiment with this acceptance block."""
    path = folder / "x.yaml"
    path.write_text(
        "serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, "
        f"speculative_config: {{{drafter}}}}}\n"
        f"workload: {{input_len: 100, output_len: 10}}\nacceptance: {{{block}}}\n"
    )
    return load_experiment(path)


def spec(folder: Path, block: str, drafter: str = EAGLE3) -> AcceptanceSpec:
    """What a run takes of it."""
    return acceptance_specs(expand(loaded(folder, block, drafter))[0].config)[""]


def test_every_process_of_a_block_reaches_the_run(tmp_path: Path) -> None:
    burst = spec(tmp_path, "conditional_acceptance: 0.7, burst: {rho: 0.2, sigma: 0.8}")
    assert burst.burst == Burst(0.2, 0.8)
    runs = spec(
        tmp_path, "by_position: [0.3, 0.2, 0.1], hot_cold: {stay: 0.75, enter: 0.1, accept_hot: 0.93}", NGRAM
    )
    assert runs.hot_cold == HotCold(0.75, 0.1, 0.93)
    hot = spec(tmp_path, "conditional_acceptance: 0.7, overlap: {top_p: 0.9}, length_rank_correlation: 0.36")
    assert hot.overlap == Overlap("argmax", top_p=0.9) and hot.length_rank_correlation == 0.36
    nodes = spec(tmp_path, "conditional_acceptance: 0.7, temperature_multiplier: [[0, 1.0], [1, 0.7]]")
    assert nodes.temperature_multiplier == ((0, 1.0), (1, 0.7))
    knee = spec(tmp_path, "conditional_acceptance: 0.7, context_knee: 4096")
    assert knee.context_multiplier == context_knee(4096)


def test_a_block_may_replay_a_file(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("2,1,0\n")
    found = spec(tmp_path, f"replay: '{trace}', replay_counts: drafts")
    assert found.replay == (bytes([2, 1, 0]),)
    assert spec(tmp_path, f"replay: '{trace}'").replay == found.replay
    with pytest.raises(InputFaults, match=r"position 2 is 0"):
        loaded(tmp_path, f"replay: '{trace}', replay_counts: tokens")
    with pytest.raises(InputFaults, match="cannot read"):
        loaded(tmp_path, "replay: gone.jsonl")


@pytest.mark.parametrize(
    "block",
    [
        "conditional_acceptance: 0.7, burst: {rho: 0.2, sigma: 0.8}, context_knee: 2048",
        "by_position: [0.7, 0.3, 0.0], overlap: {rule: argmax, measured_at_temperature: 0.7}",
    ],
)
def test_a_resolved_block_loads_to_itself(tmp_path: Path, block: str) -> None:
    first = loaded(tmp_path, block)
    (tmp_path / "resolved.yaml").write_text(resolved(first))
    assert load_experiment(tmp_path / "resolved.yaml") == first


@pytest.mark.parametrize(
    ("block", "drafter", "said"),
    [
        ("by_position: [0.7, 0.4, 0.2], replay: t.csv", EAGLE3, "same thing twice"),
        ("replay: t.csv, burst: {rho: 0.1, sigma: 1.0}", EAGLE3, "acceptance.burst: replay is exact"),
        ("replay: t.csv, length_rank_correlation: 0.2", EAGLE3, "length_rank_correlation: replay is exact"),
        ("conditional_acceptance: 0.7, replay_counts: tokens", EAGLE3, "replay_counts: belongs to replay"),
        (
            "conditional_acceptance: 0.7, context_knee: 2048, context_multiplier: [[1, 1.0]]",
            EAGLE3,
            "context_multiplier and context_knee say the same thing twice",
        ),
        (
            "conditional_acceptance: 0.7, overlap: {}, temperature_multiplier: [[0, 1.0]]",
            EAGLE3,
            "temperature_multiplier and overlap say the same thing twice",
        ),
        (
            "conditional_acceptance: 0.7, temperature_multiplier: [[1, 1.0], [0.5, 0.9]]",
            EAGLE3,
            "temperature rising from 0",
        ),
        (
            "conditional_acceptance: 0.7, overlap: {rule: sampled}",
            EAGLE3,
            "overlap.rule: sampled does not go with draft_sample_method greedy; use argmax",
        ),
        (
            "conditional_acceptance: 0.7",
            EAGLE3 + ", draft_sample_method: probabilistic",
            "add overlap: {rule: sampled} to acceptance",
        ),
        (
            "conditional_acceptance: 0.3, hot_cold: {stay: 0.7, enter: 0.1, accept_hot: 0.9}",
            EAGLE3,
            "acceptance.hot_cold: belongs to ngram",
        ),
        (
            "conditional_acceptance: 0.3, hot_cold: {stay: 0.1, enter: 0.7, accept_hot: 0.9}",
            NGRAM,
            "runs that repel runs",
        ),
        (
            "conditional_acceptance: 0.3, hot_cold: {stay: 0.7, enter: 0.1, accept_hot: 0.9}, "
            "proposal_probability: 0.3",
            NGRAM,
            "hot_cold and proposal_probability say the same thing twice",
        ),
        (
            "conditional_acceptance: 0.3, hot_cold: {stay: 0.7, enter: 0.1, accept_hot: 0.9}, "
            "context_knee: 2048",
            NGRAM,
            "no training length",
        ),
        ("conditional_acceptance: 0.7, burst: {rho: 1.0, sigma: 1.0}", EAGLE3, "acceptance.burst.rho"),
    ],
)
def test_a_block_that_contradicts_itself_is_refused_at_its_key(
    tmp_path: Path, block: str, drafter: str, said: str
) -> None:
    with pytest.raises(InputFaults) as caught:
        loaded(tmp_path, block, drafter)
    assert said in caught.value.render()


def test_drawn_drafts_go_with_their_own_rule(tmp_path: Path) -> None:
    drafter = EAGLE3 + ", draft_sample_method: probabilistic"
    found = spec(tmp_path, "conditional_acceptance: 0.7, overlap: {rule: sampled}", drafter)
    assert found.overlap == Overlap("sampled")


def test_what_is_assumed_about_a_process_is_said() -> None:
    def said(ngram: bool = False, hot: bool = False, **keys: object) -> str:
        return " ".join(acceptance_notices(Process.model_validate(keys), "acceptance", ngram, hot))

    assert "concentration is not given: figures are for 18" in said(conditional_acceptance=0.7)
    assert said(conditional_acceptance=0.7, concentration=18.0) == ""
    assert "P99 is too good" in said(conditional_acceptance=0.7, concentration=float("inf"))
    assert "find a match" in said(ngram=True, conditional_acceptance=0.7, concentration=18.0)
    runs = {"stay": 0.7, "enter": 0.1, "accept_hot": 0.9}
    assert said(ngram=True, conditional_acceptance=0.3, concentration=5.0, hot_cold=runs) == ""
    assert "own temperature" in said(hot=True, conditional_acceptance=0.7, concentration=18.0)
    assert said(hot=True, conditional_acceptance=0.7, concentration=18.0, overlap={}) == ""
    assert said(hot=True, ngram=True, replay="t.csv") == ""
