"""A rule about own constants: no step that the engine can make may beat the GPU's datasheet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.point.build import placement, pool
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.hardware.leastwork import LeastWork
from specfleet.hardware.pipeline.cost import kernel_cost
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import TERMS, StepShape, prefill_pairs, shape_fields

I64 = npt.NDArray[np.int64]


def datasheet_conflicts(serve: Serve) -> Iterator[Conflict]:
    """Kernels that move more bytes or compute more FLOP a second than the GPU can: a run would break a law.

    Asked where an engine profile takes less than the whole of every kernel's time, or a GPU has rates of its
    own; the prices of the catalogue are held against its datasheets by tests.
    """
    if serve.cost_model != "kernels":
        return
    place = placement(serve)
    scale = place.profile.kernel_time_scale
    if scale >= 1.0 and isinstance(serve.gpu, str):
        return
    longest, tokens = serve.max_model_len or 1, pool(serve).tokens
    share, what, batch, context = _closest(place, longest, tokens)
    if share <= 1.0:
        return
    step = (
        f"a step of {batch} sequences with {context} tokens each"
        if batch
        else f"a prompt of {context} tokens"
    )
    gpu = place.accelerator.name
    said = f"{step} takes {1 / share:.2f} of the time that the datasheet of {gpu} gives its {what}"
    if scale >= 1.0:
        yield Conflict.at(f"{said}; name the constants that belong to these rates", "serve.gpu")
        return
    scales = (hundredths / 100 for hundredths in range(int(100 * scale) + 1, 101))
    least = next((s for s in scales if _closest(_scaled(place, s), longest, tokens)[0] <= 1.0), 1.0)
    message = f"kernel_time_scale: {scale:g} is too small: {said}; use at least {least:.2f}"
    yield Conflict.at(message, "serve.engine")


def _scaled(place: Placement, scale: float) -> Placement:
    """A placement whose kernels take so much of their time."""
    return replace(place, profile=replace(place.profile, kernel_time_scale=scale))


@lru_cache(maxsize=512)
def _closest(place: Placement, longest: int, tokens: int) -> tuple[float, str, int, int]:
    """Returns the largest share of the datasheet's rates among the corners of what a step can be.

    With it what is moved or computed at that rate, the sequences of that step (0: a prompt) and the tokens of
    each.

    Args:
        place: model, GPU and engine.
        longest: tokens of a sequence.
        tokens: that the KV pool holds.
    """
    corners = []
    widest = max(min(place.max_num_seqs, place.largest_step // (1 + _drafts(place))), 1)
    for batch in sorted({min(b, widest) for b in (1, 8, 64, widest)}):
        most = max(min(longest, tokens // batch), 1)
        corners += [(batch, context) for context in sorted({1, -(-most // 2), most})]
    chunk = min(place.max_num_batched_tokens, longest)
    decodes, prompt = _columns(place, corners), _prompt(chunk)
    columns = {key: np.concatenate([decodes[key], prompt[key]]) for key in decodes}
    terms = kernel_cost(place).terms(columns)
    seconds = sum(np.asarray(terms[term], dtype=np.float64) for term in TERMS)
    least = LeastWork(place)
    found = []
    for what, work in (("bytes", least.bytes_s(columns)), ("FLOP", least.flop_s(columns))):
        at = int(np.argmax(work / seconds))
        batch, context = corners[at] if at < len(corners) else (0, chunk)
        found.append((float((work / seconds)[at]), what, batch, context))
    return max(found)


def _drafts(place: Placement) -> int:
    """Drafts of a sequence that a step has room for."""
    return min(place.num_speculative_tokens, place.largest_step - 1)


def _columns(place: Placement, corners: list[tuple[int, int]]) -> dict[str, I64]:
    """Steps in which so many sequences decode behind so many tokens."""
    batch, context = np.array(corners, dtype=np.int64).T
    k, none = _drafts(place), np.zeros(len(corners), dtype=np.int64)
    seen = np.minimum(context, place.model.sliding_window or context)
    passes = none + (len(place.draft_pass_tokens) or k if place.drafter is not None else 0)
    fields = shape_fields(batch, batch * k, batch * context, batch * seen, none, none, none, passes)
    return dict(zip(StepShape._fields, map(np.asarray, fields), strict=True))


def _prompt(chunk: int) -> dict[str, I64]:
    """A step that is a prompt and nothing else."""
    none, one = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    pairs = np.array([prefill_pairs(chunk, 0)], dtype=np.int64)
    fields = shape_fields(none, none, none, none, one, chunk * one, pairs, none)
    return dict(zip(StepShape._fields, map(np.asarray, fields), strict=True))
