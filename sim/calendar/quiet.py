"""Stretches in which nobody arrives and nobody waits: only the calendar changes anything."""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from typing import NamedTuple

import numpy as np

from specfleet.hardware.stepcost import TERMS, StepCost, StepShape, shape_fields
from specfleet.sim.calendar.books.log import Log
from specfleet.sim.calendar.ends import Ends
from specfleet.sim.calendar.luck import F64, I64
from specfleet.sim.calendar.plans import Plans
from specfleet.sim.calendar.position import Position
from specfleet.sim.calendar.sums import LONGEST_WINDOW, Calendar

WINDOW = 64
"""Iterations from which they are priced at once: numpy's 60 calls cost as much as 64 turns of the loop."""
new_shape = tuple.__new__
"""Makes a `StepShape` in 0.1 us; its own constructor takes twice as long."""


class Ahead(NamedTuple):
    """Where a stretch began: `Position`, and how much was written down."""

    acc: int
    it: int
    i: int
    now: float
    last_end: float
    committed: int
    side_sum: int
    noted: int
    beyond: int
    drafts: int

    @classmethod
    def of(cls, at: Position, quiet: Quiet) -> Ahead:
        """Returns where an engine stands."""
        log, calendar = quiet.log, quiet.calendar
        noted = len(log.end_s), len(log.beyond), len(log.drafts)
        where = at.acc, at.it, at.i, at.now, at.last_end
        return cls(*where, quiet.ends.committed, calendar.side_sum, *noted)


