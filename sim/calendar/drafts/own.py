"""Drafts that a request alone decides: how many each of its rounds verifies, before it is admitted.

A policy that looks at a request's temperature, at what its drafter expects, or at what became of its own
drafts needs nothing of other requests; nor does a look-up that finds something or not. So a life has drafts
of its own in each round, as it has luck, and stays on the calendar.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.luck import I64, U8, Luck
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.oracle import Oracle
from specfleet.sim.speculation.policies import ByClass, EarlyStop, TemperatureGate
from specfleet.sim.speculation.policies_learning import AcceptanceGate
from specfleet.sim.speculation.policy import Policy
from specfleet.workloads.requests import RequestTable

MOST_DRAFTS = 60
"""Of a round: the drafts that are wanted of a step's rows are kept as bits of one integer."""


class Past(NamedTuple):
    """What became of a request's own drafts before it was thrown out; who has just come has none.

    Attributes:
        sampled: times that it has sampled, the prompt's end included.
        used: verifications whose luck is used up.
        shut: plans of steps that its gate still stays shut for.
        seen: accepted drafts of the verifications that its gate looks back on, the latest last.
    """

    sampled: int = 0
    used: int = 0
    shut: int = 0
    seen: tuple[int, ...] = ()


NO_PAST = Past()


class OwnDrafts:
    """Decides the drafts of lives drawn together.

    Args:
        luck: at full depth.

    Attributes:
        planned: a policy decides: after each step it wants so many drafts of each row, and the drafter runs
            as often as the most that is wanted of any.
    """

    planned = True

    def __init__(self, luck: Luck) -> None:
        self.luck = luck
        self.k = luck.k

    def rounds_to_draw(self, ids: I64, wanted: I64) -> I64:
        """Returns how many rounds are nearly always enough for `wanted` tokens, shape of `ids`."""
        return self.luck.rounds_to_draw(ids, wanted)

    def decide(self, ids: I64, wanted: I64, hashes: I64, gains: U8) -> tuple[U8, U8]:
        """Returns the tokens of each round and the drafts that it verifies, flat.

        Args:
            ids: requests. wanted: tokens that each writes in rounds.
            hashes: half the rounds of each.
            gains: tokens by verification, if all drafts were made.
        """
        raise NotImplementedError

    def wanted(self, ids: I64, lengths: I64, drafts: U8) -> U8:
        """Returns the drafts that a policy wants of each round, flat: those that it verifies.

        Args:
            ids: requests. lengths: rounds of each. drafts: of each round, flat.
        """
        return drafts

    def of_piece(self, row: int, past: Past) -> int:
        """Returns the drafts wanted of a request whose prompt is not computed to its end."""
        return self.k

    def after_piece(self, past: Past) -> Past:
        """Returns what is known of a request after a step that has computed a piece of its prompt."""
        return past

    def thrown_out(self, past: Past, drafts: U8, gains: U8, done: int) -> Past:
        """Returns what is known of a request that is thrown out.

        Args:
            past: when its prompt had been computed. drafts, gains: of its rounds since then, and of more.
            done: rounds that it had. The drafts of the next one were decided with the last of them.
        """
        used = past.used + int(np.count_nonzero(drafts[:done]))
        return past._replace(sampled=past.sampled + 1 + done, used=used)

    def again(self, row: int, past: Past, wanted: int) -> tuple[U8, U8]:
        """Returns the tokens of each round and the drafts that it verifies, of one that has come back.

        Args:
            row: the request. past: when its prompt has been computed again.
            wanted: tokens that it has yet to write in rounds: that many rounds are drawn, and two more.
        """
        raise NotImplementedError

    def _luck_from(self, row: int, used: int, rounds: int) -> U8:
        """Returns a request's tokens by verification, if all drafts are made, behind so many used up."""
        ids, hashes, skipped = np.array([[row], [(rounds + 1) // 2 + 1], [used // 2]])
        return self.luck.gains(ids, hashes, skipped)[used & 1 :][:rounds]

    def _luck_and_found(self, row: int, past: Past, rounds: int) -> tuple[U8, npt.NDArray[np.bool_]]:
        """As `_luck_from`, of look-ups; and whether each of the next samplings finds drafts."""
        ids, hashes = np.array([[row], [(past.sampled + rounds + 1) // 2]])
        found = self.luck.found(ids, hashes)
        return self.luck.gains(ids, hashes)[found][past.used :], found[past.sampled :][:rounds]


def _in_turn(luck: U8, drafts: U8) -> U8:
    """Returns the tokens of rounds, each of which with drafts takes the next verification's luck."""
    gains: U8 = np.ones(len(drafts), dtype=np.uint8)
    verified = np.flatnonzero(drafts)
    gains[verified] = np.minimum(luck[: len(verified)], drafts[verified] + np.uint8(1))
    return gains


class LookedUp(OwnDrafts):
    """Look-ups that may find nothing: K drafts where one finds some. No step is scheduled ahead."""

    planned = False

    def decide(self, ids: I64, wanted: I64, hashes: I64, gains: U8) -> tuple[U8, U8]:
        """As `OwnDrafts.decide`."""
        return gains, self.luck.found(ids, hashes) * np.uint8(self.k)

    def again(self, row: int, past: Past, wanted: int) -> tuple[U8, U8]:
        """As `OwnDrafts.again`: who was thrown out has lost what its last sampling found, not the luck."""
        luck, found = self._luck_and_found(row, past, wanted + 2)
        drafts = found * np.uint8(self.k)
        return _in_turn(luck, drafts), drafts


class SameForLife(OwnDrafts):
    """The same in each round of a request.

    Args:
        luck: as in `OwnDrafts`.
        drafts: of a request.
    """

    def __init__(self, luck: Luck, drafts: Callable[[int], int]) -> None:
        super().__init__(luck)
        self._drafts = drafts
        self._latest: tuple[I64, U8] = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8))

    def _each(self, ids: I64) -> U8:
        if self._latest[0] is not ids:
            self._latest = ids, np.array([self._drafts(row) for row in ids.tolist()], dtype=np.uint8)
        return self._latest[1]

    def rounds_to_draw(self, ids: I64, wanted: I64) -> I64:
        """As `OwnDrafts.rounds_to_draw`."""
        return np.where(self._each(ids) > 0, super().rounds_to_draw(ids, wanted), wanted)

    def decide(self, ids: I64, wanted: I64, hashes: I64, gains: U8) -> tuple[U8, U8]:
        """As `OwnDrafts.decide`."""
        drafts = np.repeat(self._each(ids), 2 * hashes)
        return np.minimum(gains, drafts + np.uint8(1)), drafts

    def again(self, row: int, past: Past, wanted: int) -> tuple[U8, U8]:
        """As `OwnDrafts.again`."""
        drafts: U8 = np.full(wanted + 2, self._drafts(row), dtype=np.uint8)
        return _in_turn(self._luck_from(row, past.used, wanted + 2), drafts), drafts

    def of_piece(self, row: int, past: Past) -> int:
        """As `OwnDrafts.of_piece`."""
        return self._drafts(row)


class FoundForLife(SameForLife):
    """The same in each round of a request whose look-up finds something, none in the others.

    Where steps are scheduled ahead a round has placeholders whether it finds something or not: `SameForLife`.
    """

    def decide(self, ids: I64, wanted: I64, hashes: I64, gains: U8) -> tuple[U8, U8]:
        """As `OwnDrafts.decide`."""
        drafts = np.repeat(self._each(ids), 2 * hashes) * self.luck.found(ids, hashes)
        return np.minimum(gains, drafts + np.uint8(1)), drafts

    def again(self, row: int, past: Past, wanted: int) -> tuple[U8, U8]:
        """As `LookedUp.again`."""
        luck, found = self._luck_and_found(row, past, wanted + 2)
        drafts = found * np.uint8(self._drafts(row))
        return _in_turn(luck, drafts), drafts

    def wanted(self, ids: I64, lengths: I64, drafts: U8) -> U8:
        """As `OwnDrafts.wanted`: whether something will be found is not known before."""
        return np.repeat(self._each(ids), lengths)


class Foreseen(OwnDrafts):
    """What will be accepted, and no more than is missing (`Oracle`).

    Args:
        luck: as in `OwnDrafts`. k: most drafts.
    """

    def __init__(self, luck: Luck, k: int) -> None:
        super().__init__(luck)
        self.k = k

    def decide(self, ids: I64, wanted: I64, hashes: I64, gains: U8) -> tuple[U8, U8]:
        """As `OwnDrafts.decide`: each step uses up a verification's luck, drafted for or passed over."""
        gains = np.minimum(gains, np.uint8(1 + self.k))
        before = np.cumsum(gains, dtype=np.int64) - gains
        starts = 2 * (np.cumsum(hashes) - hashes)
        useful = np.repeat(before[starts] + wanted - 1, 2 * hashes) - before
        drafts = np.clip(np.minimum(gains - np.uint8(1), useful), 0, None).astype(np.uint8)
        return drafts + np.uint8(1), drafts

    def thrown_out(self, past: Past, drafts: U8, gains: U8, done: int) -> Past:
        """As `OwnDrafts.thrown_out`: what the round that is lost passed over stays used up."""
        return past._replace(used=past.used + done + int(not drafts[done]))

    def again(self, row: int, past: Past, wanted: int) -> tuple[U8, U8]:
        """As `OwnDrafts.again`."""
        luck = np.minimum(self._luck_from(row, past.used, wanted + 2), np.uint8(1 + self.k))
        useful = wanted - 1 - (np.cumsum(luck, dtype=np.int64) - luck)
        drafts = np.clip(np.minimum(luck - np.uint8(1), useful), 0, None).astype(np.uint8)
        return drafts + np.uint8(1), drafts

    def of_piece(self, row: int, past: Past) -> int:
        """As `OwnDrafts.of_piece`: it samples nothing, so nothing will be accepted."""
        return 0


class Gated(OwnDrafts):
    """None for a while after a window of verifications that accepted too little (`AcceptanceGate`).

    Args:
        luck: as in `OwnDrafts`.
        gate: its parameters.
        lag: 1 if a step is scheduled before it is known what the one before it has brought, else 0.
    """

    def __init__(self, luck: Luck, gate: AcceptanceGate, lag: int) -> None:
        super().__init__(luck)
        self.gate, self.lag, self.k = gate, lag, gate.k

    def decide(self, ids: I64, wanted: I64, hashes: I64, gains: U8) -> tuple[U8, U8]:
        """As `OwnDrafts.decide`: a life that never shuts its gate is as it was drawn."""
        gate, counts = self.gate, 2 * hashes
        gains = np.minimum(gains, np.uint8(1 + self.k))
        drafts = np.full(len(gains), self.k, dtype=np.uint8)
        starts, window = np.cumsum(counts) - counts, gate.window
        total = np.concatenate(([0], np.cumsum(gains - np.uint8(1), dtype=np.int64)))
        bad = (total[window:] - total[:-window]) / (window * max(self.k, 1)) < gate.threshold
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            if self.k and bad[start : max(start + count - window + 1, start)].any():
                part = slice(start, start + count)
                gains[part], drafts[part] = self._gated(gains[part].tolist(), count)
        return gains, drafts

    def _gated(self, luck: Sequence[int], count: int, past: Past = NO_PAST) -> tuple[list[int], list[int]]:
        """Returns the tokens and drafts of one life.

        Args:
            luck: tokens by verification. count: rounds. past: what was before them.
        """
        k, verified = self.k, 0
        shut, seen = past.shut, deque(past.seen, maxlen=self.gate.window)
        gains, drafts = [1] * count, [0] * count
        for step in range(count):
            if shut:
                shut -= 1
            else:
                drafts[step] = k
                gains[step] = luck[verified]
                verified += 1
            known = step - 1 - self.lag  # the latest round whose outcome the next plan knows of
            if known >= 0 and drafts[known] and self._shuts(seen, gains[known]):
                shut = self.gate.cooldown
        return gains, drafts

    def _shuts(self, seen: deque[int], tokens: int) -> bool:
        """Whether a gate shuts that learns of one more round; then it has seen nothing."""
        seen.append(tokens - 1)
        window = self.gate.window
        if len(seen) < window or not sum(seen) / (window * self.k) < self.gate.threshold:
            return False
        seen.clear()
        return True

    def after_piece(self, past: Past) -> Past:
        """As `OwnDrafts.after_piece`: a step for which its gate stays shut."""
        return past._replace(shut=max(past.shut - 1, 0))

    def thrown_out(self, past: Past, drafts: U8, gains: U8, done: int) -> Past:
        """As `OwnDrafts.thrown_out`."""
        shut, seen = self._gate_after(past, drafts, gains, done)
        return super().thrown_out(past, drafts, gains, done)._replace(shut=shut, seen=seen)

    def _gate_after(self, past: Past, drafts: U8, gains: U8, done: int) -> tuple[int, tuple[int, ...]]:
        """Returns `Past.shut` and `seen` when somebody is thrown out: before its return all is known."""
        shut, seen, known = past.shut, deque(past.seen, maxlen=self.gate.window), 0
        for step in range(done + 1):
            shut = max(shut - 1, 0)
            while known < (done if step == done else step - self.lag):
                if drafts[known] and self._shuts(seen, int(gains[known])):
                    shut = self.gate.cooldown
                known += 1
        return shut, tuple(seen)

    def again(self, row: int, past: Past, wanted: int) -> tuple[U8, U8]:
        """As `OwnDrafts.again`."""
        luck = np.minimum(self._luck_from(row, past.used, wanted + 2), np.uint8(1 + self.k))
        gains, drafts = self._gated(luck.tolist(), wanted + 2, past)
        return np.array(gains, dtype=np.uint8), np.array(drafts, dtype=np.uint8)

    def of_piece(self, row: int, past: Past) -> int:
        """As `OwnDrafts.of_piece`."""
        return 0 if past.shut else self.k


def drafting_of(
    policy: Policy | None, luck: Luck | None, lives: Lives | None, table: RequestTable, ahead: bool
) -> OwnDrafts | None:
    """Returns who decides the drafts of single requests; None where it is not known before they run.

    Args:
        policy: of the run; None is always K.
        luck, lives: of its requests; None without speculation.
        table: the requests. ahead: steps are scheduled before the one before has ended.
    """
    if luck is None or lives is None or not luck.by_rounds:
        return None
    if policy is None:
        bursts = any(process.spec.burst is not None for process in luck.processes)
        return None if luck.every_step or ahead or bursts else LookedUp(luck)
    if not luck.every_step and type(policy) is ByClass:
        bursts = any(process.spec.burst is not None for process in luck.processes)
        if not bursts and policy.k <= min(luck.k, MOST_DRAFTS):
            names, class_id = table.class_names, table.class_id
            return (SameForLife if ahead else FoundForLife)(
                luck, lambda row: policy.drafts_of(names[int(class_id[row])])
            )
    if not luck.every_step or not getattr(policy, "k", MOST_DRAFTS + 1) <= min(luck.k, MOST_DRAFTS):
        return None
    if type(policy) is TemperatureGate:
        hot: npt.NDArray[np.float64] = table.temperature
        return SameForLife(luck, lambda row: policy.drafts_at(float(hot[row])))
    if type(policy) is EarlyStop:
        return SameForLife(luck, lambda row: policy.drafts_of(lives.confidence(row)))
    if type(policy) is ByClass:
        names, class_id = table.class_names, table.class_id
        return SameForLife(luck, lambda row: policy.drafts_of(names[int(class_id[row])]))
    if type(policy) is AcceptanceGate and policy.window > 0:
        return Gated(luck, policy, int(ahead))
    return Foreseen(luck, policy.k) if type(policy) is Oracle else None
