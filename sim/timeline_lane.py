"""The fast path of one engine: a calendar of what its sequences contribute, walked by iteration.

See ARCHITECTURE.md for the picture. Every number a turn needs is a field of one running sum, so a
turn costs the same for one sequence and for a thousand; a sequence is touched when it is admitted,
and then not again.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf

import numpy as np

from hardware.stepcost import TERMS, StepShape
from sim.timeline_luck import F64, I64
from sim.timeline_seat import Seat
from sim.timeline_tail import LONGEST_WINDOW, WINDOW, Tail, Unsuited
from sim.timeline_trajectories import BLOCK

Watcher = Generator[float, float, None]


class Lane(Tail):
    """One engine on the fast path: `run` walks it."""

    def run(self) -> Watcher:  # one function: a call or an attribute an iteration would be half its price
        """Runs iterations; a generator, so that the state stays in local variables between events.

        It yields the time of the next turn (inf: idle) and is sent the time until which it may go on:
        every turn before that time is taken.
        """
        config, rules, lives, log = self.config, self.rules, self.lives, self.log
        pack, lag = rules.packing, rules.lag
        query, k, passes, notes = rules.query, rules.k, self.passes, rules.notes_unused
        block_bit, rows_bit, running_bit = pack.blocks, pack.rows, pack.running
        context_mask, blocks_mask, rows_mask = pack.context_mask, pack.blocks_mask, pack.rows_mask
        slots = config.speculative.draft_slots if config.speculative else 0
        charge, budget, total = query + slots, config.max_num_batched_tokens, config.usable_blocks
        watermark = int(config.watermark * config.num_gpu_blocks)
        max_num_seqs, tracks, watch, stops = config.max_num_seqs, self.tracks, self.watch, self.stops
        inbox, arrived_s, back, seconds = self.inbox, self.arrived_s, self.back, self.cost.seconds
        calendar, add, first = self.calendar, np.add, lives.first.data
        entry, unused = calendar.data, self.unused.data
        edge = len(calendar) - lives.longest_row - LONGEST_WINDOW - 2
        end_s, sums, stays = log.end_s, log.sums, self.stays
        shape_of = tuple.__new__
        current = -1
        now = free = last_end = 0.0
        flying = False
        acc = it = i = head = visible = 0
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
            n = (acc >> rows_bit) & rows_mask
            used = (acc >> block_bit) & blocks_mask
            short = used > total
            if short:
                acc = self._make_room(acc, it, i)
                n = (acc >> rows_bit) & rows_mask
                used = (acc >> block_bit) & blocks_mask
            left = budget - n * charge
            chunk = rows = pairs = ones = ones_context = useful = 0
            if self.prefill is not None and left > slots:
                word = self._continue(it, i, left - slots, total - used)
                if word is None:
                    short = True
                    acc = self._evict_prefill(acc)
                else:
                    chunk, pairs, ones, ones_context, useful, grown = word
                    acc += grown << block_bit
                    used += grown
                    left -= chunk + slots
                    rows = 1
            if not short and (back or head < visible):
                running = acc >> running_bit
                while back and left > slots and running < max_num_seqs and self.prefill is None:
                    word = self._readmit(it, i, left - slots, total - used - (watermark if running else 0))
                    if word is None:
                        break
                    tokens, more, one, context, uses, grown = word
                    chunk, pairs, ones = chunk + tokens, pairs + more, ones + one
                    ones_context, useful = ones_context + context, useful + uses
                    acc += (grown << block_bit) + (1 << running_bit)
                    used += grown
                    left -= tokens + slots
                    running += 1
                    rows += 1
                while head < visible and not back and left > slots and running < max_num_seqs:
                    place = inbox[head]
                    if place // BLOCK != current:
                        current = place // BLOCK
                        block = lives.block(current)
                        prompt, full, admitted, area = block.prompt, block.blocks, block.admitted, block.pairs
                        row, start, end = block.row, block.start, block.end
                    j = place % BLOCK
                    tokens = prompt[j]
                    if tokens > left - slots:
                        if self.prefill is None and config.enable_chunked_prefill:
                            free_blocks = total - used - (watermark if running else 0)
                            seat = Seat.fresh(place, block, j)
                            word = self._start_prefill(seat, it, left - slots, free_blocks)
                            if word is not None:
                                tokens, more, one, context, _, grown = word
                                chunk, pairs, ones = chunk + tokens, pairs + more, ones + one
                                ones_context += context
                                acc += (grown << block_bit) + (1 << running_bit)
                                running += 1
                                rows += 1
                                head += 1
                        break
                    if used + full[j] + (watermark if running else 0) > total:
                        break
                    used += full[j]
                    acc += admitted[j]
                    running += 1
                    left -= tokens + slots
                    chunk += tokens
                    rows += 1
                    pairs += area[j]
                    if tokens == 1:
                        ones, ones_context, pairs = ones + 1, ones_context + 1, pairs - 1
                    low, high = start[j], end[j]
                    part = calendar[i + 1 : i + 1 + high - low]
                    add(part, row[low:high], part)
                    first[place] = it
                    head += 1
                    if notes:
                        useful |= block.most[j] > 1
                        if block.unused[j] >= 0:
                            unused[i + 1 + block.unused[j]] += 1
                    if tracks:
                        self.newcomers += 1
                        stays.append((it + high - low - 1, it, place, block))
                        if len(stays) > 4 * max_num_seqs + 64:
                            self._forget_dead(it)
                    if watch is not None:
                        watch.expect(it, place, high - low - 1 - lag)
                if running * charge > budget:
                    raise Unsuited("the token budget is below sequences x (1 + K)")
            if not n and not rows:
                if short:
                    raise Unsuited("a step preempts and schedules nothing")
                entry[i] = 0
                if flying:  # wait for the batch in flight, then try again
                    turn, now, flying, acc, entry[i + 1] = now, free, False, 0, 0
                    stays.clear()
                    self.committed = it - 2
                    if stops and watch is not None and (ended := watch.commit(it - 2)):
                        self.ended, self.turn_s = ended, turn
                        until = yield now
                    continue
                if head < visible or back or self.prefill is not None:
                    raise Unsuited("nothing can be scheduled although requests are left")
                if visible == len(arrived_s):
                    if watch is None:
                        return
                    self.committed = it - 1
                    if stops:
                        self.ended, self.turn_s = watch.commit(it - 1), now
                    until = yield inf
                if visible < len(arrived_s):
                    now = max(now, arrived_s[visible])
                continue
            drafts = n * k
            context = acc & context_mask
            depth = passes
            if notes and not useful and unused[i] == n:
                depth = 1
                log.one_pass.append(it)
            if rows:
                tokens, present = n * query + chunk, n + rows
                uniform = int(ones == rows and tokens == present * query)
                log.prefills.extend((it, chunk, rows, ones, ones_context, pairs))
                shape = (
                    tokens, n + ones, rows - ones, present + drafts, drafts,
                    context + ones_context, context + ones_context, pairs, uniform, depth,
                )  # fmt: skip
            else:
                tokens = n * query
                shape = (tokens, n, 0, tokens, drafts, context, context, 0, 1, depth)
            if head < visible or back or self.doomed:
                log.waiting.extend((it, visible - head + len(back) + self.doomed))
                self.doomed = 0
            begin = free if flying else now
            if not flying and (lag or begin != last_end):
                log.wakes.append(it)
                log.wake_s.append(begin)
            last_end = begin + seconds(shape_of(StepShape, shape))
            end_s.append(last_end)
            sums.append(acc)
            turn, again = now, lag and not flying
            self.committed = it - 1 - flying
            if lag:
                now, free, flying = begin, last_end, True
            else:
                now = last_end
            it += 1
            i += 1
            if again:
                continue  # nothing was in flight: this turn schedules a second batch
            if stops and watch is not None and (ended := watch.commit(self.committed)):
                self.ended, self.turn_s = ended, turn
                until = yield now
                continue
            if head < visible or back or self.prefill is not None:
                continue
            # Quiet: until somebody arrives only the calendar changes anything.
            limit = arrived_s[visible] if visible < len(arrived_s) else inf
            if limit > until:
                limit = until
            stop = it + LONGEST_WINDOW
            if stops and watch is not None:
                stop = min(stop, watch.next_end() + 1 + lag)
            quiet = it
            while now < limit and it < stop and i < edge:
                step = last_end - begin
                if stop - it > WINDOW and limit - now > WINDOW * step:
                    most = min(
                        stop - it, edge - i, int(min((limit - now) / step, 1e6)) + 2 if step else WINDOW
                    )
                    done, acc, now, last_end = self._window(acc, it, i, now, last_end, limit, most)
                    if done:
                        free, begin = last_end, last_end - step
                        it += done
                        i += done
                        continue
                ahead = acc + entry[i]
                n = (ahead >> rows_bit) & rows_mask
                if not n or (ahead >> block_bit) & blocks_mask > total:
                    break
                acc = ahead
                tokens = n * query
                context = acc & context_mask
                depth = passes
                if notes and unused[i] == n:
                    depth = 1
                    log.one_pass.append(it)
                begin = free if lag else now
                shape = (tokens, n, 0, tokens, n * k, context, context, 0, 1, depth)
                last_end = begin + seconds(shape_of(StepShape, shape))
                end_s.append(last_end)
                sums.append(acc)
                if lag:
                    now, free = begin, last_end
                else:
                    now = last_end
                it += 1
                i += 1
            if it > quiet:
                self.committed = it - 2 - lag

    def _window(
        self, acc: int, it: int, i: int, now: float, last_end: float, limit: float, most: int
    ) -> tuple[int, int, float, float]:
        """Runs up to `most` quiet iterations at once.

        Returns:
            How many ran, and then the running sum, the time of the next turn, and the last end.
        """
        pack, rules = self.rules.packing, self.rules
        most = min(most, self.reach)
        sums = self.calendar[i : i + most].copy()
        sums[0] += acc
        np.add.accumulate(sums, out=sums)
        n = (sums >> pack.rows) & pack.rows_mask
        stops = (n == 0) | ((sums >> pack.blocks) & pack.blocks_mask > self.config.usable_blocks)
        ahead = int(stops.argmax()) if stops.any() else most
        self.reach = min(max(2 * ahead, WINDOW), LONGEST_WINDOW)
        if not ahead:
            return 0, acc, now, last_end
        sums, n = sums[:ahead], n[:ahead]
        depth = np.full(ahead, self.passes)
        if rules.notes_unused:
            depth[self.unused[i : i + ahead] == n] = 1
        times = np.empty(ahead + 1)
        times[0] = last_end
        times[1:] = self._prices(n, sums & pack.context_mask, depth)
        np.add.accumulate(times, out=times)
        turns = times[:ahead] if not rules.lag else np.concatenate(([now], times[: ahead - 1]))
        done = int(np.searchsorted(turns, limit))
        if not done:
            return 0, acc, now, last_end
        log = self.log
        log.end_s.frombytes(times[1 : done + 1].tobytes())
        log.sums.frombytes(sums[:done].tobytes())
        if rules.notes_unused:
            log.one_pass.extend((np.flatnonzero(depth[:done] != self.passes) + it).tolist())
        end = float(times[done])
        return done, int(sums[done - 1]), float(times[done - 1]) if rules.lag else end, end

    def _prices(self, n: I64, context: I64, depth: I64) -> F64:
        """Returns the seconds of pure decode steps: `StepCost.seconds`, term by term in its order."""
        tokens, none = n * self.rules.query, np.zeros_like(n)
        terms = self.cost.terms(
            {
                "tokens": tokens,
                "decode_sequences": n,
                "prefill_sequences": none,
                "logit_rows": tokens,
                "draft_tokens": n * self.rules.k,
                "kv_tokens": context,
                "kv_tokens_in_window": context,
                "prefill_pairs": none,
                "uniform": none + 1,
                "draft_passes": depth,
            }
        )
        ordered = [terms[name] for name in TERMS if name in terms]
        total = ordered[0]
        for term in ordered[1:]:
            total = total + term
        return total
