"""Claim 16: minimum-variance synthetic acceptance against requests as recorded, at the same length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from claim_runs import PRESETS, outcome
from recorded import F64, I64, acceptance_lengths, output_tokens, statistics, write_traces

from specfleet.experiments.load.config import load, load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import simulate

PRESET = PRESETS / "claim-16-requests-that-differ-have-a-tail.yaml"
SYNTHETIC = PRESETS / "claim-16-synthetic-acceptance-hides-the-tail.yaml"
LEAST_TOKENS = 20
"""Shorter outputs are left out, as in the published tails."""


@dataclass(frozen=True)
class Traffic:
    """Requests as recorded at K: acceptance and output lengths, row by row; and how many run at once."""

    k: int
    concurrency: int
    lengths: F64
    tokens: I64

    def figures(self, preset: Path, *overrides: str) -> dict[str, float]:
        """The benchmark of these requests, a first batch not counted, under a preset with changes."""
        changes = ["claim=null", "report.baseline=null", "sweep.axes={}", "serve.max_model_len=16384"]
        changes += [f"serve.speculative_config.num_speculative_tokens={self.k}"]
        changes += [
            f"workload.max_concurrency={self.concurrency}",
            f"workload.num_warmups={self.concurrency}",
        ]
        changes += [f"workload.num_prompts={len(self.tokens) - self.concurrency}", *overrides]
        point = expand(load_experiment(preset, changes))[0].config
        table = replace(requests(point, 0), output_tokens=self.tokens, max_tokens=self.tokens)
        return benchmark(simulate(build(point).scenario, table, 0)).numbers()

    def plain(self) -> dict[str, float]:
        """The benchmark without a drafter."""
        return self.figures(PRESET, "serve.speculative_config.num_speculative_tokens=0")

    def replayed(self, folder: Path) -> dict[str, float]:
        """The benchmark with the acceptance as recorded."""
        file = write_traces(folder / "recorded.jsonl", self.lengths, self.tokens, self.k, 0)
        return self.figures(PRESET, f"acceptance={{replay: {file}}}")

    def synthetic(self, length: float) -> dict[str, float]:
        """The benchmark with synthetic acceptance of a length."""
        return self.figures(SYNTHETIC, f"serve.speculative_config.synthetic_acceptance_length={length}")


def recorded(shared: Path, dataset: str, k: int, n: int, concurrency: int) -> Traffic:
    """Requests at the published quantiles, acceptance and output length with the published rank correlation.

    The longest outputs accept least as far as the pooled acceptance length asks for it: on InstructCoder a
    few outputs of up to 8,192 tokens, which accept little, hold a fifth of the tokens.
    """
    row = statistics(shared, dataset, k)
    rng = np.random.default_rng(0)
    lengths, tokens = acceptance_lengths(row, n), output_tokens(shared, dataset, n)
    rho = 2 * np.sin(np.pi / 6 * float(row["spearman_alpha_vs_output_len"]))
    longer, other = np.sort(rng.standard_normal(n)), rng.standard_normal(n)
    ranks = np.argsort(np.argsort(rho * longer + np.sqrt(1 - rho**2) * other))
    paired = lengths[ranks]
    for tied in range(n):
        if tokens.sum() / (tokens / paired).sum() <= 1.01 * float(row["acceptance_length_pooled"]):
            break
        loose = np.argsort(np.argsort(ranks[: n - tied])) + tied
        paired = lengths[np.concatenate([loose, np.arange(tied)])]
    places = rng.permutation(n)
    places = places[tokens[places] >= LEAST_TOKENS]
    return Traffic(k, concurrency, paired[places], tokens[places])


def tail(figures: dict[str, float]) -> float:
    """P99 / mean TPOT."""
    return figures["p99_tpot_ms"] / figures["mean_tpot_ms"]


@pytest.mark.parametrize(("dataset", "k"), [("sharegpt", 3), ("instructcoder", 5)])
def test_the_requests_have_the_published_pooled_length(
    shared: Path, tmp_path: Path, dataset: str, k: int
) -> None:
    found = recorded(shared, dataset, k, 500, 16).replayed(tmp_path)
    pooled = float(statistics(shared, dataset, k)["acceptance_length_pooled"])
    assert found["spec_decode_acceptance_length"] == pytest.approx(pooled, rel=0.02)


def test_on_chat_synthetic_acceptance_has_the_mean_of_the_traces_and_the_tail_of_plain_decoding(
    shared: Path, tmp_path: Path
) -> None:
    traffic = recorded(shared, "sharegpt", 3, 620, 64)
    traces = traffic.replayed(tmp_path)
    forced = traffic.synthetic(traces["spec_decode_acceptance_length"])
    assert forced["mean_tpot_ms"] == pytest.approx(traces["mean_tpot_ms"], rel=0.03)
    assert tail(forced) == pytest.approx(tail(traffic.plain()), abs=0.05)
    assert 1.5 <= tail(traces) <= 1.8


def test_on_code_edits_the_pooled_length_misses_the_mean_over_requests_by_a_seventh_to_a_fifth(
    shared: Path, tmp_path: Path
) -> None:
    traffic = recorded(shared, "instructcoder", 5, 500, 8)
    traces = traffic.replayed(tmp_path)
    forced = traffic.synthetic(traces["spec_decode_acceptance_length"])
    assert 1.14 <= forced["mean_tpot_ms"] / traces["mean_tpot_ms"] <= 1.20


def test_a_synthetic_run_says_that_it_is_unfit_for_tails() -> None:
    assert any("unfit for conclusions" in notice for notice in load(SYNTHETIC).notices)


@pytest.mark.parametrize("preset", [PRESET, SYNTHETIC], ids=["differ", "synthetic"])
def test_the_presets_say_reproduced(preset: Path, tmp_path: Path) -> None:
    assert outcome(preset.stem, tmp_path).missed == []
