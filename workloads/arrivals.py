"""When requests are offered: the open loop of `vllm bench serve`."""

from __future__ import annotations

import copy
import math

import numpy as np

from specfleet.workloads.requests import FloatArray


def open_loop(n: int, request_rate: float, burstiness: float, rng: np.random.Generator) -> FloatArray:
    """Arrival times in seconds, shape `(n,)`, never falling, as `vllm bench serve` offers them.

    Gaps are gamma with shape `burstiness` and mean 1 / `request_rate` (requests/s): 1 is Poisson, below 1
    burstier, above 1 smoother, inf evenly spaced. vLLM then stretches all gaps so that the last request
    leaves exactly at n / rate, and so does this; the first leaves after one gap, not at 0. A rate of inf
    offers everything at 0. The underlying draws do not depend on the rate, so two rates see the same pattern.
    Raises ValueError for a rate or burstiness that is not positive.
    """
    if not request_rate > 0:
        raise ValueError(f"request_rate must be positive (.inf offers all at once), got {request_rate}")
    if not burstiness > 0:
        raise ValueError(f"burstiness must be positive (1 = Poisson), got {burstiness}")
    if n == 0 or math.isinf(request_rate):
        return np.zeros(n)
    gaps = np.ones(n) if math.isinf(burstiness) else rng.standard_gamma(burstiness, size=n)
    elapsed = np.cumsum(gaps)
    if not elapsed[-1] > 0:
        raise ValueError(
            f"burstiness {burstiness} is so small that all gaps are 0; raise it or use rate .inf"
        )
    return np.asarray(elapsed / elapsed[-1] * (n / request_rate), dtype=np.float64)


class OpenLoop:
    """`open_loop` taken in portions, with the same bytes: its gaps are drawn twice, once for their sum.

    Args:
        n, request_rate, burstiness: as `open_loop`; raises ValueError as it does.
        rng: left behind the gaps once all are taken.
    """

    PORTION = 1 << 16

    def __init__(self, n: int, request_rate: float, burstiness: float, rng: np.random.Generator) -> None:
        open_loop(0, request_rate, burstiness, rng)
        self._n, self._rate, self._burstiness, self._rng = n, request_rate, burstiness, rng
        self._elapsed = self._total = 0.0
        self._at_once = n == 0 or math.isinf(request_rate)
        if self._at_once:
            return
        ahead = OpenLoop(0, request_rate, burstiness, copy.deepcopy(rng))
        for low in range(0, n, self.PORTION):
            ahead._passed(min(self.PORTION, n - low))
        self._total = ahead._elapsed
        if not self._total > 0:
            open_loop(n, request_rate, burstiness, copy.deepcopy(rng))

    def _passed(self, count: int) -> FloatArray:
        """Draws gaps and returns the time elapsed after each, not yet stretched."""
        even = math.isinf(self._burstiness)
        gaps = np.ones(count) if even else self._rng.standard_gamma(self._burstiness, size=count)
        elapsed = np.cumsum(np.concatenate([[self._elapsed], gaps]))[1:]
        self._elapsed = float(elapsed[-1]) if count else self._elapsed
        return elapsed

    def take(self, count: int) -> FloatArray:
        """Returns the next arrival times in seconds, shape `(count,)`."""
        if self._at_once:
            return np.zeros(count)
        return np.asarray(self._passed(count) / self._total * (self._n / self._rate), dtype=np.float64)
