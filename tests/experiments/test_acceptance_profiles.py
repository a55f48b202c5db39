"""Shipped acceptance profiles against the traces and tables they come from."""

from __future__ import annotations

import csv
import math
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from specfleet.experiments.load.rules.acceptance import process_conflicts, same_model
from specfleet.experiments.point.acceptance_specs import acceptance_spec, scaled
from specfleet.experiments.schema.lookups import acceptance_profile, acceptance_profile_names
from specfleet.hardware import catalog
from specfleet.sim.speculation.acceptance import AcceptanceSpec, survival_table
from specfleet.sim.speculation.joint import output_ranks
from specfleet.sim.speculation.processes import process
from specfleet.sim.speculation.spec import UNFIT_FOR_TAILS, unfit_for_tails
from specfleet.sim.speculation.theory import acceptance_length

DATASETS = {"chat": "sharegpt", "code-edit": "instructcoder", "gsm8k": "gsm8k", "cnn-dm": "cnn"}
QUANTILES = ("min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max")
LEVELS_OF_QUANTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)

F64 = npt.NDArray[np.float64]


@cache
def rows(file: Path) -> tuple[dict[str, str], ...]:
    """The rows of a CSV file."""
    with file.open(encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))


def measured(shared: Path, proposer: str, dataset: str, k: int = 5) -> dict[str, str]:
    """The statistics of one set of traces."""
    wanted = (proposer, dataset, str(k))
    found = rows(shared / "validation" / "acceptance_llama31_8b.csv")
    return next(r for r in found if (r["proposer"], r["dataset"], r["K"]) == wanted)


def outputs(shared: Path, proposer: str, dataset: str, n: int) -> npt.NDArray[np.int64]:
    """Output tokens with the quantiles of one set of traces."""
    found = rows(shared / "validation" / "acceptance_llama31_8b_lengths.csv")
    row = next(
        r for r in found if (r["dataset"], r["quantity"]) == (dataset, f"output_tokens_{proposer}_run")
    )
    logs = np.log([float(row[name]) for name in QUANTILES])
    u = 100 * np.random.default_rng(0).random(n)
    return np.maximum(np.exp(np.interp(u, LEVELS_OF_QUANTILES, logs)).round().astype(np.int64), 2)


def rounds_per_token(spec: AcceptanceSpec, tokens: npt.NDArray[np.int64], k: int = 5) -> F64:
    """Rounds a token of each request with at least 20, steps without a draft counted."""
    drawing, ranks = process(spec, k, 0, tokens), output_ranks(tokens)
    found = []
    for request, n in enumerate(tokens.tolist()):
        if n < 20:
            continue
        rank = (float(ranks[request, 0]), float(ranks[request, 1]))
        accepted = np.frombuffer(drawing.accepted(request, 100, n, 0.0, rank), np.uint8)
        proposed = drawing.proposals(request, n, rank)
        if proposed is not None:
            steps = np.zeros(n, dtype=np.uint8)
            steps[np.frombuffer(proposed, np.uint8) == 1] = accepted
            accepted = steps
        found.append((int(np.searchsorted(np.cumsum(1 + accepted.astype(np.int64)), n)) + 1) / n)
    return np.array(found)


def tail(values: F64) -> float:
    """P99 over mean."""
    return float(np.quantile(values, 0.99) / values.mean())


def profile(name: str) -> AcceptanceSpec:
    """A shipped profile, as a run takes it."""
    return acceptance_spec(acceptance_profile(name))


@pytest.mark.parametrize("domain", DATASETS)
def test_the_eagle_profiles_reproduce_the_tail_of_their_traces(shared: Path, domain: str) -> None:
    dataset = DATASETS[domain]
    tokens = outputs(shared, "eagle", dataset, 2500)
    real = float(measured(shared, "eagle", dataset)["rounds_per_token_p99_over_mean"])
    spec = profile(f"eagle-llama-3.1-8b-{domain}")
    assert tail(rounds_per_token(spec, tokens)) == pytest.approx(real, rel=0.10)


@pytest.mark.parametrize("domain", ["chat", "code-edit"])
def test_requests_all_alike_miss_the_tail_of_the_traces(shared: Path, domain: str) -> None:
    row = measured(shared, "eagle", DATASETS[domain])
    tokens = outputs(shared, "eagle", DATASETS[domain], 1500)
    alike = AcceptanceSpec(by_position=tuple(float(row[f"accept_pos{i}"]) for i in range(1, 6)))
    real = float(row["rounds_per_token_p99_over_mean"])
    assert tail(rounds_per_token(alike, tokens)) < 0.8 * real


@pytest.mark.parametrize("domain", DATASETS)
def test_the_ngram_profiles_reproduce_tail_and_variation_of_their_traces(shared: Path, domain: str) -> None:
    row = measured(shared, "ngram", DATASETS[domain])
    each = rounds_per_token(
        profile(f"ngram-llama-3.1-8b-{domain}"), outputs(shared, "ngram", DATASETS[domain], 2000)
    )
    assert tail(each) == pytest.approx(float(row["rounds_per_token_p99_over_mean"]), rel=0.08)
    variation = float(np.std(1 / each) * each.mean())
    assert variation == pytest.approx(float(row["acceptance_length_request_cv"]), rel=0.2)


