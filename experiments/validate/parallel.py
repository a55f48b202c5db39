"""How a measured row spreads its model over GPUs: ranks, replicas, stages; and what is not simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from specfleet.hardware.model import ModelSpec

REASONS = {
    "disagg": "prefill and decode on GPUs of their own; both are simulated on the same",
}
"""Column or key to why a row that sets it cannot be simulated."""

_NO = ("", "0", "1", "1.0", "0.0", "none", "false", "no", "off", "nan", "null")
MOST_RANKS = 64


class GpuSpread(NamedTuple):
    """How a row's GPUs share the work.

    `tp`: GPUs of a rank and stage. `dp`: ranks that share experts and step together. `replicas`: engines
    apart, which data parallelism of a dense model is. `pp`: stages.
    """

    tp: int
    dp: int = 1
    replicas: int = 1
    pp: int = 1

    @property
    def engines(self) -> int:
        """Engines and ranks that requests are dealt out to."""
        return self.dp * self.replicas


def says_no(value: object) -> bool:
    """Whether a cell or a value of a result says that something is not used, or nothing."""
    return str(value if value is not None else "").strip().lower() in _NO


def parallel_faults(stated: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yields (key, reason) for each way that is used; 1, false and nothing use none."""
    for key, reason in REASONS.items():
        if not says_no(stated.get(key, "")):
            yield key, f"is {str(stated[key]).strip().lower()[:20]}: {reason}; leave it out"


def spread(model: ModelSpec, tp: int, dp: int, pp: int, dp_attention: bool) -> GpuSpread:
    """Returns how a row's GPUs share the work.

    Args:
        model: data parallelism of a mixture of experts is ranks in lockstep, of a dense model replicas.
        tp: GPUs as the row states them: of a rank; with `dp_attention` of all ranks together.
        dp: ranks, 1 where nothing is stated.
        pp: stages.
        dp_attention: attention is data parallel over the GPUs of `tp`, over all of them if `dp` is 1.

    Raises:
        ValueError: a dense model with DP attention, or ranks that do not divide the GPUs.
    """
    if dp_attention:
        ranks = dp if dp > 1 else tp
        if not model.num_experts:
            raise ValueError(f"{model.name} has no experts: its attention alone is not data-parallel")
        if tp % ranks:
            raise ValueError(f"{ranks} ranks of DP attention do not divide {tp} GPUs")
        return GpuSpread(tp // ranks, ranks, 1, pp)
    return GpuSpread(tp, dp, 1, pp) if model.num_experts else GpuSpread(tp, 1, dp, pp)
