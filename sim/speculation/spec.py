"""What was measured of a drafter on one class of traffic: exactly one source of acceptance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specfleet.sim.speculation.bursts import Burst, HotCold
from specfleet.sim.speculation.overlap import Overlap
from specfleet.sim.speculation.own import OwnProcess
from specfleet.sim.speculation.replay import Trace
from specfleet.sim.speculation.spread import LowAtom
from specfleet.sim.speculation.theory import minimum_variance
from specfleet.sim.speculation.trees import TreeSpec

QUANTITIES = (
    "by_position",
    "conditional_acceptance",
    "acceptance_length",
    "draft_acceptance_rate",
    "replay",
    "own",
)
"""The fields of which a specification has exactly one."""

Nodes = tuple[tuple[float, float], ...]

UNFIT_FOR_TAILS = (
    "engine-synthetic acceptance: minimum variance, no spread between requests. Means hold; P99 and every "
    "other tail figure are too good and unfit for conclusions"
)
"""What every output of a run with synthetic acceptance says."""

_PAST_THE_KNEE = ((1.0, 1.0), (2.0, 0.875), (4.0, 0.673), (6.0, 0.356), (8.0, 0.13))
"""(multiple of the training length, factor): an EAGLE-3 head on LongBench-v2, acceptance length 2.30 2.04
1.69 1.29 1.09 at 2k 4k 8k 12k 16k tokens, turned into conditional acceptance at K = 3."""


def context_knee(training_tokens: float) -> Nodes:
    """Returns context nodes of a head trained on `training_tokens` positions: level up to there, then down.

    The fall is that of one measured head trained on 2,048 (see `_PAST_THE_KNEE`); others are assumed to
    fall alike in multiples of their own length.
    """
    return tuple((multiple * training_tokens, factor) for multiple, factor in _PAST_THE_KNEE)


@dataclass(frozen=True, slots=True)
class AcceptanceSpec:
    """What a drafter achieves on one class of traffic: exactly one of `QUANTITIES`.

    Args:
        by_position: P(first i drafts accepted), pooled over rounds, non-increasing.
        conditional_acceptance: alpha, a mean over requests: with a concentration c the requests
            follow Beta(alpha c, (1 - alpha) c).
        acceptance_length: tokens a round, pooled over rounds, at `measured_at_k` drafts.
        draft_acceptance_rate: accepted / drafted, pooled, at `measured_at_k` drafts.
        replay: recorded requests, one taken by each request (request id modulo their number).
        measured_at_k: drafts a round when it was measured; None means the K of the run.
        concentration: spread between requests; inf = all alike.
        low_atom: requests apart, or None.
        decay: factor on alpha from one position to the next.
        burst: good and bad rounds within a request, or None.
        hot_cold: copying and not copying within a request (n-gram), or None. The rounds that the
            figures above are pooled over are then all sampling steps, those without a draft included.
        context_multiplier: nodes (prompt tokens, factor on conditional acceptance), linear in the
            logarithm of the tokens; () is 1 everywhere.
        temperature_multiplier: nodes (temperature of the request, factor), linear; () is 1 everywhere.
        turn_multiplier: nodes (turn of its session from 0, factor), linear; () is 1 everywhere.
        overlap: a logit model that gives the factor at a temperature, or None.
        length_rank_correlation: Spearman correlation of acceptance and output length over requests.
        proposal_probability: share of sampling steps that find a match (n-gram); 1 = always.
        proposal_persistence: P(match | the step before had one); None = independent steps.
        tree: nodes drafted, of which K is the number; None is a chain.
        by_rank: acceptance by rank in the tree; None takes the law of `trees.rank_vector`.
        synthetic: an engine's own synthetic mode (no spread between requests): unfit for tails.
        source: where the figures come from.
        own: a registered process, which says everything.

    Raises:
        ValueError: naming each fault.
    """

    by_position: tuple[float, ...] | None = None
    conditional_acceptance: float | None = None
    acceptance_length: float | None = None
    draft_acceptance_rate: float | None = None
    replay: tuple[Trace, ...] | None = None
    measured_at_k: int | None = None
    concentration: float = math.inf
    low_atom: LowAtom | None = None
    decay: float = 1.0
    burst: Burst | None = None
    hot_cold: HotCold | None = None
    context_multiplier: Nodes = ()
    temperature_multiplier: Nodes = ()
    turn_multiplier: Nodes = ()
    overlap: Overlap | None = None
    length_rank_correlation: float = 0.0
    proposal_probability: float = 1.0
    proposal_persistence: float | None = None
    tree: TreeSpec | None = None
    by_rank: tuple[float, ...] | None = None
    synthetic: bool = False
    source: str = ""
    own: OwnProcess | None = None

    def __post_init__(self) -> None:
        given = [name for name in QUANTITIES if getattr(self, name) is not None]
        if len(given) != 1:
            stated = " and ".join(given) or "none of them"
            raise ValueError(f"state exactly one of {', '.join(QUANTITIES)}; {stated} given")
        if faults := [*self._values(), *self._proposals(), *self._combinations()]:
            raise ValueError("; ".join(faults))

    def _values(self) -> Iterator[str]:
        """Figures outside what they can be."""
        steps = self.by_position or ()
        if any(not 0.0 <= s <= 1.0 for s in steps) or list(steps) != sorted(steps, reverse=True):
            yield f"by_position {list(steps)} must not increase and lie in [0, 1]"
        for name in ("conditional_acceptance", "draft_acceptance_rate", "decay"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= 1.0:
                yield f"{name} is {value:g}; it must lie in [0, 1]"
        if not self.concentration > 0.0:
            yield f"concentration is {self.concentration:g}; it must be positive (inf: all requests alike)"
        if not -1.0 < self.length_rank_correlation < 1.0:
            yield f"length_rank_correlation is {self.length_rank_correlation:g}; it must lie in (-1, 1)"
        if self.replay is not None and not (self.replay and all(self.replay)):
            yield "replay needs at least one trace, each with at least one position"

    def _proposals(self) -> Iterator[str]:
        """A share of matches and their persistence that no chain has."""
        share, stay = self.proposal_probability, self.proposal_persistence
        if not 0.0 < share <= 1.0:
            yield f"proposal_probability is {share:g}; it must lie in (0, 1]"
        elif stay is not None and share < 1.0 and not 2.0 - 1.0 / share <= stay < 1.0:
            yield (
                f"proposal_persistence {stay:g} does not go with proposal_probability {share:g}: it must lie "
                f"in [{max(2.0 - 1.0 / share, 0.0):.3f}, 1)"
            )

    def _combinations(self) -> Iterator[str]:
        """Parts that say the same thing twice, or contradict each other."""
        proposing = self.proposal_probability < 1.0
        if self.replay is not None:
            for name in ("burst", "hot_cold", "low_atom", "overlap"):
                if getattr(self, name) is not None:
                    yield f"replay is exact; remove {name}"
            lowered = self.context_multiplier or self.temperature_multiplier or self.turn_multiplier
            if lowered or self.length_rank_correlation:
                yield "replay is exact; remove multipliers and length_rank_correlation"
            if proposing:
                yield "replay says where nothing is proposed; remove proposal_probability"
        if self.hot_cold is not None and (self.burst is not None or proposing):
            yield "hot_cold says which steps find drafts, and in which runs; remove burst and proposal_*"
        if self.hot_cold is not None and (self.context_multiplier or self.turn_multiplier):
            yield "hot_cold is for look-ups, which have no training length; remove the multipliers"
        if self.tree is not None:
            for name in ("burst", "hot_cold", "replay"):
                if getattr(self, name) is not None:
                    yield f"{name} draws rounds of chains; remove it, or the tree"
        if self.overlap is not None and self.temperature_multiplier:
            yield "overlap and temperature_multiplier say the same thing twice; keep one"

    @staticmethod
    def synthetic_rates(rates: tuple[float, ...]) -> AcceptanceSpec:
        """vLLM's `synthetic_acceptance_rates`: unconditional, no spread between requests."""
        return AcceptanceSpec(by_position=rates, synthetic=True, source="synthetic_acceptance_rates")

    @staticmethod
    def synthetic_length(length: float, k: int) -> AcceptanceSpec:
        """vLLM's `synthetic_acceptance_length`: the minimum-variance schedule of that length."""
        rates = tuple(minimum_variance(length, k))
        return AcceptanceSpec(by_position=rates, synthetic=True, source="synthetic_acceptance_length")


def unfit_for_tails(specs: Iterable[AcceptanceSpec]) -> str | None:
    """Returns what an output must say where any of its processes is an engine's synthetic one, else None."""
    return UNFIT_FOR_TAILS if any(spec.synthetic for spec in specs) else None
