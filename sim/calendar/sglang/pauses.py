"""Pauses of requests under SGLang's rules: a prefill batch lay between two decodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.luck import F64, I64
from specfleet.sim.calendar.sglang.stays import StayColumns
from specfleet.sim.pauses import Alike
from specfleet.sim.recorder import Columns


@dataclass(frozen=True)
class Pauses:
    """The pauses of more than one iteration of one lane.

    Args:
        stays: of it.
        at: the iteration of each decode batch. end_s: of each iteration.
        follows: whether each segment begins in the iteration after the first token of its stay.
        counted: whether each stay is of the measured part. ids: the request of each.
        replica: its number.
    """

    stays: StayColumns
    at: I64
    end_s: F64
    follows: npt.NDArray[np.bool_]
    counted: npt.NDArray[np.bool_]
    ids: I64
    replica: int

    def columns(self) -> Columns:
        """Returns a row each; columns as `RunResult.odd_gaps`."""
        stays, segments = self.stays, self.stays.segments
        breaks = np.flatnonzero(self.at[1:] != self.at[:-1] + 1) + 1
        low = np.searchsorted(breaks, segments.since + self.follows)
        high = np.searchsorted(breaks, segments.last + 1)
        counts = np.maximum(high - low, 0)
        ones = np.repeat(np.arange(len(counts)), counts)
        begins = np.cumsum(counts) - counts
        nth = np.repeat(low - begins, counts) + np.arange(len(ones))
        # a tenth of the time in 16 bits
        order = np.argsort(nth.astype(np.uint16) if len(breaks) < 1 << 16 else nth, kind="stable")
        ones, decode = segments.stay[ones[order]], breaks[nth[order]]
        before = np.where(decode == stays.since[ones], stays.first[ones], self.at[decode - 1])
        it, tokens = self.at[decode], stays.tokens(ones, decode - stays.since[ones])
        if stays.again is not None:
            again, last = stays.again, self.stays.ends_in(self.at)[stays.before]
            ones = np.concatenate([ones, again])
            before, it = np.concatenate([before, last]), np.concatenate([it, stays.first[again]])
            tokens = np.concatenate([tokens, np.ones_like(again)])
            order = np.argsort(it, kind="stable")
            ones, before, it, tokens = ones[order], before[order], it[order], tokens[order]
        end: F64 = self.end_s[it]
        return {
            "request_id": self.ids[ones],
            "replica": np.full(len(it), self.replica),
            "from_iteration": before,
            "to_iteration": it,
            "counted": self.counted[ones].astype(np.int64),
            "end_s": end,
            "gap_s": end - self.end_s[before],
            "tokens": tokens,
        }

    def alike(self, each: I64) -> Alike:
        """Returns counted ones, those alike in one row, where nobody is retracted.

        Args:
            each: counted rounds by decode batch and tokens kept.
        """
        stays, at, width = self.stays, self.at, each.shape[1]
        breaks = np.flatnonzero(at[1:] != at[:-1] + 1) + 1
        mine = np.flatnonzero(self.counted & (stays.rounds > 0))
        since = stays.since[mine]
        tokens = stays.tokens(mine, 0)
        fresh = np.bincount(since * width + tokens, minlength=len(at) * width).reshape(-1, width)
        begins = at[since] != stays.first[mine] + 1
        odd, first = since[begins], stays.first[mine][begins]
        alone = np.zeros((len(odd), width), dtype=np.int64)
        alone[np.arange(len(odd)), tokens[begins]] = 1
        # of one decode: first those who had one before it, then newcomers in their order
        order = np.argsort(np.concatenate([2 * breaks, 2 * odd + 1]), kind="stable")
        it = np.concatenate([at[breaks], at[odd]])[order]
        before = np.concatenate([at[breaks - 1], first])[order]
        chunks = np.concatenate([each[breaks] - fresh[breaks], alone])[order]
        end_s = self.end_s[it]
        return Alike(end_s, end_s - self.end_s[before], chunks).together()
