"""The luck of many requests at once: the same numbers as `Acceptance.accepted`, drawn together.

One request alone costs a dozen numpy calls of about a microsecond; 256 together cost the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.acceptance import LEVELS, Acceptance
from specfleet.sim.speculation.luck import GOLDEN, LEVEL, ROUND, bits_each, keys, mix

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
ONE = 1 << 32
_STEP = np.uint64(GOLDEN)


class Luck:
    """Draws accepted drafts for blocks of requests.

    Args:
        class_id: traffic class of each request.
        processes: the acceptance process of each class.
        k: drafts a round, at least 1.
        seed: of the luck.
        accepted: draws one request's life, as the step engine does; for processes whose rounds are
            not draws against their level's thresholds.
        output_tokens: of each request: how many rounds `accepted` gives.
    """

    def __init__(
        self,
        class_id: I64,
        processes: Sequence[Acceptance],
        k: int,
        seed: int,
        accepted: Callable[[int], bytes],
        output_tokens: I64,
    ) -> None:
        self.class_id = class_id
        self.k = k
        self.seed = seed
        self.accepted = accepted
        self.output_tokens = output_tokens
        self.together = all(_is_plain(process) for process in processes)
        self.every_step = all(_always_drafts(process) for process in processes)
        depth = max(min(process.survival.shape[1], k) for process in processes)  # of a tree: below k
        survival = np.zeros((len(processes), LEVELS, depth))
        for i, process in enumerate(processes):
            cut = process.survival[:, :depth]
            survival[i, :, : cut.shape[1]] = cut
        self._thresholds = np.floor(survival * ONE).astype(np.uint64)
        self._rates = 1.0 + survival.sum(axis=2)
        self._alike = len(np.unique(self._thresholds.reshape(-1, depth), axis=0)) == 1
        self._full_width = bool((self._thresholds >= ONE).any())
        self.processes = processes

    def at(self, k: int) -> Luck:
        """Returns the same luck cut to k drafts a round."""
        return Luck(self.class_id, self.processes, k, self.seed, self.accepted, self.output_tokens)

    def rounds_to_draw(self, ids: I64, wanted: I64) -> I64:
        """Returns how many rounds are nearly always enough for `wanted` tokens, shape of `ids`."""
        if not self.together:
            return self.output_tokens[ids]
        if self._alike:
            mean = wanted / self._rates[0, 0]
        else:
            mean = wanted / self._rates[self.class_id[ids], self._levels(ids)]
        enough: I64 = (mean + 2.1 * np.sqrt(mean) + 3.0).astype(np.int64)
        return np.minimum(wanted, enough)

    def _levels(self, ids: I64) -> I64:
        return (bits_each(self.seed, ids, LEVEL) >> np.uint64(54)).astype(np.int64)

    def gains(self, ids: I64, hashes: I64, skipped: I64 | None = None) -> U8:
        """Returns tokens by round (1 + accepted), one request after another, two rounds a hash.

        Args:
            ids: requests, shape `(n,)`.
            hashes: 64-bit hashes to draw for each, at least 1.
            skipped: hashes of each that lie in its past; None is none.
        """
        if not self.together:
            return self._one_by_one(ids, hashes, skipped)
        draws = self._draws(ids, hashes, skipped)
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

    def _draws(self, ids: I64, hashes: I64, skipped: I64 | None) -> npt.NDArray[np.uint32]:
        """Returns 32-bit draws, `2 * hashes` a request; the counters are one running sum."""
        streams = keys(self.seed, ids, ROUND)
        if skipped is not None:
            streams += skipped.astype(np.uint64) * _STEP
        x = np.full(int(hashes.sum()), _STEP, dtype=np.uint64)
        starts = np.cumsum(hashes) - hashes
        last = streams + hashes.astype(np.uint64) * _STEP
        x[starts] += streams
        x[starts[1:]] -= last[:-1]
        np.add.accumulate(x, out=x)
        return mix(x).view("<u4")

    def _one_by_one(self, ids: I64, hashes: I64, skipped: I64 | None) -> U8:
        """The same for processes that draw another way: a dozen microseconds a request."""
        parts, past = [], np.zeros_like(ids) if skipped is None else 2 * skipped
        for row, first, count in zip(ids.tolist(), past.tolist(), (2 * hashes).tolist(), strict=True):
            drawn = self.accepted(row)[first : first + count]
            parts.append(drawn + bytes(count - len(drawn)))
        accepted = np.frombuffer(b"".join(parts), dtype=np.uint8)
        return np.minimum(accepted, np.uint8(self.k)) + np.uint8(1)


def _always_drafts(process: Acceptance) -> bool:
    """Whether every sampling step finds drafts, and luck goes by rounds."""
    return (
        not process.by_output_position
        and process.spec.hot_cold is None
        and process.spec.proposal_probability >= 1.0
    )


def _is_plain(process: Acceptance) -> bool:
    """Whether every round draws against its level's thresholds, whatever the request."""
    spec = process.spec
    varies = spec.context_multiplier or spec.temperature_multiplier or spec.overlap
    return process.independent_rounds and not varies and not spec.length_rank_correlation
