"""How a trace is read: which rows, on which clock, and what is done with odd ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from specfleet.workloads.traces.rows import UNITS

ON_RESET = ("error", "append", "sort")
ON_ZERO = ("drop", "clip1", "error")
TIES = ("keep", "spread")
TURNS = ("arrivals", "after_answer")
CONTEXT = ("recorded", "accumulate")
FIELDS = (
    "arrival_s",
    "input_tokens",
    "output_tokens",
    "session",
    "turn",
    "think_s",
    "end_s",
    "duration_s",
    "traffic_class",
    "hash_ids",
)
"""What a column can be mapped to."""


@dataclass(frozen=True)
class ReadOptions:
    """What is asked of a reader.

    Args:
        speed: 2 halves every gap.
        rate_scale: below 1 keeps each request with this probability (thinned); above 1 adds copies of the
            trace, each turned round in time by a random part of its span, the last one thinned (superposed).
            Where turns wait for answers, sessions are kept, left out and moved whole.
        limit: rows to keep, from the start.
        window: recorded seconds from the first usable row; start <= t < end is kept.
        max_tokens: the cap each request states; by default the largest output kept.
        on_reset: a clock that steps back by 1 s or more: `error`, `append` (what follows was recorded after
            what stands before) or `sort`.
        on_zero: requests with 0 prompt or output tokens: `drop`, `clip1` (taken as 1) or `error`.
        ties: requests with one time stamp: `keep`, or `spread` over the clock's step.
        where: column -> value; rows with another one are dropped.
        columns: field of `FIELDS` -> column or key of the file, for `columns` alone.
        time_unit: of `UNITS`, where the format does not say.
        block_size: tokens of a block of `hash_ids`, where the format does not say.
        turns: when requests of a session come: `arrivals`, each when it came; `after_answer`, each when the
            one before it is answered and its pause is over.
        pause_s: seconds of pauses that are not recorded; None refuses a file that lacks some.
        context: what a turn's prompt shares with the turn before: `recorded`, what `hash_ids` say;
            `accumulate`, prompt and answer, where it is as long as both.
        characters_per_token: where a file holds text; None refuses such a file.
    """

    speed: float = 1.0
    rate_scale: float = 1.0
    limit: int | None = None
    window: tuple[float, float] | None = None
    max_tokens: int | None = None
    on_reset: str = "error"
    on_zero: str = "drop"
    ties: str = "keep"
    where: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    block_size: int | None = None
    characters_per_token: float | None = None
    turns: str = "arrivals"
    pause_s: float | None = None
    context: str = "recorded"

    def __post_init__(self) -> None:
        """ValueError for options out of range."""
        for name in ("speed", "rate_scale"):
            if not 0 < getattr(self, name) < math.inf:
                said = "2 halves every gap" if name == "speed" else "2 doubles the requests"
                raise ValueError(f"{name} must be a positive number ({said}), got {getattr(self, name)}")
        if self.rate_scale > 1000:
            raise ValueError(f"rate_scale must be at most 1000, got {self.rate_scale}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1 row, got {self.limit}")
        window = self.window
        if window is not None and not 0 <= window[0] < window[1]:
            raise ValueError(f"window must be (start, end) in seconds with 0 <= start < end, got {window}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if self.block_size is not None and self.block_size < 1:
            raise ValueError(f"block_size must be at least 1 token, got {self.block_size}")
        ratio = self.characters_per_token
        if ratio is not None and not 0.1 <= ratio <= 100:
            raise ValueError(f"characters_per_token must be between 0.1 and 100, got {ratio}")
        if self.pause_s is not None and not 0 <= self.pause_s < math.inf:
            raise ValueError(f"pause_s must be 0 or more seconds, got {self.pause_s}")
        self._check_words()

    def _check_words(self) -> None:
        """ValueError for a word that is none of those known."""
        words = (
            ("on_reset", ON_RESET),
            ("on_zero", ON_ZERO),
            ("ties", TIES),
            ("turns", TURNS),
            ("context", CONTEXT),
        )
        if self.turns == "arrivals":
            for name in ("pause_s", "context"):
                if getattr(self, name) != ReadOptions.__dataclass_fields__[name].default:
                    raise ValueError(f"{name} is of turns that wait for answers; add turns: after_answer")
        for name, known in words:
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.time_unit is not None and self.time_unit not in UNITS:
            raise ValueError(f"time_unit must be one of {', '.join(UNITS)}, got {self.time_unit!r}")
        for name in self.columns:
            if name not in FIELDS:
                raise ValueError(f"columns: {name!r} is no field; use {', '.join(FIELDS)}")
