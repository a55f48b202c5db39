"""The fast path of one engine: a calendar of what its sequences contribute, walked by iteration.

See ARCHITECTURE.md for the picture. Every number a turn needs is a field of one running sum, so a
turn costs the same for one sequence and for a thousand; a sequence is touched when it is admitted,
and then not again.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hardware.stepcost import TERMS, StepShape
from sim.recorder import Recorder
from sim.timeline.admission import LONGEST_WINDOW, Unsuited
from sim.timeline.handover import Handover
from sim.timeline.luck import F64, I64
from sim.timeline.plans import Plans, seen

if TYPE_CHECKING:
    from sim.timeline.stepper import Stepper

Watcher = Generator[float, float, None]
Walk = tuple[int, int, int, float, float]
"""Running sum, next iteration, its place in the calendar, time of the next turn, last end."""
WINDOW = 64
"""Iterations from which they are priced at once: numpy's 60 calls cost as much as 64 turns of the loop."""
new_tuple = tuple.__new__
"""Makes a `StepShape` in 0.15 us; its own constructor takes 0.4."""


class Lane(Handover):
    """One engine on the fast path: `run` walks it.

    Attributes:
        plans: K by batch size and queue; None is always K.
        passes_at: the drafter's passes by the K that they draft.
        reach: iterations that the next window looks ahead.
        stepper, recorder: step it where the calendar cannot go on, and what they wrote down (None: never).
        verified, drafts: verifications and drafts by place, where K is not the same for all.
    """

    plans: Plans | None = None
    passes_at: tuple[int, ...] = ()
    stepper: Stepper | None = None
    recorder: Recorder | None = None
    reach = 4 * WINDOW
    verified: I64 | None = None
    drafts: I64 | None = None

    def run(self) -> Watcher:
        """Runs iterations; a generator, so that the state stays in local variables between events.

        It yields the time of the next turn (inf: idle) and is sent the time until which it may go on:
        every turn before that time is taken.
        """
        pack, lag, log, plans = self.rules.packing, self.rules.lag, self.log, self.plans
        block_bit, rows_bit, blocks_mask, rows_mask = pack.blocks, pack.rows, pack.blocks_mask, pack.rows_mask
        arrived_s, entry, unused = self.arrived_s, self.calendar.data, self.unused.data
        edge = len(entry) - self.lives.longest_row - LONGEST_WINDOW - 2
        total, notes, stops, most_k = self.total, self.rules.notes_unused, self.stops, self.rules.k
        end_s, sums, seconds, window = log.end_s, log.sums, self.cost.seconds, self.rules.window
        has_side, side, learns = self.rules.has_side, self.side.data, self.learns
        step, k, depth = self.step, most_k, self.passes
        slots, budget = self.slots, self.config.max_num_batched_tokens
        running_bit, most_seqs = pack.running, self.config.max_num_seqs
        now = last_end = 0.0
        flying = False
        acc = it = i = visible = 0
        until = yield now
        while True:
            if now >= until:
                until = yield now
                continue
            while visible < len(arrived_s) and arrived_s[visible] <= now:
                visible += 1
            if i >= edge:
                self._slide(i)
                i = 0
            acc += entry[i]
            if has_side:
                self.side_sum += side[i]
            n = (acc >> rows_bit) & rows_mask
            short = (acc >> block_bit) & blocks_mask > total
            if n * (1 + k + slots) > budget or (short and plans is not None):
                if self.stepper is None or (short and self.config.enable_prefix_caching):
                    raise Unsuited("a step that the calendar cannot take")
                steps = self.stepper.run((acc, it, i, now, last_end), flying, visible, until)
                acc, it, now, last_end, flying, k, visible, until = yield from steps
                continue
            if short:
                acc = self._make_room(acc, it, i)
                n = (acc >> rows_bit) & rows_mask
            rows = step.rows = 0
            step.short = False
            full = acc >> running_bit >= most_seqs
            if self.prefill is not None or (not full and (self.back or self.head < visible)):
                acc, rows = self._fill(acc, n, k, short, it, i, visible)
            if not n and not rows:
                if short or step.short:  # those thrown out may not come back before their tokens in flight
                    raise Unsuited("a step preempts and schedules nothing")
                entry[i] = 0
                if has_side:
                    side[i] = 0
                self._forget_dead(it)
                if flying:  # wait for the batch in flight, then try again
                    turn, now, flying, acc, entry[i + 1] = now, last_end, False, 0, 0
                    if self.settle(it - 2, turn):
                        until = yield now
                    continue
                if self.head < visible or self.back or self.prefill is not None:
                    raise Unsuited("nothing can be scheduled although requests are left")
                if visible == len(arrived_s):
                    if self.watch is None:
                        return
                    self.settle(it - 1, now)
                    until = yield inf
                if visible < len(arrived_s):
                    now = max(now, arrived_s[visible])
                continue
            waiting = visible - self.head + len(self.back) + self.doomed
            following = k
            if plans is not None:
                following = self._drafts(n, waiting, it - 1 - flying)
                depth = self.passes_at[following]
            deep, context = depth, acc & pack.context_mask
            if notes and unused[i] == n and not (rows and step.useful):
                deep = 1
                log.one_pass.append(it)
            beyond = self.side_sum & pack.context_mask if window else 0
            if rows:
                shape = self._mixed(it, n, k, context, beyond, deep)
            else:
                tokens, uniform = n * (1 + k), int(k == most_k)
                numbers = (tokens, n, 0, tokens, n * k, context, context - beyond, 0, uniform, deep)
                shape = new_tuple(StepShape, numbers)
            if waiting:
                log.waiting.extend((it, waiting))
                self.doomed = 0
            begin = last_end if flying else now
            if not flying and (lag or begin != last_end):
                log.wakes.append(it)
                log.wake_s.append(begin)
            last_end = begin + seconds(shape)
            end_s.append(last_end)
            sums.append(acc)
            if window:
                log.beyond.append(shape[5] - shape[6])
            if learns and plans is not None:
                plans.note(it, seen(k, self.outcomes[i].tolist(), n + rows, rows > 0, last_end - begin))
            turn, again = now, lag and not flying
            self.committed = it - 1 - flying
            now, flying = (begin, True) if lag else (last_end, False)
            it += 1
            i += 1
            if following != k:
                self._change(acc, it, i, k, following)
                k = following
            if again:
                continue  # nothing was in flight: this turn schedules a second batch
            if stops and self.settle(self.committed, turn):
                until = yield now
                continue
            if waiting or self.prefill is not None:
                continue
            limit = min(until, arrived_s[visible]) if visible < len(arrived_s) else until
            whole = (acc >> pack.running) * (1 + k + slots) <= budget
            if now < limit and whole and not learns:
                walk = acc, it, i, now, last_end
                acc, it, i, now, last_end = self._quiet(walk, limit, last_end - begin, k, edge)

    def _fill(self, acc: int, n: int, k: int, short: bool, it: int, i: int, visible: int) -> tuple[int, int]:
        """Gives prompts what the decoding sequences leave of a step; returns the sum and their rows."""
        step, pack, slots, config = self.step, self.rules.packing, self.slots, self.config
        charge = 1 + k + slots
        used, seated = (acc >> pack.blocks) & pack.blocks_mask, acc >> pack.running
        step.begin(acc, used, config.max_num_batched_tokens - n * charge, config.max_num_seqs - seated)
        step.short = short
        if self.prefill is not None and step.left > slots and not self._continue(step, it, i):
            step.short = True
            step.acc = self._evict_prefill(step.acc)
        if not step.short:
            while self.back and step.left > slots and step.room and self.prefill is None:
                if not self._readmit(step, it, i):
                    break
            if self.head < visible and not self.back:
                self._admit(step, it, i, visible)
                if len(self.stays) > 4 * config.max_num_seqs + 64:
                    self._forget_dead(it)
        return step.acc, step.rows

    def _drafts(self, n: int, waiting: int, known: int) -> int:
        """Asks the policy for the drafts after a step with `n` decoding rows.

        Args:
            n: decoding rows; those of prompts are in `step`.
            waiting: requests in the queue.
            known: last iteration whose outcome is known.
        """
        assert self.plans is not None
        step, kv = self.step, 0
        if self.plans.learns:
            self.plans.hear(known)
        if self.plans.reads_kv:
            kv = (self.side_sum >> self.rules.packing.blocks) + (step.past if step.rows else 0)
        return self.plans.drafts(n + step.rows, waiting, kv)

    def _mixed(self, it: int, n: int, k: int, context: int, beyond: int, depth: int) -> StepShape:
        """Returns the shape of a step with pieces of prompts, and notes them."""
        step, present = self.step, n + self.step.rows
        ones, kv = step.ones, context + step.ones_context
        self.log.prefills.extend((it, step.chunk, step.rows, ones, step.ones_context, step.pairs))
        tokens, logits = n * (1 + k) + step.chunk, present + n * k
        uniform = int(tokens == logits == present * (1 + self.rules.k))
        prompts, seen = step.rows - ones, kv - beyond - step.beyond
        return StepShape(tokens, n + ones, prompts, logits, n * k, kv, seen, step.pairs, uniform, depth)

    def settle(self, upto: int, turn: float) -> bool:
        """Makes outcomes known up to an iteration; True if somebody ended whom others wait for."""
        self.committed = upto
        if not self.stops or self.watch is None or not (ended := self.watch.commit(upto)):
            return False
        self.ended, self.turn_s = ended, turn
        return True

    def hear(self, upto: int) -> None:
        """Lets the policy learn what the iterations up to `upto` showed."""
        if self.plans is not None:
            self.plans.hear(upto)

    def _change(self, acc: int, it: int, i: int, old: int, k: int) -> None:
        """Goes over to another K from iteration `it` on: only under a policy."""
        raise NotImplementedError

    def _slide(self, i: int) -> None:
        """Moves the calendars' future to their front."""
        for table in (self.calendar, self.unused, self.side, self.outcomes):
            future = table[i:].copy()
            table[: len(future)] = future
            table[len(future) :] = 0

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
        end_s, sums, total, query, uniform = log.end_s, log.sums, self.total, 1 + k, int(k == rules.k)
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
            numbers = (tokens, n, 0, tokens, n * k, context, context - beyond, 0, uniform, depth)
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
                "uniform": none + int(k == self.rules.k),
                "draft_passes": depth,
            }
        )
        ordered = [terms[name] for name in TERMS if name in terms]
        total = ordered[0]
        for term in ordered[1:]:
            total = total + term
        return total

    def finish(self) -> None:
        """Books what is left to book at the end of the run: nothing here."""

    def drafts_by_iteration(self) -> npt.NDArray[np.int32]:
        """Returns the drafts verified by each decoding row, by iteration (or one number for all)."""
        return np.array(self.rules.k, dtype=np.int32)

    def passes_by_iteration(self) -> npt.NDArray[np.int32]:
        """Returns the drafter's passes after each iteration whose drafts might be used."""
        return np.full(len(self.log.end_s), self.passes, dtype=np.int32)
