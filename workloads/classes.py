"""Traffic of several classes, each with lengths, and it may be arrivals, of its own.

Classes of single requests that no trace times are built here; with others among them, in `build_classes`.
Two ways to say how much of each there is. By *share*: requests come in one stream, and a class is drawn for
each; what row i is depends on the seed and i. By *rate*: every class is a stream of its own, and the streams
are merged in the order of time; then the k-th request of a class has the same arrival, lengths and luck
whoever else is there, because all of that is keyed by the class's name and k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from specfleet.workloads.lengths import LengthDistribution, Mixed, Recorded, correlated_uniforms
from specfleet.workloads.requests import FloatArray, IntArray, RequestTable
from specfleet.workloads.sessions import SessionSpec
from specfleet.workloads.streams import Purpose, class_key, stream

_GAPS = 1024
"""Gaps drawn at once, at least."""


@dataclass(frozen=True)
class TrafficClass:
    """One class of a mix. Exactly one of `share`, `request_rate` and `recorded` says how much there is of it;
    a share or rate of 0 leaves it out of the run.

    Args:
        name: of the class.
        input, output: tokens. Two `Recorded` laws of one trace are drawn together, row by row.
        share: of all requests.
        request_rate: requests/s, independent of the others.
        burstiness: gamma shape of the gaps, where there is a rate.
        rank_correlation, max_tokens, ignore_eos, prefix_tokens, prefix_groups, temperature: as in
            `WorkloadSpec`.
        priority: lower runs first, as in vLLM.
        sessions: its requests are turns; `input` is what a turn adds, `output` its answer.
        recorded: its requests, at their own times, in place of all that.

    Raises ValueError for values out of range.
    """

    name: str
    input: LengthDistribution
    output: LengthDistribution
    share: float | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    rank_correlation: float = 0.0
    max_tokens: int | None = None
    ignore_eos: bool = False
    prefix_tokens: int = 0
    prefix_groups: int = 1
    temperature: float = 0.0
    priority: int = 0
    sessions: SessionSpec | None = None
    recorded: RequestTable | None = None

    def __post_init__(self) -> None:
        """ValueError naming what is wrong."""
        amounts = (self.share, self.request_rate, self.recorded)
        if sum(each is not None for each in amounts) != 1:
            raise ValueError(f"class {self.name} needs a share or a request_rate, and not both")
        if not 0 <= self.weight < math.inf or not self.burstiness > 0:
            raise ValueError(f"class {self.name} has a share or rate below 0, or no burstiness above 0")

    @property
    def weight(self) -> float:
        """Share or rate, whichever is given; of recorded requests their mean rate."""
        if self.recorded is not None:
            span_s = float(self.recorded.arrival_s[-1] - self.recorded.arrival_s[0])
            return max(len(self.recorded) - 1, 1) / span_s if span_s > 0 else float(len(self.recorded))
        return float(self.share if self.share is not None else self.request_rate or 0.0)

    @property
    def alone(self) -> bool:
        """Whether its requests cannot be drawn row by row: turns of sessions, and recorded ones."""
        return self.sessions is not None or self.recorded is not None

    @property
    def most_output(self) -> int:
        """The cap that a request states, unless it states what it writes."""
        return self.output.maximum if self.max_tokens is None else self.max_tokens

    def lengths(self, u: FloatArray, v: FloatArray) -> tuple[IntArray, IntArray]:
        """Prompt (without prefix) and output tokens at two uniforms of each request."""
        if isinstance(self.input, Recorded) and isinstance(self.output, Recorded):
            rows = self.input.rows(u)
            prompt, output = self.input.tokens[rows], self.output.tokens[rows]
        else:
            prompt = self.input.quantile(u)
            output = self.output.quantile(correlated_uniforms(u, v, self.rank_correlation))
        return prompt, np.minimum(output, self.most_output)


@dataclass(frozen=True)
class Mix:
    """The classes of a run.

    Args:
        classes: in the order in which they are numbered. All have a share or all have a rate.

    Raises ValueError for names that are there twice, or no class that sends anything.
    """

    classes: tuple[TrafficClass, ...]

    def __post_init__(self) -> None:
        """ValueError naming what is wrong."""
        names = [each.name for each in self.classes]
        if len({class_key(name) for name in names}) < len(names):
            raise ValueError(f"two classes have one name, or names that cannot be told apart: {names}")
        if len({each.share is None for each in self.classes}) > 1:
            raise ValueError("some classes have a share and some a request_rate; give one kind to all")
        if not any(each.weight > 0 for each in self.classes):
            raise ValueError("no class of the mix sends anything")

    @property
    def by_rate(self) -> bool:
        """Whether each class is a stream of its own."""
        return self.classes[0].share is None

    @property
    def request_rate(self) -> float:
        """Requests/s of all streams that have a rate; inf where there are shares."""
        rated = (each.request_rate for each in self.classes if each.request_rate is not None)
        return sum(rated) if self.by_rate else math.inf

    @property
    def alone(self) -> bool:
        """Whether some class's requests cannot be drawn row by row: `build_classes` makes the table."""
        return any(each.alone for each in self.classes)

    @cached_property
    def sending(self) -> tuple[int, ...]:
        """Places of the classes that send, by name: the order in the file makes no difference."""
        found = [place for place, each in enumerate(self.classes) if each.weight > 0]
        return tuple(sorted(found, key=lambda place: self.classes[place].name))

    def scaled(self, request_rate: float) -> Mix:
        """The same streams at another rate of all together."""
        factor = request_rate / self.request_rate
        return Mix(tuple(replace(each, request_rate=each.weight * factor) for each in self.classes))


