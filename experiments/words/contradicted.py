"""What was measured and is not what the model says: said of every run in that range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specfleet.experiments.words.evidence import SERVED, Evidence, Range, Used

EAGLE1_8B = {
    "sglang": (1.21, 1.17),
    "sglang-2025": (1.21, 1.17),
    "sglang-0.4": (1.15, 1.11),
    "trtllm": (1.21, 1.17),
    "vllm-0.6": (1.19, 1.16),
    "vllm-0.11": (1.11, 1.08),
    "vllm-0.15": (1.19, 1.15),
    "vllm-0.17": (1.19, 1.15),
    "vllm-0.19": (1.18, 1.15),
    "vllm-2026-01": (1.19, 1.15),
    "vllm-0.33": (1.18, 1.15),
}
"""Engine -> throughput over plain that is predicted for claim 2's EAGLE-1 head at 24 and 32 sequences;
`tests/claims/test_claim_02_by_engine.py` runs each."""

EAGLE1_8B_MEASURED = (0.93, 0.94)
"""EAGLE-3, arXiv 2503.01840, Table 3: Llama-3.1-8B, SGLang 0.4.4, H100, K = 3, MT-Bench."""

_STANDS_FOR = {"sglang": "sglang", "trtllm": "trtllm", "vllm": "vllm-0.33"}
"""Rules -> the catalogue's engine whose figures are said where a profile is none of the catalogue's."""


@dataclass(frozen=True)
class Contradiction:
    """A measured answer that comes out wrong.

    Attributes:
        where: the range of runs that it is said of.
        says: what is predicted for the file's engine, and what was measured.
    """

    where: Evidence
    says: Callable[[Used], str]

    def holds(self, this: Used) -> bool:
        """Whether it is to be said of a run."""
        return not self.where.outside(this)


def _range(ranges: Mapping[str, Range]) -> Evidence:
    return Evidence(SERVED, "", ranges)


def _eagle1(this: Used) -> str:
    engine = this.engine if this.engine in EAGLE1_8B else _STANDS_FOR[this.rules]
    (a, b), (c, d) = EAGLE1_8B[engine], EAGLE1_8B_MEASURED
    return (
        f"EAGLE-1 heads: on Llama-3.1-8B (H100, K = 3) {a:.2f} and {b:.2f} times plain throughput are "
        f"predicted under {engine} at 24 and 32 sequences, {c:.2f} and {d:.2f} were measured (SGLang 0.4.4)"
    )


def _experts(this: Used) -> str:
    return (
        "mixture-of-experts steps (floods of requests were served up to seven times as slowly as predicted; "
        "how drafts share experts is assumed, and gains of EAGLE-3 came out up to 8 % too low "
        "(Llama-4 Scout's: 59), or 17 % too high)"
    )


CONTRADICTED: tuple[Contradiction, ...] = (
    Contradiction(_range({"method": frozenset({"eagle"})}), _eagle1),
    Contradiction(_range({"experts": frozenset({True})}), _experts),
)


def contradicted(this: Used) -> list[str]:
    """Returns what measurements contradict of a run, a phrase each."""
    return [one.says(this) for one in CONTRADICTED if one.holds(this)]
