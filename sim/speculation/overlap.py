"""Overlap: how acceptance depends on temperature, from target and draft logits.

A synthetic context has 256 words. The target's logits are `-sharpness ln(rank)`, Zipf-like, plus
normal scatter of standard deviation 2; the draft's are the target's plus normal `noise`. At
temperature T both are softmax(logits / T), at T = 0 their best word. Two rules verify a draft:

* `sampled`: the draft is drawn from q and kept with min(1, p/q): on average sum min(p, q).
* `argmax`: the draft is q's best word, and q counts as one-hot, so it is kept with p of that word.
  vLLM's default. At T = 0 both are P(best of q = best of p).

The shipped sharpness and noise give an overlap of .74 at T = 0 and .77 at T = 1, and .53 for the
argmax rule at T = 1: a hot target leaves its best word, and a draft that is always the best word
loses what one that is drawn keeps. Only the ratio to the temperature of the measurement is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from specfleet.sim.speculation.luck import WORDS, bits32, key
from specfleet.sim.speculation.spread import F64
from specfleet.workloads.normal import normal_quantile

RULES = ("argmax", "sampled")
TEMPERATURES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
"""Where the acceptance of a model is worked out; linear between, flat beyond."""

_CONTEXTS, _WORDS, _SCATTER = 3072, 256, 2.0


@dataclass(frozen=True, slots=True)
class Overlap:
    """A logit model and the rule that verifies its drafts.

    Args:
        rule: `argmax` or `sampled`.
        sharpness: Zipf exponent of the target's probabilities at T = 1.
        noise: standard deviation of the draft's logits about the target's.
        top_p: share of the target's probability that sampling keeps; 1 keeps all.
        measured_at_temperature: of the figures that the ratio multiplies.

    Raises:
        ValueError: naming the fault.
    """

    rule: str = "argmax"
    sharpness: float = 2.15
    noise: float = 0.92
    top_p: float = 1.0
    measured_at_temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"overlap.rule is {self.rule}; use one of {', '.join(RULES)}")
        if not self.sharpness > 0.0 or not self.noise >= 0.0:
            raise ValueError("overlap.sharpness must be positive, overlap.noise not negative")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"overlap.top_p is {self.top_p:g}; it must lie in (0, 1]")
        if not self.measured_at_temperature >= 0.0:
            raise ValueError(f"overlap.measured_at_temperature is {self.measured_at_temperature:g}, below 0")

    def multiplier(self) -> tuple[tuple[float, float], ...]:
        """Returns nodes (temperature, factor on conditional acceptance), 1 where it was measured."""
        nodes = [conditional_acceptance(self, temperature) for temperature in TEMPERATURES]
        there = float(np.interp(self.measured_at_temperature, TEMPERATURES, nodes))
        return tuple((t, a / there) for t, a in zip(TEMPERATURES, nodes, strict=True))


@lru_cache(maxsize=256)
def conditional_acceptance(model: Overlap, temperature: float) -> float:
    """Returns the conditional acceptance of a logit model at a temperature, averaged over contexts."""
    target, draft = _logits(model.sharpness, model.noise)
    best = draft.argmax(axis=1)
    if temperature == 0.0:
        return float((target.argmax(axis=1) == best).mean())
    p = _nucleus(_softmax(target / temperature), model.top_p)
    if model.rule == "argmax":
        return float(p[np.arange(_CONTEXTS), best].mean())
    return float(np.minimum(p, _softmax(draft / temperature)).sum(axis=1).mean())


def _softmax(logits: F64) -> F64:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _nucleus(p: F64, top_p: float) -> F64:
    """Returns p cut to its likeliest words that together reach `top_p`, and normed."""
    if top_p >= 1.0:
        return p
    order = np.argsort(-p, axis=1)
    ranked = np.take_along_axis(p, order, axis=1)
    kept = np.where(np.cumsum(ranked, axis=1) - ranked < top_p, ranked, 0.0)
    cut = np.zeros_like(p)
    np.put_along_axis(cut, order, kept, axis=1)
    return np.asarray(cut / cut.sum(axis=1, keepdims=True))


@lru_cache(maxsize=4)
def _logits(sharpness: float, noise: float) -> tuple[F64, F64]:
    """Returns the logits of target and draft, shape `(contexts, words)` each; the same ones always."""
    size = (_CONTEXTS, _WORDS)
    draws = [bits32(key(0, which, WORDS), _CONTEXTS * _WORDS).reshape(size) for which in (0, 1)]
    scatter, error = (normal_quantile((words + 0.5) / (1 << 32)) for words in draws)
    target = -sharpness * np.log(np.arange(1, _WORDS + 1)) + _SCATTER * scatter
    return target, target + noise * error
