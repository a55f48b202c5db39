"""All-reduce among the GPUs of one server."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.constants import AllReduceLaw, kernel_constants, measured_file

MOST_GPUS = 8
"""Of one server; between servers nothing is modelled."""

NO_P2P = AllReduceLaw(
    alpha_s=18.4e-6, oneshot_s_per_byte=46.7e-12, twoshot_s=0.0, twoshot_s_per_byte=46.7e-12
)
"""Without peer-to-peer: 18.4 us + 46.7 us per 1e6 bytes, both +-3, fitted to a served 70B on two GPUs."""


def all_reduce_law(constants: str, gpus: int, p2p: bool, engine: str = "vllm") -> AllReduceLaw:
    """The law for `gpus` GPUs under an engine: measured where they reach each other, fitted where not.

    Constants from the user's own server hold for its links, peer to peer or not. Raises ValueError for a GPU
    count that was not measured.
    """
    laws = kernel_constants(constants, engine).all_reduce
    own = measured_file(constants) and gpus in laws
    if not p2p and gpus <= MOST_GPUS and not own:
        return NO_P2P
    if gpus not in laws:
        raise ValueError(
            f"no measured all-reduce among {gpus} GPUs of {constants}; measured: {', '.join(map(str, laws))}"
        )
    return laws[gpus]


def all_reduce_s(message_bytes: NDArray[np.float64], law: AllReduceLaw) -> NDArray[np.float64]:
    """Seconds of one all-reduce of `message_bytes` (any shape): the faster of one-shot and two-shot.

    `t = alpha + min(b1 * bytes, c + b2 * bytes)`: fitted on vLLM's graph-captured custom all-reduce, where
    one MB is 1e6 bytes (mean error 2-4 % up to 64 MB).
    """
    one_shot = law.oneshot_s_per_byte * message_bytes
    two_shot = law.twoshot_s + law.twoshot_s_per_byte * message_bytes
    return law.alpha_s + np.minimum(one_shot, two_shot)
