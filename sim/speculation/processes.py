"""Processes whose rounds are not drawn against fixed thresholds: bursts, copying, recorded requests, own.

`process` picks the process of a specification.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specfleet.sim.speculation.acceptance import (
    ONE,
    U64,
    Acceptance,
    Chain,
    Outputs,
    accepted_counts,
    conditional_of,
    conditional_table,
    spread_of,
    survival_table,
)
from specfleet.sim.speculation.bursts import BurstSpread, deviations, survival_at, two_state
from specfleet.sim.speculation.joint import Rank
from specfleet.sim.speculation.luck import VAIN, bits32, key
from specfleet.sim.speculation.own import checked
from specfleet.sim.speculation.replay import MOST, NO_MATCH, Trace, placed, rounds_of, survival_of, walk
from specfleet.sim.speculation.spec import AcceptanceSpec
from specfleet.sim.speculation.spread import F64


class BurstAcceptance(Acceptance):
    """Rounds of a request that resemble the one before: see `bursts.Burst`.

    Attributes:
        spread: how requests and their rounds differ.
    """

    independent_rounds = False

    def _solved(self, lengths: F64 | None) -> F64:
        spread = spread_of(self.spec)
        assert isinstance(spread, BurstSpread)
        self.spread = spread
        self._table = conditional_table(self.spec, self.k, spread, lengths)
        return spread.survival(self._table)

    def _own(self, level: int, factor: float) -> F64:
        """Returns conditional acceptance of a request, on average over its rounds, shape `(k,)`."""
        return np.asarray(np.minimum(self._table[level] * factor, 1.0))

    def bounds(
        self, request_id: int, prompt_tokens: int, temperature: float | None = None, rank: Rank | None = None
    ) -> F64:
        """Returns the logits of a request's conditional acceptance, shape `(k,)`."""
        own = self._own(self.level(request_id, rank), self.factor_of(request_id, prompt_tokens, temperature))
        return self.spread.centres(own)

    def accepted(
        self,
        request_id: int,
        prompt_tokens: int,
        rounds: int,
        temperature: float | None = None,
        rank: Rank | None = None,
    ) -> bytes:
        """As `Acceptance.accepted`, each round at the request's state in it."""
        assert self.spec.burst is not None
        x = deviations(self.spec.burst, self.seed, request_id, rounds)
        alive = survival_at(self.bounds(request_id, prompt_tokens, temperature, rank), x)
        draws = self.draws(request_id, rounds) / ONE
        return bytes((draws[:, None] < alive).sum(axis=1).astype(np.uint8))

    def _scaled(self, level: int, factor: float) -> F64:
        return np.asarray(self.spread.survival(self._own(level, factor)[None])[0])


class HotColdAcceptance(Acceptance):
    """Requests that copy in runs: see `bursts.HotCold`."""

    independent_rounds = False

    def _solved(self, lengths: F64 | None) -> F64:
        return survival_table(self.spec, self.k, lengths)

    def chain(self, level: int) -> Chain:
        """Returns when a request of a level copies, and how many of its other steps draft in vain."""
        model = self.spec.hot_cold
        assert model is not None
        return Chain(*model.chain(float(self.survival[level, 0])), model.propose_cold)

    def thresholds(
        self, request_id: int, prompt_tokens: int, temperature: float | None = None, rank: Rank | None = None
    ) -> U64:
        """Returns what a hot step's draw must stay below to accept draft 1, 2, .. K, shape `(k,)`."""
        alive = self._scaled(self.level(request_id, rank), self.factor(prompt_tokens, temperature))
        return np.asarray(np.floor(alive * ONE).astype(np.uint64))

    def _states(self, request_id: int, level: int, steps: int) -> tuple[bytes, bytes]:
        """Returns whether each sampling step is hot, and whether it finds a draft."""
        model = self.spec.hot_cold
        assert model is not None
        hot = two_state(self.proposal_draws(request_id, steps), *self.chain(level)[:3])
        if not model.propose_cold:
            return hot, hot
        vain = bits32(key(self.seed, request_id, VAIN), steps) < model.propose_cold * ONE
        return hot, (np.frombuffer(hot, np.uint8) | vain).tobytes()

    def accepted(
        self,
        request_id: int,
        prompt_tokens: int,
        rounds: int,
        temperature: float | None = None,
        rank: Rank | None = None,
    ) -> bytes:
        """Returns the drafts accepted in those of the first `rounds` sampling steps that find a draft."""
        level = self.level(request_id, rank)
        hot, found = (np.frombuffer(s, np.uint8) for s in self._states(request_id, level, rounds))
        thresholds = self.thresholds(request_id, prompt_tokens, temperature, rank)
        counts = accepted_counts(self.draws(request_id, int(found.sum())), thresholds)
        return bytes(counts * hot[found == 1])

    def _scaled(self, level: int, factor: float) -> F64:
        """Returns survival of a hot step's drafts; the share of hot steps does not change with `factor`."""
        assert self.spec.hot_cold is not None
        alive = self.survival[level]
        share = self.spec.hot_cold.chain(float(alive[0]))[0]
        conditional = conditional_of(alive / share if share else np.zeros_like(alive))
        return np.multiply.accumulate(np.minimum(conditional * factor, 1.0))

    def proposals(self, request_id: int, steps: int, rank: Rank | None = None) -> bytes | None:
        """Returns, for a request's first `steps` samplings, whether each finds drafts (1) or none (0)."""
        return self._states(request_id, self.level(request_id, rank), steps)[1]


