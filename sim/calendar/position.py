"""Where an engine on the calendar stands between two turns."""

from __future__ import annotations

from specfleet.sim.rules import NEVER


class Position:
    """The state that a turn carries on; all the rest is in the calendar.

    Attributes:
        acc: the running sum. k: drafts of a row.
        it: the next iteration. i: its entry in the calendar.
        now: time of its turn. last_end: when the iteration before ends, or ended.
        flying: that one is in flight (asynchronous).
        until: the iteration before which everybody has to be drawn anew, since they are not drawn further.
    """

    __slots__ = ("acc", "flying", "i", "it", "k", "last_end", "now", "until")

    def __init__(self, k: int) -> None:
        self.acc = self.it = self.i = 0
        self.k = k
        self.now = self.last_end = 0.0
        self.flying = False
        self.until = NEVER