@dataclass(frozen=True)
class _Drawn:
    """What was drawn of successive rows: arrival, class, uniforms of prompt, output and group of prefixes."""

    arrival_s: FloatArray
    class_id: IntArray
    prompt: FloatArray
    output: FloatArray
    group: FloatArray


class SharedRows:
    """Rows of a mix by share, in portions.

    Args:
        mix: the classes.
        seed: of the random numbers.
    """

    def __init__(self, mix: Mix, seed: int) -> None:
        self.mix = mix
        purposes = (Purpose.PROMPT, Purpose.OUTPUT, Purpose.TRAFFIC_CLASS, Purpose.PREFIX)
        self._draws = {purpose: stream(seed, purpose) for purpose in purposes}

    def take(self, rows: IntArray, arrival_s: FloatArray) -> RequestTable:
        """The requests of successive rows, which arrive at these times."""
        mix, n = self.mix, len(rows)
        u, v, which, group = (
            self._draws[purpose].random(n)
            for purpose in (Purpose.PROMPT, Purpose.OUTPUT, Purpose.TRAFFIC_CLASS, Purpose.PREFIX)
        )
        bounds = np.cumsum([mix.classes[place].weight for place in mix.sending])
        chosen = np.searchsorted(bounds / bounds[-1], which, side="right")
        class_id = np.array(mix.sending, dtype=np.int64)[chosen]
        return _table(mix, rows, _Drawn(arrival_s, class_id, u, v, group), None)


@dataclass
class _Stream:
    """One class's own random numbers, and its arrivals drawn ahead."""

    place: int
    spec: TrafficClass
    seed: int
    elapsed: float = 0.0
    taken: int = 0
    ahead: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        purposes = (Purpose.ARRIVAL, Purpose.PROMPT, Purpose.OUTPUT, Purpose.PREFIX)
        self.draws = {purpose: stream(self.seed, purpose, self.spec.name) for purpose in purposes}

    def draw(self) -> None:
        """Draws more arrivals."""
        shape = self.spec.burstiness
        even, count = math.isinf(shape), max(_GAPS, len(self.ahead))
        gaps = np.ones(count) if even else self.draws[Purpose.ARRIVAL].standard_gamma(shape, size=count)
        steps = np.cumsum(np.concatenate([[self.elapsed], gaps]))[1:]
        self.elapsed = float(steps[-1])
        mean = 1.0 if even else shape
        self.ahead = np.concatenate([self.ahead, steps / (mean * self.spec.weight)])


