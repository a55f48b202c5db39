"""Policies that learn: from measured acceptance, from the time steps take, from who is behind."""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows
from math import inf

import numpy as np
import numpy.typing as npt

from specfleet.hardware.stepcost import StepCost, StepShape
from specfleet.sim.rules import I64
from specfleet.sim.sequence import Batch, Sequence
from specfleet.sim.speculation.policy import ById, Columnwise, FromRequest, OneForAll, Seen

MOST_PLANS = 1 << 10
"""Plans that are kept for steps of whose rows the same is expected."""


class SurvivalEstimate:
    """Measured survival by draft position: moving averages over verifications.

    Args:
        k: deepest position.
        weight: of a new step against the past.
        start: conditional acceptance assumed before anything was seen.
    """

    def __init__(self, k: int, weight: float = 0.05, start: float = 0.7) -> None:
        self.weight = weight
        self.conditional = [start] * k

    def learn(self, seen: Seen) -> None:
        """Moves the averages by what one step showed, position by position as far as it was reached."""
        deepest = len(self.conditional)
        lost, kept = [0] * (deepest + 1), [0] * (deepest + 1)
        for drafts, tokens, rows in seen.rounds:
            if min(drafts, deepest) < tokens:
                kept[min(drafts, deepest)] += rows  # all its drafts were accepted
            else:
                lost[tokens] += rows  # the draft at this position, from 1, was rejected
        passed = kept[-1]
        for position in range(deepest - 1, -1, -1):
            tried = passed + lost[position + 1]
            if tried:
                share = passed / tried
                weight = 1.0 - (1.0 - self.weight) ** tried
                self.conditional[position] += weight * (share - self.conditional[position])
            passed = tried + kept[position]

    def expected_tokens(self, k: int) -> float:
        """Returns tokens a round at k drafts."""
        return self.expected_by_k(k)[k]

    def expected_by_k(self, most: int) -> list[float]:
        """Returns tokens a round at 0, 1, .. `most` drafts."""
        alive, total, each = 1.0, 1.0, [1.0]
        for acceptance in self.conditional[:most]:
            alive *= acceptance
            total += alive
            each.append(total)
        return each + [total] * (most + 1 - len(each))


class Goodput(OneForAll):
    """The K that yields most tokens a second at measured acceptance and known cost (SmartSpec, TurboSpec).

    Args:
        k: largest K.
        cost: prices a step.
        weight: of a new step in the acceptance averages.
    """

    learns = reads_kv = True

    def __init__(self, k: int, cost: StepCost, weight: float = 0.05) -> None:
        self.k = k
        self.cost = cost
        self.estimate = SurvivalEstimate(k, weight)

    def choose(self, rows: int, kv_tokens: int, waiting: int) -> int:
        """Returns argmax over k of expected tokens / step time at this batch and context."""
        if not rows:
            return self.k
        best, chosen, seconds, new_shape = -inf, 0, self.cost.seconds, tuple.__new__
        for k, expected in enumerate(self.estimate.expected_by_k(self.k)):
            tokens = rows * (1 + k)
            fields = (tokens, rows, 0, tokens, rows * k, kv_tokens, kv_tokens, 0, k or 1)
            goodput = rows * expected / seconds(new_shape(StepShape, fields))
            if goodput > best:
                best, chosen = goodput, k
        return chosen

    def learn(self, seen: Seen) -> None:
        """Updates measured acceptance."""
        self.estimate.learn(seen)


