"""The price of one engine step, from integer totals of its batch.

A step is `layers x (4 GEMM + attention + 3 elementwise + 2 all-reduce) + LM head + drafter + host`. GEMMs see
the scheduled tokens, padded to a CUDA-graph size; attention reads KV once a sequence, whatever it verifies.
Everything that depends on a row count is tabulated once: a price is a few look-ups and multiplications.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.attentioncost import decode_coefficients, prefill_coefficients
from specfleet.hardware.cudagraph import padding
from specfleet.hardware.draftercost import drafter_tables
from specfleet.hardware.forward import Forward, layer_stack, lm_head
from specfleet.hardware.kernels import ATTENTION_QUERY_TILE, Array, PrefillAttention
from specfleet.hardware.placement import Placement

TERMS = ("weights", "kv", "compute", "communication", "launch", "host", "drafter")
"""Parts of a step in the order in which they are added."""


class StepShape(NamedTuple):
    """What a step holds: integers, each a sum over its sequences.

    tokens: all scheduled tokens. decode_sequences: rows that decode or verify; prefill_sequences: rows with a
    prompt chunk. logit_rows: 1 + drafts a decode row, 1 a prefill row. draft_tokens: drafts verified in this
    step. kv_tokens: KV tokens that decode rows read, the new ones included; kv_tokens_in_window: those inside
    the model's sliding window, min(context, window) each. prefill_pairs: causal (query, key) pairs of the
    chunks, `past n + n (n + 1) / 2` each. draft_passes: drafter forwards after this pass.
    """

    tokens: int
    decode_sequences: int
    prefill_sequences: int
    logit_rows: int
    draft_tokens: int
    kv_tokens: int
    kv_tokens_in_window: int
    prefill_pairs: int
    draft_passes: int


Totals = TypeVar("Totals", int, NDArray[Any])


def shape_fields(
    decodes: Totals,
    drafts: Totals,
    kv_tokens: Totals,
    in_window: Totals,
    prompts: Totals,
    chunk: Totals,
    pairs: Totals,
    passes: Totals,
) -> tuple[Totals, ...]:
    """Returns the fields of `StepShape`, for one step or for columns of steps.

    Args:
        decodes, drafts: rows that decode or verify, and the drafts they verify.
        kv_tokens, in_window: that they read.
        prompts, chunk, pairs: rows with a piece of a prompt, their tokens and (query, key) pairs.
        passes: of the drafter.
    """
    rows = decodes + drafts
    return rows + chunk, decodes, prompts, rows + prompts, drafts, kv_tokens, in_window, pairs, passes


def prefill_pairs(tokens: int, past: int) -> int:
    """Returns the (query, key) pairs of a piece of a prompt behind `past` computed tokens."""
    return tokens * past + tokens * (tokens + 1) // 2


def drafter_pass_s(cost: StepCost, most: int, tokens: int) -> float:
    """Returns the seconds of one drafter pass over a prompt of so many tokens, at most `most` in a step."""
    seconds = 0.0
    for past in range(0, tokens, most):
        piece = min(most, tokens - past)
        fields = shape_fields(0, 0, 0, 0, 1, piece, prefill_pairs(piece, past), 1)
        columns = {name: np.array([value]) for name, value in zip(StepShape._fields, fields, strict=True)}
        seconds += float(cost.terms(columns)["drafter"][0])
    return seconds


class StepCost(Protocol):
    """Prices steps. `seconds` is the sum of `terms` in `TERMS` order, to the last bit."""

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        ...

    def terms(self, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, Array]:
        """Seconds by term for many steps; columns are named as the fields of `StepShape`."""
        ...

    def summary(self) -> str:
        """What is priced, in a few lines."""
        ...


MOST_KEPT = 1 << 15
"""Decode steps whose price is kept but for their KV: some 20 MB."""
_Fixed = tuple[float, float, float, float, float, float, float, float, float, float, float]
"""Weights, compute, communication, launch and host of a step, the last of its sequences and compute without
their prefill attention; KV seconds of its sequences and of its queries; queries a sequence, and their price;
the drafter's first pass and the others without sequences; what one pass takes for its sequences."""


