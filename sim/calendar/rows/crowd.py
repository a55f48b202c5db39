"""Those who run in a lane that goes row by row: who gets a row, who is let in, who is thrown out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.rows.flight import RowFlight
from specfleet.sim.calendar.rows.lives import PREEMPTIONS, RowLives, RowRequest
from specfleet.sim.calendar.rows.table import RowTable
from specfleet.sim.calendar.waiting import WaitingLine
from specfleet.sim.config import EngineConfig
from specfleet.sim.errors import Unsuited
from specfleet.sim.kvcache import Hit, KVCache, PrefixCache
from specfleet.sim.rules import SchedulerRules, leaves_drafts_unused, reaches_max_tokens
from specfleet.sim.sequence import PREEMPTED, RUNNING, WAITING
from specfleet.sim.step import Candidate, Step

Found = tuple[RowRequest, Hit]
"""Somebody who waits, and what it finds in the prefix cache."""


class RowLine(WaitingLine):
    """As `WaitingLine`; who was thrown out waits in `thrown_out`, the next one last."""

    thrown_out: list[RowRequest]

    def __len__(self) -> int:
        return len(self.thrown_out) + self.visible - self.head


class RowCrowd:
    """The running requests of one engine, as `sim.crowd.Crowd`.

    Args:
        config: limits and rules. window: keys that windowed layers see, if anybody outgrows it.
        lives: its requests. waiting: who waits.

    Attributes:
        table: those who decode. begun: behind them, the prompt that is computed in pieces.
        piece: the same, where this step has a row of it that does not end it.
        flight: the step that is being decided. flights: the steps under way.
        now: when it is decided. steps: that have ended.
    """

    def __init__(self, config: EngineConfig, window: int, lives: RowLives, waiting: RowLine) -> None:
        self.config, self.lives, self.waiting = config, lives, waiting
        self.rules = rules = SchedulerRules.of(config)
        self.step = Step(rules, window)
        self.table = RowTable(config.max_num_seqs)
        self._caches = config.enable_prefix_caching
        blocks, size = config.num_gpu_blocks, config.block_size
        self.kv = (
            PrefixCache(blocks, size, rules.hash_lookahead, rules.drops_last_hit)
            if self._caches
            else KVCache(blocks, size)
        )
        self.begun: RowRequest | None = None
        self.piece: RowRequest | None = None
        self.flight = RowFlight(self.table.drafts[:0], None)
        self.flights: list[RowFlight] = []
        self.now, self.steps = 0.0, 0
        self._next: RowRequest | None = None

    @property
    def present(self) -> int:
        """Requests that have not ended."""
        return self.table.n + (self.begun is not None) + len(self.waiting)

    def serve(self) -> None:
        """As `sim.crowd.Crowd.serve`: everybody who decodes has a row, but who is sure to end without one."""
        table, rules, step, n = self.table, self.rules, self.step, self.table.n
        drafts, at = table.drafts[:n].copy(), None
        ends = table.context[:n] + drafts
        ends += 1
        over: I64 | None = None
        if rules.in_flight and n:
            ends += table.assumed[:n]
            sure = reaches_max_tokens(table.written[:n], 1, table.most[:n])
            sure &= table.assumed[:n] > 0
            if sure.any():
                over = sure.nonzero()[0]
        step.preempted = self._hold(ends, over)
        thrown_out, n = step.preempted, table.n
        if over is not None:
            stays = np.ones(n, dtype=np.bool_)
            stays[over[over < n]] = False
            at = stays.nonzero()[0]
            drafts = drafts[at]
        self.flight = flight = RowFlight(drafts[:n], at)
        charge = flight.decodes * rules.row_charge(0) + flight.num_drafts
        running = n + (self.begun is not None)
        seats, budget = rules.max_num_seqs - running, rules.max_num_batched_tokens - charge
        step.begin(budget, seats, self.kv.free_blocks, flight.decodes)
        step.preempted, step.beside = thrown_out, running > 0
        self.piece = None
        if self.begun is not None and budget > rules.draft_slots and not self._next_piece(self.begun):
            step.preempted = True
            self._evict_begun()

    def _hold(self, ends: I64, over: I64 | None) -> bool:
        """Gives everybody who decodes its KV blocks; returns whether somebody was thrown out for that.

        Args:
            ends: tokens that each has to hold. over: places of those who have no row.
        """
        table, kv, n = self.table, self.kv, self.table.n
        held = table.blocks[:n]
        needed = np.maximum(self.rules.blocks_each(ends), held)
        if over is not None:
            needed[over] = held[over]
        growth = int(np.add.reduce(needed)) - table.num_blocks
        if growth > kv.free_blocks:
            self._make_room(needed)
            return True
        if growth and self._caches:
            more = needed - held
            places = more.nonzero()[0]
            members = table.members
            kv.grow_each([members[place] for place in places.tolist()], more[places].tolist())
        else:
            kv.hold(growth)
        held[:] = needed
        table.num_blocks += growth
        return False

    def _make_room(self, needed: I64) -> None:
        """Gives those in turn their blocks, and throws the last ones out for that."""
        table, kv = self.table, self.kv
        for place in (needed > table.blocks[: table.n]).nonzero()[0].tolist():
            more = needed.item(place) - table.blocks.item(place) if place < table.n else 0
            while place < table.n and more > kv.free_blocks:
                if self.begun is not None:
                    self._evict_begun()
                else:
                    self._evict_last()
            if place >= table.n:
                return
            kv.grow_each([table.members[place]], [more])
            table.blocks[place] += more
            table.num_blocks += more

    def _evict_last(self) -> None:
        """Throws out who stands last of those who decode."""
        table = self.table
        place = table.n - 1
        row = table.refresh(place)
        if not any(row in flight.joined for flight in self.flights):
            row.chunks, row.last_iteration = table.since.item(place) + self.steps, self.steps - 1
        if self._caches:
            self.kv.register(row, table.context.item(place))
        for flight in self.flights:
            flight.lose_last(place, row)
        table.drop([place])
        self._put_back(row)

    def _evict_begun(self) -> None:
        """Throws out who computes its prompt in pieces."""
        assert self.begun is not None
        self._put_back(self.begun)
        self.begun = None

    def _put_back(self, row: RowRequest) -> None:
        self.kv.free(row)
        row.state, row.num_computed_tokens = PREEMPTED, 0
        self.lives.done[PREEMPTIONS, row.place] += 1
        row.num_preemptions += 1
        self.waiting.thrown_out.append(row)

    def _next_piece(self, begun: RowRequest) -> bool:
        """Computes the next piece of the prompt that was begun; False if its blocks are not free."""
        piece = self.step.next_piece(begun.num_tokens, begun.num_computed_tokens, begun.num_blocks)
        if piece is None:
            return False
        if not piece.tokens:
            return True
        self.kv.grow_each([begun], [piece.blocks])
        begun.num_blocks += piece.blocks
        self._computed(begun, begun.num_computed_tokens + piece.tokens)
        return True

    def _computed(self, row: RowRequest, done: int) -> None:
        """A prompt is computed up to `done` in this step: to its end, or it stays begun."""
        row.num_computed_tokens = done
        if self._caches:
            self.kv.register(row, min(done, row.num_tokens))
        if done < row.num_tokens:
            self.begun = self.piece = row
            return
        if self.begun is row:
            self.begun = None
        self.table.add(row)
        self.flight.joined.append(row)
        if self.flight.at is not None:
            self.flight.at = np.append(self.flight.at, self.table.n - 1)

    def in_turn(self) -> Iterator[Candidate[Found]]:
        """As `sim.crowd.Crowd.in_turn`."""
        rules, kv = self.rules, self.kv
        while (row := self._head()) is not None:
            hit = kv.lookup(row)
            least = rules.reserved(row.prompt_tokens + row.max_tokens)
            yield (row, hit), row.num_tokens, hit.tokens, len(hit.blocks), kv.idle(hit), least

    def _head(self) -> RowRequest | None:
        """Returns who waits first."""
        waiting = self.waiting
        if waiting.thrown_out:
            row = waiting.thrown_out[-1]
            if row.stale:
                raise Unsuited("a step preempts and schedules nothing")
            return row
        if waiting.head == waiting.visible:
            return None
        place = waiting.inbox[waiting.head]
        if self._next is None or self._next.place != place:
            self._next = self.lives.row(place)
        return self._next

    def join(self, life: Found, tokens: int, blocks: int, drafts: int) -> None:
        """As `sim.crowd.Crowd.join`."""
        (row, hit), waiting = life, self.waiting
        if waiting.thrown_out:
            waiting.thrown_out.pop()
        else:
            waiting.head += 1
            self._next = None
        self.kv.take(row, hit, blocks)
        if row.state == WAITING:
            self.lives.admitted_s[row.place] = self.now
            self.lives.note_cached(row.place, hit.tokens)
        row.state = RUNNING
        self._computed(row, hit.tokens + tokens)

    def end(self) -> None:
        """As `sim.crowd.Crowd.end`."""
        running, waiting = self.table.n + (self.begun is not None), len(self.waiting)
        self.flight.close(self.step, running, waiting, self.kv.total_blocks - self.kv.free_blocks)

    def drafts_unused(self) -> bool:
        """Whether no draft proposed after the step that was just decided could be used."""
        table, flight = self.table, self.flight
        first = 0 if flight.at is None else flight.at.item(0) if len(flight.at) else 0
        for row in flight.joined:
            if not leaves_drafts_unused(row.num_output_tokens, 0, row.max_tokens):
                return False
        if not flight.decodes:
            return True
        flies = table.assumed.item(first) > 0
        if not leaves_drafts_unused(table.written.item(first), int(flies), table.most.item(first)):
            return False
        which = slice(flight.decodes) if flight.at is None else flight.at[: flight.decodes]
        in_flight = (table.assumed[which] > 0).astype(np.int64)
        return bool(leaves_drafts_unused(table.written[which], in_flight, table.most[which]).all())

    def leave(self, places: list[int]) -> None:
        """Lets those at places go, in order, who have ended and know how far they came."""
        table = self.table
        for place in places:
            row = table.members[place]
            if self._caches:
                self.kv.register(row, table.context.item(place))
            self.kv.free(row)
        window = self.step.window
        for place in reversed(places):
            for flight in self.flights:
                flight.drop(place, table.context.item(place), window)
        table.drop(places)
