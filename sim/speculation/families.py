"""What is known of a drafter's acceptance before anything was counted, by family: constants of `depth`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DrafterFamily:
    """The normal law of a family of drafters.

    Args:
        name: as it is said.
        drafters: curves of how many drafters it was fitted to.
        means: of ln sigma, b_1, the step to the second position and the slope after it.
        deviations: of the same between drafters and data sets.
        wander: standard deviation of a position about the slope.
        between_data_sets: covariance of the four between data sets of one drafter.
    """

    name: str
    drafters: int
    means: tuple[float, float, float, float]
    deviations: tuple[float, float, float, float]
    wander: float
    between_data_sets: tuple[tuple[float, ...], ...]

    @property
    def degrees(self) -> float:
        """Degrees of freedom of its intervals."""
        return 2.0 + self.drafters


_LEARNED = (
    (0.0373, 0.004, -0.0037, 0.0003),
    (0.004, 0.0648, -0.0104, -0.0142),
    (-0.0037, -0.0104, 0.0073, 0.0025),
    (0.0003, -0.0142, 0.0025, 0.0053),
)
_LOOKED_UP = (
    (0.1812, 0.1221, -0.1757, 0.0199),
    (0.1221, 4.8152, 0.82, 0.0549),
    (-0.1757, 0.82, 0.4975, -0.0165),
    (0.0199, 0.0549, -0.0165, 0.0059),
)

EAGLE = DrafterFamily(
    "EAGLE heads", 6, (-0.335, 1.317, -0.242, -0.13), (0.399, 0.566, 0.217, 0.082), 0.131, _LEARNED
)
MTP = DrafterFamily(
    "MTP modules", 3, (-1.011, 2.068, -0.81, -0.319), (0.667, 0.73, 0.342, 0.332), 0.1, _LEARNED
)
DRAFT_MODEL = DrafterFamily(
    "draft models", 2, (-0.018, 2.132, -0.024, -0.022), (0.623, 1.163, 0.215, 0.113), 0.099, _LEARNED
)
PARALLEL = DrafterFamily(
    "parallel drafters", 2, (-1.01, 1.709, -0.345, -0.265), (0.709, 0.711, 0.279, 0.194), 0.1, _LEARNED
)
LOOK_UP = DrafterFamily(
    "n-gram look-up", 1, (1.465, -1.881, 1.146, -0.301), (0.668, 3.432, 0.669, 0.162), 0.131, _LOOKED_UP
)
"""Fitted by `tests/fidelity/acceptance_depth.py --constants` to: vLLM served on H100, January 2026
(tomasruizt/vllm-scripts: EAGLE-3 and 1B draft of Llama-3.3-70B, EAGLE-3 and 1.7B draft of Qwen3-32B),
replayed traces of Llama-3.1-8B (SpecDecode-Bench/simulator: EAGLE head and n-gram on four data sets) and
InferenceX's golden acceptance lengths (EAGLE-3 of Kimi-K2.5 and MiniMax-M3, MTP of DeepSeek-V4-Pro, GLM-5.2
and Qwen3.5-397B, DSpark of DeepSeek-V4-Pro and Kimi-K3; K = 1 .. 8 at T = 1). Left out of the fit, a drafter
has its length predicted 0.6 % off between counted K's and 0.9 % beyond them; of the published lengths, noisy
by 2.5 % of the accepted drafts, 6 %: an MTP module does not say at K = 1 how deep it was trained."""

FAMILIES = {
    "eagle": EAGLE,
    "eagle3": EAGLE,
    "mtp": MTP,
    "draft_model": DRAFT_MODEL,
    "dflash": PARALLEL,
    "dspark": PARALLEL,
    "medusa": PARALLEL,
    "ngram": LOOK_UP,
    "suffix": LOOK_UP,
}
"""Method of a speculative config -> family. No curve of a Medusa, DFlash or suffix drafter went into the fit;
each is taken for its nearest kin."""

CONCENTRATION_BETWEEN_KS = 0.3
"""Standard deviation of ln concentration from K = 1 to another K: traces of Llama-3.1-8B, two drafters on
four data sets, K = 2 .. 8, beta-binomial fits to the requests of each K."""

CONCENTRATION_BETWEEN_DATA_SETS = 1.2
"""The same from one data set to another: nine pairs of ten, of either drafter, lie within 1.645 of both."""
