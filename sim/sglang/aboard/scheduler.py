"""SGLang's scheduler, where those who run are columns."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from itertools import compress

import numpy as np

from specfleet.sim.recorder import FLOATS
from specfleet.sim.scheduler import Outcome
from specfleet.sim.sequence import FINISHED, Batch, Sequence
from specfleet.sim.sglang.aboard.berths import I64
from specfleet.sim.sglang.aboard.crew import Crew
from specfleet.sim.sglang.aboard.head import BerthHead, SglangColumnBatch
from specfleet.sim.sglang.adder import PrefillAdder
from specfleet.sim.sglang.batch import DECODE, MIXED, SglangBatch, lacking, outranked
from specfleet.sim.sglang.rules import CLIP_MAX_NEW_TOKENS
from specfleet.sim.speculation.policy import Plan

LEAST_ROWS = 6
"""Those who run below whom columns cost more than they spare."""


class ColumnScheduler(Crew):
    """As `SglangScheduler`; those who run are columns, all of them or nobody.

    Who is thrown out, and what else does not fit, has everybody listed; they come aboard again next turn.
    """

    def schedule(self, now: float = 0.0) -> SglangBatch:
        """As `SglangScheduler.schedule`."""
        self.catch_up()
        self._wanted = None
        return super().schedule(now)

    def _take_in_prefilled(self) -> None:
        rode, self._riders = self._riders, None
        if rode is not None:
            self.running = rode
        self._let_go()  # berths of those who have ended may be given to others from now on
        if not self.aboard:
            super()._take_in_prefilled()
            return
        if self._joining is None:
            return
        joining, cut = self._joining
        self._joining = None
        stay = [s for s in joining if s is not self.chunked and s is not cut and s.state != FINISHED]
        if len(stay) < len(joining) or not self.running or rode is not None:
            self.full = False
        if not stay:
            return
        berths = np.array([self._board(sequence) for sequence in stay], dtype=np.int64)
        if rode is not None:  # who rode along stands behind those it rode with
            self.running, self._order = stay + self.running, np.concatenate((berths, self._order))
        else:
            self.running, self._order = self.running + stay, np.concatenate((self._order, berths))

    def _let_go(self, sure: bool = False) -> None:
        if not self.aboard:
            super()._let_go(sure)
            if not sure and len(self.running) >= LEAST_ROWS:
                self.aboard = True
                self._order = np.array([self._board(one) for one in self.running], dtype=np.int64)
                self.running = self.running[:]
            return
        ahead = sure and self.rules.in_flight
        if not (ahead or self._somebody_ended):
            return
        columns, order = self.columns, self._order
        stays = columns.alive.take(order) > 0
        if ahead:
            stays &= columns.written.take(order) + columns.assumed.take(order) < columns.most.take(order)
        self._somebody_ended = False
        if not stays.all():
            self.running, self._order = list(compress(self.running, stays.tolist())), order[stays]
            self.full = False
        if not sure and len(self.running) < LEAST_ROWS // 2:
            self.dissolve()

    # what an admission asks for

    def _askers(self) -> list[Sequence]:
        self._refresh_written()
        return self.running

    def _promised(self, ratio: float) -> float:
        if not self.aboard:
            return super()._promised(ratio)
        columns, order = self.columns, self._order
        left = np.minimum(columns.most.take(order) - columns.written.take(order), CLIP_MAX_NEW_TOKENS)
        shares: float | FLOATS = ratio
        if self.some_certain:
            shares = np.where(columns.certain.take(order) > 0, 1.0, ratio)
        one_by_one: list[float] = (left * shares).tolist()  # as the scheduler does: rounding decides, too
        return sum(one_by_one)

    def _displace(self, adder: PrefillAdder[Sequence], sequence: Sequence, batch: SglangBatch) -> bool:
        if self.aboard:
            self._refresh_written()
            missing = lacking(self._looked_at, sequence, adder.left)
            if not outranked(self.running, sequence, self.sglang, adder.ratio, missing):
                return False
            self.dissolve()
        return super()._displace(adder, sequence, batch)

    # batches

    def _whole(self, batch: SglangBatch) -> SglangBatch:
        head = batch.head
        if not isinstance(head, BerthHead):
            return batch
        batch.head = None
        return SglangColumnBatch(head, batch, self.columns, self._tokens_flying, self.refresh, self.notes)

    def _tokens_flying(self) -> I64:
        return self._flying()[0]

    def _decode_fits(self, sequences: list[Sequence]) -> bool:
        if not self.aboard:
            return super()._decode_fits(sequences)
        self._wanted = wanted = self._kv_wanted()
        committed, held, ends = wanted
        if not self.rules.reserve:
            missing = self.rules.page * int(np.count_nonzero(committed % self.rules.page == 0))
        else:
            missing = self.rules.page * int(np.add.reduce(ends - held))
        self.pool.make_free(missing)
        return self.pool.free >= missing

    def _somebody_ends(self) -> bool:
        self.refresh()
        return super()._somebody_ends()

    def _retract(self, batch: SglangBatch) -> None:
        self.dissolve()
        super()._retract(batch)

    def _give_rows(self, batch: SglangBatch) -> None:
        if not (self.aboard and self._reserve_together()):
            self.dissolve()
            super()._give_rows(batch)
            return
        k, n = self.rules.num_speculative_tokens, len(self._order)
        drafts = np.full(n, k, dtype=np.int64)
        if self.policy is not None:
            np.minimum(self.columns.drafts.take(self._order), k, out=drafts)
        batch.head = self._head(DECODE, drafts, k if self.policy is None else None)

    def _ride_along(self, batch: SglangBatch) -> None:
        if self.aboard:
            self._let_go(sure=True)
            if self._reserve_together():
                if len(self._order):
                    batch.head = self._head(MIXED, np.zeros(len(self._order), dtype=np.int64), 0)
                self._riders, self.running = self.running, []
                return
            self.dissolve()
        super()._ride_along(batch)

    def _head(self, kind: str, drafts: I64, each: int | None) -> BerthHead:
        """Returns the rows of those who run; `each`: drafts of every row, where they are alike."""
        columns, order = self.columns, self._order
        head = BerthHead(self.running, order, kind, drafts, each)
        if self.notes is not None and self.rules.in_flight == 0 and columns.void.any():
            voids = (columns.void.take(order) > 0) & (drafts > 0)
            head.voids = voids if voids.any() else None
        if self.policy is not None:
            head.ids = columns.ids.take(order)
        if self._picks:
            head.written = columns.written.take(order)
            head.assumed = self._assumed() + 1
        if self.rules.in_flight:
            columns.assumed[order] += 1
        return head

    def _assumed(self) -> I64:
        """Returns the batches in flight in which each samples who runs."""
        assumed: I64 = self.columns.assumed.take(self._order)
        return assumed

    def _kv_wanted(self) -> tuple[I64, I64, I64]:
        """Returns of each who runs the KV tokens committed, the pages held, and those of the next batch."""
        rules, committed = self.rules, self.columns.committed.take(self._order)
        held = rules.pages(self.columns.allocated.take(self._order))
        return committed, held, np.maximum(rules.pages_to_decode(committed), held)

    def _reserve_together(self) -> bool:
        """As `_reserve`, for all who run; False, with nothing given, where the pool is too small."""
        columns, order, rules, pool = self.columns, self._order, self.rules, self.pool
        page, n = rules.page, len(order)
        committed, held, ends = self._wanted or self._kv_wanted()
        self._wanted = None
        total = page * int(np.add.reduce(ends - held))
        if not rules.reserve:
            pool.make_free(n * page)
        else:
            asked = total if page == 1 else self._asked(order, ends)
            pool.make_free(asked + (n * page if page > 1 else 0))
        if total > pool.free:
            return False
        pool.free -= total
        if not rules.reserve:
            columns.allocated[order] = columns.committed[order] = committed + 1
        else:
            columns.allocated[order] = ends * page
        return True

    def _asked(self, order: I64, ends: I64) -> int:
        """Returns the KV tokens from what each holds to the end of its last page in the next batch."""
        return self.rules.page * int(np.add.reduce(ends)) - int(
            np.add.reduce(self.columns.allocated.take(order))
        )

    def _hand_out(self, batch: SglangBatch, planned: Plan | I64) -> None:
        head = batch.head
        if not isinstance(head, BerthHead):
            super()._hand_out(batch, planned)
            return
        before = len(batch.tail.sequences)
        super()._hand_out(batch.tail, planned if isinstance(planned, int) else planned[:before])
        own = planned if isinstance(planned, int) else np.array(planned[before:], dtype=np.int64)
        head.planned = own
        self.columns.drafts[head.berths] = own

    # results

    def begin(self, head: BerthHead) -> None:
        """A batch begins: only now is it known what the one before has brought."""
        self.catch_up()
        committed = self.columns.committed.take(head.berths)
        head.ends = committed + (1 + head.drafts) if self.rules.reserve else committed

    def commit(self, batch: Batch, sampled: Rows[int]) -> Outcome:
        """As `SglangScheduler.commit`."""
        assert isinstance(batch, SglangBatch)
        head = batch.head
        if not isinstance(head, BerthHead):
            return super().commit(batch, sampled)
        before = len(batch.tail.sequences)
        head.new = np.array(sampled[before:], dtype=np.int64)
        outcome = self.commit_rows(batch, list(sampled[:before]))
        return Outcome(outcome.kept + head.kept.tolist(), outcome.finished)

    def commit_rows(self, batch: Batch, sampled: list[int]) -> Outcome:
        """As `commit`, where rows that are columns have their tokens already.

        Args:
            batch: the oldest batch not yet committed.
            sampled: of the other rows; those of rows that are listed by now are put behind them.

        Returns:
            What was kept of the other rows, and who finished.
        """
        head = batch.head
        assert isinstance(batch, SglangBatch) and isinstance(head, BerthHead)
        self.catch_up()
        self._in_flight.remove(batch)
        sampled += head.listed
        kept, finished = self._take_results(batch.tail, sampled)
        if head.n:
            finished += self._take_columns(head)
        self._free(head.leaving)
        return Outcome(kept, finished)

    def _take_results(self, batch: SglangBatch, sampled: Rows[int]) -> tuple[list[int], list[Sequence]]:
        if not self._pending:
            return super()._take_results(batch, sampled)
        there = [(one, self._pending[one]) for one in batch.sequences if one in self._pending]
        tokens, rows = self._flying()  # the batch itself is over
        for sequence, kind, n in zip(*self._listed(batch), strict=True):
            if sequence in self._pending:
                berth = self._pending[sequence]
                own = self._assumed_tokens(kind, n)
                self._refresh(sequence, berth, tokens.item(berth) + own, rows.item(berth) + 1)
        found = super()._take_results(batch, sampled)
        for sequence, berth in there:
            del self._pending[sequence]
            if sequence.state == FINISHED:  # a row in vain still reads its KV
                self.columns.committed[berth] = sequence.num_computed_tokens - tokens.item(berth)
                self._ends(berth)
            else:
                self._landed.append((sequence, berth))
        return found

    def _ends(self, berth: int) -> None:
        """Somebody aboard has ended; rows of the batch behind may be in vain."""
        self.columns.alive[berth] = 0
        self._somebody_ended = True
        for batch in self._in_flight:
            if isinstance(batch.head, BerthHead) and batch.head.n:
                batch.head.ends_early(berth)
                batch.head.leaving.append(berth)
                return
        self._free([berth])

    def _take_columns(self, head: BerthHead) -> list[Sequence]:
        """As `_take_results`, of the rows that are columns; returns who finished."""
        columns, berths, new = self.columns, head.berths, head.new
        written = columns.written.take(berths)
        left = columns.last.take(berths) - written
        ended = new >= left
        if self.ending:
            ended |= np.isin(columns.ids.take(berths), [*self.ending])
        head.kept = np.minimum(new, left)
        if head.stale is not None:
            ended &= ~head.stale
            head.kept = head.kept * ~head.stale
            head.new = new * ~head.stale
        columns.written[berths] = written + head.kept
        if self.rules.in_flight:
            columns.assumed[berths] -= 1
        if self.rules.reserve and head.kind == DECODE:
            columns.committed[berths] += new
        head.left = np.flatnonzero(ended).tolist() if ended.any() else []
        finished = [self._finish(head.members[row], berths.item(row)) for row in head.left]
        if self.rules.reserve and head.kind == MIXED:
            columns.committed[berths] += 1
        return finished

    def _finish(self, sequence: Sequence, berth: int) -> Sequence:
        """Lets go of one who has ended."""
        self._refresh(sequence, berth, 0, 0)
        self.pool.finish(sequence, min(self.pool.held[sequence.id].committed, sequence.num_tokens))
        sequence.state = FINISHED
        self._unfinished -= 1
        self.ending.discard(sequence.id)
        self._ends(berth)
        return sequence

    def propose_head(self, head: BerthHead, drafts: int | I64) -> None:
        """As `propose`, for the rows that are columns, a number a row or one for all."""
        if self.policy is None and not isinstance(drafts, np.ndarray):
            return  # found by all, as ever: nobody asks for it
        columns, berths = self.columns, head.berths
        columns.drafts[berths] = drafts
        if self.policy is None:
            columns.void[berths] = np.equal(drafts, 0)

    def check(self) -> None:
        """As `SglangScheduler.check`."""
        self.refresh()
        super().check()
