"""What a sequence holds of a pool that layers of several kinds share, in slots of the layers that grow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Slots beyond one a token, where not every layer keeps every token.

    A slot is what the layers that keep everything hold of one token. `window_per_1024` slots for 1,024 tokens
    are held besides by layers that keep `window_tokens` at most, `sequence_slots` by those with a state,
    whatever the length.
    """

    window_tokens: int = 0
    window_per_1024: int = 0
    sequence_slots: int = 0

    def __post_init__(self) -> None:
        """Reject what no layer holds."""
        if min(self.window_tokens, self.window_per_1024, self.sequence_slots) < 0:
            raise ValueError(
                "kv_layout: window_tokens, window_per_1024 and sequence_slots cannot be negative"
            )

    def held(self, tokens: int) -> int:
        """Returns the slots that a sequence of so many tokens holds."""
        within = tokens if tokens < self.window_tokens else self.window_tokens
        return tokens + (self.window_per_1024 * within >> 10) + self.sequence_slots

    def held_each(self, tokens: I64) -> I64:
        """As `held`, for many."""
        within = np.minimum(tokens, self.window_tokens)
        return tokens + (self.window_per_1024 * within >> 10) + self.sequence_slots

    def growth(self, tokens: int) -> int:
        """Returns the most slots that so many further tokens can take."""
        return tokens + (self.window_per_1024 * tokens >> 10) + 1
