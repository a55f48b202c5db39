"""When requests are offered: the open loop of `vllm bench serve`."""

from __future__ import annotations

import math

import numpy as np

from workloads.requests import FloatArray


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
