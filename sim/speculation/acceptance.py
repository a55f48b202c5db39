"""Acceptance: how many of a round's drafts the target agrees with.

`AcceptanceSpec` says what was measured, in one of four named quantities, and how much requests
differ. `Acceptance` is the process a run draws from: each request has a level for life, each of
its verification rounds one uniform number, and the drafts accepted are the positions whose
survival exceeds it. A round is drawn at full depth and cut to the drafts scheduled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.speculation.luck import LEVEL, PROPOSAL, ROUND, bits32, bits_once, key
from sim.speculation.spread import F64, LEVELS, LowAtom, Spread, pooled_length
from sim.speculation.theory import length_from_draft_rate, minimum_variance

QUANTITIES = ("by_position", "conditional_acceptance", "acceptance_length", "draft_acceptance_rate")
_ONE = 1 << 32


@dataclass(frozen=True, slots=True)
class AcceptanceSpec:
    """What a drafter achieves on one class of traffic: exactly one of the four quantities.

    Args:
        by_position: P(first i drafts accepted), pooled over rounds, non-increasing.
        conditional_acceptance: alpha, a mean over requests: with a concentration c the requests
            follow Beta(alpha c, (1 - alpha) c).
        acceptance_length: tokens a round, pooled over rounds, at `measured_at_k` drafts.
        draft_acceptance_rate: accepted / drafted, pooled, at `measured_at_k` drafts.
        measured_at_k: drafts a round when it was measured; None means the K of the run.
        concentration: spread between requests; inf = all alike.
        low_atom: requests apart, or None.
        decay: factor on alpha from one position to the next.
        context_multiplier: nodes (prompt tokens, factor on conditional acceptance), linear in the
            logarithm of the tokens; () is 1 everywhere.
        proposal_probability: share of sampling steps that find a match (n-gram); 1 = always.
        proposal_persistence: P(match | the step before had one); None = independent steps.
        synthetic: an engine's own synthetic mode (no spread between requests): unfit for tails.
        source: where the figures come from.

    Raises:
        ValueError: naming each fault.
    """

    by_position: tuple[float, ...] | None = None
    conditional_acceptance: float | None = None
    acceptance_length: float | None = None
    draft_acceptance_rate: float | None = None
    measured_at_k: int | None = None
    concentration: float = math.inf
    low_atom: LowAtom | None = None
    decay: float = 1.0
    context_multiplier: tuple[tuple[float, float], ...] = ()
    proposal_probability: float = 1.0
    proposal_persistence: float | None = None
    synthetic: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        given = [name for name in QUANTITIES if getattr(self, name) is not None]
        if len(given) != 1:
            stated = " and ".join(given) or "none of them"
            raise ValueError(f"state exactly one of {', '.join(QUANTITIES)}; {stated} given")
        if faults := list(self._faults()):
            raise ValueError("; ".join(faults))

    def _faults(self) -> Iterator[str]:
        steps = self.by_position or ()
        if any(not 0.0 <= s <= 1.0 for s in steps) or list(steps) != sorted(steps, reverse=True):
            yield f"by_position {list(steps)} must not increase and lie in [0, 1]"
        for name in ("conditional_acceptance", "draft_acceptance_rate", "decay"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= 1.0:
                yield f"{name} is {value:g}; it must lie in [0, 1]"
        if not self.concentration > 0.0:
            yield f"concentration is {self.concentration:g}; it must be positive (inf: all requests alike)"
        share, stay = self.proposal_probability, self.proposal_persistence
        if not 0.0 < share <= 1.0:
            yield f"proposal_probability is {share:g}; it must lie in (0, 1]"
        elif stay is not None and share < 1.0 and not 2.0 - 1.0 / share <= stay < 1.0:
            yield (
                f"proposal_persistence {stay:g} does not go with proposal_probability {share:g}: it must lie "
                f"in [{max(2.0 - 1.0 / share, 0.0):.3f}, 1)"
            )

    @staticmethod
    def synthetic_rates(rates: tuple[float, ...]) -> AcceptanceSpec:
        """vLLM's `synthetic_acceptance_rates`: unconditional, no spread between requests."""
        return AcceptanceSpec(by_position=rates, synthetic=True, source="synthetic_acceptance_rates")

    @staticmethod
    def synthetic_length(length: float, k: int) -> AcceptanceSpec:
        """vLLM's `synthetic_acceptance_length`: the minimum-variance schedule of that length."""
        rates = tuple(minimum_variance(length, k))
        return AcceptanceSpec(by_position=rates, synthetic=True, source="synthetic_acceptance_length")


