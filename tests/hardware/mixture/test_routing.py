"""Which experts tokens go to: the busiest rank against draws, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specfleet.hardware.mixture.routing import LARGEST_NORMAL, busiest_rank, distinct_experts, largest_normal

ROUTINGS = [(256, 8, 8), (128, 8, 4), (64, 6, 2), (256, 8, 16)]


def drawn(tokens: int, experts: int, per_token: int, ranks: int, times: int = 400) -> tuple[float, float]:
    """Mean over draws of the most distinct experts, and of the most visits, of any rank."""
    rng = np.random.default_rng(tokens)
    chosen = rng.random((times, tokens, experts)).argpartition(per_token, axis=2)[:, :, :per_token]
    visits = np.zeros((times, experts))
    for time in range(times):
        visits[time] = np.bincount(chosen[time].ravel(), minlength=experts)
    by_rank = visits.reshape(times, ranks, experts // ranks)
    return float((by_rank > 0).sum(2).max(1).mean()), float(by_rank.sum(2).max(1).mean())


@pytest.mark.parametrize(("experts", "per_token", "ranks"), ROUTINGS)
@pytest.mark.parametrize("tokens", [1, 4, 32, 200])
def test_the_busiest_rank_is_what_draws_give(tokens: int, experts: int, per_token: int, ranks: int) -> None:
    load = busiest_rank(np.array([float(tokens)]), experts, per_token, ranks)
    distinct, visits = drawn(tokens, experts, per_token, ranks)
    assert load.distinct[0] == pytest.approx(distinct, rel=0.06, abs=0.35)
    assert load.visits[0] == pytest.approx(visits, rel=0.06, abs=0.35)


@given(tokens=st.floats(0.1, 1e4), more=st.floats(0, 50), ranks=st.sampled_from([1, 2, 4, 8, 16]))
def test_the_busiest_rank_has_at_least_the_mean_at_most_what_there_is_and_grows(
    tokens: float, more: float, ranks: int
) -> None:
    load = busiest_rank(np.array([tokens, tokens + more]), 64, 4, ranks)
    whole = distinct_experts(np.array([tokens, tokens + more]), 64, 4)
    most = np.minimum(whole / ranks, np.array([tokens, tokens + more]) * min(4, 64 / ranks))
    assert (load.distinct >= most - 1e-9).all()
    assert (load.distinct <= 64 / ranks + 1e-9).all()
    assert load.visits[0] <= load.visits[1] + 1e-9
    assert (load.visits >= np.array([tokens, tokens + more]) * 4 / ranks - 1e-9).all()


def test_one_rank_has_all_and_computes_rows_that_route_alike() -> None:
    load = busiest_rank(np.array([10.0]), 64, 4, 1, rows=np.array([16.0]))
    assert load.distinct[0] == distinct_experts(np.array([10.0]), 64, 4)[0]
    assert load.visits[0] == 64


def test_the_largest_of_normal_values_is_its_order_statistic() -> None:
    for count in (2, 4, 8, 32):
        rng = np.random.default_rng(count)
        assert largest_normal(count) == pytest.approx(rng.normal(size=(40000, count)).max(1).mean(), rel=0.02)
    assert largest_normal(2) == pytest.approx(1 / np.sqrt(np.pi), abs=1e-5)
    assert list(LARGEST_NORMAL.values()) == sorted(LARGEST_NORMAL.values())
    assert LARGEST_NORMAL[8] < largest_normal(12) < LARGEST_NORMAL[16]


@pytest.mark.parametrize("ranks", LARGEST_NORMAL)
def test_the_largest_of_so_many_normal_values_is_what_integration_gives(ranks: int) -> None:
    x = np.linspace(-9.0, 9.0, 20_001)
    density = ranks * stats.norm.pdf(x) * stats.norm.cdf(x) ** (ranks - 1)
    assert LARGEST_NORMAL[ranks] == pytest.approx(np.trapezoid(x * density, x), abs=6e-6)
    assert ranks & (ranks - 1) == 0, "groups of ranks are powers of two"
