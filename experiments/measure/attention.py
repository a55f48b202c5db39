"""Attention kernels to time: vLLM's own where it is installed, else flash-attn, else torch."""

from __future__ import annotations

import importlib
from functools import partial
from types import ModuleType
from typing import Protocol

from specfleet.experiments.measure.points import KernelCall
from specfleet.experiments.measure.tensors import OperandPool, Tensor
from specfleet.experiments.measure.timer import Call

_BLOCK = 16
KERNELS = ("vllm", "flash-attn", "torch")
"""What `--attention` may ask for; by default the first that is installed."""


class Attention(Protocol):
    """One attention kernel. `name` says which, for the reader."""

    name: str

    def decode(self, pool: OperandPool, point: KernelCall) -> list[Call]:
        """Calls of `point`, each on KV of its own."""
        ...

    def prefill(self, pool: OperandPool, point: KernelCall) -> list[Call]:
        """Calls of `point`, causal, without a past."""
        ...


class VllmAttention:
    """The FlashAttention that vLLM bundles, on a paged cache, in the version vLLM picks for the GPU."""

    def __init__(self, torch: ModuleType) -> None:
        """Raises ImportError without vLLM's CUDA build."""
        self._run = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func
        try:
            chosen = importlib.import_module("vllm.v1.attention.backends.fa_utils").get_flash_attn_version()
        except (ImportError, AttributeError):
            chosen = None
        self._version = chosen or (3 if torch.cuda.get_device_capability()[0] == 9 else 2)
        self.name = f"vLLM's FlashAttention {self._version}"

    def decode(self, pool: OperandPool, point: KernelCall) -> list[Call]:
        """As `Attention.decode`; pages of 16 tokens in order."""
        batch, query = point.batch, point.query
        pages = -(-point.context // _BLOCK)
        caches = pool.cold("bfloat16", 2, batch * pages, _BLOCK, point.kv_heads, point.head_dim)
        queries = pool.one("bfloat16", batch * query, point.heads, point.head_dim)
        starts = pool.integers(range(0, batch * query + 1, query))
        lengths = pool.integers([point.context] * batch)
        table = pool.integers(range(batch * pages), batch, pages)
        out = pool.empty(batch * query, point.heads, point.head_dim)

        def call(cache: Tensor) -> object:
            keys, values = _halves(cache)
            return self._run(
                q=queries, k=keys, v=values, out=out, max_seqlen_q=query, cu_seqlens_q=starts,
                max_seqlen_k=point.context, seqused_k=lengths, block_table=table, causal=True,
                fa_version=self._version,
            )  # fmt: skip

        return [partial(call, cache) for cache in caches]

    def prefill(self, pool: OperandPool, point: KernelCall) -> list[Call]:
        """As `Attention.prefill`: keys and values of the chunk itself, read from pages as in vLLM."""
        return self.decode(pool, point)


class FlashAttention:
    """The flash-attn package: version 3 (`flash_attn_interface`) if there is one, else 2."""

    def __init__(self) -> None:
        """Raises ImportError without the package."""
        try:
            module, self.name = importlib.import_module("flash_attn_interface"), "flash-attn 3"
        except ImportError:
            module, self.name = importlib.import_module("flash_attn"), "flash-attn 2"
        self._decode = module.flash_attn_with_kvcache
        self._prefill = module.flash_attn_func

    def decode(self, pool: OperandPool, point: KernelCall) -> list[Call]:
        """As `Attention.decode`; a contiguous cache."""
        caches = pool.cold("bfloat16", 2, point.batch, point.context, point.kv_heads, point.head_dim)
        queries = pool.one("bfloat16", point.batch, point.query, point.heads, point.head_dim)
        lengths = pool.integers([point.context] * point.batch)

        def call(cache: Tensor) -> object:
            return self._decode(queries, *_halves(cache), cache_seqlens=lengths, causal=True)

        return [partial(call, cache) for cache in caches]

    def prefill(self, pool: OperandPool, point: KernelCall) -> list[Call]:
        """As `Attention.prefill`."""
        queries = pool.one("bfloat16", point.batch, point.query, point.heads, point.head_dim)
        keys = pool.cold("bfloat16", 2, point.batch, point.context, point.kv_heads, point.head_dim)

        def call(pair: Tensor) -> object:
            return self._prefill(queries, *_halves(pair), causal=True)

        return [partial(call, pair) for pair in keys]


class TorchAttention:
    """torch's scaled_dot_product_attention, arranged as a decode kernel arranges its work.

    The query heads that share a KV head, and all query tokens, are packed into one tile, so KV is read once;
    the context is split until the GPU is full. Merging the splits is not timed (a few microseconds).
    """

    name = "torch scaled_dot_product_attention (queries packed, context split, merge not timed)"

    def __init__(self, torch: ModuleType, sms: int) -> None:
        """`sms` streaming multiprocessors to fill."""
        self._run = torch.nn.functional.scaled_dot_product_attention
        self._sms = sms

    def decode(self, pool: OperandPool, point: KernelCall) -> list[Call]:
        """As `Attention.decode`. No mask: the last tokens see each other, which costs nothing."""
        splits = _splits(point, self._sms)
        parts, length = point.batch * splits, point.context // splits
        tile = point.query * point.heads // point.kv_heads
        caches = pool.cold("bfloat16", 2, parts, point.kv_heads, length, point.head_dim)
        queries = pool.one("bfloat16", parts, point.kv_heads, tile, point.head_dim)

        def call(cache: Tensor) -> object:
            return self._run(queries, *_halves(cache))

        return [partial(call, cache) for cache in caches]

    def prefill(self, pool: OperandPool, point: KernelCall) -> list[Call]:
        """As `Attention.prefill`."""
        queries = pool.one("bfloat16", point.batch, point.heads, point.query, point.head_dim)
        keys = pool.cold("bfloat16", 2, point.batch, point.kv_heads, point.context, point.head_dim)

        def call(pair: Tensor) -> object:
            return self._run(queries, *_halves(pair), is_causal=True, enable_gqa=True)

        return [partial(call, pair) for pair in keys]


def find_attention(torch: ModuleType, sms: int, wanted: str | None = None) -> Attention:
    """The kernel asked for, or the first of `KERNELS` that is installed.

    Raises ValueError when the one asked for is not installed or unknown.
    """
    if wanted is not None and wanted not in KERNELS:
        raise ValueError(f"unknown attention kernel {wanted!r}; use one of {', '.join(KERNELS)}")
    for name in KERNELS if wanted is None else (wanted,):
        try:
            if name == "vllm":
                return VllmAttention(torch)
            if name == "flash-attn":
                return FlashAttention()
        except (ImportError, AttributeError, OSError) as error:
            if wanted is not None:
                raise ValueError(f"{name} cannot be used here ({error}); leave --attention out") from None
    return TorchAttention(torch, sms)


def _splits(point: KernelCall, sms: int) -> int:
    """Parts of the context, a power of two, until two waves fill the GPU or a part has 256 tokens."""
    splits = 1
    while (
        splits * point.batch * point.kv_heads < 2 * sms
        and point.context % (2 * splits) == 0
        and point.context // (2 * splits) >= 256
    ):
        splits *= 2
    return splits


def _halves(pair: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values from a tensor whose first dimension holds both."""
    return pair[0], pair[1]