def survival_table(spec: AcceptanceSpec, k: int) -> F64:
    """Returns survival by request level and draft position, shape `(LEVELS, k)`.

    Raises:
        ValueError: if `by_position` gives fewer than `k` positions, or a length no process has.
    """
    spread = Spread(spec.concentration, spec.low_atom)
    if spec.by_position is not None:
        if len(spec.by_position) < k:
            raise ValueError(
                f"by_position gives {len(spec.by_position)} positions, but K is {k}; give at least K"
            )
        return spread.survival_pooled(spec.by_position[:k])
    if spec.conditional_acceptance is not None:
        return spread.survival_by_request([spec.conditional_acceptance * spec.decay**i for i in range(k)])
    measured_at = spec.measured_at_k or k
    length = spec.acceptance_length
    if length is None:
        assert spec.draft_acceptance_rate is not None
        length = length_from_draft_rate(spec.draft_acceptance_rate, measured_at)
    if not 1.0 <= length <= measured_at + 1.0:
        raise ValueError(
            f"acceptance_length {length:g} is outside [1, {measured_at + 1}] for K = {measured_at}"
        )
    alpha = _alpha_of_length(spread, length, measured_at, spec.decay)
    return spread.survival_by_request([alpha * spec.decay**i for i in range(k)])


def _alpha_of_length(spread: Spread, length: float, k: int, decay: float) -> float:
    """Returns the mean conditional acceptance that gives a pooled length at `k`, by bisection."""

    def reached(alpha: float) -> float:
        return pooled_length(spread.survival_by_request([alpha * decay**i for i in range(k)]))

    if reached(1.0) < length - 1e-6:
        raise ValueError(
            f"acceptance_length {length:g} cannot be reached with this decay and low_atom: at most "
            f"{reached(1.0):.2f} for K = {k}"
        )
    low, high = 0.0, 1.0
    for _ in range(40):
        alpha = (low + high) / 2
        low, high = (alpha, high) if reached(alpha) < length else (low, alpha)
    return (low + high) / 2


class Acceptance:
    """The process of one class of traffic at one draft length.

    Args:
        spec: what was measured.
        k: drafts a round.
        seed: of the run's luck.
    """

    def __init__(self, spec: AcceptanceSpec, k: int, seed: int) -> None:
        self.spec = spec
        self.k = k
        self.seed = seed
        self.survival = survival_table(spec, k)
        self._log_nodes = np.log([max(tokens, 1.0) for tokens, _ in spec.context_multiplier] or [1.0])
        self._factors = np.array([factor for _, factor in spec.context_multiplier] or [1.0])
        self._thresholds = np.floor(self.survival * _ONE).astype(np.uint64)

    def context_factor(self, prompt_tokens: int) -> float:
        """Returns the factor on conditional acceptance for a request with this prompt."""
        return float(np.interp(math.log(prompt_tokens), self._log_nodes, self._factors))

    def accepted(self, request_id: int, prompt_tokens: int, rounds: int) -> bytes:
        """Returns the drafts accepted in a request's first `rounds` verifications, at full depth.

        The n-th byte belongs to the n-th verification with at least one real draft, whenever and
        wherever it happens; the caller cuts it to the drafts scheduled.
        """
        level = bits_once(self.seed, request_id, LEVEL) >> 54
        thresholds = self._thresholds[level]
        factor = self.context_factor(prompt_tokens)
        if factor != 1.0:
            thresholds = np.floor(self._scaled(level, factor) * _ONE).astype(np.uint64)
        draws = bits32(key(self.seed, request_id, ROUND), rounds)
        counts = np.zeros(rounds, dtype=np.uint8)
        for threshold in thresholds:
            counts += draws < threshold
        return counts.tobytes()

    def _scaled(self, level: int, factor: float) -> F64:
        """Returns a level's survival with every conditional acceptance times `factor`, at most 1."""
        alive = self.survival[level]
        before = np.concatenate(([1.0], alive[:-1]))
        conditional = np.divide(alive, before, out=np.zeros_like(alive), where=before > 0.0)
        return np.multiply.accumulate(np.minimum(conditional * factor, 1.0))

    def confidence(self, request_id: int, prompt_tokens: int) -> tuple[float, ...]:
        """Returns what a calibrated drafter expects of its drafts for this request: survival by position."""
        level = bits_once(self.seed, request_id, LEVEL) >> 54
        return tuple(self._scaled(level, self.context_factor(prompt_tokens)).tolist())

    def proposals(self, request_id: int, steps: int) -> bytes | None:
        """Returns, for a request's first `steps` samplings, whether each finds drafts (1) or none (0).

        None where every step proposes. Matches come in bursts: a two-state chain with the given
        share of matches and persistence.
        """
        share, stay = self.spec.proposal_probability, self.spec.proposal_persistence
        if share >= 1.0:
            return None
        if stay is None:
            stay = share
        enter = share * (1.0 - stay) / (1.0 - share)
        draws = (bits32(key(self.seed, request_id, PROPOSAL), steps + 1) / _ONE).tolist()
        hot = draws[0] < share
        found = bytearray()
        for draw in draws[1:]:
            hot = draw < (stay if hot else enter)
            found.append(hot)
        return bytes(found)


__all__ = ["LEVELS", "QUANTITIES", "Acceptance", "AcceptanceSpec", "LowAtom", "survival_table"]
