"""What a GPU draws while it serves: between idle and its board power, by what it waits for.

    energy = sum over kinds of time: GPU seconds x (idle + share x (board power - idle))

Of the shares one is measured: decoding an H200 of 700 W drew 137 to 300 W, whatever the attention (arXiv
2605.11999, May 2026), which is 0.11 to 0.37 of the way from an idle card's 70 W. The others are assumptions:
a GPU whose tensor cores are the limit draws seven tenths to all of its board power (power caps are met in
prompts alone), one that waits for a link, a launch or the host no more than a decode that draws least. So an
energy comes with a range, and a ratio of two energies with that of the same shares on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

IDLE_SHARE = 0.1
"""Of the board power, drawn by an idle GPU that holds a model: 70 of 700 W as nvidia-smi shows an idle H100
or H200; taken for the other cards."""

Kind: TypeAlias = Literal["memory", "compute", "waiting"]


KINDS: tuple[Kind, ...] = ("memory", "compute", "waiting")


class Share(NamedTuple):
    """Of the way from idle to board power.

    Attributes:
        low, middle, high: its range.
    """

    low: float
    middle: float
    high: float


SHARES: Mapping[Kind, Share] = {
    "memory": Share(0.11, 0.24, 0.37),
    "compute": Share(0.7, 0.85, 1.0),
    "waiting": Share(0.0, 0.05, 0.11),
}

KIND_OF: Mapping[str, Kind] = {
    "weights": "memory",
    "kv": "memory",
    "drafter": "memory",
    "compute": "compute",
    "communication": "waiting",
    "launch": "waiting",
    "host": "waiting",
}
"""What each term of a step (`stepcost.TERMS`) waits for. A drafter reads its weights once a draft."""


@dataclass(frozen=True)
class Energy:
    """Joules of some GPUs.

    Attributes:
        low, middle, high: by the shares' ranges.
    """

    low: float
    middle: float
    high: float

    def __add__(self, other: Energy) -> Energy:
        """Both together; a range is as wide as if their shares were off alike."""
        return Energy(self.low + other.low, self.middle + other.middle, self.high + other.high)

    def scaled(self, factor: float) -> Energy:
        """So many times as much."""
        return Energy(self.low * factor, self.middle * factor, self.high * factor)


def energy_j(tdp_w: float, gpu_seconds: float, busy_s: Mapping[str, float]) -> Energy:
    """Returns the joules of some GPUs.

    Args:
        tdp_w: board power of one, watts.
        gpu_seconds: GPUs times seconds that they were there, idle time included.
        busy_s: GPU seconds by term of a step.
    """
    idle_w = IDLE_SHARE * tdp_w
    above = [0.0, 0.0, 0.0]
    for term, seconds in busy_s.items():
        for place, share in enumerate(SHARES[KIND_OF[term]]):
            above[place] += seconds * share * (tdp_w - idle_w)
    return Energy(*(idle_w * gpu_seconds + each for each in above))
