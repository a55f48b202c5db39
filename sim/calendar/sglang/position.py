"""Where an engine under SGLang's rules stands on the calendar between two turns, and what it notes."""

from __future__ import annotations

from array import array

from specfleet.sim.calendar.sglang.ends import SglangEnds
from specfleet.sim.calendar.waiting import WaitingLine
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules


class SglangPosition:
    """The state that a turn carries on; all the rest is in the calendar.

    Args:
        rules: SGLang's. ratio: the share of outputs expected.
        waiting: the queue.
        ends: who has to know of ends; None if nobody has before the run is over.

    Attributes:
        pages: KV pages of the pool. passes: of the drafter after a decode and after a prefill batch.
        iterations: batches so far. decodes: number of the next decode batch, from 1; entry: its place.
        now: time of the next turn. last_end: when the last batch ends, or ended. flying: it is in flight
            (overlap).
        sum, left: running sums, up to the last decode.
        full: nobody is admitted until somebody leaves the running list.
        old_pages, new_pages: KV pages of those in the last decode, and of the prompts computed since.
        behind: the last decode was decided before the result of the one before it was known.
        rows: 13 numbers an iteration: the fields of `StepShape`, running, waiting, KV pages, and the number
            of the decode batch (0: a prefill batch).
        times: start, end and turn of each iteration.
    """

    def __init__(
        self, rules: SglangRules, ratio: NewTokenRatio, waiting: WaitingLine, ends: SglangEnds | None
    ) -> None:
        self.rules, self.ratio, self.waiting, self.ends = rules, ratio, waiting, ends
        self.pages = rules.pool // rules.page
        self.passes = rules.passes(None, False), rules.passes(None, True)
        self.rows, self.times = array("q"), array("d")
        self.iterations, self.decodes, self.entry = 0, 1, 1
        self.now = self.last_end = 0.0
        self.flying = self.behind = self.full = False
        self.sum = self.left = 0
        self.old_pages = self.new_pages = 0
