"""Measured experts: times of one mixture's grouped GEMMs by tokens, engine, version and type.

`measured/experts_GPU_us.csv` has a line for a version of an engine, a type of weights, a mixture (hidden
size, width, experts a token, experts, matrices of one) and a split (tensor parallel, expert parallel); tokens
are those of all ranks together and the time that of the rank with most to do. `chosen` says whether experts
were chosen before the clock ran (`choosing.py` prices that besides). What no line has is the formula's
(`experts.py`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from functools import cache
from math import log
from typing import NamedTuple

import numpy as np

from specfleet.hardware.constants import FOLDER
from specfleet.hardware.layers.feedforward import ExpertMlp
from specfleet.hardware.mixture.routing import Array
from specfleet.hardware.model import ModelSpec

TYPES: dict[str, tuple[str, ...]] = {
    "bfloat16": ("bfloat16",),
    "fp8": ("fp8", "fp8_block"),
    "fp8_block": ("fp8_block", "fp8"),
    "mxfp4": ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8"),
    "nvfp4": ("nvfp4",),
    "int4": ("int4_wo",),
}
"""Types of the tables that stand for a format, the nearest first."""


class Mixture(NamedTuple):
    """A mixture and its split: sizes of the whole model, matrices of an expert (3, or 2 without a gate), ways
    of tensor and of expert parallelism."""

    hidden: int
    width: int
    per_token: int
    experts: int
    matrices: int = 3
    tp: int = 1
    ep: int = 1


def mixture_of(experts: ExpertMlp, hidden: int, tp: int = 1, ep: int = 1) -> Mixture:
    """The mixture that a layer's experts are, of a model so wide, in a split."""
    matrices = 3 if experts.gated else 2
    wide = experts.latent or hidden
    return Mixture(wide, experts.width, experts.per_token, experts.experts, matrices, tp, ep)


def stored_kind(model: ModelSpec, stored: str) -> str:
    """The type of the tables for weights stored so.

    FP8 of a checkpoint has scales by block unless its file says otherwise, FP8 made by the engine one a
    tensor; by channel is priced as by tensor, since either is applied once, behind the product. 4-bit
    integers are one type whatever their groups.
    """
    if stored == "fp8" and model.checkpoint_quantization == "fp8" and model.fp8_scales_by_block:
        return "fp8_block"
    return "int4" if stored.startswith("int4") else stored


class TimedLine(NamedTuple):
    """Measured seconds by tokens (all ranks together), and which version of the engine they are of.

    `chosen`: the experts of each token were chosen beforehand, so that choosing is not among the seconds.
    """

    tokens: Array
    seconds: Array
    version: str
    chosen: bool = False

    def at(self, tokens: Array) -> Array:
        """Seconds at `tokens`: linear in the logarithms, and beyond the last in proportion to the tokens."""
        inside = np.exp(np.interp(np.log(tokens), np.log(self.tokens), np.log(self.seconds)))
        return np.asarray(inside * np.maximum(tokens / self.tokens[-1], 1.0))


Key = tuple[str, str, Mixture]


@cache
def lines_of(constants: str) -> dict[Key, list[TimedLine]]:
    """All lines of a GPU by (engine, type, mixture), older versions first."""
    path = FOLDER / f"experts_{constants}_us.csv"
    found: dict[Key, list[TimedLine]] = {}
    if not path.exists():
        return found
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        tokens = np.array([float(name[1:]) for name in next(reader)[11:]])
        for engine, version, dtype, *cells in reader:
            mixture = Mixture(*map(int, cells[:7]))
            times = np.array([float(cell or "nan") for cell in cells[8:]]) * 1e-6
            known = np.isfinite(times)
            line = TimedLine(tokens[known], times[known], version, cells[7] == "1")
            found.setdefault((engine, dtype, mixture), []).append(line)
    for lines in found.values():
        lines.sort(key=lambda line: order(line.version))
    return found


def order(version: str) -> tuple[int, ...]:
    """A version as numbers: "1.3.0rc20" is (1, 3, 0, 20)."""
    return tuple(map(int, re.findall(r"\d+", version)))


