"""Collectives among the GPUs of one server: all-reduce by a law, gathers and scatters as measured."""

from __future__ import annotations

import csv
from functools import cache

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.constants import FOLDER, AllReduceLaw, kernel_constants, measured_file

MOST_GPUS = 8
"""Of one server; between servers stages of a pipeline hand on hidden states, and nothing else is modelled."""

NO_P2P = AllReduceLaw(
    alpha_s=18.4e-6, oneshot_s_per_byte=46.7e-12, twoshot_s=0.0, twoshot_s_per_byte=46.7e-12
)
"""Without peer-to-peer: 18.4 us + 46.7 us per 1e6 bytes, both +-3, fitted to a served 70B on two GPUs."""

NO_P2P_LATENCY = {2: 1.0, 4: 1.6, 8: 4.0}
"""Time of a small message without NVLink, in that of two GPUs: NCCL 2.29 at 8 kB among L40S cards (8.1, 13.0
and 32.5 us)."""


def no_p2p_law(gpus: int) -> AllReduceLaw:
    """Without peer-to-peer access among `gpus` GPUs of a server.

    A ring sends 2 (n - 1) / n times the message over each GPU's port, whose speed does not grow with the
    GPUs: 46.7 us a megabyte among two are 70 among four and 82 among eight. The least that it can be: where
    the ring crosses sockets it is slower (among L40S cards 294 and 826 us were measured, 50 among two).
    """
    known = sorted(NO_P2P_LATENCY)
    latency = float(np.interp(gpus, known, [NO_P2P_LATENCY[n] for n in known]))
    sent = 2.0 * (gpus - 1) / gpus
    return AllReduceLaw(
        alpha_s=NO_P2P.alpha_s * latency,
        oneshot_s_per_byte=NO_P2P.oneshot_s_per_byte * sent,
        twoshot_s=0.0,
        twoshot_s_per_byte=NO_P2P.twoshot_s_per_byte * sent,
    )


def all_reduce_law(constants: str, gpus: int, p2p: bool, engine: str = "vllm") -> AllReduceLaw:
    """The law for `gpus` GPUs under an engine: measured where they reach each other, `no_p2p_law` where not.

    Constants from the user's own server hold for its links, peer to peer or not. Raises ValueError for a GPU
    count that was not measured.
    """
    laws = kernel_constants(constants, engine).all_reduce
    own = measured_file(constants) and gpus in laws
    if not p2p and gpus <= MOST_GPUS and not own:
        return no_p2p_law(gpus)
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


GATHER, SCATTER = "all_gather", "reduce_scatter"
"""What brings the tokens of all data-parallel ranks together before experts, and takes them apart behind."""


@cache
def _collectives() -> dict[tuple[str, str, int], tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """(bytes, seconds) by GPU entry, collective and number of GPUs."""
    found = {}
    with (FOLDER / "collectives_us.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        sizes = np.array([float(name[1:]) for name in next(reader)[3:]])
        for gpu, name, gpus, *cells in reader:
            times = np.array([float(cell or "nan") for cell in cells]) * 1e-6
            known = np.isfinite(times)
            found[gpu, name, int(gpus)] = (sizes[known], times[known])
    return found


def collective_s(
    constants: str, collective: str, gpus: int, total_bytes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds of a gather or scatter among `gpus` GPUs; `total_bytes` are those of all ranks together.

    NCCL 2.29 as measured (aiconfigurator-core 0.12), linear in the logarithms, beyond 512 MiB in proportion
    to the bytes. Raises ValueError for a GPU or a number of them that was not measured.
    """
    check_collectives(constants, gpus)
    sizes, seconds = _collectives()[constants, collective, gpus]
    inside = np.exp(np.interp(np.log(np.maximum(total_bytes, 1.0)), np.log(sizes), np.log(seconds)))
    return np.asarray(inside * np.maximum(total_bytes / sizes[-1], 1.0))


def is_gather_measured(constants: str, gpus: int) -> bool:
    """Whether gathers among so many GPUs of an entry were measured."""
    return (constants, GATHER, gpus) in _collectives()


def check_collectives(constants: str, gpus: int) -> None:
    """Raises ValueError where gathers among so many GPUs of an entry were not measured."""
    if not is_gather_measured(constants, gpus):
        raise ValueError(
            f"no measured gather among {gpus} GPUs of {constants}: data-parallel ranks that share experts "
            "are priced for 2, 4 or 8 ranks on H100, H200 and B200"
        )
