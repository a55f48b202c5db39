"""The interval of a percentile, drawn from the law of a resample's order instead of resampling."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from specfleet.experiments.run.analysis import resampled


@pytest.mark.parametrize("n", [20, 101, 1000])
def test_the_place_of_a_resamples_order_statistic_has_its_exact_law(n: int) -> None:
    share = 1.0 - 1.0 / (n - 1)
    drawn = resampled(np.arange(n, dtype=np.float64), share, 20_000, np.random.default_rng(7))
    for place in range(n - 6, n):
        at_most = stats.binom.sf(n - 2, n, (place + 1) / n)
        assert np.mean(drawn <= place) == pytest.approx(at_most, abs=0.02)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_it_agrees_with_resampling_everything(share: float) -> None:
    values = np.random.default_rng(3).gamma(2.0, 1.0, 700)
    rng = np.random.default_rng(4)
    slow = np.quantile(values[rng.integers(0, 700, (4000, 700))], share, axis=1)
    fast = resampled(values, share, 4000, rng)
    assert stats.ks_2samp(slow, fast).pvalue > 1e-3


def test_a_single_value_has_no_width() -> None:
    assert set(resampled(np.full(30, 2.5), 0.99, 50, np.random.default_rng(0)).tolist()) == {2.5}
