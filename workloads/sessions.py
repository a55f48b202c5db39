"""Sessions: conversations and agent loops, turn by turn, with what prompts share with those before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.workloads.lengths import LengthDistribution
from specfleet.workloads.pauses import PauseLaw
from specfleet.workloads.requests import FloatArray, IntArray

PORTION = 4096
"""Rows whose uniforms are drawn at once."""


@dataclass(frozen=True)
class Tools:
    """An agent's tools: with `probability` an answer calls one, and the next turn brings its result.

    `pause` is what the tool takes, `result` the tokens it gives, `call` those of an answer that calls it
    (None: as other answers).
    """

    probability: float
    pause: PauseLaw
    result: LengthDistribution
    call: LengthDistribution | None = None


@dataclass(frozen=True)
class Cut:
    """What happens to a context before a prompt would exceed `above` tokens, system prompt included.

    The oldest turns are dropped until at most `to` tokens are left of the prompt; or, where `summarises`, a
    request of its own reads the whole context and writes a summary of `to` tokens, which takes its place.
    """

    above: int
    to: int
    summarises: bool


@dataclass(frozen=True)
class SessionSpec:
    """How requests follow each other in sessions.

    Args:
        turns: of a session, a law of whole numbers.
        think: the pause before a turn that a person begins.
        first: new tokens of the first turn; None: as of the others.
        cut: what keeps contexts short; None: they grow.
        system_tokens, system_pools: a system prompt in front of every prompt; a session has one of so many.
        tool: of an agent; None: every turn is a person's.
        reasoning_share: of an answer that the next prompt leaves out. What is kept of such an answer stands
            elsewhere then, so only the prompt before it is found in a cache.
        max_model_len: a session ends before a turn whose prompt and output exceed it; None: never.
    """

    turns: LengthDistribution
    think: PauseLaw
    first: LengthDistribution | None = None
    cut: Cut | None = None
    system_tokens: int = 0
    system_pools: int = 1
    tool: Tools | None = None
    reasoning_share: float = 0.0
    max_model_len: int | None = None

    @property
    def longest_other_output(self) -> int:
        """Most output tokens of what is no plain answer: of one that calls a tool, and of a summary."""
        call = self.tool.call.maximum if self.tool is not None and self.tool.call is not None else 0
        return max(call, self.cut.to if self.cut is not None and self.cut.summarises else 0)


@dataclass
class Turns:
    """The rows of sessions, one list a column; `system` is the pool of each row's session."""

    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    think_s: list[float] = field(default_factory=list)
    session: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    own_tokens: list[int] = field(default_factory=list)
    output_stream: list[int] = field(default_factory=list)
    system: list[int] = field(default_factory=list)

    def segments(self, spec: SessionSpec) -> tuple[IntArray, IntArray, IntArray]:
        """(offset, stream, tokens) of the prompts: the system prompt of the pool, and the session's own."""
        rows = len(self.prompt)
        streams, tokens = np.array(self.stream), np.array(self.own_tokens)
        if not spec.system_tokens:
            return np.arange(rows + 1), streams, tokens
        pools = -1 - np.array(self.system)
        both = np.stack([pools, streams], axis=1).ravel()
        lengths = np.stack([np.full(rows, spec.system_tokens), tokens], axis=1).ravel()
        return np.arange(0, 2 * rows + 1, 2), both, lengths


Uniforms = Callable[[int], FloatArray]
"""Draws the next so many uniforms of one purpose."""


@dataclass(frozen=True)
class Draws:
    """Where sessions get their random numbers from: a stream a purpose, a number a row or a session.

    `lengths` makes new tokens and output of the first two.
    """

    lengths: Callable[[FloatArray, FloatArray], tuple[IntArray, IntArray]]
    prompt: Uniforms
    output: Uniforms
    think: Uniforms
    calls: Uniforms
    turns: Uniforms
    pool: Uniforms


@dataclass(frozen=True)
class _Row:
    """What is drawn for one row, whatever its place in a session turns out to be."""

    new: int
    first: int
    result: int
    output: int
    call: int
    think_s: float
    pause_s: float
    calls: bool