class AdaptiveTiers(OneForAll):
    """SGLang's adaptive steps: an average of accepted drafts, snapped to tiers with hysteresis.

    Args:
        k: largest K.
        tiers: allowed K, increasing.
        smoothing: weight of a new batch's mean in the average.
        warmup: batches before the first change.
        interval: batches between changes.
        down, up: the average must lie so far beyond a tier before K moves down or up.
    """

    learns = True

    def __init__(
        self,
        k: int,
        tiers: Rows[int] = (1, 3, 7),
        smoothing: float = 0.2,
        warmup: int = 10,
        interval: int = 5,
        down: float = 0.25,
        up: float = 0.0,
    ) -> None:
        self.tiers = [tier for tier in tiers if tier <= k] or [k]
        self.smoothing, self.warmup, self.interval = smoothing, warmup, interval
        self.down, self.up = down, up
        self.current = self.tiers[len(self.tiers) // 2]
        self.average = float(self.current)
        self.batches = 0

    def choose(self, rows: int, kv_tokens: int, waiting: int) -> int:
        """Returns the current tier."""
        return self.current

    def learn(self, seen: Seen) -> None:
        """Averages accepted drafts and moves at most one tier."""
        verified = sum(rows for drafts, _, rows in seen.rounds if drafts)
        if not verified:
            return
        accepted = sum((tokens - 1) * rows for drafts, tokens, rows in seen.rounds if drafts)
        self.average += self.smoothing * (accepted / verified - self.average)
        self.batches += 1
        if self.batches < self.warmup or self.batches % self.interval:
            return
        wanted = self.average + 1.0
        place = self.tiers.index(self.current)
        if wanted > self.current + self.up and place + 1 < len(self.tiers):
            self.current = self.tiers[place + 1]
        elif place and wanted < self.tiers[place - 1] + 1.0 - self.down:
            self.current = self.tiers[place - 1]


class AcceptanceGate(Columnwise):
    """Turns drafting off for a stream that accepts too little, for a while.

    A closed stream takes part in the same step, so what it saves is its rows to verify, while it gives up all
    that it would have accepted: it pays only where accepted tokens fall below the batch's tokens times those
    rows' share of the step. With an EAGLE-3 head on an 8B model that is 6 % of the drafts at batch 28 and
    14 % at batch 60. A threshold far above it, as 0.3 is, closes streams that pay: 16 rounds of an average
    stream at 36 % fall below 0.3 in one look of five, and there is a look every round. Where all streams
    accept alike the gate has nothing to gain, and `Goodput`, which shortens K for all, does better.

    Args:
        k: drafts otherwise.
        window: verifications looked back on.
        threshold: least accepted / drafted over the window.
        cooldown: steps without drafts after the gate closes.
    """

    def __init__(self, k: int, window: int = 16, threshold: float = 0.1, cooldown: int = 64) -> None:
        self.k, self.window, self.threshold, self.cooldown = k, window, threshold, cooldown
        self._closed = ById(0)
        self._rounds = ById(0)
        self._window = ById(0, shape=(window,))  # of the last rounds: drafts verified << 32 | accepted
        self._sums = ById(0)

    def plan_rows(self, batch: Batch, waiting: int, now: float) -> I64:
        """Returns K for open streams, 0 for closed ones."""
        ids = batch.ids()
        self._closed.cover(ids)
        left = self._closed.of[ids]
        self._closed.of[ids] = np.maximum(left - 1, 0)
        return np.where(left > 0, 0, self.k)

    def observe_rows(self, batch: Batch, sampled: I64, seconds: float) -> None:
        """Moves each stream's window and closes gates."""
        drafts = batch.drafts()
        rows = np.flatnonzero((drafts > 0) & (sampled > 0))
        if not len(rows):
            return
        ids = batch.ids()[rows]
        for kept in (self._closed, self._rounds, self._window, self._sums):
            kept.cover(ids)
        rounds, window = self._rounds.of[ids], self._window.of
        shown, place = (drafts[rows] << 32) + sampled[rows] - 1, rounds % self.window
        sums = self._sums.of[ids] + shown - window[ids, place]
        window[ids, place] = shown
        self._sums.of[ids] = sums
        self._rounds.of[ids] = rounds + 1
        bad = (rounds + 1 >= self.window) & ((sums & 0xFFFFFFFF) / (sums >> 32) < self.threshold)
        if bad.any():
            shut = ids[bad]
            self._closed.of[shut] = self.cooldown
            self._rounds.of[shut], self._window.of[shut], self._sums.of[shut] = 0, 0, 0


class SloBudget(Columnwise):
    """Drafts go first to requests behind their TPOT target, the rest of the budget by expected survival.

    Args:
        k: largest K of a request.
        tpot_s: target seconds a token.
        budget: drafts of a step, all requests together.
    """

    def __init__(self, k: int, tpot_s: float, budget: int) -> None:
        self.k, self.tpot_s, self.budget = k, tpot_s, budget
        self._started = ById(inf, np.float64)
        self._survival = FromRequest(self._expected, np.float64, (k,))

    def _expected(self, request: Sequence) -> list[float]:
        """Returns what the drafter expects by position; 0 beyond the deepest that it speaks of."""
        confidence: tuple[float, ...] = getattr(request, "confidence", ())
        return [*confidence[: self.k], *[0.0] * (self.k - len(confidence))]

    def plan_rows(self, batch: Batch, waiting: int, now: float) -> I64:
        """Returns K for those behind, then position by position for the most confident."""
        ids = batch.ids()
        started = np.minimum(self._started.at(ids), now)
        self._started.of[ids] = started
        behind = now - started > batch.written() * self.tpot_s
        drafts: I64 = np.zeros(len(ids), dtype=np.int64)
        first, (whole, rest) = behind.nonzero()[0], divmod(self.budget, max(self.k, 1))
        if len(first) > whole:
            drafts[first[:whole]] = self.k
            drafts[first[whole]] = rest
            return drafts
        drafts[first] = self.k
        if len(first) == len(ids):
            return drafts
        each, over = divmod(self.budget - len(first) * self.k, len(ids) - len(first))
        if each >= self.k:
            each, over = self.k, 0
        drafts[~behind] = each
        if over:  # the most confident, of equal ones the last
            rows = (~behind).nonzero()[0]
            survival = self._survival.of(batch, ids)[rows, each]
            drafts[rows[survival.argsort(kind="stable")[len(rows) - over :]]] += 1
        return drafts


class AdaptiveVerification(Columnwise):
    """Verifies the drafts, of all requests together, that bring most tokens a second (DSpark under vLLM).

    Slots, one a request and position, are ranked by the survival that the drafter expects of them; as many of
    the first are verified as make `(rows + their survival) / seconds` largest, seconds those of a step of so
    many tokens as an engine profiles it at its start: without context, drafter aside. Since survival falls
    from position to position, what is taken of a request is its first drafts. The largest ratio of all is
    taken, not the first: padding to CUDA graphs makes steps of it. Source: vLLM pull request 47808.

    Args:
        k: largest K of a request.
        cost: prices a step.
    """

    def __init__(self, k: int, cost: StepCost) -> None:
        self.k, self.cost = k, cost
        self._kind = FromRequest(self._expected)
        self._kinds: dict[tuple[float, ...], int] = {}
        self._survival: npt.NDArray[np.float64] = np.zeros((0, k))
        self._plans: dict[bytes, I64] = {}
        self._profiled: dict[int, npt.NDArray[np.float64]] = {}

    def _expected(self, request: Sequence) -> int:
        """Returns the number of what the drafter expects by position; 0 beyond the deepest it speaks of."""
        confidence: tuple[float, ...] = getattr(request, "confidence", ())
        kind = self._kinds.setdefault(confidence, len(self._kinds))
        if kind == len(self._survival):
            self._survival = np.concatenate((self._survival, np.zeros((max(kind, 16), self.k))))
        if kind == len(self._kinds) - 1:
            self._survival[kind] = [*confidence[: self.k], *[0.0] * (self.k - len(confidence))]
        return kind

    def seconds(self, rows: int) -> npt.NDArray[np.float64]:
        """Returns the seconds of a step of `rows` requests that verifies 0, 1, .. `rows` x K drafts."""
        if (known := self._profiled.get(rows)) is not None:
            return known
        drafts = np.arange(rows * self.k + 1, dtype=np.int64)
        same = np.full_like(drafts, rows)
        none = np.zeros_like(drafts)
        columns = dict(
            zip(
                StepShape._fields,
                (same + drafts, same, none, same + drafts, drafts, same, same, none, none),
                strict=True,
            )
        )
        found = np.sum(list(self.cost.terms(columns).values()), axis=0)
        self._profiled[rows] = found
        return np.asarray(found)

    def plan_rows(self, batch: Batch, waiting: int, now: float) -> I64:
        """Returns, row by row, how many of its drafts are among the slots taken."""
        kinds = self._kind.of(batch)
        alike = kinds.tobytes()  # rows of whom the same is expected have the same plan
        drafts = self._plans.get(alike)
        if drafts is None:
            if len(self._plans) == MOST_PLANS:
                self._plans.clear()
            drafts = self._plans[alike] = self._ranked(self._survival[kinds].T)
        return drafts.copy()

    def _ranked(self, survival: npt.NDArray[np.float64]) -> I64:
        """Returns the drafts of each row, whose survivals by position are a column of `survival`."""
        rows = survival.shape[1]
        if not rows:
            return np.zeros(0, dtype=np.int64)
        ranked = survival.flatten()
        ranked.sort()
        ranked = ranked[::-1]
        gained = np.concatenate(([0.0], np.add.accumulate(ranked)))
        best = int(np.argmax((rows + gained) / self.seconds(rows)))
        if not best:
            return np.zeros(rows, dtype=np.int64)
        last = ranked[best - 1]
        drafts: I64 = np.add.reduce(survival >= last, axis=0, dtype=np.int64)
        if over := int(np.add.reduce(drafts)) - best:  # of equal ones the earlier position first
            alike = (survival.ravel() == last).nonzero()[0]
            drafts -= np.bincount(alike[len(alike) - over :] % rows, minlength=rows)
        return drafts


class Bandit(OneForAll):
    """Learns the best K for each size of batch by trying (upper confidence bound on tokens a second).

    Args:
        k: largest K.
        exploration: weight of the confidence term.
    """

    learns = True

    def __init__(self, k: int, exploration: float = 0.3) -> None:
        self.k = k
        self.arms = list(range(k + 1))
        self.exploration = exploration
        self._pulls: dict[int, list[int]] = {}
        self._means: dict[int, list[float]] = {}

    def _bucket(self, rows: int) -> int:
        return rows.bit_length()

    def choose(self, rows: int, kv_tokens: int, waiting: int) -> int:
        """Returns an arm not yet tried in this bucket, else the one with the highest bound."""
        bucket = self._bucket(rows)
        pulls = self._pulls.setdefault(bucket, [0] * len(self.arms))
        means = self._means.setdefault(bucket, [0.0] * len(self.arms))
        for arm in reversed(self.arms):
            if not pulls[arm]:
                return arm
        best, total = max(means), sum(pulls)
        return max(
            self.arms,
            key=lambda a: means[a] / best + self.exploration * math.sqrt(math.log(total) / pulls[a]),
        )

    def learn(self, seen: Seen) -> None:
        """Credits the arm that a pure decode step was made with."""
        drafts = {drafts for drafts, _, _ in seen.rounds}
        if len(drafts) != 1 or seen.prompts or not seen.seconds:
            return
        arm, bucket = drafts.pop(), self._bucket(seen.rows)
        pulls = self._pulls.setdefault(bucket, [0] * len(self.arms))
        means = self._means.setdefault(bucket, [0.0] * len(self.arms))
        tokens = sum(tokens * rows for _, tokens, rows in seen.rounds)
        pulls[arm] += 1
        means[arm] += (tokens / seen.seconds - means[arm]) / pulls[arm]
