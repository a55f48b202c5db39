"""The fast path of an engine whose K follows its batch: a calendar that is made anew when K changes.

Between two changes it is the calendar of `timeline_lane`. The pool has to hold everybody (nobody is
preempted), and the policy has to be a function of batch size and queue.
"""

from __future__ import annotations

from array import array
from math import inf

import numpy as np
import numpy.typing as npt

from hardware.stepcost import StepCost, StepShape
from sim.config import EngineConfig
from sim.sequence import NEVER, Batch
from sim.speculation.policies import BatchSizeSchedule, DisableAboveQueue, Static
from sim.speculation.policy import Policy
from sim.timeline_lane import Watcher
from sim.timeline_members import Members
from sim.timeline_seat import Seat
from sim.timeline_tail import LONGEST_WINDOW, Tail, Unsuited
from sim.timeline_trajectories import BLOCK, Trajectories
from sim.timeline_watch import Watch


class Plans:
    """A policy as a table: drafts by batch size while fewer than `queue` wait, none from there on."""

    def __init__(self, table: list[int], queue: int = NEVER) -> None:
        self.table = table
        self.queue = queue

    @classmethod
    def of(cls, policy: Policy, most_rows: int) -> Plans | None:
        """Returns the table of a policy; None if it looks at more than batch size and queue."""
        if isinstance(policy, DisableAboveQueue):
            drafts = policy.k if policy.queue > 0 else 0
            return cls([drafts] * (most_rows + 1), max(policy.queue, 1))
        if not isinstance(policy, Static | BatchSizeSchedule):
            return None
        batch, table = Batch(), []
        for _ in range(most_rows + 1):
            plan = policy.plan(batch, 0, 0.0)
            assert isinstance(plan, int)
            table.append(plan)
            batch.sequences.append(None)  # type: ignore[arg-type]
        return cls(table)


