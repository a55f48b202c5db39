"""Stretches in which everybody decodes, batch after batch: nobody arrives, and who waits is not tried."""

from __future__ import annotations

from math import inf

import numpy as np

from specfleet.hardware.stepcost import StepCost, StepShape, shape_fields
from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.quiet import WINDOW, decode_prices, new_shape
from specfleet.sim.calendar.sglang.lives import SglangPacking
from specfleet.sim.calendar.sglang.position import SglangPosition
from specfleet.sim.calendar.sglang.sums import (
    GHOST,
    GHOST_PAGES,
    GONE,
    LONGEST_WINDOW,
    SURE,
    SURE_BEFORE,
    SglangCalendar,
)


class SglangQuiet:
    """Runs decodes while nothing else can come of a turn.

    Args:
        calendar: what those who run contribute.
        cost: prices a step.
        pack: the layout of its sums.
        lag: a batch is decided before the result of the one before it is known.

    Attributes:
        reach: decodes that the next window looks ahead.
    """

    reach = 4 * WINDOW

    def __init__(self, calendar: SglangCalendar, cost: StepCost, pack: SglangPacking, lag: bool) -> None:
        self.calendar, self.cost, self.pack, self.lag = calendar, cost, pack, lag

    def run(self, lane: SglangPosition, until: float) -> None:
        """Runs decodes before `until`, an arrival, an end that others wait for, or a shortage of KV.

        It begins behind a decode, and ends before a turn that may be anything else.
        """
        waiting = lane.waiting
        blocked, limit = waiting.count > 0, waiting.next_arrival(until)
        if blocked and not lane.full:
            return
        stop = lane.decodes + self.calendar.edge - lane.entry
        if lane.ends is not None:
            stop = min(stop, lane.ends.next_stop(self.lag))
        while lane.now < limit and lane.decodes < stop and (lane.full or not blocked):
            step_s = lane.last_end - lane.times[-3]
            if stop - lane.decodes > WINDOW and limit - lane.now > WINDOW * step_s:
                most = min(stop - lane.decodes, self.reach)
                if step_s and limit < inf:
                    most = min(most, int(min((limit - lane.now) / step_s, 1e6)) + 2)
                if self._window(lane, limit, most, blocked):
                    continue
                if not self._turns(lane, limit, min(stop, lane.decodes + WINDOW), blocked):
                    return
            elif not self._turns(lane, limit, stop, blocked):
                return

    def _turns(self, lane: SglangPosition, limit: float, stop: int, blocked: bool) -> bool:
        """Runs decodes one by one; returns whether there were any.

        The state is in local variables: that is a third of what a decode costs.
        """
        calendar, pack, lag, seconds = self.calendar, self.pack, self.lag, self.cost.seconds
        at, gone, sure = calendar.at, calendar.gone_at[GONE], calendar.gone_at[SURE]
        sure_before, ghosts = calendar.gone_at[SURE_BEFORE], calendar.gone_at[GHOST]
        ghost_pages, page_bit, page_mask = calendar.gone_at[GHOST_PAGES], pack.pages, pack.pages_mask
        count_bit, low, reserves = pack.count, pack.context_mask, lane.rules.reserve > 0
        entry, decodes, now, last_end, acc = lane.entry, lane.decodes, lane.now, lane.last_end, lane.sum
        behind, held, k, passes = (
            lane.behind,
            lane.old_pages,
            lane.rules.num_speculative_tokens,
            lane.passes[0],
        )
        waits, met, first, saved = lane.waiting.count, False, lane.entry, lane.kv.saved
        shared = lane.shared
        while now < limit and decodes < stop and not (blocked and met):
            ahead = acc + at[entry]
            rows, context = ahead >> count_bit, ahead & low
            if not rows:
                break
            running, left, seen = rows, gone[entry + 1 - lag], ahead
            if lag:
                running = acc >> count_bit
                seen = acc if reserves else ahead
            pages = used = (seen >> page_bit) & page_mask
            if lag and left:
                vain, certain = ghosts[entry], sure[entry] & low
                rows, context = rows + (vain >> count_bit), context + (vain & low)
                if not reserves:
                    used += ghost_pages[entry] + certain
                else:
                    pages -= left & low
                    if behind:
                        used -= certain - sure_before[entry]
            used -= saved
            if used > lane.pages:
                break
            if shared is not None:
                shared.decodes(rows, held, used, 0)
            numbers = shape_fields(rows, rows * k, context, context, 0, 0, 0, passes)
            begin = last_end if lag else now
            last_end = begin + seconds(new_shape(StepShape, numbers))
            lane.rows.extend((*numbers, running, waits, used, decodes))
            lane.times.extend((begin, last_end, now))
            now = begin if lag else last_end
            acc, held, behind, entry, decodes = ahead, pages, lag, entry + 1, decodes + 1
            if left:
                met = True
                if not lag:
                    held -= left & low
                if shared is not None:
                    shared.ended(decodes - 1 - lag, lag)
                    saved = shared.saved
        lane.sum, lane.now, lane.last_end, lane.behind, lane.old_pages = acc, now, last_end, behind, held
        self._move(lane, entry - first, met)
        return entry > first

    def _move(self, lane: SglangPosition, done: int, met: bool) -> None:
        """Moves on by some decodes; `met`: somebody has left the running list."""
        lane.left += int(self.calendar.left[lane.entry : lane.entry + done].sum())
        lane.entry += done
        lane.decodes += done
        lane.iterations += done
        for _ in range(done):
            if lane.ratio.now <= lane.ratio.least:
                break
            lane.ratio.fall()
        if met:
            lane.full = False

    def _window(self, lane: SglangPosition, limit: float, most: int, blocked: bool) -> int:
        """Runs up to `most` decodes at once; returns how many."""
        calendar, pack, lag, first = self.calendar, self.pack, self.lag, lane.entry
        sums = calendar.row[first : first + most].copy()
        sums[0] += lane.sum
        np.add.accumulate(sums, out=sums)
        gone = calendar.gone[:, first : first + most + 1]
        left = gone[GONE, 1 - int(lag) : most + 1 - int(lag)]
        rows, context = sums >> pack.count, sums & pack.context_mask
        running, pages, used = self._held(lane, sums, gone[:, :most])
        used = used - lane.kv.saved
        stops = (rows == 0) | (used > lane.pages)
        if blocked or lane.shared is not None:
            stops[1:] |= left[:-1] > 0
        ahead = int(stops.argmax()) if stops.any() else most
        self.reach = min(max(2 * ahead, WINDOW), LONGEST_WINDOW)
        if not ahead:
            return 0
        if lag:
            rows = rows + (gone[GHOST, :most] >> pack.count)
            context = context + (gone[GHOST, :most] & pack.context_mask)
        rows, context = rows[:ahead], context[:ahead]
        times, passes = np.empty(ahead + 1), np.full(ahead, lane.passes[0])
        times[0] = lane.last_end
        k = lane.rules.num_speculative_tokens
        times[1:] = decode_prices(self.cost, rows, rows * k, context, context, passes)
        np.add.accumulate(times, out=times)
        turns = np.concatenate(([lane.now], times[: ahead - 1])) if lag else times[:ahead]
        done = int(np.searchsorted(turns, limit))
        if not done:
            return 0
        none, every = np.zeros_like(rows), slice(0, done)
        shape = shape_fields(rows, rows * k, context, context, none, none, none, passes)
        waits = np.full(done, lane.waiting.count)
        numbers = lane.decodes + np.arange(done)
        columns = [*(column[every] for column in shape), running[every], waits, used[every], numbers]
        lane.rows.frombytes(np.stack(columns, axis=1).astype(np.int64).tobytes())
        lane.times.frombytes(np.stack([times[:done], times[1 : done + 1], turns[every]], axis=1).tobytes())
        end, met = float(times[done]), bool(left[:done].any())
        if lane.shared is not None:
            held = np.concatenate(([lane.old_pages], pages[: done - 1]))
            lane.shared.decode_together(rows[:done], held, used[:done])
            if met:
                lane.shared.ended(lane.decodes + done - 1 - lag, lag)
        lane.sum, lane.last_end, lane.behind = int(sums[done - 1]), end, lag
        lane.now = float(times[done - 1]) if lag else end
        lane.old_pages = int(pages[done - 1]) - (0 if lag else int(left[done - 1]) & pack.context_mask)
        self._move(lane, done, met)
        return done

    def _held(self, lane: SglangPosition, sums: I64, gone: I64) -> tuple[I64, I64, I64]:
        """Returns who runs, the KV pages of those who decode, and all that are held, by decode."""
        pack = self.pack
        pages = (sums >> pack.pages) & pack.pages_mask
        if not self.lag:
            return sums >> pack.count, pages, pages
        before = np.concatenate(([lane.sum], sums[:-1]))
        sure = gone[SURE] & pack.context_mask
        if not lane.rules.reserve:
            return before >> pack.count, pages, pages + gone[GHOST_PAGES] + sure
        held = (before >> pack.pages) & pack.pages_mask
        late = sure - gone[SURE_BEFORE]
        if not lane.behind:
            late[0] = 0
        return before >> pack.count, held - (gone[GONE] & pack.context_mask), held - late
