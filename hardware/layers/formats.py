"""How weights are stored: bits a weight, scales included, and whose kernel law prices their GEMMs."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

SIXTEEN = "bfloat16"


class Format(NamedTuple):
    """`bits` a weight with its scales. `law` names the measured GEMM whose arithmetic is nearest.

    `measured` says whether that law was fitted to GEMMs of this format.
    """

    bits: float
    law: str
    measured: bool

    @property
    def weight_bytes(self) -> float:
        """Bytes of one weight; an int where it is whole."""
        whole = self.bits / 8
        return int(whole) if whole.is_integer() else whole


_NAMED = {
    SIXTEEN: Format(16, "bfloat16", True),
    "float32": Format(32, "bfloat16", False),
    "fp8": Format(8, "fp8", True),
    "mxfp8": Format(8.25, "fp8", False),
    "int8": Format(8, "fp8", False),
    "mxfp4": Format(4.25, "bfloat16", False),
    "nvfp4": Format(4.5, "bfloat16", False),
    "nf4": Format(4.127, "bfloat16", False),
}
"""MXFP4: one scale byte a 32 weights. NVFP4: one a 16. MXFP8: one a 32. INT8 and FP8: scales a row or a
128 x 128 block, below 0.1 %. NF4 (bitsandbytes): blocks of 64 with 8-bit scales and 256 of those a block."""

_GROUPED = re.compile(r"int([2-8])_g(\d+)(z?)")
"""`int4_g128`: weights only, a 16-bit scale a group; `z`: a zero point as wide as a weight, too."""


@cache
def weight_format(name: str | None) -> Format:
    """The format of a name; None is 16 bits. Raises ValueError for an unknown one."""
    if name is None:
        return _NAMED[SIXTEEN]
    if name in _NAMED:
        return _NAMED[name]
    if found := _GROUPED.fullmatch(name):
        bits, group = int(found[1]), int(found[2])
        scales = (16 + (bits if found[3] else 0)) / group if group else 0.0
        return Format(bits + scales, "bfloat16", False)
    known = ", ".join(key for key in _NAMED if key not in (SIXTEEN, "float32"))
    raise ValueError(f"weights stored as {name!r}: use one of {known}, int4_g128 (bits and group)")


EXPERTS_ONLY = ("mxfp4",)
"""Formats that, as a checkpoint's whole, hold for routed experts alone (gpt-oss)."""


def default_format(stored: str | None, role: str) -> str:
    """The format of a part where the checkpoint as a whole is `stored` so."""
    if stored is None or (role != "experts" and stored in EXPERTS_ONLY):
        return SIXTEEN
    return stored
