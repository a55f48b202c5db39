"""SGLang's scheduling arithmetic, once: what token counts mean in budgets, KV and estimates.

After SGLang 0.5.23, whose recorded decisions `tests/conformance` replays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from specfleet.sim.config import EngineConfig
from specfleet.sim.rules import I64, NEVER, reaches_max_tokens
from specfleet.sim.sequence import Sequence

Count = TypeVar("Count", int, I64)

CLIP_MAX_NEW_TOKENS = 4096
"""Most output tokens that an estimate counts of one request (`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`)."""
INIT_NEW_TOKEN_RATIO, MIN_NEW_TOKEN_RATIO_FACTOR, NEW_TOKEN_RATIO_DECAY_STEPS = 0.7, 0.14, 600
"""Share of its output that a running request is expected to write, at first; its floor as a factor of that;
decode steps from one to the other (`SGLANG_INIT_NEW_TOKEN_RATIO` and so on)."""
RETRACT_DECODE_STEPS = 20
"""Tokens a request that are made room for when others are retracted (`SGLANG_RETRACT_DECODE_STEPS`)."""
INPUT_MARGIN = 5
"""A prompt must be this much shorter than what fits, tokens."""
IGNORE_EOS_RESERVE_TOKENS = 1
"""Tokens a request that the simulated finish order must leave free."""


class Asker(Protocol):
    """What an admission reads of a request: `Sequence`, or the same numbers from a life drawn ahead."""

    max_tokens: int
    ignore_eos: bool

    @property
    def num_tokens(self) -> int:
        """Tokens known."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """Tokens of the prompt that are computed."""
        ...

    @property
    def num_output_tokens(self) -> int:
        """Output tokens known."""
        ...


@dataclass(slots=True)
class NewTokenRatio:
    """The share of its output that a running request is expected to write.

    Args:
        init: at first, and again when the engine was idle.
        least: it never falls below.
        decay: it falls by so much in a decode step without retraction.
    """

    init: float
    least: float
    decay: float
    now: float = 0.0

    @classmethod
    def of(cls, conservativeness: float) -> NewTokenRatio:
        """Returns that of an engine with this `schedule_conservativeness`."""
        init = min(INIT_NEW_TOKEN_RATIO * conservativeness, 1.0)
        least = min(init * MIN_NEW_TOKEN_RATIO_FACTOR, 1.0)
        return cls(init, least, (init - least) / NEW_TOKEN_RATIO_DECAY_STEPS, init)

    def fall(self) -> None:
        """A decode step found its KV."""
        self.now = max(self.now - self.decay, self.least)

    def reset(self) -> None:
        """The engine is idle."""
        self.now = self.init

    def raise_after_retraction(self, kept: Iterable[Asker]) -> None:
        """Estimates it anew from those who go on running."""
        kept = list(kept)
        written = sum(sequence.num_output_tokens for sequence in kept)
        asked = sum(sequence.max_tokens for sequence in kept)
        self.now = min(1.0, (written + RETRACT_DECODE_STEPS * len(kept)) / (asked + 1))


def reserve_per_decode(page: int, steps: int, topk: int, width: int) -> int:
    """Returns the KV tokens that a request holds past its committed ones in a speculative decode.

    Twice what a step drafts or verifies, with overlap scheduling and without it. A tree on pages of
    more than one token gives each branch pages of its own.

    Args:
        page: tokens a page.
        steps: depth of the draft.
        topk: branches a step.
        width: tokens that the target verifies of a request.
    """
    if page > 1 and topk > 1:
        return 2 * max(-(-(page - 1 + steps) // page) * page * topk, width)
    return 2 * max(steps * topk, width)


@dataclass(frozen=True, slots=True)
class SglangRules:
    """The rules of one engine, as integers.

    Attributes:
        page: tokens a KV page. pool: KV tokens.
        max_running_requests, max_prefill_tokens, chunked_prefill_size: as SGLang's; `NEVER` where chunking
            is off. prefill_max_requests: requests of a prefill batch.
        max_req_len: prompt and output, tokens.
        in_flight: batches in flight when the next one is picked: 1 with overlap, else 0.
        width: tokens that a decode step computes of a request. reserve: as `reserve_per_decode`; 0 plain.
        num_speculative_tokens: drafts of a verified row.
        draft_passes: of the drafter in a decode step.
    """

    page: int
    pool: int
    max_running_requests: int
    max_prefill_tokens: int
    chunked_prefill_size: int
    prefill_max_requests: int
    max_req_len: int
    in_flight: int
    num_speculative_tokens: int
    reserve: int
    draft_passes: int

    @classmethod
    def of(cls, config: EngineConfig) -> SglangRules:
        """Returns the rules of a configuration with an `sglang` part."""
        sglang, speculative = config.sglang, config.speculative
        assert sglang is not None
        page, pool, k = config.block_size, config.usable_tokens, config.num_speculative_tokens
        steps = sglang.speculative_num_steps or k
        chunk, most = sglang.chunked_prefill_size, sglang.prefill_max_requests
        return cls(
            page=page,
            pool=pool,
            max_running_requests=max(min(config.max_num_seqs, pool // 2), 1),
            max_prefill_tokens=sglang.max_prefill_tokens,
            chunked_prefill_size=chunk if chunk > 0 else NEVER,
            prefill_max_requests=most if most is not None else NEVER,
            max_req_len=min(config.max_model_len, pool) - 1,
            in_flight=int(config.async_scheduling),
            num_speculative_tokens=k,
            reserve=reserve_per_decode(page, steps, sglang.speculative_eagle_topk, k + 1) if k else 0,
            draft_passes=speculative.draft_passes if speculative else 0,
        )

    def ceil_page(self, tokens: Count) -> Count:
        """Returns so many tokens in whole pages."""
        return -(-tokens // self.page) * self.page

    def pages(self, tokens: Count) -> Count:
        """Returns the pages of so many tokens."""
        return (tokens + (self.page - 1)) // self.page

    def pages_to_decode(self, committed: Count) -> Count:
        """Returns `tokens_to_decode` in pages."""
        return self.pages(committed + (self.reserve or 1))

    def floor_page(self, tokens: int) -> int:
        """Returns the whole pages among so many tokens."""
        return tokens // self.page * self.page

    @property
    def max_req_input_len(self) -> int:
        """A prompt of so many tokens or more is refused."""
        return self.max_req_len - INPUT_MARGIN

    def refusal(self, prompt: int) -> str | None:
        """Returns why a prompt of so many tokens is refused, or None."""
        if prompt < self.max_req_input_len:
            return None
        return (
            f"the prompt has {prompt} tokens; SGLang takes fewer than {self.max_req_input_len}: "
            f"context_length or the KV pool, less {INPUT_MARGIN + 1}"
        )

    def max_new_tokens(self, prompt: int, asked: int) -> int:
        """Returns the output tokens that a request may have, of those asked for: its KV must fit the pool."""
        fits = min(self.max_req_len - prompt - 1, self.pool - self.ceil_page(prompt) - self.page - 1)
        return max(min(asked, fits), 0)

    def max_new_tokens_each(self, prompt: I64, asked: I64) -> I64:
        """As `max_new_tokens`, for many."""
        fits = np.minimum(self.max_req_len - prompt - 1, self.pool - self.ceil_page(prompt) - self.page - 1)
        return np.maximum(np.minimum(asked, fits), 0)

    def tokens_to_decode(self, committed: Count) -> Count:
        """Returns the KV tokens, in whole pages, that a request holds while it decodes: one more than it has
        committed, or the reserve of a speculative step more. What it held before is never given back."""
        return self.ceil_page(committed + (self.reserve or 1))

    def is_sure_to_end(self, sequence: Sequence) -> bool:
        """Whether the results in flight end a request by its length, so that it gets no further row."""
        return reaches_max_tokens(
            sequence.num_output_tokens, sequence.num_output_placeholders, sequence.max_tokens
        )

    def missing_for_decode(self, committed: int, allocated: int) -> int:
        """Returns the KV tokens that one request's next decode takes, in whole pages."""
        if not self.reserve:
            return self.page if committed % self.page == 0 else 0
        wanted = self.tokens_to_decode(committed)
        return max(wanted - self.ceil_page(allocated), 0)

    def passes(self, planned: int | None, unused: bool) -> int:
        """Returns the drafter's passes after a step.

        Args:
            planned: the most drafts that a policy wants of a row next; None is all.
            unused: the step computes prompts; the drafter runs once, over the same tokens.
        """
        passes = min(self.draft_passes, 1) if unused else self.draft_passes
        return min(passes, max(planned, 1)) if planned is not None else passes


def left_to_write(sequence: Asker) -> int:
    """Returns the output tokens that an estimate counts of a request."""
    return min(max(sequence.max_tokens - sequence.num_output_tokens, 0), CLIP_MAX_NEW_TOKENS)


def expected(sequence: Asker, ratio: float) -> float:
    """Returns the tokens that a running request is expected to write yet; all if it ignores stop tokens."""
    left = min(sequence.max_tokens - sequence.num_output_tokens, CLIP_MAX_NEW_TOKENS)
    return left * (1.0 if sequence.ignore_eos else ratio)


def promised(running: Iterable[Asker], ratio: float) -> float:
    """Returns the KV tokens that running requests are expected to write yet."""
    return sum([expected(sequence, ratio) for sequence in running])
