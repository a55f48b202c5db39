"""A KV pool that knows its blocks' contents, spoken to once a request instead of once a step.

It answers as `kvcache.PrefixCache` does. Only blocks that another prompt may ask for are objects here.
Of the others no more than their number and their turn in the free list matters: blocks without a key
stand in front of it, those with one behind, in runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter

from specfleet.sim.calendar.kv.holders import ITS_OWNERS, NOBODYS, Cached, Holder
from specfleet.sim.sequence import NEVER


class Pool:
    """The blocks of one engine.

    Args:
        blocks: how many can be held.

    Attributes:
        used: blocks held, as far as it has been told: up to iteration `told`.
    """

    def __init__(self, blocks: int) -> None:
        self.used = 0
        self.told = -1
        self._admissions = 0
        self._unkeyed = blocks
        self._idle: OrderedDict[Cached, int] = OrderedDict()
        self._with: dict[int, list[Cached]] = {}
        self._thrown_out: dict[int, Cached] = {}
        self._left_over: dict[int, Cached] = {}
        self._leavers: dict[int, list[Holder]] = {}
        self._due: list[int] = []

    @property
    def next_leave(self) -> int:
        """The iteration in which blocks come back next."""
        return self._due[0] if self._due else NEVER

    def returning(self, it: int) -> int:
        """Returns the blocks that iteration `it` gets back from those who leave before it is scheduled."""
        leavers = self._leavers.get(it, [])
        last_held = {block for holder in leavers for block in holder.blocks if block.until == it}
        return len(last_held) + sum(holder.unkeyed + holder.private for holder in leavers)

    def advance(self, it: int, used: int, used_at: Callable[[int], int]) -> None:
        """Brings it to where `it` is scheduled, before anybody is admitted.

        What is held beyond what was told, the running sequences have taken: nobody asks for those blocks,
        so their number is enough.

        Args:
            it: the iteration.
            used: blocks held now.
            used_at: blocks held in an iteration that is over.
        """
        self.release(it, used_at, not used)
        self.told = it
        self.take(used - self.used)

    def release(self, it: int, used_at: Callable[[int], int], everybody: bool = False) -> None:
        """Takes back the blocks of those who have ended before iteration `it` is scheduled.

        Args:
            it: the iteration.
            used_at: blocks held in an iteration that is over.
            everybody: the last have ended, perhaps one iteration before they were to leave: the engine
                found nothing to do and waited for it.
        """
        due = self._due
        while due and (due[0] <= it or everybody):
            at = heappop(due)
            last = min(at, it) - 1
            if last > self.told:
                self.take(used_at(last) - self.used)
                self.told = last
            for holder in self._leavers.pop(at):
                self._free(holder)

    def catch_up(self, it: int, used_at: Callable[[int], int]) -> None:
        """Brings it to where `it` is scheduled, before anybody takes a block; arguments as `release`."""
        self.release(it, used_at)
        if self.told < it - 1:
            self.take(used_at(it - 1) - self.used)
            self.told = it - 1

    def come_to(self, it: int, used_at: Callable[[int], int]) -> None:
        """As `catch_up`, where those who have ended in the batch before `it` are not known to have."""
        self.release(it - 1, used_at)
        if self.told < it - 1:
            self.take(used_at(it - 1) - self.used)
            self.told = it - 1

    def leave(self, holder: Holder, keyed: int, held: int, begun: Holder | None = None) -> int:
        """Takes the blocks of a request back that goes before it was to leave, and does not come again.

        Args:
            holder: the request, of which nothing is expected any more.
            keyed: blocks from its first on that have a key.
            held: blocks in all.
            begun: who is still computing its prompt.

        Returns:
            How many of them others still hold.
        """
        used, holder.unkeyed, holder.private = self.used, held - keyed, keyed - len(holder.blocks)
        self._free(holder)
        if begun is not None:
            self._find_others(begun, holder)
        return held - (used - self.used)

    def _find_others(self, begun: Holder, gone: Holder) -> None:
        """Notes anew when others give back what a begun prompt found: one of them has gone."""
        mine = set(gone.blocks)
        for index, block in enumerate(begun.blocks[: len(begun.before)]):
            if block in mine:
                others = [one for them in self._leavers.values() for one in them if block in one.blocks]
                begun.before[index] = max((other.until for other in others), default=0)

    def unkey(self, count: int) -> None:
        """Says of blocks at the end of the free list that they have no key: they go first."""
        if count > 0:
            run = next(reversed(self._idle))
            assert run.key == NOBODYS
            self._idle[run] -= count
            self._unkeyed += count
            if not self._idle[run]:
                del self._idle[run]

    def forget_thrown_out(self, place: int) -> None:
        """Learns that a request which was thrown out does not ask for its blocks again."""
        if (run := self._thrown_out.pop(place, None)) is not None:
            run.key = NOBODYS

    def withdraw(self, holder: Holder) -> None:
        """Takes back what was expected of a request."""
        self._leavers[holder.until].remove(holder)

    def let_go(self, holder: Holder) -> dict[int, int]:
        """Says what others hold is theirs alone: a request is thrown out before it was to leave.

        Returns:
            As `hold`: what it answered for this request is taken back.
        """
        kept: dict[int, int] = {}
        until, last = holder.until, set()
        for block in holder.blocks:
            if block.users > 1 and block.until == until:
                last.add(block)
            elif block.users > 1:
                kept[until] = kept.get(until, 0) - 1
        for at in sorted(self._leavers, reverse=True) if last else ():
            for other in self._leavers[at]:
                for block in last.intersection(other.blocks):
                    last.remove(block)
                    block.until = at
                    kept[at] = kept.get(at, 0) - 1
            if not last:
                break
        return kept

    def let_go_begun(self, holder: Holder) -> dict[int, int]:
        """As `let_go`, for who has not computed its prompt: nobody has come since who holds what it does."""
        kept: dict[int, int] = {}
        for block, at in zip(holder.blocks, holder.before, strict=False):
            if block.users > 1:
                block.until = at
                kept[at] = kept.get(at, 0) - 1
        return kept

    def throw_out(self, holder: Holder, keyed: int, held: int) -> int:
        """Takes the blocks of a request back that may ask for them again.

        Args:
            holder: the request.
            keyed: blocks from its first on that have a key.
            held: blocks in all.

        Returns:
            How many of them others still hold.
        """
        own = keyed - len(holder.blocks)
        self._unkeyed += held - keyed
        self._thrown_out[holder.place] = run = Cached(ITS_OWNERS, 0)
        if own:
            self._idle[run] = own
        still_held = len(holder.blocks) - self._drop(holder)
        self.used -= held - still_held
        return still_held

    def _drop(self, holder: Holder) -> int:
        """Takes back what others may ask for, its tail first; returns how many blocks nobody holds now."""
        idle, free = self._idle, 0
        for block in reversed(holder.blocks):
            block.users -= 1
            if not block.users:
                idle[block] = 1
                free += 1
        return free

    def left_of(self, place: int) -> int:
        """Returns how many of the blocks that nobody else asks for a request would find that was thrown out.

        They are its first ones behind those that others may ask for.
        """
        return self._idle.get(self._thrown_out[place], 0)

    def take_back(self, place: int, count: int) -> None:
        """Gives a request that was thrown out the first `count` of them; the others will not be asked for."""
        run, idle = self._thrown_out.pop(place), self._idle
        left = idle.pop(run, 0) if count == idle.get(run, 0) else idle[run]
        self.used += count
        if left > count:
            idle[run] = left - count
            run.key = NOBODYS
            self._left_over[place] = run

    def has_left_over(self, place: int) -> bool:
        """Whether blocks are still there that a request computed, was thrown out with and did not ask for.

        It has computed the same again: what it would find if it were thrown out once more is not known here.
        """
        return self._left_over.get(place) in self._idle

    def take(self, count: int) -> None:
        """Hands out blocks from the front of the free list; their contents are gone."""
        self.used += count
        if count <= self._unkeyed:
            self._unkeyed -= count
            return
        count -= self._unkeyed
        self._unkeyed = 0
        idle = self._idle
        while count:
            block = next(iter(idle))
            there = idle[block]
            if there > count:
                idle[block] = there - count
                return
            del idle[block]
            count -= there
            if block.key >= 0:
                found = self._with[block.key]
                found.remove(block)
                if not found:
                    del self._with[block.key]

    def lookup(self, keys: list[int], most: int) -> list[Cached]:
        """Returns the longest prefix that is cached, of at most so many blocks."""
        there, hit = self._with, []
        for key in keys[:most]:
            found = there.get(key)
            if found is None:
                break
            hit.append(found[0])
        return hit

    def hold(self, holder: Holder, new: int, until: int) -> dict[int, int]:
        """Gives a request the blocks that it found and `new` ones.

        Args:
            holder: the request.
            new: blocks.
            until: the iteration in which it leaves; `NEVER` if that is not known yet.

        Returns:
            Blocks by iteration that one request drops then but another still holds: the caller adds them
            to the calendar again, whose rows give back all that a request holds.
        """
        kept: dict[int, int] = {}
        idle = self._idle
        for block in holder.blocks:
            if block.users:
                at = block.until
                if at < until:
                    block.until = until
                else:
                    at = until
                kept[at] = kept.get(at, 0) + 1
            else:
                del idle[block]
                self.used += 1
                block.until = until
            block.users += 1
        self.take(new)
        return kept

    def register(self, holder: Holder, computed: int, until: int) -> None:
        """Lets others find the first `computed` blocks of a request."""
        blocks, there = holder.blocks, self._with
        for key in holder.keys[len(blocks) : computed]:
            block = Cached(key, until)
            blocks.append(block)
            found = there.get(key)
            if found is None:
                there[key] = [block]
            else:
                found.append(block)

    def settle(self, holder: Holder, until: int) -> dict[int, int]:
        """Says when a request leaves that holds its blocks already; corrects what `hold` answered."""
        kept: dict[int, int] = {}
        before = holder.before
        for index, block in enumerate(holder.blocks):
            at = before[index] if index < len(before) else 0
            block.until = max(at, until)
            if at > until:
                kept[at] = kept.get(at, 0) - 1
                kept[until] = kept.get(until, 0) + 1
        return kept

    def expect(self, holder: Holder, until: int, held: int, keyed: int) -> None:
        """Notes that a request leaves before iteration `until` is scheduled.

        Args:
            holder: the request.
            until: the iteration.
            held: blocks that it holds then.
            keyed: of which have a key.
        """
        holder.unkeyed, holder.private = held - keyed, keyed - len(holder.blocks)
        holder.until, holder.number = until, self._admissions
        self._admissions += 1
        leavers = self._leavers.get(until)
        if leavers is None:
            self._leavers[until] = [holder]
            heappush(self._due, until)
        else:
            leavers.append(holder)

    def reseat(
        self, leaves: Mapping[int, tuple[int, int]], begun: Holder | None
    ) -> tuple[int, dict[int, int]]:
        """Says anew when everybody leaves.

        Args:
            leaves: by place, when and with how many blocks.
            begun: who is still computing its prompt.

        Returns:
            Blocks held by more than one, a count for each further holder, and an answer as `hold`'s.
        """
        holders = sorted(chain.from_iterable(self._leavers.values()), key=attrgetter("number"))
        self._leavers, twice = {}, 0
        kept: dict[int, int] = {}
        for holder in holders:
            until, held = leaves[holder.place]
            holder.unkeyed, holder.until = held - holder.private - len(holder.blocks), until
            self._leavers.setdefault(until, []).append(holder)
        self._due = sorted(self._leavers)
        stay: set[Cached] = set()
        for holder in sorted(holders, key=attrgetter("until"), reverse=True):
            until, again = holder.until, len(stay.intersection(holder.blocks))
            if again:
                twice += again
                kept[until] = kept.get(until, 0) + again
            if again < len(holder.blocks):
                for block in holder.blocks:
                    if block not in stay:
                        block.until = until
                stay.update(holder.blocks)
        if begun is not None:
            twice += self._stay_on(begun, stay, kept)
        return twice, kept

    def _stay_on(self, begun: Holder, stay: set[Cached], kept: dict[int, int]) -> int:
        """As `reseat`, for who is still computing its prompt: what others hold too goes when it does."""
        twice, found = 0, begun.blocks[: len(begun.before)]
        begun.before = [block.until if block in stay else 0 for block in found]
        for at in begun.before:
            if at:
                twice += 1
                kept[at] = kept.get(at, 0) + 1
        for block in begun.blocks:
            block.until = NEVER
        return twice

    def _free(self, holder: Holder) -> None:
        """Takes a request's blocks back: its tail first, what has no key to the front."""
        self._unkeyed += holder.unkeyed
        known = len(holder.blocks)
        written = holder.keys[known : known + holder.private]
        if holder.private > len(written):
            self._append_run(holder.private - len(written))
        for key in reversed(written):
            block = Cached(key, 0)
            block.users = 0
            self._idle[block] = 1
            self._with.setdefault(key, []).append(block)
        self.used -= holder.unkeyed + holder.private + self._drop(holder)

    def _append_run(self, count: int) -> None:
        idle = self._idle
        last = next(reversed(idle), None)
        if last is not None and last.key == NOBODYS:
            idle[last] += count
        else:
            idle[Cached(NOBODYS, 0)] = count
