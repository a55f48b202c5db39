"""SGLang's flags that say nothing in `serve:`: without effect on a prediction, or refused, and why."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib.resources import files

from specfleet.experiments.flags.table import HARMLESS


@dataclass(frozen=True)
class SglangFlag:
    """One flag.

    Attributes:
        name: without dashes before it.
        values: that it takes: `0` of a switch, `1`, or `+` for one or more.
        does: `harmless` or `refused`.
        same: values that say what SGLang does by itself.
        why: the reason where it is refused.
    """

    name: str
    values: str
    does: str
    same: tuple[str, ...]
    why: str

    @property
    def harmless(self) -> bool:
        """Whether it changes no prediction, whatever its value."""
        return self.does == HARMLESS

    def refuses(self, values: object, by_itself: tuple[str, ...]) -> bool:
        """Whether these values ask for something that is not simulated.

        Args:
            values: as they were given: texts, or True of a switch.
            by_itself: what `--attention-backend` is left to itself.
        """
        if self.harmless:
            return False
        same = self.same + (by_itself if self.name in ATTENTION else ())
        return not (isinstance(values, list) and len(values) == 1 and values[0] in same)


ATTENTION = (
    *("attention-backend", "decode-attention-backend", "prefill-attention-backend"),
    "speculative-draft-attention-backend",
)
"""Which kernels are SGLang's own choice depends on the GPU."""


def attention_by_itself(compute_capability: float, topk: int) -> tuple[str, ...]:
    """The attention kernels that SGLang chooses where nothing is said; () where that is not known.

    FlashAttention 3 on Hopper unless drafts branch, FlashInfer on Ampere, Ada and with branches
    (`_get_default_attn_backend`).

    Args:
        compute_capability: of the GPU.
        topk: branches of a drafted token.
    """
    if not 8 <= compute_capability < 10:
        return ()
    return ("fa3",) if compute_capability >= 9 and topk <= 1 else ("flashinfer",)


@functools.cache
def listed() -> dict[str, SglangFlag]:
    """By name, in order. Facts of SGLang's own parser (`server_args.py`, 0.5 as of autumn 2026)."""
    text = files("specfleet.experiments.flags").joinpath("data/sglang-0.5.csv").read_text(encoding="utf-8")
    return {
        row["name"]: SglangFlag(
            row["name"], row["values"], row["does"], tuple(row["same"].split()), row["why"]
        )
        for row in csv.DictReader(text.splitlines())
    }