@pytest.mark.parametrize("drafter", ["eagle", "ngram"])
@pytest.mark.parametrize("domain", DATASETS)
def test_profiles_state_the_positions_that_were_counted(shared: Path, drafter: str, domain: str) -> None:
    stated = acceptance_profile(f"{drafter}-llama-3.1-8b-{domain}").by_position
    if drafter == "eagle" and domain == "code-edit":
        assert stated is None, "a mean over requests: a few endless outputs decide its pool"
        return
    assert stated is not None
    for i in range(1, 9):
        row = measured(shared, drafter, DATASETS[domain], k=5 if i <= 5 else 8)
        assert stated[i - 1] == pytest.approx(float(row[f"accept_pos{i}"]), abs=5e-5)


@pytest.mark.parametrize(
    ("name", "k", "length"),
    [
        ("draft-llama-3.2-1b-for-70b-code-edit", 3, 3.38),
        ("draft-llama-3.2-1b-for-70b-code-edit", 5, 4.52),
        ("draft-llama-3.2-1b-for-70b-code-edit", 7, 5.38),
        ("draft-qwen3-1.7b-for-32b-mt-bench", 5, 3.40),
        ("draft-qwen3-1.7b-for-32b-code-edit", 5, 3.06),
        ("eagle3-llama-3.3-70b-code-edit", 3, 2.81),
        ("eagle3-llama-3.3-70b-code-edit", 7, 3.71),
        ("eagle3-qwen3-32b-code-edit", 3, 2.18),
        ("eagle3-qwen3-32b-code-edit", 5, 2.32),
        ("eagle-llama-3.1-8b-mt-bench", 3, 2.28),
        ("golden-qwen3.5-397b-mtp-thinking", 8, 5.21),
        ("golden-kimi-k2.5-eagle3-thinking", 3, 2.88),
        ("golden-glm-5.2-mtp-thinking", 8, 4.06),
        ("golden-deepseek-v4-pro-mtp-thinking", 5, 2.55),
    ],
)
def test_profiles_have_the_published_length_also_at_a_k_they_were_not_counted_at(
    name: str, k: int, length: float
) -> None:
    steps = acceptance_profile(name).by_position
    assert steps is not None
    assert acceptance_length(steps[:k]) == pytest.approx(length, rel=0.03)


def test_golden_profiles_stay_within_the_noise_of_their_curves_at_every_k(shared: Path) -> None:
    curves: dict[tuple[str, ...], dict[int, float]] = {}
    for row in rows(shared / "validation" / "golden_acceptance_length.csv"):
        key = (row["model"], row["variant"], row["thinking"])
        curves.setdefault(key, {})[int(row["K"])] = float(row["acceptance_length"])
    golden = [
        [acceptance_length(steps[:k]) for k in range(1, 9)]
        for name in acceptance_profile_names()
        if name.startswith("golden-") and (steps := acceptance_profile(name).by_position)
    ]
    assert len(golden) == len(curves)
    noise = 0.16  # neighbours out of order share their mean
    for curve in curves.values():
        monotone = np.maximum.accumulate([curve[k] for k in range(1, 9)])
        gaps = [np.abs(np.array(lengths) - monotone).max() for lengths in golden]
        assert min(gaps) < noise


@pytest.mark.parametrize("name", acceptance_profile_names())
def test_every_profile_runs_as_it_is_and_says_where_it_comes_from(name: str) -> None:
    stated = acceptance_profile(name)
    assert len(stated.source) > 40
    assert not stated.spread_unknown and not math.isinf(stated.concentration)
    assert not list(process_conflicts(stated, None, "acceptance"))
    lengths = process(profile(name), 3, 0, np.arange(20, 400)).survival.sum(axis=1)
    assert (lengths > 0).any()


def test_only_an_engines_synthetic_acceptance_is_labelled_unfit_for_tails() -> None:
    synthetic = AcceptanceSpec.synthetic_length(3.0, 3)
    assert unfit_for_tails([profile("eagle-llama-3.1-8b-chat")]) is None
    assert unfit_for_tails([profile("eagle-llama-3.1-8b-chat"), synthetic]) == UNFIT_FOR_TAILS
    assert "P99" in UNFIT_FOR_TAILS


@pytest.mark.parametrize("name", acceptance_profile_names())
def test_the_model_of_every_profile_is_in_the_catalogue(name: str) -> None:
    measured = acceptance_profile(name).measured_on
    assert measured is not None and measured.model is not None
    assert any(same_model(measured.model, model) for model in catalog.names("models")), measured.model


@pytest.mark.parametrize("name", acceptance_profile_names())
def test_every_profile_can_be_scaled(name: str) -> None:
    spec = profile(name)
    k = len(spec.by_position or (0.0,))
    before, less, more = (
        survival_table(each, k).mean() for each in (spec, scaled(spec, 0.5), scaled(spec, 1.1))
    )
    if spec.hot_cold is not None:
        assert less < before <= more
    else:
        nodes = {factor for _, factor in scaled(spec, 0.5).context_multiplier}
        assert nodes == {0.5 * factor for _, factor in spec.context_multiplier or ((1.0, 1.0),)}
