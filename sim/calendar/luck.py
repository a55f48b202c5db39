"""The luck of many requests at once: the same numbers as `Acceptance.accepted`, drawn together.

One request alone costs a dozen numpy calls of about a microsecond; 256 together cost the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar import lookups
from specfleet.sim.speculation.acceptance import LEVELS, Acceptance, Chain
from specfleet.sim.speculation.bursts import deviations_each
from specfleet.sim.speculation.luck import LEVEL, ROUND, bits_each, draws_each
from specfleet.sim.speculation.processes import BurstAcceptance

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
ONE = 1 << 32
MOST_STATES = 1 << 16
"""States of bursts worked out at once."""
MOST_KEPT = 1 << 12
"""Requests whose bounds are kept: they are drawn again where K changes or their rounds did not suffice."""


class Luck:
    """Draws accepted drafts for blocks of requests.

    Args:
        class_id: traffic class of each request.
        processes: the acceptance process of each class.
        k: drafts a round, at least 1.
        seed: of the luck.
        bounds: says what one request's rounds are drawn against (`Acceptance.bounds`); asked where that is
            not its level alone.
        chain: says when one request's steps find drafts (`Acceptance.chain`); asked where not all do.
        accepted: draws one request's life, as the step engine does; for processes that draw another way.
        luck_id: key of each request's luck; None is its number.
    """

    def __init__(
        self,
        class_id: I64,
        processes: Sequence[Acceptance],
        k: int,
        seed: int,
        bounds: Callable[[int], npt.NDArray[Any]],
        chain: Callable[[int], Chain],
        accepted: Callable[[int], bytes],
        luck_id: I64 | None = None,
    ) -> None:
        self.class_id = class_id
        self.luck_id = luck_id
        self.k = k
        self.seed = seed
        self.bounds, self.chain, self.accepted = bounds, chain, accepted
        self._kept: dict[int, npt.NDArray[Any]] = {}
        self.together = all(_is_plain(process) for process in processes)
        self.every_step = all(_always_drafts(process) for process in processes)
        self.by_rounds = not any(process.by_output_position for process in processes)
        self._bursts = [p if isinstance(p, BurstAcceptance) else None for p in processes]
        self.processes = processes

    @cached_property
    def _survival(self) -> F64:
        """Survival by process, level and position, solved when somebody is drawn: `check` draws nobody."""
        # of a tree: below k
        depth = max(min(process.survival.shape[1], self.k) for process in self.processes)
        survival = np.zeros((len(self.processes), LEVELS, depth))
        for i, process in enumerate(self.processes):
            cut = process.survival[:, :depth]
            survival[i, :, : cut.shape[1]] = cut
        return survival

    @cached_property
    def _thresholds(self) -> npt.NDArray[np.uint64]:
        """What a round's 32-bit draw has to stay below, by process, level and position."""
        return np.floor(self._survival * ONE).astype(np.uint64)

    @cached_property
    def _rates(self) -> F64:
        """Mean tokens of a round, by process and level."""
        return np.asarray(1.0 + self._survival.sum(axis=2))

    @cached_property
    def _alike(self) -> bool:
        """Whether every level of every process accepts alike."""
        return bool((self._thresholds == self._thresholds[0, 0]).all())

    @cached_property
    def _full_width(self) -> bool:
        """Whether a threshold does not fit 32 bits."""
        return bool((self._thresholds >= ONE).any())

    def at(self, k: int) -> Luck:
        """Returns the same luck cut to k drafts a round."""
        asked = self.bounds, self.chain, self.accepted
        return Luck(self.class_id, self.processes, k, self.seed, *asked, self.luck_id)

    def _keys(self, ids: I64) -> I64:
        return ids if self.luck_id is None else self.luck_id[ids]

    def rounds_to_draw(self, ids: I64, wanted: I64) -> I64:
        """Returns how many rounds are nearly always enough for `wanted` tokens, shape of `ids`."""
        scatter = 2.1
        if not self.together:
            mean, scatter = wanted / self._mean_tokens(ids), 4.2  # rounds of a burst lie further apart
        elif self._alike:
            mean = wanted / self._rates[0, 0]
        else:
            mean = wanted / self._rates[self.class_id[ids], self._levels(ids)]
        enough: I64 = (mean + scatter * np.sqrt(mean) + 3.0).astype(np.int64)
        return np.minimum(wanted, enough)

    def _mean_tokens(self, ids: I64) -> F64:
        """Returns the mean tokens of a round of each request, where that is not its level's."""
        means = np.empty(len(ids))
        for number, part in self._by_class(ids):
            if self._draws_alone(number):
                means[part] = 1.0
                continue
            burst, rows = self._bursts[number], self._rows(ids[part])
            if not _always_drafts(self.processes[number]):
                share = np.array([self.chain(row).share for row in ids[part].tolist()])
                means[part] = 1.0 + share * (rows / ONE).sum(axis=1)
                continue
            survival = rows / ONE if burst is None else burst.spread.survival_of(rows)
            means[part] = 1.0 + survival.sum(axis=1)
        return means

    def _draws_alone(self, number: int) -> bool:
        """Whether the requests of a class are drawn one by one."""
        process = self.processes[number]
        return self._bursts[number] is None and not process.independent_rounds and process.chain(0) is None

    def _one_by_one(self, ids: I64, hashes: I64, skipped: I64 | None) -> U8:
        """As `gains`, request by request."""
        parts, past = [], np.zeros_like(ids) if skipped is None else 2 * skipped
        for row, first, count in zip(ids.tolist(), past.tolist(), (2 * hashes).tolist(), strict=True):
            drawn = self.accepted(row)[first : first + count]
            parts.append(drawn + bytes(count - len(drawn)))
        accepted = np.frombuffer(b"".join(parts), dtype=np.uint8)
        return np.minimum(accepted, np.uint8(self.k)) + np.uint8(1)

    def _by_class(self, ids: I64) -> Iterator[tuple[int, I64]]:
        """Yields each class that is there, and where its requests stand in `ids`."""
        classes = self.class_id[ids]
        for number in np.flatnonzero(np.bincount(classes)).tolist():
            yield number, np.flatnonzero(classes == number)

    def _rows(self, ids: I64) -> npt.NDArray[Any]:
        """Returns the bounds of requests of one class, shape `(n, positions)`."""
        kept, rows = self._kept, ids.tolist()
        if len(kept) > MOST_KEPT:
            kept.clear()
        kept.update((row, self.bounds(row)[: self.k]) for row in rows if row not in kept)
        return np.array([kept[row] for row in rows])

    def _levels(self, ids: I64) -> I64:
        return (bits_each(self.seed, self._keys(ids), LEVEL) >> np.uint64(54)).astype(np.int64)

    def gains(self, ids: I64, hashes: I64, skipped: I64 | None = None) -> U8:
        """Returns tokens by round (1 + accepted), one request after another, two rounds a hash.

        Args:
            ids: requests, shape `(n,)`.
            hashes: 64-bit hashes to draw for each, at least 1.
            skipped: hashes of each that lie in its past; None is none.
        """
        if not self.together:
            return self._apart(ids, hashes, skipped)
        draws = draws_each(self.seed, self._keys(ids), ROUND, hashes, skipped)
        gains: U8 = np.ones(len(draws), dtype=np.uint8)
        below = np.empty(len(draws), dtype=np.bool_)
        if self._alike:
            for threshold in self._thresholds[0, 0]:
                if threshold >= ONE:
                    gains += np.uint8(1)
                else:
                    gains += np.less(draws, np.uint32(threshold), out=below)
            return gains
        rows = self._thresholds[self.class_id[ids], self._levels(ids)]
        if not self._full_width:
            rows = rows.astype(np.uint32)
        for place in range(rows.shape[1]):
            gains += np.less(draws, np.repeat(rows[:, place], 2 * hashes), out=below)
        return gains

    def _apart(self, ids: I64, hashes: I64, skipped: I64 | None) -> U8:
        """As `gains`, where each request has bounds of its own; class by class."""
        gains = np.empty(2 * int(hashes.sum()), dtype=np.uint8)
        of = np.repeat(self.class_id[ids], 2 * hashes)
        for number, part in self._by_class(ids):
            past = None if skipped is None else skipped[part]
            if self._draws_alone(number):
                gains[of == number] = self._one_by_one(ids[part], hashes[part], past)
                continue
            if not _always_drafts(self.processes[number]):
                gains[of == number] = self._looked_up(ids[part], hashes[part], past)
                continue
            rows = self._rows(ids[part])
            draws = draws_each(self.seed, self._keys(ids[part]), ROUND, hashes[part], past)
            if (burst := self._bursts[number]) is None:
                gains[of == number] = _below(draws, rows, 2 * hashes[part])
            else:
                gains[of == number] = self._in_bursts(burst, ids[part], draws, rows, hashes[part], past)
        return gains

    def found(self, ids: I64, hashes: I64) -> npt.NDArray[np.bool_]:
        """Returns whether each step finds drafts; arguments as `gains`."""
        found = np.ones(2 * int(hashes.sum()), dtype=np.bool_)
        of = np.repeat(self.class_id[ids], 2 * hashes)
        for number, part in self._by_class(ids):
            if not _always_drafts(self.processes[number]):
                chains = [self.chain(row) for row in ids[part].tolist()]
                found[of == number] = lookups.found(self.seed, self._keys(ids[part]), chains, hashes[part])
        return found

    def _looked_up(self, ids: I64, hashes: I64, skipped: I64 | None) -> U8:
        """As `gains`, for requests of a class whose look-ups may find nothing."""
        past = np.zeros_like(hashes) if skipped is None else skipped
        chains = [self.chain(row) for row in ids.tolist()]
        drawn = lookups.gains(self.seed, self._keys(ids), chains, self._rows(ids), past + hashes)
        if skipped is None:
            return drawn
        parts = np.repeat(np.tile([False, True], len(ids)), np.stack([2 * past, 2 * hashes], 1).ravel())
        kept: U8 = drawn[parts]
        return kept

    def _in_bursts(
        self,
        burst: BurstAcceptance,
        ids: I64,
        draws: npt.NDArray[np.uint32],
        rows: F64,
        hashes: I64,
        skipped: I64 | None,
    ) -> U8:
        """As `gains`, for requests whose rounds resemble the one before; `rows` are their logits."""
        assert burst.spec.burst is not None
        counts, past = 2 * hashes, np.zeros_like(hashes) if skipped is None else 2 * skipped
        x, longest = np.empty(len(draws)), int((past + counts).max())
        stops = np.cumsum(counts)
        together, named = max(MOST_STATES // longest, 1), self._keys(ids)
        for low in range(0, len(ids), together):
            states = deviations_each(burst.spec.burst, self.seed, named[low : low + together], longest)
            for j, state in enumerate(states.T, low):
                x[stops[j] - counts[j] : stops[j]] = state[past[j] : past[j] + counts[j]]
        gains: U8 = np.ones(len(draws), dtype=np.uint8)
        uniform, alive = draws / ONE, np.ones(len(draws))
        for place in range(rows.shape[1]):
            alive *= 1.0 / (1.0 + np.exp(-(np.repeat(rows[:, place], counts) + x)))
            gains += uniform < alive
        return gains


def _below(draws: npt.NDArray[np.uint32], rows: npt.NDArray[np.uint64], counts: I64) -> U8:
    """Returns 1 + the thresholds that each draw is below; `rows` are those of each request."""
    gains: U8 = np.ones(len(draws), dtype=np.uint8)
    for place in range(rows.shape[1]):
        gains += draws < np.repeat(rows[:, place], counts)
    return gains


def _always_drafts(process: Acceptance) -> bool:
    """Whether every sampling step finds drafts."""
    return process.spec.hot_cold is None and process.spec.proposal_probability >= 1.0


def _is_plain(process: Acceptance) -> bool:
    """Whether every round draws against its level's thresholds, whatever the request."""
    spec = process.spec
    varies = spec.context_multiplier or spec.temperature_multiplier or spec.turn_multiplier or spec.overlap
    plain = process.independent_rounds and _always_drafts(process)
    return plain and not varies and not spec.length_rank_correlation
