"""The fast path with prefix caching: prompts that begin where others have been.

A hit changes what a prompt costs and which blocks are new. What the request does after its prefill
stays as it was drawn, so its row does too; but a block that two of them hold must count once, and go
when the last of them does. Who leaves when is known at admission, and so is the correction.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specfleet.hardware.stepcost import StepShape
from specfleet.sim.calendar.adaptive import AdaptiveLane
from specfleet.sim.calendar.admission import Unsuited
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.pool import Cached, Holder, Pool
from specfleet.sim.calendar.prompts import Prompts
from specfleet.sim.calendar.seat import Prefill, Seat
from specfleet.sim.calendar.step import Step
from specfleet.sim.calendar.trajectories import BLOCK, Rules
from specfleet.sim.sequence import NEVER


class PrefixLane(Lane):
    """One engine that finds prefixes again.

    Attributes:
        prompts: the requests' prompts; pool: the engine's blocks.
    """

    prompts: Prompts
    pool: Pool
    _holder: Holder | None = None
    """Of the prompt that is computed in pieces."""
    _blocked: tuple[int, int] = (-1, NEVER)
    """A request whose blocks were not free, and the iteration before which they will not be."""

    def begin(self, prompts: Prompts) -> None:
        """Empties the cache.

        Args:
            prompts: the requests' prompts.
        """
        self.prompts = prompts
        self.pool = Pool(self.total)
        self._rows = self.lives.order.data
        config = self.config
        self._drops = config.uses_eagle and not config.prefix_hash_covers_next_token
        pads = config.pads_one_token_admission and self.plans is None
        self._pads = config.num_speculative_tokens if pads else 0

    def _admit(self, step: Step, it: int, i: int, visible: int) -> None:
        """As in `Lane`."""
        if step.left <= self.slots or not step.room:
            return
        leave = self.pool.next_leave
        if step.used and it < leave and self._blocked == (self.head, leave):
            return
        self.pool.advance(it, step.used, self._used_at)
        pads = 0 if step.rows else self._pads  # not beside a piece of a prompt
        while self.head < visible and step.left > self.slots and step.room:
            if not self._enter(step, it, i, self.inbox[self.head], pads):
                return
            self.head += 1

    def _make_room(self, acc: int, it: int, i: int) -> int:
        raise Unsuited("a preempted sequence may find its own blocks again")

    def _evict_prefill(self, acc: int) -> int:
        raise Unsuited("a preempted sequence may find its own blocks again")

    def _stay(self, place: int) -> Seat:
        """Returns the stay of a fresh request."""
        number, block = self._home
        if block is None or place // BLOCK != number:
            number = place // BLOCK
            block = self.drawn.block(number)
            self._home = number, block
        return Seat.fresh(place, block, place % BLOCK)

    def _enter(self, step: Step, it: int, i: int, place: int, pads: int) -> bool:
        """Admits a request from where its prompt is known; False if it has to wait."""
        rules, pool, size = self.rules, self.pool, self.rules.block_size
        seat = self._stay(place)
        keys = self.prompts.keys(self._rows[place])
        hit = pool.lookup(keys, (seat.prompt - 1) // size)
        if self._drops and hit:
            hit.pop()
        past, room = len(hit) * size, step.left - self.slots
        tokens = seat.prompt - past
        if tokens > 1 or not past:
            pads = 0
        if tokens + pads > room:
            if pads or not self.config.enable_chunked_prefill:
                return False
            tokens = room
        done = past + tokens
        blocks = max(rules.prefill_blocks(done + pads), len(hit))
        if not self._fits(step, seat, blocks, hit):
            return False
        holder = Holder(place, keys, hit)
        step.add(tokens, past)
        if pads:
            step.pad(pads, past)
            seat = _padded(seat, pads, rules)
        whole, until = done == seat.prompt, NEVER
        if whole:
            seat = seat.holding(blocks, rules)
            until = it + len(seat.row)
        else:
            holder.note_others()
        before = pool.used
        self._keep(pool.hold(holder, blocks - len(hit), until), i - it)
        pool.register(holder, done // size, until)
        taken = pool.used - before
        step.acc += rules.prefilling(taken)
        step.used += taken
        step.room -= 1
        self.newcomers += 1
        if hit:
            self.log.cached.extend((place, past))
        if whole:
            step.useful |= seat.most > 1
            self._take(seat, it, i)
            self._expect(holder, seat, until)
        else:
            self.log.admitted.setdefault(place, it)
            self.prefill, self._holder = Prefill(seat, done, blocks, it), holder
        return True

    def _fits(self, step: Step, seat: Seat, blocks: int, hit: list[Cached]) -> bool:
        """Whether an admission finds its blocks free."""
        reserve = self._reserve(seat)
        busy = sum([1 for block in hit if block.users])
        free = self._free_blocks(step) + busy
        if max(blocks, reserve) <= free:
            return True
        if reserve > free:  # however little of it is computed
            self._blocked = self.head, self.pool.next_leave
        return False

    def _keep(self, kept: dict[int, int], shift: int) -> None:
        """Lets blocks stay that a leaving request would take with it, `kept` by iteration."""
        entry, bit = self.calendar.data, self.rules.packing.blocks
        for at, count in kept.items():
            entry[at + shift] += count << bit

    def _expect(self, holder: Holder, seat: Seat, until: int) -> None:
        pack = self.rules.packing
        held = (-int(seat.row[-1]) >> pack.blocks) & pack.blocks_mask
        self.pool.expect(holder, until, held, seat.final // self.rules.block_size)

    def _continue(self, step: Step, it: int, i: int) -> bool:
        """As in `Lane`."""
        prefill, holder = self.prefill, self._holder
        assert prefill is not None and holder is not None
        if not super()._continue(step, it, i):
            return False
        self.pool.register(holder, prefill.done // self.rules.block_size, NEVER)
        if self.prefill is None:
            self._holder = None
            seat = prefill.seat.holding(prefill.held, self.rules)
            until = it + len(seat.row)
            self._keep(self.pool.settle(holder, until), i - it)
            self._expect(holder, seat, until)
        return True

    def _mixed(self, it: int, n: int, k: int, context: int, beyond: int, depth: int) -> StepShape:
        """As in `Lane`."""
        shape = super()._mixed(it, n, k, context, beyond, depth)
        if not (drafts := self.step.padded):
            return shape
        self.log.padded.extend((it, drafts))
        return shape._replace(logit_rows=shape.logit_rows + drafts, draft_tokens=shape.draft_tokens + drafts)


class AdaptivePrefixLane(PrefixLane, AdaptiveLane):
    """One engine under a policy that finds prefixes again."""

    def _change(self, acc: int, it: int, i: int, old: int, k: int) -> None:
        """As in `AdaptiveLane`; everybody leaves at another time now."""
        pool, pack, lag = self.pool, self.rules.packing, self.rules.lag
        pool.release(it, self._used_at)
        super()._change(acc, it, i, old, k)
        term = self.members.term
        after = term.rounds + lag
        held = (term.footprint[term.starts + after - 1] >> pack.blocks) & pack.blocks_mask
        leaves = zip((it + after).tolist(), held.tolist(), strict=True)
        twice, kept = pool.reseat(dict(zip(term.standing.place.tolist(), leaves, strict=True)), self._holder)
        self.calendar[i] -= twice << pack.blocks
        self._keep(kept, i - it)


def _padded(seat: Seat, drafts: int, rules: Rules) -> Seat:
    """Returns a stay whose last prompt token came with placeholder drafts.

    They are gone when its first round is priced, but an asynchronous engine has scheduled that round
    before it knew, and holds the blocks at least until the next.
    """
    pack, size = rules.packing, rules.block_size
    begun = np.cumsum(seat.row[:2]) + rules.prefilling(seat.blocks)
    decodes = (begun >> pack.rows) & pack.rows_mask
    if not rules.lag or not decodes[0]:
        return seat
    slots = seat.prompt + rules.query + rules.lookahead
    more = (-(-(slots + drafts) // size) - -(-slots // size)) << pack.blocks
    ends = 1 if decodes[1] or not begun[1] else 2  # no row follows a certain end, but its blocks stay
    row = seat.row.copy()
    row[0] += more
    row[ends] -= more
    footprint = seat.footprint
    if footprint is not None:
        footprint = footprint.copy()
        footprint[:ends] += more
    return replace(seat, row=row, footprint=footprint)
