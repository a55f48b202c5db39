"""What a lane writes down while it runs."""

from __future__ import annotations

from array import array

from specfleet.sim.calendar.packing import Packing
from specfleet.sim.calendar.stay import Counts
from specfleet.sim.recorder import Recorder


class Log:
    """What an engine's iterations did, in the fewest numbers the columns can be computed from.

    Attributes:
        end_s: when each iteration ended. sums: its packed running sum, newcomers included.
        beyond: context outside the sliding window, by iteration, where a request outgrows it; of a wide
            layout all context of those who decode.
        prefills: 6 numbers for each iteration with a prefill: iteration, prompt tokens, rows, rows of
            one token (priced as decode rows), their context, pairs.
        padded: 2 numbers for each iteration with placeholder drafts: iteration, drafts.
        cached: 2 numbers for each hit in the prefix cache: place, tokens.
        drafts, passes: of the rows of each iteration, and of the drafter after it if any draft might be used;
            where lives have drafts of their own.
        one_pass: iterations none of whose drafts could be used. rerolled: those run again for a rejection.
        waiting: 2 numbers for each iteration with a queue: iteration, length.
        wakes, wake_s: iterations scheduled while nothing was in flight, and when.
        admitted: iteration of admission by place, where it is not that of the first token.
        odd_gaps: 3 numbers for each: iteration, iteration of the chunk before, place.
        stays: (place, iteration of the prefill's end, rounds, newcomers before it) after a preemption.
        cut: rounds before its first preemption, or until it was given up, by place. Here and in `stays` -1
            rounds are of one of which nothing counts.
        totals: counts and last iteration by place, of who had several stays.
        preemptions: by place.
        stepped: iterations that `Engine` stepped. recorder: what it wrote down of them (None: never).
        admitted_s, first_rank, last_rank: by place, where `Engine` saw it: time of admission, and the
            places of the first and the last chunk within their steps.
        skipped: iterations between first and last chunk without one, by place, where K changes.
    """

    def __init__(self, packing: Packing | None = None) -> None:
        self._packing = packing
        self.end_s = array("d")
        self.sums = array("q")
        self.beyond = array("q")
        self.prefills = array("q")
        self.padded = array("q")
        self.cached = array("q")
        self.one_pass = array("q")
        self.drafts, self.passes = array("q"), array("q")
        self.rerolled = array("q")
        self.waiting = array("q")
        self.wakes = array("q")
        self.wake_s = array("d")
        self.admitted: dict[int, int] = {}
        self.odd_gaps = array("q")
        self.stays: list[list[int]] = []
        self.cut: dict[int, int] = {}
        self.totals: dict[int, tuple[Counts, int]] = {}
        self.stepped = array("q")
        self.recorder: Recorder | None = None
        self.admitted_s: dict[int, float] = {}
        self.first_rank: dict[int, int] = {}
        self.last_rank: dict[int, int] = {}
        self.skipped: dict[int, int] = {}
        self.preemptions: dict[int, int] = {}

    def own(self, drafts: int, passes: int) -> tuple[int, int]:
        """Notes the drafts of an iteration's rows and the drafter's passes after it, and returns them."""
        self.drafts.append(drafts)
        self.passes.append(passes)
        return drafts, passes

    def forget_gap(self, it: int, place: int) -> int:
        """Takes back that a request's chunk of an iteration follows one from before the iteration before;
        returns that chunk's iteration."""
        gaps = self.odd_gaps
        for low in range(len(gaps) - 3, -1, -3):
            if gaps[low] == it and gaps[low + 2] == place:
                before = gaps[low + 1]
                del gaps[low : low + 3]
                return before
        raise AssertionError("a stay after a preemption begins with a pause")

    def blocks_used(self, it: int) -> int:
        """Returns the blocks held in an iteration that is over."""
        pack = self._packing
        assert pack is not None
        return (self.sums[it] >> pack.blocks) & pack.blocks_mask

    def forget_iterations(self) -> None:
        """Drops what the iteration columns were made of."""
        self.end_s = array("d")
        self.sums, self.prefills, self.one_pass = array("q"), array("q"), array("q")
        self.beyond, self.waiting, self.padded = array("q"), array("q"), array("q")
        self.rerolled = array("q")
        self.drafts, self.passes = array("q"), array("q")

    @property
    def is_eventful(self) -> bool:
        """Whether a request did something that its trajectory does not say."""
        return bool(self.admitted or self.preemptions or self.totals or self.skipped or self.admitted_s)