class ReplayAcceptance(Acceptance):
    """Requests that accept what recorded ones accepted, place by place: see `replay`."""

    independent_rounds = False
    by_output_position = True

    def _solved(self, lengths: F64 | None) -> F64:
        return survival_table(self.spec, self.k, lengths)

    def trace(self, request_id: int) -> Trace:
        """Returns the recorded request that a request follows: its id modulo their number."""
        assert self.spec.replay is not None
        return self.spec.replay[request_id % len(self.spec.replay)]

    def at_positions(self, request_id: int, output_tokens: int) -> tuple[bytes, bytes | None]:
        """Returns accepted drafts and matches (None: always) by tokens written, 0 .. `output_tokens`."""
        row = np.frombuffer(placed(self.trace(request_id), output_tokens), np.uint8)
        found = row != NO_MATCH
        accepted = np.where(found, np.minimum(row, MOST), 0).astype(np.uint8)
        return accepted.tobytes(), None if found.all() else found.astype(np.uint8).tobytes()

    def accepted(
        self,
        request_id: int,
        prompt_tokens: int,
        rounds: int,
        temperature: float | None = None,
        rank: Rank | None = None,
    ) -> bytes:
        """Returns the drafts accepted in the rounds of a request that writes `rounds` tokens, K drafts each.

        Where K changes or a step has no drafts for another reason, `at_positions` says what is accepted.
        """
        return rounds_of(self.trace(request_id), self.k, rounds)

    def confidence(
        self, request_id: int, prompt_tokens: int, temperature: float | None = None, rank: Rank | None = None
    ) -> tuple[float, ...]:
        """Returns survival by position over the recorded request."""
        return tuple(survival_of((self.trace(request_id),), self.k).tolist())

    def proposals(self, request_id: int, steps: int, rank: Rank | None = None) -> bytes | None:
        """Returns whether the successive samplings of a request that writes `steps` tokens find drafts."""
        trace = self.trace(request_id)
        if NO_MATCH not in trace:
            return None
        return bytes(kept != NO_MATCH for _, kept in walk(trace, self.k, steps))


class OwnAcceptance(Acceptance):
    """A registered process: see `own.DraftProcess`."""

    independent_rounds = False

    def _solved(self, lengths: F64 | None) -> F64:
        assert self.spec.own is not None
        self._process = self.spec.own.made(self.k, self.seed)
        return survival_table(self.spec, self.k, lengths)

    def accepted(
        self,
        request_id: int,
        prompt_tokens: int,
        rounds: int,
        temperature: float | None = None,
        rank: Rank | None = None,
    ) -> bytes:
        """As `Acceptance.accepted`, as the process says."""
        assert self.spec.own is not None
        said = self._process.accepted(request_id, rounds, prompt_tokens, temperature or 0.0)
        return checked(self.spec.own, said, self.k, rounds).tobytes()

    def confidence(
        self, request_id: int, prompt_tokens: int, temperature: float | None = None, rank: Rank | None = None
    ) -> tuple[float, ...]:
        """Returns survival by position over a sample of requests."""
        return tuple(self.survival[0].tolist())


def process(
    spec: AcceptanceSpec, k: int, seed: int, output_tokens: Sequence[int] | Outputs | None = None
) -> Acceptance:
    """Returns the process of a specification.

    Args:
        spec: what was measured.
        k: drafts a round.
        seed: of the run's luck.
        output_tokens: outputs of the class's requests; needed where acceptance goes with length.

    Raises:
        ValueError: as `Acceptance`.
    """
    outputs = None if output_tokens is None else np.asarray(output_tokens, dtype=np.int64)
    kind = Acceptance
    if spec.replay is not None:
        kind = ReplayAcceptance
    elif spec.own is not None:
        kind = OwnAcceptance
    elif spec.hot_cold is not None:
        kind = HotColdAcceptance
    elif spec.burst is not None:
        kind = BurstAcceptance
    return kind(spec, k, seed, outputs)