class Quiet:
    """Runs an engine while it is undisturbed.

    Args:
        calendar: what its sequences contribute.
        cost: prices a step.
        log: what it writes down.
        ends: who has to know of ends.
        plans: K by batch size and queue; None is always K.
        drafts_at, passes_at: drafts of a row, and the drafter's passes, by K.

    Attributes:
        reach: iterations that the next window looks ahead.
        ran_ahead: where the last stretch began, if it may have to be taken back.
    """

    reach = 4 * WINDOW
    ran_ahead: Ahead | None = None

    def __init__(
        self,
        calendar: Calendar,
        cost: StepCost,
        log: Log,
        ends: Ends,
        plans: Plans | None,
        drafts_at: list[int],
        passes_at: tuple[int, ...],
    ) -> None:
        self.calendar = calendar
        self.footprints = calendar.footprints
        self.cost = cost
        self.log = log
        self.ends = ends
        self.plans = plans
        self.drafts_at, self.passes_at = drafts_at, passes_at
        self.total = self.footprints.scheduler.usable_blocks

    def run(self, at: Position, limit: float, step_s: float) -> None:
        """Runs iterations until `limit`, a finish or a shortage: only the calendar changes anything.

        The state is in local variables, not in `at`: that is a third of what an iteration costs.

        Args:
            at: where the engine stands.
            limit: time from which somebody may arrive or look.
            step_s: seconds of the last iteration.
        """
        acc, it, i, now, last_end, k = at.acc, at.it, at.i, at.now, at.last_end, at.k
        pack, calendar, log, lag = self.footprints.packing, self.calendar, self.log, self.footprints.lag
        block_bit, row_bit, block_mask, row_mask = pack.blocks, pack.rows, pack.blocks_mask, pack.rows_mask
        entry, unused, seconds, total = calendar.row.data, calendar.unused.data, self.cost.seconds, self.total
        low, passes, each = self.footprints.notes_low, self.passes_at[k], self.drafts_at[k]
        void_below, beyond_reach = 0 if self.plans is None else self.plans.void_below, calendar.beyond.data
        notes = self.footprints.notes_unused and passes > 0
        wide, low_mask, own = pack.wide, self.footprints.low_mask, len(calendar.drafts) > 0
        table = None if self.plans is None else self.plans.table
        first, stop, edge = it, min(self._stop(it), at.until), calendar.edge
        while now < limit and it < stop and i < edge:
            ahead = acc + entry[i]
            n = (ahead >> row_bit) & row_mask
            if n and stop - it > WINDOW and limit - now > WINDOW * step_s:
                most = min(stop - it, edge - i)
                if step_s and limit < inf:
                    most = min(most, int(min((limit - now) / step_s, 1e6)) + 2)
                done, acc, now, last_end = self._window(acc, it, i, now, last_end, limit, most, k)
                if done:
                    it += done
                    i += done
                    continue
            if not n or (ahead >> block_bit) & block_mask > total:
                break
            if table and table[n] + (0 if void_below and beyond_reach[i] else void_below) != k:
                break
            acc = ahead
            depth, beyond, context, drafts = passes, 0, acc & pack.context_mask, n * each
            if own:
                drafts, depth = log.own(*calendar.own_drafts(i, self.passes_at))
            if low:
                calendar.side_sum += calendar.side.item(i)
                beyond = calendar.side_sum & low_mask
                log.beyond.append(beyond)
                if wide:
                    context, beyond = beyond, 0
            if notes and unused[i] == n:
                depth = 1
                log.one_pass.append(it)
            begin = last_end if lag else now
            numbers = shape_fields(n, drafts, context, context - beyond, 0, 0, 0, depth)
            last_end = begin + seconds(new_shape(StepShape, numbers))
            log.end_s.append(last_end)
            log.sums.append(acc)
            now = begin if lag else last_end
            it += 1
            i += 1
        if it > first:
            self.ends.committed = it - 2 - lag
        at.acc, at.it, at.i, at.now, at.last_end = acc, it, i, now, last_end

    def take_back(self, at: Position, until: float) -> None:
        """Takes back the turns of the last stretch from `until` on: somebody arrives then."""
        ahead, log, lag = self.ran_ahead, self.log, self.footprints.lag
        if ahead is None or at.now < until:
            return
        end_s = log.end_s[ahead.noted :]
        turns = [ahead.now, *([ahead.last_end] if lag else []), *end_s]
        keep = min(bisect_left(turns, until), len(end_s))
        if keep == len(end_s):
            return
        noted = ahead.noted + keep
        at.it, at.i = ahead.it + keep, ahead.i + keep
        at.acc = log.sums[noted - 1] if keep else ahead.acc
        at.last_end = log.end_s[noted - 1] if keep else ahead.last_end
        at.now = turns[keep]
        self.ends.committed = at.it - 2 - lag if keep else ahead.committed
        del log.end_s[noted:], log.sums[noted:]
        if self.footprints.notes_low:
            del log.beyond[ahead.beyond + keep :]
        if self.footprints.has_side:
            side = self.calendar.side[ahead.i : at.i]
            self.calendar.side_sum = ahead.side_sum + int(side.sum())
        if len(self.calendar.drafts):
            del log.drafts[ahead.drafts + keep :], log.passes[ahead.drafts + keep :]
        while log.one_pass and log.one_pass[-1] >= at.it:
            log.one_pass.pop()

    def _stop(self, it: int) -> int:
        """Returns the iteration before which a stretch that begins in `it` has to stop."""
        stop, ends = it + LONGEST_WINDOW, self.ends
        if (ends.stops or ends.runs_ahead) and ends.watch is not None:
            return min(stop, ends.watch.next_end() + 1 + self.footprints.lag)
        return stop

    def _window(
        self, acc: int, it: int, i: int, now: float, last_end: float, limit: float, most: int, k: int
    ) -> tuple[int, int, float, float]:
        """Runs up to `most` quiet iterations at once.

        Returns:
            How many ran, and then the running sum, the time of the next turn, and the last end.
        """
        pack, rules, plans, each = self.footprints.packing, self.footprints, self.plans, self.drafts_at[k]
        most = min(most, self.reach)
        sums = self.calendar.row[i : i + most].copy()
        sums[0] += acc
        np.add.accumulate(sums, out=sums)
        n = (sums >> pack.rows) & pack.rows_mask
        stops = (n == 0) | ((sums >> pack.blocks) & pack.blocks_mask > self.total)
        ahead = int(stops.argmax()) if stops.any() else most
        if plans is not None:  # behind a shortage sums mean nothing: they may not even fit their fields
            changes, void_below = plans.by_batch[n[:ahead]] != k, plans.void_below
            if void_below:
                within = self.calendar.beyond[i : i + ahead] == 0
                changes = plans.by_batch[n[:ahead]] + void_below * within != k
            ahead = int(changes.argmax()) if changes.any() else ahead
        self.reach = min(max(2 * ahead, WINDOW), LONGEST_WINDOW)
        if not ahead:
            return 0, acc, now, last_end
        sums, n = sums[:ahead], n[:ahead]
        drafts, depth = n * each, np.full(ahead, self.passes_at[k])
        if own := len(self.calendar.drafts) > 0:
            drafts, depth = self.calendar.all_own_drafts(i, ahead, self.passes_at)
            planned = depth.copy()
        if rules.notes_unused and self.passes_at[k]:
            depth[self.calendar.unused[i : i + ahead] == n] = 1
        times = np.empty(ahead + 1)
        times[0] = last_end
        context, sides = sums & pack.context_mask, self.calendar.sides(i, ahead)
        seen = context - (sides & rules.low_mask)
        if pack.wide:
            context = seen = sides
        times[1:] = decode_prices(self.cost, n, drafts, context, seen, depth)
        np.add.accumulate(times, out=times)
        turns = times[:ahead] if not rules.lag else np.concatenate(([now], times[: ahead - 1]))
        done = int(np.searchsorted(turns, limit))
        if not done:
            return 0, acc, now, last_end
        self._note(it, times[1 : done + 1], sums[:done], sides[:done], depth[:done] == 1)
        if own:
            self.log.drafts.frombytes(drafts[:done].tobytes())
            self.log.passes.frombytes(planned[:done].tobytes())
        end = float(times[done])
        return done, int(sums[done - 1]), float(times[done - 1]) if rules.lag else end, end

    def _note(self, it: int, end_s: F64, sums: I64, sides: I64, one_pass: np.ndarray) -> None:
        """Writes a window's iterations down; arguments as in `Log`."""
        log, rules = self.log, self.footprints
        log.end_s.frombytes(end_s.tobytes())
        log.sums.frombytes(sums.tobytes())
        if rules.notes_low:
            log.beyond.frombytes((sides & rules.low_mask).tobytes())
        if rules.has_side:
            self.calendar.side_sum = int(sides[-1])
        if rules.notes_unused:
            log.one_pass.extend((np.flatnonzero(one_pass) + it).tolist())


def decode_prices(cost: StepCost, n: I64, drafts: I64, context: I64, seen: I64, depth: I64) -> F64:
    """Returns the seconds of pure decode steps: `StepCost.seconds`, term by term in its order.

    Args:
        cost: prices a step.
        n, drafts, context, seen: rows, their drafts, KV tokens that they read, and those of a sliding window.
        depth: passes of the drafter.
    """
    none = np.zeros_like(n)
    numbers = shape_fields(n, drafts, context, seen, none, none, none, depth)
    terms = cost.terms(dict(zip(StepShape._fields, numbers, strict=True)))
    ordered = [terms[name] for name in TERMS if name in terms]
    total = ordered[0]
    for term in ordered[1:]:
        total = total + term
    return total
