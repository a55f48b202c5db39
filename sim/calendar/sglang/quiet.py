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

    def run(self, lane: SglangPosition, until: float) -> bool:
        """Runs decodes before `until`, an arrival, a turn that tries those who wait, or a shortage of KV, and
        up to one whose turn may tell of an end; returns whether there were any.

        With overlap they go on behind a decode, without a tree from anywhere else, too.
        """
        waiting, begun = lane.waiting, lane.decodes
        blocked, limit = waiting.count > 0, waiting.next_arrival(until)
        stop = begun + self.calendar.edge - lane.entry
        if lane.ends is not None:
            stop = min(stop, 1 + lane.ends.next_stop(self.lag))
        if blocked and not lane.full:
            if lane.shared is not None:
                return False
            stop = min(stop, begun + 1)  # who waits has just been tried
        turns, goes_on = self._turns_ahead if self.lag else self._turns, True
        plans = lane.by_rows(waiting.count)
        while goes_on and lane.now < limit and lane.decodes < stop:
            last = stop
            if stop - lane.decodes > WINDOW and lane.times and not plans:
                step_s = lane.last_end - lane.times[-3]
                if limit - lane.now > WINDOW * step_s:
                    most = min(stop - lane.decodes, self.reach)
                    if step_s and limit < inf:
                        most = min(most, int(min((limit - lane.now) / step_s, 1e6)) + 2)
                    if self._window(lane, limit, most, blocked):
                        goes_on = lane.full or not blocked
                        continue
                    last = lane.decodes + WINDOW
            goes_on = turns(lane, limit, last, blocked) and (lane.full or not blocked)
        return lane.decodes > begun

    def _turns(self, lane: SglangPosition, limit: float, stop: int, blocked: bool) -> bool:
        """Runs decodes one by one, each when the one before it is known; returns whether there were any.

        The state is in local variables: that is a third of what a decode costs.
        """
        calendar, pack, cost, shared, waits = (
            self.calendar,
            self.pack,
            self.cost,
            lane.shared,
            lane.waiting.count,
        )
        at, gone, reach_at, seconds = calendar.at, calendar.gone_at[GONE], calendar.reach_at, cost.seconds
        page_bit, page_mask, count_bit, low = pack.pages, pack.pages_mask, pack.count, pack.context_mask
        entry, decodes, now, acc, reach = lane.entry, lane.decodes, lane.now, lane.sum, lane.reach
        k, passes, total, held = lane.k, lane.passes[0], lane.pages, lane.old_pages
        met, saved, begun, waits = False, lane.kv.saved, decodes, lane.waiting.count
        rules, more, table, plan = lane.rules, lane.more, lane.by_rows(waits), k
        while now < limit and decodes < stop and plan == k and not (blocked and met):
            ahead = acc + at[entry]
            rows, context, used = ahead >> count_bit, ahead & low, ((ahead >> page_bit) & page_mask) - saved
            if not rows or used > total:
                break
            if shared is not None:
                shared.decodes(rows, held, used, 0)
            drafts, plan = rows * k + more, k
            if table:
                plan = table[rows]
                passes, more = rules.passes(plan, False), 0
            tokens = context + drafts
            numbers = rows + drafts, rows, 0, rows + drafts, drafts, tokens, tokens, 0, passes
            begin, now = now, now + seconds(new_shape(StepShape, numbers))
            lane.rows.extend((*numbers, rows, waits, used, decodes))
            lane.times.extend((begin, now, begin))
            acc, reach = ahead, reach + reach_at[entry]
            entry, decodes, held = entry + 1, decodes + 1, used + saved
            if left := gone[entry]:
                met = True
                held -= left & low
                if shared is not None:
                    shared.ended(decodes - 1, False)
                    saved = shared.saved
        lane.now = lane.last_end = now
        lane.sum, lane.reach, lane.old_pages, lane.behind = acc, reach, held, False
        self._move(lane, decodes - begun, met)
        if plan != k:
            lane.change(plan)
        return decodes > begun and plan == k

    def _turns_ahead(self, lane: SglangPosition, limit: float, stop: int, blocked: bool) -> bool:
        """The same with overlap: each is decided before the decode before it is known."""
        calendar, pack, cost, shared, waits = (
            self.calendar,
            self.pack,
            self.cost,
            lane.shared,
            lane.waiting.count,
        )
        at, (gone, _, sure, sure_before, ghosts, ghost_pages, _) = calendar.at, calendar.gone_at
        reach_at, reserves, seconds = calendar.reach_at, lane.rules.reserve > 0, cost.seconds
        page_bit, page_mask, count_bit, low = pack.pages, pack.pages_mask, pack.count, pack.context_mask
        entry, decodes, now, acc, reach = lane.entry, lane.decodes, lane.now, lane.sum, lane.reach
        k, passes, total, held = lane.k, lane.passes[0], lane.pages, lane.old_pages
        last_end, behind, met, saved = lane.last_end, lane.behind, False, lane.kv.saved
        begun, waits = decodes, lane.waiting.count
        rules, more, table, plan = lane.rules, lane.more, lane.by_rows(waits), k
        while now < limit and decodes < stop and plan == k and not (blocked and met):
            ahead = acc + at[entry]
            rows, context = ahead >> count_bit, ahead & low
            pages = used = ((acc if reserves else ahead) >> page_bit) & page_mask
            if left := gone[entry]:
                vain, certain = ghosts[entry], sure[entry] & low
                rows, context = rows + (vain >> count_bit), context + (vain & low)
                if not reserves:
                    used += ghost_pages[entry] + certain
                else:
                    pages -= left & low
                    if behind:
                        used -= certain - sure_before[entry]
            used -= saved
            if not rows or used > total:
                break
            if shared is not None:
                shared.decodes(rows, held, used, 0)
            drafts, plan = rows * k + more, k
            if table:
                plan = table[rows]
                passes, more = rules.passes(plan, False), 0
            tokens = context + drafts
            numbers = rows + drafts, rows, 0, rows + drafts, drafts, tokens, tokens, 0, passes
            begin, last_end = last_end, last_end + seconds(new_shape(StepShape, numbers))
            lane.rows.extend((*numbers, acc >> count_bit, waits, used, decodes))
            lane.times.extend((begin, last_end, now))
            acc, reach, now, held, behind = ahead, reach + reach_at[entry], begin, pages, True
            entry, decodes = entry + 1, decodes + 1
            if left:
                met = True
                if shared is not None:
                    shared.ended(decodes - 2, True)
                    saved = shared.saved
        lane.now, lane.last_end, lane.behind, lane.old_pages = now, last_end, behind, held
        lane.sum, lane.reach = acc, reach
        self._move(lane, decodes - begun, met)
        if plan != k:
            lane.change(plan)
        return decodes > begun and plan == k

    def _move(self, lane: SglangPosition, done: int, met: bool) -> None:
        """Moves on by some decodes; `met`: somebody has left the running list."""
        if not done:
            return
        lane.entry += done
        lane.decodes += done
        lane.iterations += done
        lane.new_pages = lane.more = 0
        lane.decode_flies = lane.flying = self.lag
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
        k = lane.k
        context = context + rows * k
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
        lane.reach += int(calendar.reach[first : first + done].sum())
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