class MergedRows:
    """Rows of a mix by rate, in portions: the streams of the classes merged in the order of time.

    Unlike `open_loop` nothing is stretched to end at n / rate, or the arrivals of a class would depend on how
    many requests there are, and so on the others.

    Args:
        mix: the classes.
        seed: of the random numbers.
    """

    def __init__(self, mix: Mix, seed: int) -> None:
        self.mix = mix
        self._streams = [_Stream(place, mix.classes[place], seed) for place in mix.sending]

    def take(self, rows: IntArray) -> RequestTable:
        """The requests of successive rows."""
        n = len(rows)
        times, owners = self._next(n)
        order = np.lexsort((owners, times))[:n]
        times, owners = times[order], owners[order]
        u, v, group = np.empty(n), np.empty(n), np.empty(n)
        luck = np.empty(n, dtype=np.int64)
        for number, one in enumerate(self._streams):
            mine = np.flatnonzero(owners == number)
            for column, purpose in ((u, Purpose.PROMPT), (v, Purpose.OUTPUT), (group, Purpose.PREFIX)):
                column[mine] = one.draws[purpose].random(len(mine))
            luck[mine] = (class_key(one.spec.name) << 32) + one.taken + np.arange(len(mine))
            one.taken += len(mine)
            one.ahead = one.ahead[len(mine) :]
        class_id = np.array([one.place for one in self._streams], dtype=np.int64)[owners]
        return _table(self.mix, rows, _Drawn(times, class_id, u, v, group), luck)

    def _next(self, n: int) -> tuple[FloatArray, IntArray]:
        """Times and streams of at least the next n arrivals, unordered."""
        while True:
            until = min((float(one.ahead[-1]) if len(one.ahead) else -1.0) for one in self._streams)
            if sum(int((one.ahead <= until).sum()) for one in self._streams) >= n:
                break
            min(self._streams, key=lambda one: one.ahead[-1] if len(one.ahead) else -1.0).draw()
        near = [one.ahead[one.ahead <= until] for one in self._streams]
        owners = [np.full(len(times), number, dtype=np.int64) for number, times in enumerate(near)]
        return np.concatenate(near), np.concatenate(owners)


def portions(
    mix: Mix, seed: int, n: int, size: int, arrivals: Iterator[FloatArray]
) -> Iterator[RequestTable]:
    """Yields successive rows of a mix, `size` at a time.

    Args:
        mix: the classes.
        seed: of the random numbers.
        n: rows.
        size: of a portion.
        arrivals: of the rows, portion by portion, where there are shares; else not asked.
    """
    merged, shared = MergedRows(mix, seed), SharedRows(mix, seed)
    for low in range(0, n, size):
        rows = np.arange(low, min(low + size, n), dtype=np.int64)
        yield merged.take(rows) if mix.by_rate else shared.take(rows, next(arrivals))


def _table(mix: Mix, rows: IntArray, drawn: _Drawn, luck: IntArray | None) -> RequestTable:
    """The requests of some rows, class by class."""
    n = len(rows)
    prompt, output, most = (np.zeros(n, dtype=np.int64) for _ in range(3))
    temperature, priority = np.zeros(n), np.zeros(n, dtype=np.int64)
    for place in mix.sending:
        each, mine = mix.classes[place], np.flatnonzero(drawn.class_id == place)
        prompt[mine], output[mine] = each.lengths(drawn.prompt[mine], drawn.output[mine])
        most[mine] = output[mine] if each.ignore_eos else each.most_output
        temperature[mine], priority[mine] = each.temperature, each.priority
    prefix, stream_of = _prefixes(mix, drawn.class_id, drawn.group)
    segments = _segments(prompt, rows, prefix, stream_of) if prefix.any() else None
    return RequestTable.of(
        prompt + prefix,
        output,
        arrival_s=drawn.arrival_s,
        max_tokens=most,
        class_id=drawn.class_id,
        temperature=temperature,
        priority=priority,
        class_names=[each.name for each in mix.classes],
        luck_id=luck,
        segments=segments,
    )


def _prefixes(mix: Mix, class_id: IntArray, group: FloatArray) -> tuple[IntArray, IntArray]:
    """Tokens of each row's shared prefix and its stream; no two classes share one."""
    tokens, streams = np.zeros(len(class_id), dtype=np.int64), np.zeros(len(class_id), dtype=np.int64)
    before = 0
    for place in mix.sending:
        each, mine = mix.classes[place], np.flatnonzero(class_id == place)
        tokens[mine] = each.prefix_tokens
        streams[mine] = -1 - before - np.floor(group[mine] * each.prefix_groups).astype(np.int64)
        before += each.prefix_groups if each.prefix_tokens else 0
    return tokens, streams


def _segments(
    prompt: IntArray, rows: IntArray, prefix: IntArray, streams: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """(offset, stream, tokens): a shared prefix where a row has one, and its private rest."""
    stream_of = np.stack([streams, rows], axis=1).ravel()
    tokens = np.stack([prefix, prompt], axis=1).ravel()
    kept = tokens > 0
    offset = np.concatenate(([0], np.cumsum(kept.reshape(-1, 2).sum(axis=1)))).astype(np.int64)
    return offset, stream_of[kept], tokens[kept]


def mixed(classes: Sequence[TrafficClass], of: str) -> LengthDistribution:
    """The law of `input`, prefixes included, or `output` lengths of all classes together."""
    laws = tuple(
        (each.weight, getattr(each, of), each.prefix_tokens if of == "input" else 0)
        for each in classes
        if each.weight > 0
    )
    return Mixed(laws)
