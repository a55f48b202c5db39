"""`RequestTable`: every request of a run, one row each, as immutable numpy columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]

_Number = TypeVar("_Number", np.int64, np.float64)

FLOAT_COLUMNS = ("arrival_s", "temperature", "think_s")
SEGMENT_COLUMNS = ("segment_offset", "segment_stream", "segment_tokens")
SESSION_COLUMNS = ("think_s", "output_stream")
"""Columns that only sessions have."""


def _floats(name: str, values: npt.ArrayLike) -> FloatArray:
    """A read-only 1-D copy of `values` as floats."""
    column = np.array(values, dtype=np.float64)
    if column.ndim != 1:
        raise ValueError(f"{name} has {column.ndim} dimensions; give one value a request")
    return _frozen(column)


def _ints(name: str, values: npt.ArrayLike) -> IntArray:
    """A read-only 1-D copy of `values` as integers; fractions are refused rather than cut."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} has {array.ndim} dimensions; give one value a request")
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} holds {array.dtype} values; give whole numbers")
    return _frozen(array.astype(np.int64))


def _frozen(column: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """`column`, read-only; one number in memory where all are alike, bit by bit, as most columns are."""
    bits = column.view(np.int64)
    if len(column) > 1 and bits[0] == bits[-1] and (bits == bits[0]).all():
        return np.broadcast_to(column[:1].copy(), column.shape)
    column.setflags(write=False)
    return column


@dataclass(frozen=True, eq=False)
class RequestTable:
    """The requests of a run; the row number is the request id everywhere, and the key of its luck but for
    `luck_id`.

    Columns (shape `(n,)`): `arrival_s` seconds from the start of the run; `prompt_tokens`;
    `output_tokens`, what the model will write; `max_tokens`, the cap the request states
    (`output_tokens < max_tokens` means it ends by a stop token nobody knows ahead);
    `class_id`, an index into `class_names`; `priority` (lower runs first, as in vLLM); `temperature`;
    `session_id` and `turn` (row number and 0 for single requests).

    A prompt may be given as segments: row i is the concatenation of segments
    `segment_offset[i]:segment_offset[i + 1]`, each the first `segment_tokens` tokens of
    `segment_stream`. Equal (stream, position) is the same token, so two prompts share a prefix exactly as
    far as their segments say. Streams >= 0 are private (stream i belongs to row i), negative ones are
    shared. All three None: row i is the first `prompt_tokens[i]` tokens of its private stream i.

    With `think_s`, rows of one `session_id` are a session: they stand one behind the other, `turn` counts
    from 0, and a turn after the first is due `think_s` seconds after the client has the answer before it;
    its `arrival_s` says when its session begins. A first turn that had to wait for a user is sent `think_s`
    after that user is free. Without it, requests come at `arrival_s`. `output_stream`
    names the stream of a row's output: where its prompt ends in that stream, the output continues it there,
    and else begins it. None: nobody can ask for an output.
    `luck_id`, where it is given, is the key of a row's luck in place of its number, so that a request of one
    traffic class has the same luck whoever else is there.

    The constructor copies and freezes the columns and raises ValueError for a column that is not 1-D or not
    whole numbers; `validate` checks the values.
    """

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    max_tokens: IntArray
    class_id: IntArray
    priority: IntArray
    temperature: FloatArray
    session_id: IntArray
    turn: IntArray
    segment_offset: IntArray | None = None
    segment_stream: IntArray | None = None
    segment_tokens: IntArray | None = None
    class_names: tuple[str, ...] = ("default",)
    think_s: FloatArray | None = None
    output_stream: IntArray | None = None
    luck_id: IntArray | None = None

    def __post_init__(self) -> None:
        """Copy and freeze the columns."""
        for name in (*self.column_names(), *SEGMENT_COLUMNS, *SESSION_COLUMNS, "luck_id"):
            values = getattr(self, name)
            if values is not None:
                freeze = _floats if name in FLOAT_COLUMNS else _ints
                object.__setattr__(self, name, freeze(name, values))
        object.__setattr__(self, "class_names", tuple(self.class_names))

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """Names of the per-request columns that every table has, in order."""
        skipped = (*SEGMENT_COLUMNS, *SESSION_COLUMNS, "class_names", "luck_id")
        return tuple(field.name for field in fields(cls) if field.name not in skipped)

    @classmethod
    def of(
        cls,
        prompt_tokens: npt.ArrayLike,
        output_tokens: npt.ArrayLike,
        *,
        arrival_s: npt.ArrayLike | None = None,
        max_tokens: npt.ArrayLike | None = None,
        class_id: npt.ArrayLike | None = None,
        temperature: float | npt.ArrayLike = 0.0,
        priority: npt.ArrayLike | None = None,
        class_names: Sequence[str] = ("default",),
        luck_id: npt.ArrayLike | None = None,
        segments: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike] | None = None,
    ) -> RequestTable:
        """A validated table of single requests from the columns that matter; the others get neutral values.

        Left out: `arrival_s` is all zeros, `max_tokens` the output length (every request ends by length),
        `class_id` and `priority` 0. `segments` is (offset, stream, tokens). Raises ValueError as `validate`.
        """
        prompt = np.asarray(prompt_tokens)
        rows = len(prompt)
        zeros = np.zeros(rows, dtype=np.int64)
        offset, stream, tokens = segments if segments is not None else (None, None, None)
        table = cls(
            arrival_s=zeros if arrival_s is None else arrival_s,  # type: ignore[arg-type] # frozen by the constructor
            prompt_tokens=prompt,
            output_tokens=output_tokens,  # type: ignore[arg-type]
            max_tokens=output_tokens if max_tokens is None else max_tokens,  # type: ignore[arg-type]
            class_id=zeros if class_id is None else class_id,  # type: ignore[arg-type]
            priority=zeros if priority is None else priority,  # type: ignore[arg-type]
            temperature=np.broadcast_to(np.asarray(temperature, dtype=np.float64), (rows,)),
            session_id=np.arange(rows, dtype=np.int64),
            turn=zeros,
            segment_offset=None if offset is None else _ints("segment_offset", offset),
            segment_stream=None if stream is None else _ints("segment_stream", stream),
            segment_tokens=None if tokens is None else _ints("segment_tokens", tokens),
            class_names=tuple(class_names),
            luck_id=None if luck_id is None else _ints("luck_id", luck_id),
        )
        table.validate()
        return table

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    @property
    def luck_ids(self) -> IntArray:
        """The key of each row's luck: its number, where nothing else is given."""
        return np.arange(len(self), dtype=np.int64) if self.luck_id is None else self.luck_id

    def _luck_name(self) -> tuple[str, ...]:
        return () if self.luck_id is None else ("luck_id",)

    def lucky(self, rows: IntArray | slice) -> IntArray | None:
        """The keys of the luck of some rows; None where they are row numbers."""
        return None if self.luck_id is None else self.luck_id[rows]

    def head(self, n: int) -> RequestTable:
        """The first `n` requests (all of them if there are fewer), with segments. ValueError if n < 0."""
        if n < 0:
            raise ValueError(f"head({n}): give a number of requests >= 0")
        names = (*self.column_names(), *self._session_names())
        columns = {name: getattr(self, name)[:n] for name in names}
        columns["luck_id"] = self.lucky(slice(n))
        if self.segment_offset is None or self.segment_stream is None or self.segment_tokens is None:
            return RequestTable(**columns, class_names=self.class_names)
        offset = self.segment_offset[: min(n, len(self)) + 1]
        return RequestTable(
            **columns,
            segment_offset=offset,
            segment_stream=self.segment_stream[: offset[-1]],
            segment_tokens=self.segment_tokens[: offset[-1]],
            class_names=self.class_names,
        )

    def taken(self, rows: IntArray) -> RequestTable:
        """Some requests in rising order of row, as single ones, with what their prompts share.

        A private stream goes with its request.
        """
        columns = {name: getattr(self, name)[rows] for name in self.column_names()}
        columns["luck_id"] = self.lucky(rows)
        columns["session_id"] = np.arange(len(rows), dtype=np.int64)
        columns["turn"] = np.zeros(len(rows), dtype=np.int64)
        if self.segment_offset is None or self.segment_stream is None or self.segment_tokens is None:
            return RequestTable(**columns, class_names=self.class_names)
        pieces = np.diff(self.segment_offset)[rows]
        offset = np.concatenate(([0], np.cumsum(pieces)))
        owner = np.repeat(np.arange(len(rows)), pieces)
        place = self.segment_offset[rows][owner] + np.arange(offset[-1]) - offset[owner]
        stream = self.segment_stream[place]
        return RequestTable(
            **columns,
            segment_offset=offset,
            segment_stream=np.where(stream < 0, stream, owner),
            segment_tokens=self.segment_tokens[place],
            class_names=self.class_names,
        )

    def _session_names(self) -> tuple[str, ...]:
        """Names of the columns of sessions that it has."""
        return tuple(name for name in SESSION_COLUMNS if getattr(self, name) is not None)

    @property
    def follows(self) -> npt.NDArray[np.bool_] | None:
        """Which rows wait for the answer to the row before; None where requests come at `arrival_s`."""
        return None if self.think_s is None else self.turn > 0

    @property
    def new_tokens(self) -> IntArray:
        """Prompt tokens that no turn before has had, in prompt or answer; all of them without sessions."""
        if self.think_s is None or self.segment_offset is None or self.output_stream is None:
            return self.prompt_tokens
        assert self.segment_stream is not None and self.segment_tokens is not None
        last = self.segment_offset[1:] - 1
        stream, own = self.segment_stream[last], self.segment_tokens[last]
        known = own + np.where(self.output_stream == stream, self.output_tokens, 0)
        goes_on = (self.turn[1:] > 0) & (stream[1:] == stream[:-1])
        new = self.prompt_tokens.copy()
        new[1:][goes_on] -= (self.prompt_tokens - own)[1:][goes_on] + known[:-1][goes_on]
        return new

    def validate(self) -> None:
        """Raise ValueError listing every fault of the table; return quietly when there is none."""
        faults = self._shape_faults()
        if not faults:
            faults = [*self._value_faults(), *self._session_faults(), *self._segment_faults()]
        if faults:
            raise ValueError("the request table is not usable:\n  " + "\n  ".join(faults))

    def _shape_faults(self) -> list[str]:
        """Columns whose length differs from `arrival_s`, and half-given segments."""
        rows = len(self)
        faults = [
            f"{name} has {len(getattr(self, name))} rows, arrival_s has {rows}"
            for name in (*self.column_names(), *self._session_names(), *self._luck_name())
            if len(getattr(self, name)) != rows
        ]
        missing = [name for name in SEGMENT_COLUMNS if getattr(self, name) is None]
        if missing and len(missing) < len(SEGMENT_COLUMNS):
            faults.append(
                f"prompts are given as segments but {', '.join(missing)} is missing; give all or none"
            )
        return faults

    def _value_faults(self) -> list[str]:
        """Faults of single values and of the order of arrivals."""
        backwards = np.concatenate(([False], np.diff(self.arrival_s) < 0)) if len(self) else np.zeros(0, bool)
        over = self.output_tokens > self.max_tokens
        unknown = (self.class_id < 0) | (self.class_id >= len(self.class_names))
        checks = (
            (~np.isfinite(self.arrival_s), "arrival_s is not a finite number"),
            (self.arrival_s < 0, "arrival_s is negative; times count from the start of the run"),
            (backwards, "arrival_s is earlier than in the row before; sort the requests by arrival"),
            (self.prompt_tokens < 1, "prompt_tokens is below 1"),
            (self.output_tokens < 1, "output_tokens is below 1"),
            (over, "output_tokens is above max_tokens; no engine writes past the cap"),
            (unknown, f"class_id has no name among {list(self.class_names)}"),
            (~(self.temperature >= 0), "temperature is negative or not a number"),
        )
        return [_fault(bad, text) for bad, text in checks if bad.any()]

    def _session_faults(self) -> list[str]:
        """Faults of the order and the pauses of turns, empty where requests are no sessions."""
        if self.think_s is None:
            return []
        before = np.concatenate(([-1], self.turn[:-1]))[: len(self)]
        other = np.concatenate(([True], np.diff(self.session_id) != 0))[: len(self)]
        later = self.turn > 0
        moved = np.concatenate(([False], np.diff(self.arrival_s) != 0))[: len(self)]
        checks = (
            (~(self.think_s >= 0) | np.isinf(self.think_s), "think_s is negative or not a finite number"),
            (
                later & (other | (before != self.turn - 1)),
                "turn does not follow the turn before it; put the turns of a session one behind the other",
            ),
            (later & moved, "arrival_s of a turn after the first is not that of its session's first turn"),
            (self.turn < 0, "turn is negative"),
        )
        return [_fault(bad, text) for bad, text in checks if bad.any()]

    def _segment_faults(self) -> list[str]:
        """Faults of the segment columns, empty without segments."""
        if self.segment_offset is None or self.segment_stream is None or self.segment_tokens is None:
            return []
        offset, tokens = self.segment_offset, self.segment_tokens
        if len(self.segment_stream) != len(tokens):
            return [f"segment_stream has {len(self.segment_stream)} rows, segment_tokens has {len(tokens)}"]
        if len(offset) != len(self) + 1:
            return [
                f"segment_offset has {len(offset)} rows; give one a request and one more ({len(self) + 1})"
            ]
        if offset[0] != 0 or offset[-1] != len(tokens) or (np.diff(offset) < 0).any():
            return [f"segment_offset must rise from 0 to the number of segments ({len(tokens)})"]
        running = np.concatenate(([0], np.cumsum(tokens)))
        unequal = running[offset[1:]] - running[offset[:-1]] != self.prompt_tokens
        checks = (
            (tokens < 1, "segment_tokens is below 1"),
            (unequal, "the tokens of the segments do not add up to prompt_tokens"),
        )
        return [_fault(bad, text) for bad, text in checks if bad.any()]


def _fault(bad: npt.NDArray[np.bool_], text: str) -> str:
    """One line naming a fault, how often it occurs and the first row (counted from 0) that has it."""
    count = int(bad.sum())
    rows = "row" if count == 1 else f"{count} rows, first"
    return f"{text} ({rows} {int(bad.argmax())})"