class AdaptiveLane(Tail):
    """One engine under a policy.

    Args:
        config: its limits and rules.
        cost: prices a step.
        lives: the requests by K, with one column of first iterations.
        members: the sequences running.
        plans: the policy.
        inbox, arrived_s, watch, stops, lane, replica: as in `Tail`.
    """

    def __init__(
        self,
        config: EngineConfig,
        cost: StepCost,
        lives: list[Trajectories],
        members: Members,
        plans: Plans,
        inbox: list[int] | range,
        arrived_s: array[float],
        watch: Watch | None,
        stops: bool,
        lane: int,
        replica: int,
    ) -> None:
        super().__init__(
            config, cost, lives[-1], members.ledger, inbox, arrived_s, watch, stops, lane, replica
        )
        self.tracks = False
        self.by_k = lives
        self.members = members
        self.plans = plans
        self.k = self.rules.k
        self.planned = array("q")
        """2 numbers for each change of K: the iteration that decided it, drafts from the next one on."""

    def run(self) -> Watcher:  # one function, as `Lane.run`
        """As `Lane.run`."""
        config, rules, log, members = self.config, self.rules, self.log, self.members
        pack, lag, notes, most_k = rules.packing, rules.lag, rules.notes_unused, rules.k
        on_host = self.passes == 0
        slots = config.speculative.draft_slots if config.speculative else 0
        budget, total = config.max_num_batched_tokens, config.usable_blocks
        watermark = int(config.watermark * config.num_gpu_blocks)
        inbox, arrived_s, calendar = self.inbox, self.arrived_s, self.calendar
        first, entry, unused = self.lives.first.data, calendar.data, self.unused.data
        edge = len(calendar) - self.lives.longest_row - LONGEST_WINDOW - 2
        table, queue = self.plans.table, self.plans.queue
        k, current, current_k = most_k, -1, -1
        now = free = last_end = 0.0
        flying = False
        acc = it = i = head = visible = 0
        watch, stops = self.watch, self.stops
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
            n = (acc >> pack.rows) & pack.rows_mask
            used = (acc >> pack.blocks) & pack.blocks_mask
            if used > total:
                raise Unsuited("KV ran short under a policy")
            left = budget - n * (1 + k + slots)
            chunk = rows = pairs = ones = ones_context = useful = 0
            if self.prefill is not None and left > slots:
                seat = self.prefill.seat
                word = self._continue(it, i, left - slots, total - used)
                if word is None:
                    raise Unsuited("KV ran short under a policy")
                chunk, pairs, ones, ones_context, useful, grown = word
                acc += grown << pack.blocks
                used += grown
                left -= chunk + slots
                rows = 1
                if self.prefill is None:
                    home = self.by_k[k].block(seat.place // BLOCK)
                    members.newcomers.append((seat.place, it, home, seat.place % BLOCK))
            running = acc >> pack.running
            while head < visible and left > slots and running < config.max_num_seqs:
                place = inbox[head]
                if place // BLOCK != current or k != current_k:
                    current, current_k = place // BLOCK, k
                    block = self.by_k[k].block(current)
                j = place % BLOCK
                tokens, spare = block.prompt[j], total - used - (watermark if running else 0)
                if tokens > left - slots:
                    if self.prefill is None and config.enable_chunked_prefill:
                        seat = Seat.fresh(place, block, j)
                        word = self._start_prefill(seat, it, left - slots, spare)
                        if word is not None:
                            tokens, more, one, context, _, grown = word
                            chunk, pairs, ones = chunk + tokens, pairs + more, ones + one
                            ones_context += context
                            acc += (grown << pack.blocks) + (1 << pack.running)
                            running, rows, head = running + 1, rows + 1, head + 1
                    break
                if block.blocks[j] > spare:
                    break
                used += block.blocks[j]
                acc += block.admitted[j]
                left -= tokens + slots
                running, rows, head, chunk = running + 1, rows + 1, head + 1, chunk + tokens
                pairs += block.pairs[j]
                if tokens == 1:
                    ones, ones_context, pairs = ones + 1, ones_context + 1, pairs - 1
                low, high = block.start[j], block.end[j]
                part = calendar[i + 1 : i + 1 + high - low]
                np.add(part, block.row[low:high], part)
                first[place] = it
                members.newcomers.append((place, it, block, j))
                if watch is not None:
                    watch.expect(it, place, block.rounds[j])
                if notes:
                    useful |= block.most[j] > 1
                    if block.unused[j] >= 0:
                        unused[i + 1 + block.unused[j]] += 1
            if running * (1 + most_k + slots) > budget:
                raise Unsuited("the token budget is below sequences x (1 + K)")
            if not n and not rows:
                entry[i] = 0
                if flying:
                    turn, now, flying, acc, entry[i + 1] = now, free, False, 0, 0
                    self.committed = it - 2
                    if stops and watch is not None and (ended := watch.commit(it - 2)):
                        self.ended, self.turn_s = ended, turn
                        until = yield now
                    continue
                if head < visible or self.prefill is not None:
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
            waiting = visible - head
            following = 0 if waiting >= queue else table[n + rows]
            passes = 0 if on_host else min(self.passes, max(following, 1))
            if notes and not useful and unused[i] == n:
                passes = min(passes, 1)
                log.one_pass.append(it)
            context, present = acc & pack.context_mask, n + rows
            tokens = n * (1 + k) + chunk
            uniform = int(tokens == present * (1 + most_k) and tokens == present + n * k)
            if rows:
                log.prefills.extend((it, chunk, rows, ones, ones_context, pairs))
            if waiting:
                log.waiting.extend((it, waiting))
            kv = context + ones_context
            shape = StepShape(
                tokens, n + ones, rows - ones, present + n * k, n * k, kv, kv, pairs, uniform, passes
            )
            begin = free if flying else now
            if not flying and (lag or begin != last_end):
                log.wakes.append(it)
                log.wake_s.append(begin)
            last_end = begin + self.cost.seconds(shape)
            log.end_s.append(last_end)
            log.sums.append(acc)
            turn, again = now, lag and not flying
            self.committed = it - 1 - flying
            if lag:
                now, free, flying = begin, last_end, True
            else:
                now = last_end
            it += 1
            i += 1
            if following != k:
                self.planned.extend((it - 1, following))
                self._change(acc, it, i, k, following)
                k = following
            if again:
                continue  # nothing was in flight: this turn schedules a second batch
            if stops and watch is not None and (ended := watch.commit(self.committed)):
                self.ended, self.turn_s = ended, turn
                until = yield now

    def _change(self, acc: int, it: int, i: int, old: int, k: int) -> None:
        """Makes the calendar anew from `it` on, at another K."""
        rules, members = self.rules, self.members
        self.k = k
        place, *state = members.close(it, old)
        self.calendar[i:] = 0
        self.unused[i:] = 0
        if self.prefill is not None:
            acc -= rules.prefilling(self.prefill.held)
            seat = self.prefill.seat
            block = self.by_k[k].block(seat.place // BLOCK)
            self.prefill.seat = Seat.fresh(seat.place, block, seat.place % BLOCK)
        self.calendar[i] = -acc
        if len(place):
            offsets, row, unused = members.seat(it, k, place, *state)
            np.add.at(self.calendar, offsets + i, row)
            np.add.at(self.unused, unused + i, 1)
            if self.watch is not None:
                self.watch.move(
                    dict(zip(place.tolist(), (members.term.rounds + it - 1).tolist(), strict=True))
                )
        else:
            members.nobody(it)

    def finish(self) -> None:
        """Books what is left to book at the end of the run."""
        members = self.members
        members.close(len(self.log.end_s) + 1, self.k)
        self.lives.rounds[:], self.lives.accepted[:] = members.rounds, members.accepted
        self.verified, self.drafts = members.verifications, members.drafts

    def _plans(self) -> npt.NDArray[np.int32]:
        """Returns the drafts planned in each iteration for the next."""
        changes = np.frombuffer(self.planned, dtype=np.int64).reshape(-1, 2)
        plans = np.full(len(self.log.end_s), self.rules.k, dtype=np.int32)
        lasts = np.append(changes[1:, 0], len(plans)) - changes[:, 0]
        plans[len(plans) - int(lasts.sum()) :] = np.repeat(changes[:, 1], lasts)
        return plans

    def drafts_by_iteration(self) -> npt.NDArray[np.int32]:
        """As in `Tail`."""
        return np.concatenate([[np.int32(self.rules.k)], self._plans()[:-1]]).astype(np.int32)

    def passes_by_iteration(self) -> npt.NDArray[np.int32]:
        """As in `Tail`."""
        return np.minimum(self.passes, np.maximum(self._plans(), 1), dtype=np.int32)
