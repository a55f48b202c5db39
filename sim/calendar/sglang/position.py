"""Where an engine under SGLang's rules stands on the calendar between two turns, and what it notes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from specfleet.sim.calendar.sglang.asking import NOTHING, Asking, Followed
from specfleet.sim.calendar.sglang.ends import SglangEnds
from specfleet.sim.calendar.sglang.kv import Count, Shared
from specfleet.sim.calendar.sglang.line import SglangLine
from specfleet.sim.calendar.sglang.lives import SglangTrajectories
from specfleet.sim.calendar.sglang.stays import SglangStays
from specfleet.sim.calendar.sglang.sums import SglangCalendar
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules


class SglangPosition:
    """The state that a turn carries on; all the rest is in the calendar.

    Args:
        rules: SGLang's. ratio: the share of outputs expected.
        waiting: the queue.
        kv: its pool. shared: the same, where more is asked of it than to count.
        ends: who has to know of ends; None if nobody has before the run is over.
        lives: the requests.

    Attributes:
        calendar: what those who run contribute. stays: what is noted of each, by the order of first tokens.
        chunk_pages: KV pages of the prompt that is being cut.
        prefilled: the prefill batch in flight. decode_flies: a decode is.
        running: those on the running list in its order, and some who have left it.
        displaced: who was thrown out for the prefill batch that is being put together.
        pages: KV pages of the pool. passes: of the drafter after a decode and after a prefill batch.
        iterations: batches so far. decodes: number of the next decode batch, from 1; entry: its place.
        now: time of the next turn. last_end: when the last batch ends, or ended. flying: it is in flight
            (overlap).
        sum, reach, beyond: running sums, up to the last decode.
        full: nobody is admitted until somebody leaves the running list.
        old_pages, new_pages: KV pages of those in the last decode, and of the prompts computed since.
        behind: the last decode was decided before the result of the one before it was known.
        k: drafts of a row in the next decode. prefill_k: of a row of who was prefilled last; more: how many
            more newcomers verify there together.
        rows: 13 numbers an iteration: the fields of `StepShape`, running, waiting, KV pages, and the number
            of the decode batch (0: a prefill batch).
        times: start, end and turn of each iteration.
    """

    __slots__ = (
        "behind",
        "beyond",
        "calendar",
        "chunk_pages",
        "decode_flies",
        "decodes",
        "displaced",
        "ends",
        "entry",
        "flying",
        "full",
        "iterations",
        "k",
        "kv",
        "lag",
        "last_end",
        "lives",
        "more",
        "new_pages",
        "now",
        "old_pages",
        "pack",
        "pages",
        "passes",
        "prefill_k",
        "prefilled",
        "ratio",
        "reach",
        "rows",
        "rules",
        "running",
        "shared",
        "stays",
        "sum",
        "times",
        "waiting",
    )

    def __init__(
        self,
        rules: SglangRules,
        ratio: NewTokenRatio,
        waiting: SglangLine,
        kv: Count | Shared,
        ends: SglangEnds | None,
        lives: SglangTrajectories,
    ) -> None:
        self.rules, self.ratio, self.waiting, self.ends = rules, ratio, waiting, ends
        self.kv, self.shared = kv, kv.shared
        self.pages = rules.pool // rules.page
        self.passes = rules.passes(None, False), rules.passes(None, True)
        self.k = self.prefill_k = rules.num_speculative_tokens
        self.more = 0
        self.rows, self.times = array("q"), array("d")
        self.iterations, self.decodes, self.entry = 0, 1, 1
        self.now = self.last_end = 0.0
        self.flying = self.behind = self.full = False
        self.sum = self.reach = self.beyond = 0
        self.lives, self.lag, self.pack = lives, rules.in_flight > 0, lives.layout
        self.calendar = SglangCalendar(lives.longest_row, self.lag)
        self.stays = SglangStays()
        self.chunk_pages = 0
        self.decode_flies = False
        self.prefilled = NOTHING
        self.running: list[Asking] = []
        self.displaced: list[Followed] = []
        self.old_pages = self.new_pages = 0

    def by_rows(self, waiting: int) -> list[int]:
        """Returns the drafts planned after a batch by its rows, with so many waiting; empty: always K."""
        return []

    def change(self, k: int) -> None:
        """Everybody verifies `k` drafts from the decode behind the last one on."""

    @property
    def held(self) -> int:
        """KV pages held when a turn begins, those that several share counted for each."""
        return self.old_pages + self.new_pages + self.chunk_pages

    def runs(self) -> Iterator[tuple[Asking, int]]:
        """Yields who is on the running list when a turn begins, in its order, and their outputs known."""
        seen = self.decodes - (1 if self.decode_flies else 0)
        self.running = [one for one in self.running if one.last >= seen]
        fresh = {one.place for one in self.prefilled.members}
        for one in self.running:
            if one.place not in fresh:
                written = one.block.computed(one.j, seen - one.since) - one.num_tokens + 1
                yield one, one.num_output_tokens + written
        for one in self.prefilled.members:
            yield one, one.num_output_tokens