class KernelCost:
    """Sum of kernels with measured constants (`cost_model: kernels`)."""

    def __init__(self, placement: Placement) -> None:
        """Tabulate the placement up to its token budget; shapes beyond it raise IndexError."""
        self.placement = placement
        model, tp = placement.model, placement.tensor_parallel_size
        largest = placement.largest_step
        scale = placement.profile.kernel_time_scale
        layers = layer_stack(
            placement, model, tp, placement.quantization, largest, placement.num_speculative_tokens
        ).times(scale)
        head = lm_head(placement, model.vocab_size, model.hidden_size, tp, largest).times(
            scale * placement.ends
        )
        attention = decode_coefficients(placement, model, tp).times(scale)
        self._sequence_s = attention.sequence_s
        self._kv_token_s = attention.kv_token_s
        self._window_token_s = attention.window_token_s
        self._pair_s = attention.pair_s
        self._window_pair_s = attention.window_pair_s
        self._query_token_s = attention.query_token_s
        self._decode_floor_s = attention.floor_s
        self._c_q = placement.c_q
        self._prefill = prefill_coefficients(placement, model, tp).times(scale)
        self._host_s, self._host_request_s = _host(placement)
        self._drafter = drafter_tables(placement)
        self._layers, self._head = layers, head
        self._padded = padding(placement.capture_sizes, largest)
        self._padded_uniform = {
            query - 1: padding(sizes, largest) for query, sizes in placement.uniform_capture_sizes.items()
        }
        self._decodes: dict[tuple[int, ...], _Fixed] = {}

    # single steps read lists, columns of steps read arrays: the lists are made for who prices single steps

    @cached_property
    def _heads(self) -> list[list[float]]:
        return [table.tolist() for table in self._head]

    @cached_property
    def _lists(self) -> list[list[Any]]:
        return [*_by_tokens(self._layers, self._padded), *self._heads]

    @cached_property
    def _uniform_lists(self) -> dict[int, list[list[Any]]]:
        layers = self._layers
        return {k: [*_by_tokens(layers, run), *self._heads] for k, run in self._padded_uniform.items()}

    @cached_property
    def _draft_lists(self) -> list[list[float]]:
        return [table.tolist() for table in self._drafter[:3]] if self._drafter else []

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step: `terms` for a single shape, and their sum."""
        tokens, decode, prefill, rows, drafts, kv_tokens, in_window, pairs, passes = shape
        key = tokens, decode, rows, drafts, passes
        fixed = None if prefill else self._decodes.get(key)
        if fixed is None:
            fixed = self._fixed(tokens, decode, prefill, rows, drafts, passes)
            if not prefill:
                if len(self._decodes) == MOST_KEPT:  # drafts that differ from row to row make ever new ones
                    self._decodes.clear()
                self._decodes[key] = fixed
        weights, compute, communication, launch, host, sequences, queries, asked, shared, ahead, each = fixed
        kv = 0.0
        if decode:
            read = sequences + kv_tokens * self._kv_token_s
            read = read + in_window * self._window_token_s + queries
            arithmetic = kv_tokens * asked * self._pair_s
            arithmetic = arithmetic + in_window * asked * self._window_pair_s
            if arithmetic > read:
                read = arithmetic
            kv = read + (read + self._decode_floor_s) * shared
        if prefill:
            compute = compute + _prefill_s(self._prefill, tokens - decode - drafts, prefill, pairs)
        drafter = self._passes_s(shape, ahead, each) if passes else 0.0
        total: float = weights + kv + compute + communication + launch + host + drafter
        return total

    def padded_tokens(self, shape: StepShape) -> int:
        """Tokens that the target runs for a step, padding included."""
        tokens, decode, prefill, _, drafts = shape[:5]
        run: int = self._tables(decode, prefill, drafts)[0][tokens]
        return run

    def _tables(self, decode: int, prefill: int, drafts: int) -> list[list[Any]]:
        """Padding, layers and LM head by tokens: those of uniform batches, or of all others."""
        if decode and not prefill and not drafts % decode:
            return self._uniform_lists.get(drafts // decode, self._lists)
        return self._lists

    def padded_column(self, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
        """As `padded_tokens`, for many steps."""
        tokens, decode, drafts = columns["tokens"], columns["decode_sequences"], columns["draft_tokens"]
        run = self._padded[tokens]
        alone = (decode > 0) & (columns["prefill_sequences"] == 0)
        for k, padded_uniform in self._padded_uniform.items():
            run = np.where(alone & (drafts == k * decode), padded_uniform[tokens], run)
        return run

    def _passes_s(self, shape: StepShape, ahead: float, each: float) -> float:
        """Returns the drafter's seconds of a step with passes; `ahead`, `each`: as in `_Fixed`."""
        tokens, decode, prefill, _, drafts, kv_tokens, in_window, pairs, passes = shape
        if (tables := self._drafter) is None:
            return 0.0
        read = kv_tokens * tables.kv_token_s + in_window * tables.window_token_s
        drafter = ahead + passes * (each + read)
        if prefill:
            chunk = tokens - decode - drafts
            drafter = drafter + (tables.prefill.floor_s + _prefill_s(tables.prefill, chunk, prefill, pairs))
        return drafter

    def drafter_s(self, shape: StepShape) -> float:
        """Seconds that the drafter adds to one step; zero where nothing drafts on the GPU."""
        tokens, decode, prefill, rows, drafts, *_, passes = shape
        if not passes:
            return 0.0
        return self._passes_s(shape, *self._fixed(tokens, decode, prefill, rows, drafts, passes)[-2:])

    def _fixed(self, tokens: int, decode: int, prefill: int, rows: int, drafts: int, passes: int) -> _Fixed:
        """Returns what KV lengths do not change of a step."""
        tables = self._tables(decode, prefill, drafts)
        padded, floor, stream, extra, links, head_floor, head_stream, head_extra, head_links = tables
        launch = floor[tokens] + head_floor[rows]
        if decode:
            launch = launch + self._decode_floor_s
        if prefill:
            launch = launch + self._prefill.floor_s
        each, requests = drafts / max(decode, 1), decode + prefill
        ahead = each_pass = 0.0
        if passes and self._drafter is not None:
            first, later, passes_s = self._draft_lists
            row = padded[tokens] + self._drafter.first_extra_rows * requests
            ahead, each_pass = first[row] + (passes - 1) * later[requests], passes_s[requests]
        return (
            stream[tokens] + head_stream[rows],
            extra[tokens] + head_extra[rows],
            links[tokens] + head_links[rows],
            launch,
            self._host_s + self._host_request_s * requests,
            decode * self._sequence_s,
            (decode + drafts) * self._query_token_s,
            1.0 + each,
            self._c_q * each,
            ahead,
            each_pass,
        )

    def terms(self, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, Array]:
        """Seconds by term, a row a step; the same operations in the same order as `seconds`."""
        tokens, rows = columns["tokens"], columns["logit_rows"]
        run = self.padded_column(columns)
        decode, prefill = columns["decode_sequences"], columns["prefill_sequences"]
        drafts, kv_tokens = columns["draft_tokens"], columns["kv_tokens"]
        layers, head = self._layers, self._head
        queries = drafts / np.maximum(decode, 1)
        read = decode * self._sequence_s + kv_tokens * self._kv_token_s
        read = read + columns["kv_tokens_in_window"] * self._window_token_s
        read = read + (decode + drafts) * self._query_token_s
        arithmetic = kv_tokens * (1.0 + queries) * self._pair_s
        arithmetic = arithmetic + columns["kv_tokens_in_window"] * (1.0 + queries) * self._window_pair_s
        read = np.maximum(read, arithmetic)
        kv = read + (read + self._decode_floor_s) * (self._c_q * queries)
        launch = layers.floor_s[run] + head.floor_s[rows]
        launch = launch + np.where(decode > 0, self._decode_floor_s, 0.0)
        launch = launch + np.where(prefill > 0, self._prefill.floor_s, 0.0)
        chunk = tokens - decode - drafts
        chunks_s = _prefill_column_s(self._prefill, chunk, prefill, columns["prefill_pairs"])
        return {
            "weights": layers.stream_s[run] + head.stream_s[rows],
            "kv": np.where(decode > 0, kv, 0.0),
            "compute": layers.extra_s[run] + head.extra_s[rows] + chunks_s,
            "communication": layers.communication_s[run] + head.communication_s[rows],
            "launch": launch,
            "host": self._host_s + self._host_request_s * (decode + prefill),
            "drafter": self._drafter_column_s(columns, chunk, run),
        }

    def _drafter_column_s(
        self, columns: Mapping[str, NDArray[np.int64]], chunk: NDArray[np.int64], run: NDArray[np.int64]
    ) -> Array:
        tokens, prefill, passes = columns["tokens"], columns["prefill_sequences"], columns["draft_passes"]
        tables = self._drafter
        if tables is None:
            return np.zeros(len(tokens))
        requests = columns["decode_sequences"] + prefill
        first_rows = run + tables.first_extra_rows * requests
        drafter = tables.first_s[first_rows] + (passes - 1) * tables.later_s[requests]
        read = columns["kv_tokens"] * tables.kv_token_s
        read = read + columns["kv_tokens_in_window"] * tables.window_token_s
        drafter = drafter + passes * (tables.each_s[requests] + read)
        chunks_s = _prefill_column_s(tables.prefill, chunk, prefill, columns["prefill_pairs"])
        attention = np.where(prefill > 0, tables.prefill.floor_s + chunks_s, 0.0)
        return np.where(passes > 0, drafter + attention, 0.0)

    def summary(self) -> str:
        """GPU, GPU count, model, drafter, and where one decode step of one sequence goes, in milliseconds."""
        placement = self.placement
        drafts = placement.num_speculative_tokens
        name = placement.drafter.name if placement.drafter else "none"
        query = 1 + drafts
        one = StepShape(query, 1, 0, query, drafts, 1024, 1024, 0, drafts)
        columns = {key: np.array([value]) for key, value in one._asdict().items()}
        parts = ", ".join(f"{term} {1e3 * value[0]:.2f}" for term, value in self.terms(columns).items())
        return (
            f"kernels: {placement.model.name} on {placement.tensor_parallel_size} x "
            f"{placement.accelerator.name}, drafter {name}, {drafts} draft tokens\n"
            f"one sequence at 1,024 tokens: {1e3 * self.seconds(one):.2f} ms ({parts})"
            + "".join(f"\nnote: {note}" for note in placement.notes)
        )


