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

from specfleet.hardware.stepcost import StepShape
from specfleet.sim.calendar.admission import LONGEST_WINDOW, Unsuited
from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.plans import seen
from specfleet.sim.calendar.quiet import Quiet, new_tuple
from specfleet.sim.recorder import Recorder

if TYPE_CHECKING:
    from specfleet.sim.calendar.stepper import Stepper

Watcher = Generator[float, float, None]
Rest = Generator[float, float, tuple[float, float]]


class Lane(Quiet):
    """One engine on the fast path: `run` walks it.

    Attributes:
        stepper, recorder: step it where the calendar cannot go on, and what they wrote down (None: never).
        verified, drafts: verifications and drafts by place, where K is not the same for all.
    """

    stepper: Stepper | None = None
    recorder: Recorder | None = None
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
            # who has arrived, and what the engine holds
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
            if plans is not None and self.prefill is not None:
                short |= self._is_stuck(acc, n)
            # what the calendar cannot take is stepped; a shortage is met from the tail
            if n * (1 + k + slots) > budget or (short and plans is not None):
                if self.stepper is None or (short and self.config.enable_prefix_caching):
                    raise Unsuited("a step that the calendar cannot take")
                steps = self.stepper.run((acc, it, i, now, last_end), flying, visible, until)
                acc, it, now, last_end, flying, k, visible, until = yield from steps
                continue
            if short:
                acc = self._make_room(acc, it, i)
                n = (acc >> rows_bit) & rows_mask
            # prompts get what is left
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
                    self._emptied(it)
                    turn, now, flying, acc, entry[i + 1] = now, last_end, False, 0, 0
                    if self.settle(it - 2, turn):
                        until = yield now
                    continue
                now, until = yield from self._idle(now, it, visible, until)
                if now == inf:
                    return
                continue
            # priced, timed and noted
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
                tokens = n * (1 + k)
                numbers = (tokens, n, 0, tokens, n * k, context, context - beyond, 0, deep)
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
            # the clock, K, and who else wants to know
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

    def _is_stuck(self, acc: int, n: int) -> bool:
        """Whether the prompt that was begun finds no block for its next piece: asked under a policy."""
        raise NotImplementedError

    def _emptied(self, it: int) -> None:
        """The last have ended before iteration `it`, perhaps one before they were to leave the calendar."""

    def _idle(self, now: float, it: int, visible: int, until: float) -> Rest:
        """Waits for the next request; returns the time of the next turn (inf: there is none) and `until`."""
        if self.head < visible or self.back or self.prefill is not None:
            raise Unsuited("nothing can be scheduled although requests are left")
        if visible == len(self.arrived_s):
            if self.watch is None:
                return inf, until
            self.settle(it - 1, now)
            until = yield inf
        if visible < len(self.arrived_s):
            now = max(now, self.arrived_s[visible])
        return now, until

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
        prompts, seen = step.rows - ones, kv - beyond - step.beyond
        return StepShape(tokens, n + ones, prompts, logits, n * k, kv, seen, step.pairs, depth)

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

    def finish(self) -> None:
        """Books what is left to book at the end of the run: nothing here."""

    def drafts_by_iteration(self) -> npt.NDArray[np.int32]:
        """Returns the drafts verified by each decoding row, by iteration (or one number for all)."""
        return np.array(self.rules.k, dtype=np.int32)

    def passes_by_iteration(self) -> npt.NDArray[np.int32]:
        """Returns the drafter's passes after each iteration whose drafts might be used."""
        return np.full(len(self.log.end_s), self.passes, dtype=np.int32)
