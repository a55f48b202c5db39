"""Acceptance: how many of a round's drafts the target agrees with.

`AcceptanceSpec` says what was measured. `Acceptance` is the process a run draws from: each request
has a level for life, each of its verification rounds one uniform number, and the drafts accepted are
the positions whose survival exceeds it. A round is drawn at full depth and cut to the drafts
scheduled. Processes that draw another way are in `processes`.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.bursts import BurstSpread, two_state
from specfleet.sim.speculation.joint import Rank, joint_level, lengths_by_level, normal_correlation
from specfleet.sim.speculation.luck import LEVEL, PROPOSAL, ROUND, bits32, bits_each, bits_once, key
from specfleet.sim.speculation.own import sampled_survival
from specfleet.sim.speculation.replay import survival_of
from specfleet.sim.speculation.spec import QUANTITIES, AcceptanceSpec
from specfleet.sim.speculation.spread import F64, LEVELS, LowAtom, Spread, pooled_length
from specfleet.sim.speculation.theory import length_from_draft_rate
from specfleet.sim.speculation.tree_survival import tree_survival

U64 = npt.NDArray[np.uint64]
Outputs = npt.NDArray[np.int64]
ONE = 1 << 32
"""One, in the unit of a 32-bit draw."""


class Chain(NamedTuple):
    """When the samplings of a request find drafts: a two-state chain.

    Attributes:
        share: P(the state before the first step is hot).
        stay: P(hot after hot).
        enter: P(hot after cold).
        vain: P(a cold step finds a draft all the same, none of which is accepted).
    """

    share: float
    stay: float
    enter: float
    vain: float


def spread_of(spec: AcceptanceSpec) -> Spread:
    """Returns how requests, and where it has bursts their rounds, differ in a specification."""
    if spec.burst is not None:
        return BurstSpread(spec.concentration, spec.low_atom, spec.burst)
    return Spread(spec.concentration, spec.low_atom)


def survival_table(spec: AcceptanceSpec, k: int, lengths: F64 | None = None) -> F64:
    """Returns survival by request level and draft position, shape `(LEVELS, k)`.

    Args:
        spec: what was measured.
        k: drafts a round.
        lengths: mean output tokens by level, where they depend on it.

    Raises:
        ValueError: if `by_position` gives fewer than `k` positions, or a length no process has.
    """
    if spec.replay is not None:
        return np.tile(survival_of(spec.replay, k), (LEVELS, 1))
    if spec.own is not None:
        return np.tile(sampled_survival(spec.own, k), (LEVELS, 1))
    spread = spread_of(spec)
    if spec.tree is not None:
        chain = conditional_table(spec, spec.tree.depth, spread, lengths)
        return tree_survival(spec.tree, chain, spec.by_rank)[:, :k]
    return spread.survival(conditional_table(spec, k, spread, lengths))


def always_reached(spec: AcceptanceSpec, k: int) -> bool:
    """Returns whether `survival_table` has an answer for sure: enough positions, survival that does not rise,
    and neither requests apart nor bursts."""
    means = spec.by_position
    if means is None or len(means) < k or spec.tree is not None or spec.low_atom is not None:
        return False
    special = spec.burst or spec.hot_cold or spec.replay or spec.own
    return not special and all(0.0 <= later <= before for before, later in pairwise((1.0, *means[:k])))


@lru_cache(maxsize=64)
def _kept_table(spec: AcceptanceSpec, k: int) -> F64:
    """Returns `survival_table`, kept: solving it takes longer than a run of thousands of requests."""
    table = survival_table(spec, k)
    table.flags.writeable = False
    return table


def conditional_table(spec: AcceptanceSpec, k: int, spread: Spread, lengths: F64 | None = None) -> F64:
    """Returns conditional acceptance by request level and draft position, shape `(LEVELS, k)`.

    Raises:
        ValueError: as `survival_table`.
    """
    if spec.by_position is not None:
        if len(spec.by_position) < k:
            raise ValueError(
                f"by_position gives {len(spec.by_position)} positions, but K is {k}; give at least K"
            )
        return spread.pooled(spec.by_position[:k], lengths)
    if spec.conditional_acceptance is not None:
        return spread.by_request([spec.conditional_acceptance * spec.decay**i for i in range(k)])
    measured_at = spec.measured_at_k or k
    length = spec.acceptance_length
    if length is None:
        assert spec.draft_acceptance_rate is not None
        length = length_from_draft_rate(spec.draft_acceptance_rate, measured_at)
    if not 1.0 <= length <= measured_at + 1.0:
        raise ValueError(
            f"acceptance_length {length:g} is outside [1, {measured_at + 1}] for K = {measured_at}"
        )
    alpha = _alpha_of_length(spread, length, measured_at, spec.decay, lengths)
    return spread.by_request([alpha * spec.decay**i for i in range(k)])


def _alpha_of_length(spread: Spread, length: float, k: int, decay: float, lengths: F64 | None) -> float:
    """Returns the mean conditional acceptance that gives a pooled length at `k`, by bisection."""

    def reached(alpha: float) -> float:
        table = spread.by_request([alpha * decay**i for i in range(k)])
        return pooled_length(spread.survival(table), lengths)

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
    """The process of one class of traffic at one draft length: rounds independent, given the request.

    Args:
        spec: what was measured.
        k: drafts a round.
        seed: of the run's luck.
        output_tokens: outputs of the class's requests; needed where acceptance goes with length.

    Attributes:
        survival: by level and position, shape `(LEVELS, k)`.
        turns: of each request in its session, by its id; None: all are first turns.

    Raises:
        ValueError: as `survival_table`, or without the outputs that a rank correlation needs.
    """

    independent_rounds = True
    """Whether every round draws against the same `thresholds`; other processes draw their own way."""

    by_output_position = False
    """Whether luck belongs to places in the output (`at_positions`), not to successive rounds."""

    def __init__(self, spec: AcceptanceSpec, k: int, seed: int, output_tokens: Outputs | None = None) -> None:
        self.spec = spec
        self.k = k
        self.seed = seed
        self._correlation = normal_correlation(spec.length_rank_correlation)
        lengths = None
        if self._correlation:
            if output_tokens is None or not len(output_tokens):
                raise ValueError("length_rank_correlation needs the output lengths of the class's requests")
            lengths = lengths_by_level(output_tokens, self._correlation)
        self._lengths = lengths
        if not always_reached(spec, k):
            _ = self.survival  # whoever states what no process has is told so here
        self._log_nodes = np.log([max(tokens, 1.0) for tokens, _ in spec.context_multiplier] or [1.0])
        self._factors = np.array([factor for _, factor in spec.context_multiplier] or [1.0])
        hot = spec.overlap.multiplier() if spec.overlap is not None else spec.temperature_multiplier
        self._temperatures = np.array([temperature for temperature, _ in hot])
        self._hot_factors = np.array([factor for _, factor in hot])
        self._turn_nodes = np.array([turn for turn, _ in spec.turn_multiplier])
        self._turn_factors = np.array([factor for _, factor in spec.turn_multiplier])
        self.turns: npt.NDArray[np.int64] | None = None
        same = not len(hot) and not len(self._turn_nodes) and bool((self._factors == self._factors[0]).all())
        self._one_factor = float(self._factors[0]) if same else None
        self._lowered: dict[int, U64] = {}
        self._confidence_of: dict[bytes, tuple[float, ...]] = {}

    @cached_property
    def survival(self) -> F64:
        """By level and position, solved when it is first asked for: `check` asks for nobody's."""
        return self._solved(self._lengths)

    @cached_property
    def _thresholds(self) -> U64:
        """What a round's 32-bit draw has to stay below, by level and position."""
        return np.floor(self.survival * ONE).astype(np.uint64)

    def _solved(self, lengths: F64 | None) -> F64:
        """Returns the survival table, for mean output tokens by level where they depend on it."""
        if self.spec.burst or self.spec.hot_cold or self.spec.replay or self.spec.own:
            raise ValueError("rounds of this specification are not alike: build it with processes.process")
        return (
            _kept_table(self.spec, self.k) if lengths is None else survival_table(self.spec, self.k, lengths)
        )

    def context_factor(self, prompt_tokens: int) -> float:
        """Returns the factor on conditional acceptance for a request with this prompt."""
        return float(np.interp(math.log(prompt_tokens), self._log_nodes, self._factors))

    def factor(self, prompt_tokens: int, temperature: float | None = None) -> float:
        """Returns the factor on conditional acceptance for this prompt, sampled at this temperature.

        Raises:
            ValueError: without the temperature that a specification with temperature nodes needs.
        """
        if not len(self._temperatures):
            return self.context_factor(prompt_tokens)
        if temperature is None:
            raise ValueError("acceptance by temperature needs the temperature of the request")
        hot = float(np.interp(temperature, self._temperatures, self._hot_factors))
        return self.context_factor(prompt_tokens) * hot

    def factor_of(self, request_id: int, prompt_tokens: int, temperature: float | None = None) -> float:
        """Returns `factor` times what the request's turn of its session makes of it; arguments as there."""
        factor = self.factor(prompt_tokens, temperature)
        if not len(self._turn_nodes):
            return factor
        turn = 0 if self.turns is None else int(self.turns[request_id])
        return factor * float(np.interp(turn, self._turn_nodes, self._turn_factors))

    def level(self, request_id: int, rank: Rank | None = None) -> int:
        """Returns a request's level, 0 to LEVELS - 1, every one as likely.

        Args:
            request_id: of the request.
            rank: of its output among its class; ignored where acceptance does not go with length.

        Raises:
            ValueError: without the rank that a rank correlation needs.
        """
        if not self._correlation:
            return bits_once(self.seed, request_id, LEVEL) >> 54
        if rank is None:
            raise ValueError("length_rank_correlation needs the rank of the request's own output")
        return joint_level(self.seed, request_id, self._correlation, rank)

    def thresholds(
        self, request_id: int, prompt_tokens: int, temperature: float | None = None, rank: Rank | None = None
    ) -> U64:
        """Returns what a round's 32-bit draw must stay below to accept draft 1, 2, .. K, shape `(k,)`."""
        level = self.level(request_id, rank)
        if self._one_factor is not None and level in self._lowered:
            return self._lowered[level]
        factor = self.factor_of(request_id, prompt_tokens, temperature)
        if factor == 1.0:
            return np.asarray(self._thresholds[level])
        found = np.asarray(np.floor(self._scaled(level, factor) * ONE).astype(np.uint64))
        if self._one_factor is not None:
            self._lowered[level] = found
        return found

    def thresholds_each(self, request_ids: npt.NDArray[np.int64]) -> U64 | None:
        """As `thresholds`, for many, shape `(n, k)`; None where they are not those of a request's level."""
        if self._correlation or self._one_factor != 1.0:
            return None
        levels = (bits_each(self.seed, request_ids, LEVEL) >> np.uint64(54)).astype(np.int64)
        return np.asarray(self._thresholds[levels])

    def bounds(
        self, request_id: int, prompt_tokens: int, temperature: float | None = None, rank: Rank | None = None
    ) -> npt.NDArray[Any]:
        """Returns what a request's rounds are drawn against: here its `thresholds`."""
        return self.thresholds(request_id, prompt_tokens, temperature, rank)

    def accepted(
        self,
        request_id: int,
        prompt_tokens: int,
        rounds: int,
        temperature: float | None = None,
        rank: Rank | None = None,
    ) -> bytes:
        """Returns the drafts accepted in a request's first `rounds` verifications, at full depth.

        The n-th byte belongs to the n-th verification with at least one real draft, whenever and
        wherever it happens; the caller cuts it to the drafts scheduled.
        """
        thresholds = self.thresholds(request_id, prompt_tokens, temperature, rank)
        return accepted_counts(self.draws(request_id, rounds), thresholds).tobytes()

    def draws(self, request_id: int, rounds: int) -> npt.NDArray[np.uint32]:
        """Returns the draw of each of a request's rounds."""
        return bits32(key(self.seed, request_id, ROUND), rounds)

    def _scaled(self, level: int, factor: float) -> F64:
        """Returns a level's survival with every conditional acceptance times `factor`, at most 1."""
        return np.multiply.accumulate(np.minimum(conditional_of(self.survival[level]) * factor, 1.0))

    def confidence(
        self, request_id: int, prompt_tokens: int, temperature: float | None = None, rank: Rank | None = None
    ) -> tuple[float, ...]:
        """Returns what a calibrated drafter expects of its drafts for this request: survival by position."""
        level = self.level(request_id, rank)
        alike = self.survival[level].tobytes()  # many levels may accept alike
        if self._one_factor is not None and alike in self._confidence_of:
            return self._confidence_of[alike]
        said = tuple(self._scaled(level, self.factor_of(request_id, prompt_tokens, temperature)).tolist())
        if self._one_factor is not None:
            self._confidence_of[alike] = said
        return said

    def proposals(self, request_id: int, steps: int, rank: Rank | None = None) -> bytes | None:
        """Returns, for a request's first `steps` samplings, whether each finds drafts (1) or none (0).

        None where every step proposes. Matches come in bursts: a two-state chain with the given
        share of matches and persistence.
        """
        chain = self.chain(0)
        return None if chain is None else two_state(self.proposal_draws(request_id, steps), *chain[:3])

    def chain(self, level: int) -> Chain | None:
        """Returns when the samplings of a request of a level find drafts; None where every one does."""
        del level
        share, stay = self.spec.proposal_probability, self.spec.proposal_persistence
        if share >= 1.0:
            return None
        if stay is None:
            stay = share
        return Chain(share, stay, share * (1.0 - stay) / (1.0 - share), 0.0)

    def proposal_draws(self, request_id: int, steps: int) -> F64:
        """Returns a draw for the state before a request's first step, and one for each step."""
        return np.asarray(bits32(key(self.seed, request_id, PROPOSAL), steps + 1) / ONE)

    def at_positions(self, request_id: int, output_tokens: int) -> tuple[bytes, bytes | None]:
        """Returns accepted drafts and matches (None: always) by tokens written, 0 .. `output_tokens`.

        Raises:
            ValueError: where luck belongs to rounds.
        """
        raise ValueError("this acceptance process draws by round, not by place in the output")


def accepted_counts(draws: npt.NDArray[np.uint32], thresholds: U64) -> npt.NDArray[np.uint8]:
    """Returns how many thresholds each draw is below."""
    counts = np.zeros(len(draws), dtype=np.uint8)
    for threshold in thresholds:
        counts += draws < threshold
    return counts


def conditional_of(survival: F64) -> F64:
    """Returns conditional acceptance by position for survival by position, 0 where nothing survives."""
    before = np.concatenate(([1.0], survival[:-1]))
    return np.divide(survival, before, out=np.zeros_like(survival), where=before > 0.0)


__all__ = [
    "LEVELS",
    "QUANTITIES",
    "Acceptance",
    "AcceptanceSpec",
    "LowAtom",
    "always_reached",
    "survival_table",
]