def _by_tokens(layers: Forward, run: NDArray[np.int64]) -> list[list[Any]]:
    """Padding and the target's layers, by scheduled tokens."""
    return [run.tolist(), *(table[run].tolist() for table in layers)]


def _prefill_s(law: PrefillAttention, chunk: int, sequences: int, pairs: int) -> float:
    """Seconds of prefill attention beyond its floor: `chunk` tokens of `sequences` rows, `pairs` in all.

    The context whose KV is read is `sequences x pairs / chunk + (chunk - sequences) / 2`: exact for one row
    and for equal rows, since a row of n tokens with a past of p has `p n + n (n + 1) / 2` pairs. In windowed
    layers a query has at most `window` pairs: exact when all chunks are beyond it or all within.
    """
    tiles = max(sequences, (chunk + ATTENTION_QUERY_TILE - 1) // ATTENTION_QUERY_TILE)
    context = sequences * (pairs / chunk) + (chunk - sequences) * 0.5
    seen = float(pairs)
    if law.window:
        seen = seen + law.windowed_share * (min(seen, chunk * law.window) - seen)
        context = context + law.windowed_share * (min(context, chunk + sequences * law.window) - context)
    arithmetic = seen * law.pair_s * max(1.0, law.full_tiles / tiles)
    arithmetic = arithmetic * (1.0 + law.half_length * (sequences / chunk))
    return arithmetic + (chunk * law.query_token_s + context * law.kv_token_s)


def _prefill_column_s(
    law: PrefillAttention, chunk: NDArray[np.int64], sequences: NDArray[np.int64], pairs: NDArray[np.int64]
) -> Array:
    """`_prefill_s` for many steps; zero where no sequence prefills."""
    if not sequences.any():
        return np.zeros(len(sequences))
    some = np.maximum(chunk, 1)
    tiles = np.maximum(np.maximum(sequences, (some + ATTENTION_QUERY_TILE - 1) // ATTENTION_QUERY_TILE), 1)
    context = sequences * (pairs / some) + (some - sequences) * 0.5
    seen = pairs.astype(np.float64)
    if law.window:
        share, reach = law.windowed_share, some + sequences * law.window
        seen = seen + share * (np.minimum(seen, some * law.window) - seen)
        context = context + share * (np.minimum(context, reach) - context)
    arithmetic = seen * law.pair_s * np.maximum(1.0, law.full_tiles / tiles)
    arithmetic = arithmetic * (1.0 + law.half_length * (sequences / some))
    total = arithmetic + (some * law.query_token_s + context * law.kv_token_s)
    return np.where(sequences > 0, total, 0.0)


def _host(placement: Placement) -> tuple[float, float]:
    """Host seconds a step and a request, by the scheduling of the placement; of stages the first has it."""
    profile = placement.profile
    if not placement.begins:
        return 0.0, 0.0
    if placement.async_scheduling:
        return profile.host_async_s, profile.host_async_s_per_request
    return profile.host_sync_s, profile.host_sync_s_per_request