class StandIn(NamedTuple):
    """A line, the mixture that it is of, and the GPU entry and the engine that it was measured with."""

    line: TimedLine
    mixture: Mixture
    constants: str
    engine: str


SISTERS = {"h100_sxm": "h200_sxm"}
"""A GPU with the same chip, whose tables have older releases of an engine."""


SAME_KERNELS = {("vllm", "int4_wo"): ("vllm", "sglang")}
"""Engines that run the same kernels for a type, its own first: Marlin's for 4-bit integers. Where both were
timed (7,168 x 2,048, 8 of 384 experts, up to 512 tokens) SGLang takes 0.94 to 1.04 of vLLM's time (medians of
two releases on H100 and H200; 0.85 to 1.5 in eight of ten cases)."""


def measured(constants: str, engine: str, version: str, stored: str, mixture: Mixture) -> StandIn | None:
    """What stands for a mixture on a GPU entry, under an engine of a version ("" is the newest).

    The mixture itself, of the types that stand for the format the first, else the nearest (`nearest`). Of
    several releases the oldest that is not older than the version, else the newest; where a GPU's chip has
    older ones under another name (`SISTERS`) they count; behind the engine come those that run the same
    kernels (`SAME_KERNELS`). None where nothing so alike was measured.
    """
    for choose in (_itself, _nearest):
        for dtype in TYPES.get(stored, ()):
            for whose in SAME_KERNELS.get((engine, dtype), (engine,)):
                found = [choose(gpu, whose, dtype, mixture) for gpu in _gpus(constants, version)]
                if lines := [one for some in found for one in some]:
                    return _of_version(lines, version)
    return None


def _gpus(constants: str, version: str) -> tuple[str, ...]:
    sister = SISTERS.get(constants)
    return (constants, sister) if version and sister else (constants,)


def _itself(constants: str, engine: str, dtype: str, mixture: Mixture) -> list[StandIn]:
    return [
        StandIn(line, mixture, constants, engine)
        for line in lines_of(constants).get((engine, dtype, mixture), ())
    ]


def _nearest(constants: str, engine: str, dtype: str, mixture: Mixture) -> list[StandIn]:
    """The nearest mixture of each release."""
    known: dict[str, dict[Mixture, TimedLine]] = {}
    for (of, kind, other), lines in lines_of(constants).items():
        if (of, kind) == (engine, dtype):
            for line in lines:
                known.setdefault(line.version, {})[other] = line
    nearby = [(lines, nearest(mixture, lines)) for lines in known.values()]
    return [StandIn(lines[near], near, constants, engine) for lines, near in nearby if near]


def _of_version(found: list[StandIn], version: str) -> StandIn:
    """The oldest release that is not older than the version, else the newest; the first GPU's before."""
    ranked = sorted(found, key=lambda one: order(one.line.version))
    later = [one for one in ranked if version and order(one.line.version) >= order(version)]
    chosen = (later[0] if later else ranked[-1]).line.version
    return next(one for one in found if one.line.version == chosen)


ALIKE = 1.0
"""Furthest distance of a mixture whose factor is taken: a factor of e in all sizes together."""


def nearest(mixture: Mixture, measured: Iterable[Mixture]) -> Mixture | None:
    """The measured mixture of the same split that is most alike, None where none is (`ALIKE`).

    The distance is that of the logarithms of the weights of an expert, of the experts and of those that a
    token goes to. Left out of the tables, mixtures so near are met within 4 to 15 % in the median, the
    formula alone within 12 to 83 % (`tests/fidelity/kernel_laws.py`).
    """

    def distance(other: Mixture) -> float:
        sizes = (
            (mixture.hidden * mixture.width, other.hidden * other.width),
            (mixture.experts, other.experts),
            (mixture.per_token, other.per_token),
        )
        return sum(abs(log(one / two)) for one, two in sizes)

    alike = [other for other in measured if other[4:] == mixture[4:] and distance(other) <= ALIKE]
    return min(alike, key=lambda other: (distance(other), other)) if alike else None
