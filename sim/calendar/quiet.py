"""Stretches in which nobody arrives and nobody waits: only the calendar changes anything."""

from __future__ import annotations

from math import inf

import numpy as np

from specfleet.hardware.stepcost import TERMS, StepShape
from specfleet.sim.calendar.admission import LONGEST_WINDOW
from specfleet.sim.calendar.handover import Handover
from specfleet.sim.calendar.luck import F64, I64
from specfleet.sim.calendar.plans import Plans

Walk = tuple[int, int, int, float, float]
"""Running sum, next iteration, its place in the calendar, time of the next turn, last end."""
WINDOW = 64
"""Iterations from which they are priced at once: numpy's 60 calls cost as much as 64 turns of the loop."""
new_tuple = tuple.__new__
"""Makes a `StepShape` in 0.1 us; its own constructor takes twice as long."""


class Quiet(Handover):
    """One engine on the fast path, as far as it runs undisturbed.

    Attributes:
        plans: K by batch size and queue; None is always K.
        passes_at: the drafter's passes by the K that they draft.
        reach: iterations that the next window looks ahead.
    """

    plans: Plans | None = None
    passes_at: tuple[int, ...] = ()
    reach = 4 * WINDOW

    def _quiet(self, walk: Walk, limit: float, step_s: float, k: int, edge: int) -> Walk:
        """Runs iterations until `limit`, a finish or a shortage: only the calendar changes anything.

        Args:
            walk: where the lane stands.
            limit: time from which somebody may arrive or look.
            step_s: seconds of the last iteration.
            k, edge: drafts of a row; last place of the calendar to walk to.
        """
        acc, it, i, now, last_end = walk
        rules, pack, log, lag, watch = self.rules, self.rules.packing, self.log, self.rules.lag, self.watch
        entry, unused, seconds, notes = (
            self.calendar.data,
            self.unused.data,
            self.cost.seconds,
            rules.notes_unused,
        )
        end_s, sums, total, query = log.end_s, log.sums, self.total, 1 + k
        passes = self.passes if self.plans is None else self.passes_at[k]
        table = None if self.plans is None else self.plans.table
        side, window = self.side.data, rules.window
        first, stop = it, it + LONGEST_WINDOW
        if self.stops and watch is not None:
            stop = min(stop, watch.next_end() + 1 + lag)
        while now < limit and it < stop and i < edge:
            if stop - it > WINDOW and limit - now > WINDOW * step_s:
                most = min(stop - it, edge - i)
                if step_s and limit < inf:
                    most = min(most, int(min((limit - now) / step_s, 1e6)) + 2)
                done, acc, now, last_end = self._window((acc, it, i, now, last_end), limit, most, k)
                if done:
                    it += done
                    i += done
                    continue
            ahead = acc + entry[i]
            n = (ahead >> pack.rows) & pack.rows_mask
            if not n or (ahead >> pack.blocks) & pack.blocks_mask > total or (table and table[n] != k):
                break
            acc = ahead
            depth, beyond = passes, 0
            if window:
                self.side_sum += side[i]
                beyond = self.side_sum & pack.context_mask
                log.beyond.append(beyond)
            if notes and unused[i] == n:
                depth = 1
                log.one_pass.append(it)
            tokens, context = n * query, acc & pack.context_mask
            begin = last_end if lag else now
            numbers = (tokens, n, 0, tokens, n * k, context, context - beyond, 0, depth)
            last_end = begin + seconds(new_tuple(StepShape, numbers))
            end_s.append(last_end)
            sums.append(acc)
            now = begin if lag else last_end
            it += 1
            i += 1
        if it > first:
            self.committed = it - 2 - lag
        return acc, it, i, now, last_end

    def _window(self, walk: Walk, limit: float, most: int, k: int) -> tuple[int, int, float, float]:
        """Runs up to `most` quiet iterations at once.

        Returns:
            How many ran, and then the running sum, the time of the next turn, and the last end.
        """
        acc, it, i, now, last_end = walk
        pack, rules, plans = self.rules.packing, self.rules, self.plans
        most = min(most, self.reach)
        sums = self.calendar[i : i + most].copy()
        sums[0] += acc
        np.add.accumulate(sums, out=sums)
        n = (sums >> pack.rows) & pack.rows_mask
        stops = (n == 0) | ((sums >> pack.blocks) & pack.blocks_mask > self.total)
        if plans is not None:
            stops |= plans.by_batch[n] != k
        ahead = int(stops.argmax()) if stops.any() else most
        self.reach = min(max(2 * ahead, WINDOW), LONGEST_WINDOW)
        if not ahead:
            return 0, acc, now, last_end
        sums, n = sums[:ahead], n[:ahead]
        depth = np.full(ahead, self.passes if plans is None else self.passes_at[k])
        if rules.notes_unused:
            depth[self.unused[i : i + ahead] == n] = 1
        times = np.empty(ahead + 1)
        times[0] = last_end
        context, sides = sums & pack.context_mask, self._sides(i, ahead)
        times[1:] = self._prices(n, context, context - (sides & pack.context_mask), depth, k)
        np.add.accumulate(times, out=times)
        turns = times[:ahead] if not rules.lag else np.concatenate(([now], times[: ahead - 1]))
        done = int(np.searchsorted(turns, limit))
        if not done:
            return 0, acc, now, last_end
        log = self.log
        log.end_s.frombytes(times[1 : done + 1].tobytes())
        log.sums.frombytes(sums[:done].tobytes())
        if rules.window:
            log.beyond.frombytes((sides[:done] & pack.context_mask).tobytes())
        if rules.has_side:
            self.side_sum = int(sides[done - 1])
        if rules.notes_unused:
            log.one_pass.extend((np.flatnonzero(depth[:done] == 1) + it).tolist())
        end = float(times[done])
        return done, int(sums[done - 1]), float(times[done - 1]) if rules.lag else end, end

    def _sides(self, i: int, most: int) -> I64:
        """Returns the second packed word of the iterations from place `i` on (0 where none is kept)."""
        if not self.rules.has_side:
            return np.zeros(1, dtype=np.int64)
        sides = self.side[i : i + most].copy()
        sides[0] += self.side_sum
        return np.add.accumulate(sides, out=sides)

    def _prices(self, n: I64, context: I64, seen: I64, depth: I64, k: int) -> F64:
        """Returns the seconds of pure decode steps: `StepCost.seconds`, term by term in its order."""
        tokens, none = n * (1 + k), np.zeros_like(n)
        terms = self.cost.terms(
            {
                "tokens": tokens,
                "decode_sequences": n,
                "prefill_sequences": none,
                "logit_rows": tokens,
                "draft_tokens": n * k,
                "kv_tokens": context,
                "kv_tokens_in_window": seen,
                "prefill_pairs": none,
                "draft_passes": depth,
            }
        )
        ordered = [terms[name] for name in TERMS if name in terms]
        total = ordered[0]
        for term in ordered[1:]:
            total = total + term
        return total
