"""The mapping form of `workload.trace`: a file, and how it is read."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from specfleet.experiments.schema.blocks.base import Block, Tokens


class TraceColumns(Block):
    """Which column of a table, or key of an object, is what; `a.b` is a key inside an object."""

    arrival_s: str | None = None
    """When a request came, in `time_unit`; without it, none has a time."""
    input_tokens: str
    """Tokens of the prompt."""
    output_tokens: str
    """Tokens of the output."""
    session: str | None = None
    """Requests with the same value belong together."""
    turn: str | None = None
    """Number of a request in its session; in order of time, if left out."""
    think_s: str | None = None
    """Pause before a request, from the answer before it, in `time_unit` (seconds where that is iso)."""
    end_s: str | None = None
    """When its answer was complete, in `time_unit`: what a pause is counted from where none is stated."""
    duration_s: str | None = None
    """How long it took, from when it came to its answer's end, in place of `end_s`."""
    traffic_class: str | None = None
    """Kinds of requests, for `specfleet trace`."""
    hash_ids: str | None = None
    """Ids of the prompt's blocks, each standing for all before it too; needs `block_size`."""


class TraceReading(Block):
    """A trace file, and how it is read."""

    file: str
    """Relative to the experiment file; CSV, JSON, JSONL or Parquet, gzip too."""
    columns: TraceColumns | None = None
    """For a file of no known format."""
    time_unit: Literal["s", "ms", "us", "ns", "iso"] | None = None
    """Of `columns.arrival_s`: it is never guessed. iso is a date and time of day."""
    block_size: Tokens | None = None
    """Tokens of a block of `columns.hash_ids`, or of a format that has some."""
    characters_per_token: Annotated[float, Field(ge=0.1, le=100)] | None = None
    """For a file that holds text."""
    rate_scale: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    """Below 1 requests are thinned by chance; above 1 copies turned round in time are put on top."""
    window: tuple[float, float] | None = None
    """[start, end) in recorded seconds from the first row."""
    where: Annotated[dict[str, str], Field(min_length=1)] | None = None
    """Column -> value; rows with another one are dropped."""
    on_reset: Literal["error", "append", "sort"] = "error"
    """What to do where the clock goes back by 1 s or more."""
    on_zero: Literal["drop", "clip1", "error"] = "drop"
    """What to do with requests of 0 prompt or output tokens."""
    ties: Literal["keep", "spread"] = "keep"
    """Requests with one time stamp come at once, or are spread over the clock's step."""
    turns: Literal["arrivals", "after_answer"] = "arrivals"
    """When requests of one session come: each when it came, or when the one before it is answered and its
    recorded pause is over."""
    pause_s: Annotated[float, Field(ge=0, le=1e7)] | None = None
    """Seconds before turns whose pause the file does not tell."""
    context: Literal["recorded", "accumulate"] = "recorded"
    """What the prompt of a turn shares with the turn before: what `hash_ids` say, else nothing; or prompt and
    answer, where it is as long as both."""

    def __hash__(self) -> int:
        """Of what it says: a filter is a mapping, which has none."""
        return hash(self.model_dump_json())

    @property
    def asked(self) -> dict[str, object]:
        """What differs from a reader's defaults, by its keywords."""
        given = self.model_dump(exclude={"file"}, exclude_defaults=True)
        if self.columns is not None:
            given["columns"] = {name: value for name, value in self.columns.model_dump().items() if value}
        return given


def _text_or_mapping(value: object) -> str:
    """Which of the two forms a value has."""
    return "<mapping>" if isinstance(value, dict | TraceReading) else "<text>"


Trace: TypeAlias = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[TraceReading, Tag("<mapping>")], Discriminator(_text_or_mapping)
]
