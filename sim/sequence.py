"""One request inside an engine, and one step's decision about all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specfleet.sim.rules import I64, leaves_drafts_unused
from specfleet.sim.rules import NEVER as NEVER

BOOLS = npt.NDArray[np.bool_]
WAITING, RUNNING, PREEMPTED, FINISHED = "W", "R", "P", "F"


def stretches_of(segments: tuple[tuple[object, int], ...], stream: object) -> tuple[tuple[object, int], ...]:
    """Returns a prompt as its segments, and its output in a stream, as long as it may become."""
    if segments[-1][0] == stream:
        return (*segments[:-1], (stream, NEVER))
    return (*segments, (stream, NEVER))


class AskedTokens(NamedTuple):
    """What a request asks for."""

    prompt_tokens: int
    max_tokens: int


class Sequence:
    """One request inside an engine (vLLM's `Request`): token counts, KV held, state.

    Args:
        id: global request id.
        prompt_tokens: prompt length.
        max_tokens: most output tokens asked for.
        stop_at: the n-th output token is a stop token; only `Scheduler.commit` and the oracle read it.
        priority: lower runs first, under the priority policy.
        segments: the prompt as `(stream, n)`, the first n tokens of each stream; None is a
            private stream. Two prompts share a prefix as far as their segments say.
        output_stream: names the stream its output tokens belong to; where its prompt ends in that stream,
            they continue it there.

    Attributes:
        next_decode_step: the first step in which it may decode again, where stages of a pipeline have it.
        ignore_eos: it is known to write `max_tokens` tokens; only SGLang's estimates read it.
    """

    __slots__ = (
        "arrival",
        "block_keys",
        "drafts_are_void",
        "id",
        "ignore_eos",
        "is_prefill_chunk",
        "max_tokens",
        "next_decode_step",
        "num_blocks",
        "num_computed_tokens",
        "num_drafts",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_preemptions",
        "num_stale_tokens",
        "num_tokens",
        "output_stream",
        "priority",
        "prompt_tokens",
        "segments",
        "slots",
        "state",
        "stop_at",
    )

    def __init__(
        self,
        id: int,
        prompt_tokens: int,
        max_tokens: int,
        stop_at: int = NEVER,
        priority: int = 0,
        segments: tuple[tuple[object, int], ...] | None = None,
        output_stream: object = None,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.stop_at = stop_at
        self.priority = priority
        self.segments = segments if segments is not None else ((("in", id), prompt_tokens),)
        self.output_stream = output_stream if output_stream is not None else ("out", id)
        self.arrival = 0
        self.state = WAITING
        self.num_tokens = prompt_tokens
        self.num_computed_tokens = 0
        self.num_drafts = 0
        self.drafts_are_void = False
        self.ignore_eos = False
        self.num_output_placeholders = 0
        self.num_in_flight_tokens = 0
        self.num_stale_tokens = 0
        self.is_prefill_chunk = True
        self.num_preemptions = 0
        self.next_decode_step = 0
        self.num_blocks = 0
        self.slots = 0
        self.block_keys: list[int] = []

    @property
    def num_output_tokens(self) -> int:
        """Output tokens known so far."""
        return self.num_tokens - self.prompt_tokens

    @property
    def stretches(self) -> tuple[tuple[object, int], ...]:
        """The prompt as its segments, and its output, as long as it may become."""
        return stretches_of(self.segments, self.output_stream)

    def pieces(self, start: int, end: int) -> Iterator[tuple[object, int, int]]:
        """Yields the pieces (stream, from, to) of token streams that positions `start..end` consist of."""
        offset = 0
        for stream, count in self.stretches:
            low, high = max(start - offset, 0), min(end - offset, count)
            if low < high:
                yield stream, low, high
            offset += count
            if offset >= end:
                return

    def drafts_unused_after(self, tokens: int) -> bool:
        """Whether drafts proposed after computing `tokens` more are sure never to be verified.

        Either the step samples nothing (a prefill chunk), or its token is the last one even if
        every draft is rejected. A stop token cannot be foreseen.
        """
        if self.num_computed_tokens + tokens < self.num_tokens:
            return True
        in_flight = 1 if self.num_output_placeholders else 0
        return leaves_drafts_unused(self.num_tokens - self.prompt_tokens, in_flight, self.max_tokens)


class Head:
    """The first rows of a step: each decodes and gets all it asks for.

    Attributes:
        members: the sequences, and perhaps more behind them; only what never changes may be read here.
        places: where they stood among those aboard when the step was scheduled; None: the first ones.
        n: rows.
        ids, written, assumed: of the requests, their output tokens when the step was scheduled, and tokens in
            flight then; under a policy.
        drafts: to verify, by row. num_drafts: their sum.
        ends: computed tokens when the step has run.
        void: the drafts are placeholders.
        planned: drafts wanted next: one number for all, or one a row; None is K.
        started: the tokens are drawn.
        new: tokens sampled, by row. kept: of which kept, once it is committed.
        listed: tokens sampled by rows that have left these columns since, and stand first in the tail.
        left: places of those who ended, once it is committed.
        counted: which rows are measured; None: all.
        each: drafts of every row, where they are alike; None: they may differ.
        by_accepted: rows by drafts accepted, once they are drawn; None where that was not counted.
    """

    __slots__ = (
        "assumed",
        "by_accepted",
        "counted",
        "drafts",
        "each",
        "ends",
        "ids",
        "kept",
        "left",
        "listed",
        "members",
        "n",
        "new",
        "num_drafts",
        "places",
        "planned",
        "started",
        "void",
        "written",
    )

    def __init__(
        self, members: list[Sequence], drafts: I64, ends: I64, void: bool, each: int | None = None
    ) -> None:
        self.members = members
        self.places: I64 | None = None
        self.n = len(drafts)
        self.drafts = drafts
        self.ends = ends
        self.each = each
        self.num_drafts = int(np.add.reduce(drafts)) if each is None else each * self.n
        self.by_accepted: list[int] | None = None
        self.void = void
        self.planned: int | I64 | None = None
        self.started = False
        self.ids = self.written = self.assumed = self.new = self.kept = drafts
        self.listed: list[int] = []
        self.left: list[int] = []
        self.counted: BOOLS | None = None

    def of_those_left(self, values: I64) -> I64:
        """Returns the values of rows whose sequences go on."""
        return np.delete(values, self.left) if self.left else values

    def take_out(self, rows: list[int], tail: Batch) -> None:
        """Moves rows to the front of the tail, where their sequences are looked at one by one."""
        planned = self.planned
        for row in reversed(rows):
            drafts = int(self.drafts[row])
            sequence = self.members[row]
            tail.sequences.insert(0, sequence)
            tail.num_tokens.insert(0, 1 + drafts)
            tail.num_drafts.insert(0, drafts)
            tail.samples.insert(0, True)
            tail.total_tokens += 1 + drafts
            if self.void and drafts:
                tail.void.add(sequence.id)
            if tail.planned_drafts is not None and planned is not None:
                tail.planned_drafts.insert(0, planned if isinstance(planned, int) else int(planned[row]))
            if self.started:
                self.listed.insert(0, int(self.new[row]))
        self.without(rows)

    def without(self, rows: list[int]) -> None:
        """Lets rows go."""
        self.members = self.members[: self.n]
        for row in reversed(rows):
            del self.members[row]
        stays = np.ones(self.n, dtype=np.bool_)
        stays[rows] = False
        drafts, self.ends = self.drafts, self.ends[stays]
        self.drafts = drafts[stays]
        self.ids, self.written, self.assumed, self.new = (
            self.drafts if values is drafts else values[stays]
            for values in (self.ids, self.written, self.assumed, self.new)
        )
        if self.places is not None:
            self.places = self.places[stays]
        if self.counted is not None:
            self.counted = self.counted[stays]
        if self.planned is not None and not isinstance(self.planned, int):
            self.planned = self.planned[stays]
        self.n = len(self.drafts)
        self.num_drafts = int(np.add.reduce(self.drafts))
        self.by_accepted = None


class Batch:
    """One step's decision: parallel lists, a place a scheduled sequence, in scheduling order.

    Attributes:
        sequences: the scheduled sequences.
        num_tokens: tokens each computes, drafts included.
        num_drafts: of which drafts to verify.
        samples: whether each samples (it is not short of its last known token).
        void: ids whose drafts are placeholders: verified, sure to be rejected, no draft to anyone.
        new, resumed, preempted: sequences admitted for the first or another time, or thrown out.
        cached: (sequence, tokens) found in the prefix cache at admission.
        padded: sequences admitted with placeholder drafts.
        total_tokens: all tokens of the step.
        skips_drafts: no draft proposed after this step could be used, so the drafter does not run.
        drafter_too_short: longest sequence plus K exceed the drafter's positions: it does not run.
        prompts: a row computes a piece of a prompt.
        aborted: sequences ended with an error, for lack of KV blocks; in `preempted` too.
        planned_drafts: drafts a policy wants proposed after the step, a number a row; None is K for all.
        head: rows that are columns and come before these; None if there are none.
    """

    __slots__ = (
        "aborted",
        "cached",
        "drafter_too_short",
        "head",
        "new",
        "num_drafts",
        "num_tokens",
        "padded",
        "planned_drafts",
        "preempted",
        "prompts",
        "resumed",
        "samples",
        "sequences",
        "skips_drafts",
        "total_tokens",
        "void",
    )

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.num_tokens: list[int] = []
        self.num_drafts: list[int] = []
        self.samples: list[bool] = []
        self.void: set[int] = set()
        self.new: list[Sequence] = []
        self.resumed: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.aborted: list[Sequence] = []
        self.cached: list[tuple[Sequence, int]] = []
        self.padded: list[Sequence] = []
        self.total_tokens = 0
        self.skips_drafts = False
        self.prompts = False
        self.drafter_too_short = False
        self.planned_drafts: list[int] | None = None
        self.head: Head | None = None

    @property
    def rows(self) -> int:
        """Returns the number of rows."""
        return len(self.sequences)

    def member(self, row: int) -> Sequence:
        """Returns the sequence of a row; only what never changes may be read of it."""
        return self.sequences[row]

    def ids(self) -> I64:
        """Returns the request of each row."""
        return np.array([sequence.id for sequence in self.sequences], dtype=np.int64)

    def drafts(self) -> I64:
        """Returns the drafts that each row verifies, placeholders left out."""
        rows = zip(self.sequences, self.num_drafts, strict=True)
        return np.array([0 if s.id in self.void else drafts for s, drafts in rows], dtype=np.int64)

    def voids(self) -> BOOLS:
        """Returns whether the drafts of each row are placeholders."""
        return np.array([sequence.id in self.void for sequence in self.sequences], dtype=np.bool_)

    def written(self) -> I64:
        """Returns the output tokens that each row's sequence had when the step was scheduled."""
        return np.array([sequence.num_output_tokens for sequence in self.sequences], dtype=np.int64)

    def assumed(self) -> I64:
        """As `written`, with those that the batch in flight brings if it accepts every draft."""
        rows = [s.num_output_tokens + s.num_output_placeholders for s in self.sequences]
        return np.array(rows, dtype=np.int64)

    def will_sample(self) -> BOOLS:
        """Returns whether each row samples; asked before the step is taken into account."""
        rows = zip(self.sequences, self.num_tokens, strict=True)
        known = [
            s.num_computed_tokens + tokens >= s.num_tokens + s.num_output_placeholders for s, tokens in rows
        ]
        return np.array(known, dtype=np.bool_)

    def luck_after(self, rounds: I64) -> I64:
        """Returns the drafts that each row will accept so many verifications from now; 0 beyond."""
        luck = []
        for sequence, more in zip(self.sequences, rounds.tolist(), strict=True):
            nth, accepted = getattr(sequence, "verifications", 0) + more, getattr(sequence, "accepted", b"")
            luck.append(accepted[nth] if nth < len(accepted) else 0)
        return np.array(luck, dtype=np.int64)

    def skip_luck(self, rows: I64) -> None:
        """Takes the luck of the next verification out of the lives of some rows' sequences."""
        for row in rows.tolist():
            sequence = self.sequences[row]
            luck: bytes = getattr(sequence, "accepted", b"")
            passed = getattr(sequence, "verifications", 0)
            sequence.accepted = luck[:passed] + luck[passed + 1 :]

    def kv_tokens(self) -> int:
        """Returns the tokens computed of all rows together; asked before the step is taken into account."""
        return sum([sequence.num_computed_tokens for sequence in self.sequences])

    @property
    def tail(self) -> Batch:
        """Returns the rows that are no columns: here all of them."""
        return self

    def heard(self, tail: list[int] | I64) -> I64:
        """Returns the tokens that each row sampled, `tail` being those of rows that are no columns."""
        return np.array(tail, dtype=np.int64)

    def tokens(self, sampled: list[int]) -> list[int]:
        """Returns what rows that are no columns sampled, of which `sampled` are those that never were."""
        return [*(self.head.listed if self.head is not None else []), *sampled]

    def place(self, sequence: Sequence, num_tokens: int, num_drafts: int) -> None:
        """Adds a row."""
        self.sequences.append(sequence)
        self.num_tokens.append(num_tokens)
        self.num_drafts.append(num_drafts)

    def withdraw(self, sequence: Sequence) -> int | None:
        """Takes back the row of a sequence preempted in this very step.

        Returns:
            The tokens it had been given, or None if it has no row.
        """
        if sequence not in self.sequences:
            return None
        row = self.sequences.index(sequence)
        del self.sequences[row], self.num_drafts[row]
        self.void.discard(sequence.id)
        return self.num_tokens.pop(row)
