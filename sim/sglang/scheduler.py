"""SGLang's scheduler: a prompt batch or a decode batch, prompts first.

A turn takes the result of the last prefill into the running list, admits who fits (`adder`), and decodes the
whole running list where nobody does. KV is promised for outputs at admission; where the promise was too bold,
requests are retracted and computed again. After SGLang 0.5.23, whose recorded decisions `tests/conformance`
replays. The scheduler knows no clock, no price and no luck.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

from specfleet.sim.rules import I64
from specfleet.sim.scheduler import Outcome
from specfleet.sim.sequence import FINISHED, PREEMPTED, RUNNING, WAITING, Batch, Sequence
from specfleet.sim.sglang.adder import PrefillAdder, admit, may_try
from specfleet.sim.sglang.batch import CUT, DECODE, MIXED, PREFILL, SglangBatch, lacking, outranked
from specfleet.sim.sglang.pool import Match
from specfleet.sim.sglang.present import Present
from specfleet.sim.sglang.rules import RETRACT_DECODE_STEPS, expected, promised
from specfleet.sim.speculation.policy import Plan, plan_of


class SglangScheduler(Present):
    """SGLang's scheduler for one engine; arguments and attributes as of `Present`."""

    def schedule(self, now: float = 0.0) -> SglangBatch:
        """Decides one turn; a batch without rows is a turn without one.

        Args:
            now: the engine's time, for the policy alone; no decision here depends on it.
        """
        batch = SglangBatch()
        self._follow_up_chunk()
        self._take_in_prefilled()
        self._let_go()
        if not self._prefill(batch):
            self._decode(batch)
        batch.preempted = batch.retracted + batch.displaced
        whole = self._whole(batch)
        if whole.rows:
            self._in_flight.append(whole)
            if self.policy is not None:
                self._hand_out(whole, plan_of(self.policy, whole, len(self.waiting), now))
        return whole

    def _whole(self, batch: SglangBatch) -> SglangBatch:
        """Returns a batch with all its rows: here they are all listed."""
        return batch

    def _hand_out(self, batch: SglangBatch, planned: Plan | I64) -> None:
        """Notes the drafts that a policy wants after a batch."""
        rows = len(batch.sequences)
        several = planned if isinstance(planned, (int, list)) else planned.tolist()
        batch.planned_drafts = [several] * rows if isinstance(several, int) else several
        for sequence, drafts in zip(batch.sequences, batch.planned_drafts, strict=True):
            sequence.num_drafts = drafts

    def _let_go(self, sure: bool = False) -> None:
        """Drops those who have ended from the running list, and those `sure` to with what is in flight."""
        stay = [
            sequence
            for sequence in self.running
            if sequence.state != FINISHED and not (sure and self.rules.is_sure_to_end(sequence))
        ]
        if len(stay) < len(self.running):
            self.running, self.full = stay, False

    def _follow_up_chunk(self) -> None:
        """Puts what has been computed of a cut prompt into the tree."""
        if self.chunked is not None:
            self.pool.keep(self.chunked, self.chunked.num_computed_tokens)

    def _take_in_prefilled(self) -> None:
        """Those prefilled last join the end of the running list, but for the one whose prompt is cut."""
        if self._joining is None:
            return
        joining, cut = self._joining
        self._joining = None
        stay = [s for s in joining if s is not self.chunked and s is not cut and s.state != FINISHED]
        if len(stay) < len(joining) or not self.running:
            self.full = False
        self.running += stay

    # prefill

    def _places(self) -> int:
        """Returns how many rows a prefill batch may have; one whose prompt is cut is among them."""
        return self.rules.max_running_requests - len(self.running)

    def _prefill(self, batch: SglangBatch) -> bool:
        """Puts a prefill batch together; False if nobody is admitted."""
        if self.sglang.preempts:
            self.full = False
        if self.chunked is None:
            tries, self.full = may_try(self.full, len(self.waiting), self._places(), self.sglang.preempts)
            if not tries:
                return False
        self.line.sort()
        mixed = len(self.running) if self.sglang.enable_mixed_chunk else 0
        ratio = self.ratio.now
        adder = PrefillAdder[Sequence](
            self.rules, self.pool, self._askers, self._promised(ratio), ratio, mixed
        )
        if self.chunked is not None:
            self.chunked = adder.go_on(self.chunked)
        self._admit(adder, batch)
        if not adder.pieces:
            return False
        self.line.take({piece.sequence.id for piece in adder.pieces})
        for victim in batch.displaced:
            self.line.add(victim)
        if adder.chunked is not None:
            self.chunked = adder.chunked
        self._compute(adder, batch)
        if self.sglang.enable_mixed_chunk and self.running:
            self._ride_along(batch)
        self._joining = (batch.sequences[:], self.chunked)
        return True

    def _askers(self) -> list[Sequence]:
        """Returns those who run, as an admission asks for them."""
        return self.running

    def _promised(self, ratio: float) -> float:
        """Returns the KV tokens that those who run are expected to write yet."""
        return promised(self.running, ratio)

    def _admit(self, adder: PrefillAdder[Sequence], batch: SglangBatch) -> None:
        """Tries those who wait, in turn, until one does not fit."""

        def displace(sequence: Sequence) -> bool:
            return self._displace(adder, sequence, batch)

        self.full = admit(
            adder,
            self.waiting,
            self.full,
            self._places,
            self._match,
            displace if self.sglang.preempts else None,
        )

    def _match(self, sequence: Sequence) -> Match:
        """Looks one who waits up in the tree."""
        match = self.pool.match(sequence)
        self._looked_at[sequence.id] = sequence.num_tokens - match.tokens
        return match

    def _compute(self, adder: PrefillAdder[Sequence], batch: SglangBatch) -> None:
        """Gives the admitted their KV and their rows."""
        page, rows = self.rules.page, adder.pieces
        extra = page * len(rows) if page > 1 else 0
        self.pool.make_free(sum([piece.tokens for piece in rows]) + extra)
        for sequence, start, tokens, cut, match in rows:
            if match is not None:
                holding = self.pool.hold(sequence, match)
                (batch.new if sequence.state == WAITING else batch.resumed).append(sequence)
                sequence.state = RUNNING
                sequence.num_computed_tokens = start
                if start:
                    batch.cached.append((sequence, start))
            holding = self.pool.held[sequence.id]
            self.pool.grow(holding, start + tokens)
            holding.committed = start + tokens
            batch.row(sequence, CUT if cut else PREFILL, tokens, 0)

    def _ride_along(self, batch: SglangBatch) -> None:
        """Those who run take a plain step in a prefill batch, and join the running list again after it."""
        self._let_go(sure=True)
        self._reserve(self.running)
        for sequence in self.running:
            batch.row(sequence, MIXED, 1, 0)
        self.running = []

    def _displace(self, adder: PrefillAdder[Sequence], sequence: Sequence, batch: SglangBatch) -> bool:
        """Throws out running requests of much lower priority, if that makes room for one who waits."""
        missing = lacking(self._looked_at, sequence, adder.left)
        victims = outranked(self.running, sequence, self.sglang, adder.ratio, missing)
        if not victims:
            return False
        for other in [s for s in self.running if s in victims]:
            adder.promised -= expected(other, adder.ratio)
            self.running.remove(other)
            self._throw_out(other, len(self.running))
            batch.displaced.append(other)
        return True

    # decode

    def _decode(self, batch: SglangBatch) -> None:
        """Decodes the whole running list, or fewer where KV is short."""
        self._let_go(sure=True)
        if not self.running:
            return
        if self._decode_fits(self.running):
            self.ratio.fall()
        elif self._somebody_ends():
            return  # its KV is free when its result is there
        else:
            self._retract(batch)
            self.full = False
        self._give_rows(batch)

    def _give_rows(self, batch: SglangBatch) -> None:
        """Gives everybody who runs a row and the KV for it."""
        self._reserve(self.running)
        k = self.rules.num_speculative_tokens
        for sequence in self.running:
            drafts = k if self.policy is None else min(sequence.num_drafts, k)
            batch.row(sequence, DECODE, 1 + drafts, drafts)

    def _missing(self, sequences: list[Sequence]) -> int:
        """Returns the KV tokens that the next decode of these takes."""
        held, missing = self.pool.held, self.rules.missing_for_decode
        return sum([missing(held[s.id].committed, held[s.id].allocated) for s in sequences])

    def _decode_fits(self, sequences: list[Sequence]) -> bool:
        """Whether the next decode of these finds its KV, cached KV evicted."""
        missing = self._missing(sequences)
        self.pool.make_free(missing)
        return self.pool.free >= missing

    def _reserve(self, sequences: list[Sequence]) -> None:
        """Gives those who decode the KV for it: one token, or the reserve of a speculative step."""
        rules, pool = self.rules, self.pool
        if not rules.reserve:
            pool.make_free(len(sequences) * rules.page)
            for sequence in sequences:
                holding = pool.held[sequence.id]
                pool.grow(holding, holding.committed + 1)
                holding.committed += 1
            return
        holdings = [pool.held[sequence.id] for sequence in sequences]
        ends = [max(rules.tokens_to_decode(h.committed), h.allocated) for h in holdings]
        wanted = sum(ends) - sum([holding.allocated for holding in holdings])
        pool.make_free(wanted + (len(holdings) * rules.page if rules.page > 1 else 0))
        for holding, end in zip(holdings, ends, strict=True):
            pool.grow(holding, end)

    def _somebody_ends(self) -> bool:
        """Whether a result in flight is sure to end a request."""
        return any(
            not batch.is_stale(row) and self.rules.is_sure_to_end(sequence)
            for batch in self._in_flight
            for row, sequence in enumerate(batch.sequences)
        )

    def _retract(self, batch: SglangBatch) -> None:
        """Throws out running requests until the next decode of the others fits, or aborts the last."""
        keep = sorted(self.running, key=self._keeps, reverse=True)
        while len(keep) > 1:
            victim = keep.pop()
            batch.retracted.append(victim)
            self._throw_out(victim, len(keep))
            if self._decode_fits(keep):
                break
        if len(keep) == 1 and not self._decode_fits(keep):
            last = keep.pop()
            batch.retracted.append(last)
            batch.aborted.append(last)
            self.pool.drop(last)
            last.state = FINISHED
            self.ending.discard(last.id)
            self._unfinished -= 1
        for victim in batch.retracted:
            if victim.state != FINISHED:
                self.line.add(victim)
        self.running = keep
        self.ratio.raise_after_retraction(keep)

    def _keeps(self, sequence: Sequence) -> tuple[int, ...]:
        """Returns what those who stay are chosen by: most outputs, then the shortest prompt."""
        key = (sequence.num_output_tokens, -sequence.prompt_tokens)
        if self.sglang.retraction_policy == "priority":
            return (-self.line.rank(sequence)[0], *key)
        return key

    def _throw_out(self, victim: Sequence, remaining: int) -> None:
        """Takes a running request's KV: outputs are kept, results in flight are not."""
        self.pool.drop(victim)
        self.pool.make_free(remaining * RETRACT_DECODE_STEPS)
        victim.state = PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_output_placeholders = 0
        victim.num_drafts = 0
        victim.num_preemptions += 1

    # results

    def commit(self, batch: Batch, sampled: Rows[int]) -> Outcome:
        """Takes the result of the oldest batch in: new tokens, ends, what may be found by others.

        Args:
            batch: the oldest batch not yet committed.
            sampled: tokens each row sampled: 1 + accepted drafts, 0 where it samples nothing.

        Returns:
            What was kept, and who finished.
        """
        assert isinstance(batch, SglangBatch)
        self._in_flight.remove(batch)
        return Outcome(*self._take_results(batch, sampled))

    def _take_results(self, batch: SglangBatch, sampled: Rows[int]) -> tuple[list[int], list[Sequence]]:
        """As `commit`, of rows that are listed; returns the tokens kept and who finished."""
        kept: list[int] = []
        finished: list[Sequence] = []
        for row, (sequence, new) in enumerate(zip(batch.sequences, sampled, strict=True)):
            kind, drafts = batch.kinds[row], batch.num_drafts[row]
            if kind == CUT or batch.is_stale(row):
                if sequence.num_preemptions == batch.stays[row]:
                    sequence.num_computed_tokens -= drafts + 1 - new if drafts else 0
                kept.append(0)
                continue
            sequence.num_output_placeholders -= 1
            sequence.num_computed_tokens -= drafts + 1 - new if drafts else 0
            holding = self.pool.held[sequence.id]
            if self.rules.reserve and kind == DECODE:
                holding.committed += new
            left = min(sequence.max_tokens, sequence.stop_at) - sequence.num_output_tokens
            ends = new >= left or sequence.id in self._refused or sequence.id in self.ending
            new = max(min(new, left), 1) if kind == PREFILL else min(new, left)
            computed = sequence.num_tokens
            sequence.num_tokens += new
            kept.append(new)
            if ends:
                self.pool.finish(sequence, min(holding.committed, sequence.num_tokens))
                sequence.state = FINISHED
                self._unfinished -= 1
                self.ending.discard(sequence.id)
                finished.append(sequence)
            elif kind == PREFILL:
                self.pool.keep(sequence, computed)
            elif kind == MIXED and self.rules.reserve:
                holding.committed += 1
        return kept, finished

    def propose(self, batch: Batch, drafts: Rows[int]) -> None:
        """Hands over the drafts proposed after a committed batch, a count a row (without overlap).

        A request for which none was found is verified at full width all the same, in vain.
        """
        for sequence, count in zip(batch.sequences, drafts, strict=True):
            sequence.num_drafts = count
            sequence.drafts_are_void = self.policy is None and count == 0