def _rows(spec: SessionSpec, draws: Draws) -> Iterator[_Row]:
    """Yields row after row; what a row does not need is drawn all the same, so that nothing shifts."""
    tool = spec.tool
    while True:
        u, v, w = draws.prompt(PORTION), draws.output(PORTION), draws.think(PORTION)
        new, output = draws.lengths(u, v)
        first = new if spec.first is None else spec.first.quantile(u)
        columns: list[npt.NDArray[Any]] = [new, first, new, output, output, spec.think.quantile(w)]
        columns += [np.zeros(PORTION), np.zeros(PORTION, dtype=np.bool_)]
        if tool is not None:
            columns[2] = tool.result.quantile(u)
            columns[4] = output if tool.call is None else tool.call.quantile(v)
            columns[6], columns[7] = tool.pause.quantile(w), draws.calls(PORTION) < tool.probability
        yield from (_Row(*row) for row in zip(*(column.tolist() for column in columns), strict=True))


def sessions(spec: SessionSpec, draws: Draws, least_rows: int) -> Turns:
    """Returns whole sessions with at least so many rows together, in the order in which they begin.

    A session depends on its number and on how many turns were drawn before it, not on what comes behind.

    Raises:
        ValueError: if the first turn of a session exceeds `max_model_len`.
    """
    made, rows = Turns(), _rows(spec, draws)
    number, stream = 0, -1 - spec.system_pools
    while len(made.prompt) < least_rows:
        turns = int(spec.turns.quantile(draws.turns(1))[0])
        pool = int(draws.pool(1)[0] * spec.system_pools)
        before = len(made.prompt)
        stream = _Session(spec, made, rows, number, pool, stream).run(turns) - 1
        number += 1
        if len(made.prompt) == before:
            raise ValueError(
                f"the first turn of session {number} exceeds max_model_len, {spec.max_model_len}; shorten it"
            )
    return made


class _Session:
    """One session while its turns are made.

    Args:
        spec: of all sessions.
        made: gets the rows.
        rows: what is drawn for each.
        number: of the session. pool: of its system prompt.
        stream: names its tokens, until its context is cut; then the next below does.
    """

    def __init__(
        self, spec: SessionSpec, made: Turns, rows: Iterator[_Row], number: int, pool: int, stream: int
    ) -> None:
        self.spec, self.made, self.rows = spec, made, rows
        self.number, self.pool, self.stream = number, pool, stream
        self.context = self.turn = 0
        self.parts: deque[int] = deque()

    def run(self, turns: int) -> int:
        """Makes its turns; returns the last stream it used."""
        spec, called = self.spec, False
        for turn in range(turns):
            row = next(self.rows)
            new = row.first if turn == 0 else row.result if called else row.new
            pause_s = 0.0 if turn == 0 else row.pause_s if called else row.think_s
            calls = row.calls and turn + 1 < turns
            output = row.call if calls else row.output
            pause_s = self._cut(new, pause_s)
            if self._full(new, output):
                break
            self._add(new, output, pause_s, rewritten=spec.reasoning_share > 0.0)
            called = calls
        return self.stream

    def _full(self, new: int, output: int) -> bool:
        """Whether the next turn exceeds the model's positions."""
        limit = self.spec.max_model_len
        return limit is not None and self._prompt(new) + output > limit

    def _prompt(self, new: int) -> int:
        return self.spec.system_tokens + self.context + new

    def _cut(self, new: int, pause_s: float) -> float:
        """Shortens the context where the next prompt would be too long; returns the pause that is left."""
        cut = self.spec.cut
        if cut is None or not self.context or self._prompt(new) <= cut.above:
            return pause_s
        if cut.summarises:
            if self._full(0, cut.to):
                return pause_s
            self._add(0, cut.to, pause_s, rewritten=True)
            self.parts, self.context, pause_s = deque([cut.to]), cut.to, 0.0
        else:
            while self.parts and self._prompt(new) > cut.to:
                self.context -= self.parts.popleft()
        self.stream -= 1
        return pause_s

    def _add(self, new: int, output: int, pause_s: float, *, rewritten: bool) -> None:
        """Adds a row; `rewritten`: its answer is not what the next prompt holds."""
        made, spec = self.made, self.spec
        row = len(made.prompt)
        made.prompt.append(self._prompt(new))
        made.output.append(output)
        made.think_s.append(pause_s)
        made.session.append(self.number)
        made.turn.append(self.turn)
        made.stream.append(self.stream)
        made.own_tokens.append(self.context + new)
        made.output_stream.append(row if rewritten else self.stream)
        made.system.append(self.pool)
        kept = output - round(spec.reasoning_share * output)
        self.parts.append(new + kept)
        self.context += new + kept
        self.turn += 1
