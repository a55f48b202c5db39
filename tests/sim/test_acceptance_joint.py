"""Acceptance that goes with output length: the pool stays what was measured, the level a pure function."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specfleet.sim.speculation.acceptance import LEVELS, AcceptanceSpec
from specfleet.sim.speculation.bursts import HotCold
from specfleet.sim.speculation.joint import joint_level, lengths_by_level, normal_correlation, output_ranks
from specfleet.sim.speculation.luck import LEVEL, bits_once
from specfleet.sim.speculation.processes import process

CHAT = (0.6045, 0.3605, 0.2332, 0.1620, 0.1181)


def lognormal_outputs(n: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Output tokens as of a chat."""
    return np.maximum(np.random.default_rng(seed).lognormal(5.5, 0.9, n).astype(np.int64), 2)


@pytest.mark.parametrize("spearman", [-0.5, -0.15, 0.36, 0.8])
def test_levels_and_lengths_have_the_rank_correlation_asked_for(spearman: float) -> None:
    outputs = lognormal_outputs(4000)
    correlation = normal_correlation(spearman)
    ranks = output_ranks(outputs)
    levels = [joint_level(7, request, correlation, tuple(ranks[request])) for request in range(4000)]
    assert stats.spearmanr(levels, outputs).statistic == pytest.approx(spearman, abs=0.03)
    assert stats.kstest((np.array(levels) + 0.5) / LEVELS, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("outputs", [np.full(4000, 200), np.repeat([50, 200], [1000, 3000])])
def test_levels_stay_uniform_where_outputs_are_equal(
    outputs: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> None:
    ranks = output_ranks(outputs)
    levels = [joint_level(3, request, 0.9, tuple(ranks[request])) for request in range(len(outputs))]
    assert stats.kstest((np.array(levels) + 0.5) / LEVELS, "uniform").pvalue > 1e-3


@given(st.integers(0, 2**63), st.integers(0, 10**6), st.floats(0, 0.99))
def test_without_correlation_the_level_is_the_requests_own_draw(seed: int, request: int, low: float) -> None:
    own = bits_once(seed, request, LEVEL) >> 54
    assert abs(joint_level(seed, request, 0.0, (low, low + 0.01)) - own) <= 1


@given(st.integers(2, 400))
@settings(max_examples=20)
def test_ranks_tell_shorter_and_no_longer(n: int) -> None:
    outputs = np.random.default_rng(n).integers(1, 40, n)
    ranks = output_ranks(outputs)
    for row in range(0, n, 7):
        assert ranks[row, 0] == np.mean(outputs < outputs[row])
        assert ranks[row, 1] == np.mean(outputs <= outputs[row])


def test_mean_lengths_by_level_average_to_the_mean_and_follow_the_sign() -> None:
    outputs = lognormal_outputs(20_000)
    for spearman in (-0.4, 0.4):
        lengths = lengths_by_level(outputs, normal_correlation(spearman))
        assert lengths.mean() == pytest.approx(outputs.mean(), rel=0.01)
        assert (np.diff(lengths) * spearman >= -1e-9).all()
    assert lengths_by_level(outputs, 0.0) == pytest.approx(outputs.mean(), rel=0.01)


@pytest.mark.parametrize("spearman", [0.36, -0.3])
def test_a_run_pools_to_what_was_measured_although_long_requests_accept_otherwise(spearman: float) -> None:
    outputs = lognormal_outputs(6000)
    spec = AcceptanceSpec(by_position=CHAT, concentration=21.4, length_rank_correlation=spearman)
    joint = process(spec, 5, 1, outputs)
    ranks = output_ranks(outputs)
    accepted = np.zeros(5)
    rounds = 0
    for request, tokens in enumerate(outputs.tolist()):
        drawn = np.frombuffer(joint.accepted(request, 100, tokens, rank=tuple(ranks[request])), np.uint8)
        here = drawn[: int(np.searchsorted(np.cumsum(1 + drawn.astype(int)), tokens)) + 1]
        rounds += len(here)
        accepted += [np.sum(here >= i) for i in range(1, 6)]
    assert accepted / rounds == pytest.approx(CHAT, rel=0.015)
    unweighted = process(AcceptanceSpec(by_position=CHAT, concentration=21.4), 5, 1)
    gap = joint.survival[:, 0].mean() - unweighted.survival[:, 0].mean()
    assert gap * spearman < -0.002, "the mean over requests moves against the long ones"


def test_a_length_is_solved_with_the_weights_of_long_requests() -> None:
    outputs = lognormal_outputs(3000)
    spec = AcceptanceSpec(
        acceptance_length=2.4, measured_at_k=5, concentration=12.0, length_rank_correlation=0.5
    )
    lengths = lengths_by_level(outputs, normal_correlation(0.5))
    tau = 1 + process(spec, 5, 0, outputs).survival.sum(axis=1)
    assert lengths.sum() / (lengths / tau).sum() == pytest.approx(2.4, abs=1e-3)


def test_what_a_correlation_needs_is_asked_for() -> None:
    spec = AcceptanceSpec(by_position=CHAT, length_rank_correlation=0.3)
    with pytest.raises(ValueError, match="output lengths"):
        process(spec, 5, 0)
    joint = process(spec, 5, 0, [100, 200])
    with pytest.raises(ValueError, match="rank of the request's own output"):
        joint.accepted(0, 100, 10)
    runs = AcceptanceSpec(by_position=CHAT, hot_cold=HotCold(0.5, 0.1, 0.9), length_rank_correlation=0.3)
    assert process(runs, 5, 0, [100, 200]).proposals(0, 10, (0.0, 0.5)) is not None
    with pytest.raises(ValueError, match="length_rank_correlation"):
        AcceptanceSpec(by_position=CHAT, length_rank_correlation=1.0)
