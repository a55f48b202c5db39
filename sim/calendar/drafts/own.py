"""Drafts that a request alone decides: how many each of its rounds verifies, before it is admitted.

A policy that looks at a request's temperature, at what its drafter expects, or at what became of its own
drafts needs nothing of other requests; nor does a look-up that finds something or not. So a life has drafts
of its own in each round, as it has luck, and stays on the calendar.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

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

    def of_piece(self, row: int) -> int:
        """Returns the drafts wanted of a request whose prompt is not computed to its end."""
        return self.k


class LookedUp(OwnDrafts):
    """Look-ups that may find nothing: K drafts where one finds some. No step is scheduled ahead."""

    planned = False

    def decide(self, ids: I64, wanted: I64, hashes: I64, gains: U8) -> tuple[U8, U8]:
        """As `OwnDrafts.decide`."""
        return gains, self.luck.found(ids, hashes) * np.uint8(self.k)


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

    def of_piece(self, row: int) -> int:
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

    def of_piece(self, row: int) -> int:
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

    def _gated(self, luck: list[int], count: int) -> tuple[list[int], list[int]]:
        """Returns the tokens and drafts of one life.

        Args:
            luck: tokens by verification. count: rounds.
        """
        gate, k, shut, verified = self.gate, self.k, 0, 0
        seen: deque[int] = deque(maxlen=gate.window)
        gains, drafts = [1] * count, [0] * count
        for step in range(count):
            if shut:
                shut -= 1
            else:
                drafts[step] = k
                gains[step] = luck[verified]
                verified += 1
            known = step - 1 - self.lag  # the latest round whose outcome the next plan knows of
            if known < 0 or not drafts[known]:
                continue
            seen.append(gains[known] - 1)
            if len(seen) == gate.window and sum(seen) / (gate.window * k) < gate.threshold:
                shut = gate.cooldown
                seen.clear()
        return gains, drafts


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
