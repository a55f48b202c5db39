"""The `workload.sessions:` block: requests that are turns of conversations and agent loops."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from specfleet.experiments.schema.blocks.base import Block, Fraction, Tokens, fixed_number
from specfleet.experiments.schema.blocks.lengths import Lengths

Seconds: TypeAlias = Annotated[float, Field(ge=0, le=1e7)]
SomeSeconds: TypeAlias = Annotated[float, Field(gt=0, le=1e7)]


class UniformPause(Block):
    """Pauses spread evenly."""

    low: Seconds
    """Seconds, the least."""
    high: Seconds
    """Seconds, the most."""


class LogNormalPause(Block):
    """Pauses whose logarithm is normal, cut at the long end."""

    median: SomeSeconds
    """Seconds that half of the pauses stay below."""
    sigma: Annotated[float, Field(gt=0, le=50)]
    """Standard deviation of the natural logarithm."""
    max: SomeSeconds
    """Seconds, the most."""


class Pause(Block):
    """A distribution of pauses in seconds: exactly one of the five; a number alone is `fixed`."""

    fixed: Seconds | None = None
    """All alike."""
    uniform: UniformPause | None = None
    exponential: SomeSeconds | None = None
    """The mean of pauses without memory."""
    lognormal: LogNormalPause | None = None
    quantiles: Annotated[tuple[tuple[float, Seconds], ...], Field(min_length=2)] | None = None
    """[percentile, seconds] pairs from percentile 0 to 100, linear in between."""

    _number = model_validator(mode="before")(fixed_number)


class SystemPrompt(Block):
    """Tokens in front of every prompt of a session."""

    tokens: Tokens
    """Length of a system prompt."""
    pools: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Different system prompts; a session has one of them."""


class Cut(Block):
    """When a context is cut, and to what."""

    above_tokens: Tokens
    """A prompt that would have more tokens, system prompt included, is cut before it is sent."""
    to_tokens: Tokens
    """What `trim` leaves of the prompt at most, by dropping the oldest turns whole; the summary that
    `compact` puts in place of the context."""


class ContextCut(Block):
    """How a context is kept short: exactly one of the two."""

    trim: Cut | None = None
    """The oldest turns are dropped; only the system prompt is found in a cache then."""
    compact: Cut | None = None
    """A request of its own reads the context and writes a summary, which takes its place."""


def _text_or_mapping(value: object) -> str:
    """Which of the two forms a value has."""
    return "<mapping>" if isinstance(value, dict | ContextCut) else "<text>"


def _accumulate(value: object) -> object:
    """Refuses other words with what is to be written."""
    if value != "accumulate":
        said = "must be accumulate, or {trim: ..} or {compact: ..} with above_tokens and to_tokens"
        raise PydanticCustomError("context", "{said}", {"said": said})
    return value


_Accumulate: TypeAlias = Annotated[Literal["accumulate"], BeforeValidator(_accumulate)]
Context: TypeAlias = Annotated[
    Annotated[_Accumulate, Tag("<text>")] | Annotated[ContextCut, Tag("<mapping>")],
    Discriminator(_text_or_mapping),
]


class Tools(Block):
    """Tools of an agent: an answer may call one, and the next turn brings what it gave."""

    probability: Fraction
    """Share of the answers, but the last of a session, that call a tool; after others a person goes on."""
    pause_s: Pause
    """Seconds from the answer to the tool's result."""
    result: Lengths
    """Tokens of a result; `workload.input` is what a person adds."""
    call: Lengths | None = None
    """Tokens of an answer that calls a tool; `workload.output` if left out."""


def _none(value: object) -> object:
    """Refuses other words with what is to be written."""
    if value != "none":
        said = "must be none, for single requests, or a mapping with turns and think_time_s"
        raise PydanticCustomError("sessions", "{said}", {"said": said})
    return value


def _word_or_mapping(value: object) -> str:
    """Which of the two forms a value has."""
    return "<mapping>" if isinstance(value, dict | Sessions) else "<text>"


class Sessions(Block):
    """Requests are turns of sessions: each comes a pause after the answer to the one before, and its prompt
    is that one's with the answer and something new behind it. `workload.input` is what a turn adds,
    `workload.output` its answer; `max_concurrency` counts sessions under way, and sessions begin so often
    that `request_rate` turns come a second."""

    turns: Lengths
    """Turns of a session, a distribution as of lengths."""
    think_time_s: Pause
    """Seconds from an answer to the next turn of a person."""
    first_input: Lengths | None = None
    """New tokens of a session's first turn; `workload.input` if left out."""
    context: Context = "accumulate"
    """`accumulate`: it grows; or how it is cut."""
    system_prompt: SystemPrompt | None = None
    tool: Tools | None = None
    """An agent's loop; without it every turn is a person's."""
    reasoning_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of every answer that is reasoning, which later prompts leave out; the rest of the answer is
    computed again then, for it stands elsewhere."""
    on_full: Literal["error", "end"] = "error"
    """What happens where a turn would exceed serve.max_model_len: the file is refused if one can, or the
    session ends before it."""


_NoSessions: TypeAlias = Annotated[Literal["none"], BeforeValidator(_none)]
SessionsOfClass: TypeAlias = Annotated[
    Annotated[_NoSessions, Tag("<text>")] | Annotated[Sessions, Tag("<mapping>")],
    Discriminator(_word_or_mapping),
]
"""Those of a class of a mix; `none` where the workload has some, and this class has single requests."""
