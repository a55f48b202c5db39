"""Where the chunks of a run are counted: by iteration and by the tokens they carry."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.luck import I64, U8
from specfleet.sim.calendar.trajectories import BLOCK, LifeBatch, Trajectories

Counts = npt.NDArray[np.integer]
LARGE = 1 << 15
"""Counts below it fit in 16 bits."""


class Ledger:
    """Counts verification rounds by (engine, iteration, tokens kept), block by block.

    A round's iteration follows from its request's first token, so a block is booked in a dozen
    numpy calls when all its requests have theirs. Who is preempted is booked back from there on.

    Args:
        lives: the requests.
        k: drafts a round, at least 1.
        num_warmups: requests with a lower row number are counted apart.
        lanes: engines that share the requests.
        most_rows: of one step: how far a count can go.

    Attributes:
        lane_of: the engine of each place.
        base: of each engine, the iteration before which all are forgotten.
    """

    def __init__(
        self, lives: Trajectories, k: int, num_warmups: int, lanes: int = 1, most_rows: int = LARGE
    ) -> None:
        self.lives = lives
        lives.book = self.book
        self.width = k + 2
        self.num_warmups = num_warmups
        self.lanes = lanes
        self.lane_of = np.zeros(len(lives.order), dtype=np.int32)
        # int16 may overflow between a booking and its correction; integers wrap around, so the count comes
        # out exact. Column 0 collects what lies past a request's last round, and is dropped.
        self._one = np.int16(1) if most_rows < LARGE else np.int32(1)
        self._planes = lanes * (2 if num_warmups else 1)
        self._capacity = 1 << 12
        self.base = [0] * lanes
        self._counts = np.zeros(self._planes * self._capacity * self.width, dtype=self._one.dtype)
        self.accepted = np.zeros(self.width, dtype=np.int64)
        """Counted rounds by tokens sampled, 1 + accepted (the last round of a request uncut)."""

    def reserve(self, iterations: int) -> None:
        """Makes room for so many iterations from `base` on."""
        if iterations <= self._capacity:
            return
        old, self._capacity = self._capacity, max(2 * self._capacity, iterations)
        counts = np.zeros((self._planes, self._capacity, self.width), dtype=self._one.dtype)
        counts[:, :old] = self._counts.reshape(self._planes, old, self.width)
        self._counts = counts.reshape(-1)

    def book(self, block: LifeBatch) -> None:
        """Counts the rounds of a block all of whose requests have their first token."""
        assert block.gains is not None
        low, starts, rounds = block.first_place, block.starts, block.rounds_column
        first = self.lives.first[low : low + BLOCK].astype(np.int64)
        ids = self.lives.order[low : low + BLOCK]
        places = len(block.gains)
        some = rounds > 0
        last = starts[some] + rounds[some] - 1
        lengths = np.diff(starts, append=places)
        runs = np.stack([rounds, lengths - rounds], axis=1).ravel()
        live = np.repeat(np.tile(np.array([1, 0], dtype=np.uint8), len(rounds)), runs)
        gains = block.gains * live
        sampled = self._by_tokens(gains)
        idle = None if block.drafts is None else (block.drafts == 0) & (live > 0)
        gains[last] = block.kept[some]
        origin = first + 1
        if self.lanes > 1:
            lane = self.lane_of[low : low + BLOCK].astype(np.int64)
            origin -= np.array(self.base)[lane]
        else:
            origin -= self.base[0]
        self.reserve(int(origin.max()) + int(lengths.max()) + 1)
        origin -= starts
        if self.lanes > 1:
            origin += self._capacity * lane
        if self.num_warmups and ids.min() < self.num_warmups:
            warm = ids < self.num_warmups
            origin = origin + self._capacity * self.lanes * warm
            counted = np.repeat(~warm, lengths)
            sampled = self._by_tokens(gains[counted])
            np.subtract.at(sampled, block.kept[some & ~warm], 1)
            np.add.at(sampled, block.gains[(starts + rounds - 1)[some & ~warm]], 1)
            idle = None if idle is None else idle[counted]
        if idle is not None:
            sampled[1] -= np.count_nonzero(idle)  # without drafts nothing is verified
        keys = np.repeat(origin * self.width, lengths)
        keys += np.arange(0, places * self.width, self.width)
        keys += gains
        np.add.at(self._counts, keys, self._one)
        self.accepted += sampled

    def _by_tokens(self, gains: U8) -> I64:
        """Returns how often each number of tokens stands there: `np.bincount`, which widens bytes first."""
        return np.array([np.count_nonzero(gains == tokens) for tokens in range(self.width)])

    def book_stay(self, lane: int, place: int, first: int, gains: U8, kept: int, sign: int) -> None:
        """Books the rounds of one stay, or takes them back.

        Args:
            lane: the engine.
            place: of the request.
            first: iteration in which the stay's prefill ended.
            gains: tokens sampled in each round.
            kept: of the last round, if it is the request's last; 0 if it is kept whole.
            sign: 1 or -1.
        """
        if not len(gains):
            return
        tokens = gains.astype(np.int64)
        warm = int(self.lives.order[place]) < self.num_warmups
        if not warm:
            self.accepted += sign * np.bincount(tokens, minlength=self.width)
        if kept:
            tokens[-1] = kept
        first -= self.base[lane]
        self.reserve(first + len(gains) + 2)
        keys = np.arange(first + 1, first + 1 + len(gains)) + self._capacity * (lane + self.lanes * warm)
        keys *= self.width
        keys += tokens
        self._counts[keys] += sign * self._one  # one round an iteration: no key comes twice

    def book_idle(self, place: int, rounds: int) -> None:
        """Notes that so many of the rounds booked of a request had no drafts: nothing was verified."""
        if int(self.lives.order[place]) >= self.num_warmups:
            self.accepted[1] -= rounds

    def book_flat(
        self,
        lane: int,
        its: I64,
        tokens: I64,
        sampled: I64 | None,
        warm: npt.NDArray[np.bool_] | None,
    ) -> None:
        """Books rounds one by one.

        Args:
            lane: the engine.
            its: their iterations.
            tokens: kept of each.
            sampled: tokens sampled in each; None if they verified nothing.
            warm: whether each is of a warm-up; None: none is.
        """
        if not len(its):
            return
        base = self.base[lane]
        self.reserve(int(its.max()) + 2 - base)
        if warm is None:
            first = int(its.min())
            keys = (its - first) * self.width + tokens
            low = (first - base + self._capacity * lane) * self.width
            counts = np.bincount(keys).astype(self._one.dtype)
            self._counts[low : low + len(counts)] += counts
        else:
            keys = its - base + self._capacity * (lane + self.lanes * warm)
            keys *= self.width
            keys += tokens
            np.add.at(self._counts, keys, self._one)
        if sampled is not None:
            counted = sampled if warm is None else sampled[~warm]
            self.accepted += np.bincount(counted, minlength=self.width)

    def counts(self, lane: int, iterations: int) -> tuple[Counts, Counts | None]:
        """Returns an engine's rounds by iteration from `base` on, and tokens: counted, warm-ups'.

        Shape `(iterations, k + 2)`.
        """
        self.reserve(iterations)
        planes = self._planes_of(lane)[:, :iterations]
        planes[:, :, 0] = 0  # places beyond a request's last round
        return planes[0], planes[1] if self.num_warmups else None

    def forget(self, lane: int, before: int) -> None:
        """Forgets an engine's iterations before a number; nothing may be booked there any more."""
        over = min(before - self.base[lane], self._capacity)
        planes = self._planes_of(lane)
        planes[:, : self._capacity - over] = planes[:, over:].copy()
        planes[:, self._capacity - over :] = 0
        self.base[lane] = before

    def _planes_of(self, lane: int) -> Counts:
        """Returns a view of an engine's counts, shape `(1, or 2 with warm-ups, iterations, k + 2)`."""
        return self._counts.reshape(self._planes, self._capacity, self.width)[lane :: self.lanes]
