"""What it takes to choose the experts of a token, where the measured times of the experts do not hold it."""

from __future__ import annotations

from specfleet.hardware.kernels import ELEMENTWISE_FLOOR_S
from specfleet.hardware.layers.feedforward import ExpertMlp

CHOSEN_EXPERT_S = 0.62e-6
"""One kernel takes the largest of a token's scores, one after another: 0.62 us each.

vLLM 0.24 timed with the choice less 0.19 timed without, the same grouped GEMMs on an H200, up to 512 tokens:
5.2 us for 8 of 128, 4.9 for 8 of 256, 5.6 for 8 of 384, 6.3 for 10 of 512, none for 2 of 8 (medians over
layers, types and splits; `tests/fidelity/derive_kernel_tables.py` prints them). A trace of the kernel alone
shows 4 us for 8 of 256 (vLLM #34206).
"""


def choosing_s(experts: ExpertMlp, kernels_with_bias: int) -> float:
    """Seconds in which the experts of a layer's tokens are chosen, whatever the tokens (up to some hundreds).

    Scores without a bias are softmaxed by a kernel of their own where the experts are no power of two (8.2 us
    measured for 8 of 160, 3.3 above the others). With one (`router_bias`) it takes `kernels_with_bias`
    kernels, all but one of them elementwise.
    """
    if experts.router_bias:
        beside = kernels_with_bias - 1
    else:
        beside = 1 if experts.experts & (experts.experts - 1) else 0
    return CHOSEN_EXPERT_S * experts.per_token + beside * ELEMENTWISE_FLOOR_S
