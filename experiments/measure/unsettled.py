"""`specfleet measure --plan`: what no public table settles, as points to time on a card, and their times.

The order is that of their worth to a prediction with drafts: after a base that the fits need come FP8 GEMMs
between 257 and 511 rows (the tables have nothing between 257 and 512, and 257 is the slowest there),
verification attention with several query rows, FP8 GEMMs at the rows of verifying batches, all-reduces beside
them where there are several GPUs, and long contexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specfleet.experiments.measure.points import Device, Grid, KernelCall, Points, gemm_shapes
from specfleet.experiments.measure.tensors import copies
from specfleet.experiments.measure.timer import replayed_s
from specfleet.hardware import catalog, fitting
from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.fitting import AttentionTimes
from specfleet.hardware.forward import linear
from specfleet.hardware.interconnect import all_reduce_s
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import Placement

BETWEEN_TILES = (
    *(256, 257, 264, 272, 288, 304, 320, 336, 352, 368, 384),
    *(400, 416, 432, 448, 464, 480, 496, 511, 512),
)
VERIFYING_BATCHES, MOST_DRAFTS, MOST_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96), 7, 512
QUERIES, BATCHES, CONTEXTS = (
    tuple(range(1, 9)),
    (1, 4, 8, 16, 32, 64, 128),
    (512, 1024, 2048, 4096, 8192, 16_384),
)
LONG_BATCHES, LONG_CONTEXTS, LONG_QUERIES = (1, 4, 16), (32_768, 65_536, 131_072), (1, 4, 8)

SETUP_S = 0.1
"""Of one point beside its replays: operands, warm-up of libraries, capture. Assumed."""
LINKS_S = 15.0
"""Of one group of all-reduces: a process a GPU that loads torch and NCCL. Assumed."""
LAUNCH_S, COPY_SHARE = 2e-6, 0.9


class Topic(NamedTuple):
    """One question: what it is, what its answer changes, and the points; with none, why."""

    name: str
    changes: str
    groups: list[Points]
    why_not: str = ""


class Expected(NamedTuple):
    """A group of points with the seconds of each kernel by our own model, and of timing them all."""

    points: Points
    kernel_s: tuple[float, ...]
    wall_s: float


def unsettled(model: ModelSpec, tp: int, fp8: bool, device: Device) -> list[Topic]:
    """The questions in order of worth; every point once. KV sets above a third of the memory are left out."""
    grid, reduces = Grid(), list(_all_reduces(model, device, tp))
    found = [
        Topic("base", "floors and bandwidth, which the fits start from", list(_base(model, tp, fp8, grid))),
        Topic(
            "FP8 GEMMs of 256 to 512 rows",
            "the table there: 257 rows and 512, nothing between",
            list(_gemms(model, tp, "fp8", BETWEEN_TILES)) if fp8 else [],
            "" if fp8 else "this GPU has no FP8",
        ),
        Topic(
            "verification attention",
            "c_q, assumed where no one measured it",
            list(_decodes(model, tp, BATCHES, CONTEXTS, QUERIES)),
            "latent attention has no law here" if model.kv_lora_rank else "",
        ),
        Topic(
            f"{'FP8' if fp8 else 'BF16'} GEMMs of verifying batches",
            "what a draft costs, by batch and K",
            list(_verifying(model, tp, "fp8" if fp8 else "bfloat16")),
        ),
        Topic(
            "all-reduce beside them",
            "links: NCCL by message size",
            reduces,
            "" if reduces else "one GPU; give --tensor-parallel-size on a machine with several",
        ),
        Topic(
            "long contexts",
            "attention beyond 16 k tokens",
            list(_decodes(model, tp, LONG_BATCHES, LONG_CONTEXTS, LONG_QUERIES)),
            "latent attention has no law here" if model.kv_lora_rank else "",
        ),
    ]
    seen: set[Points] = set()
    return [topic._replace(groups=_once(topic.groups, seen, device.memory_bytes // 3)) for topic in found]


def _once(groups: Sequence[Points], seen: set[Points], most_bytes: int) -> list[Points]:
    kept = []
    for group in groups:
        held = max(4 * p.batch * p.context * p.kv_heads * p.head_dim for p in group)
        if group not in seen and held <= most_bytes:
            seen.add(group)
            kept.append(group)
    return kept


def _base(model: ModelSpec, tp: int, fp8: bool, grid: Grid) -> Iterator[Points]:
    yield (KernelCall("launch_graph"),)
    yield (KernelCall("launch_eager"),)
    yield (KernelCall("copy", message_bytes=grid.copy_bytes),)
    for dtype in ("fp8", "bfloat16") if fp8 else ("bfloat16",):
        yield from _gemms(model, tp, dtype, grid.few_rows)


def _gemms(model: ModelSpec, tp: int, dtype: str, rows: Sequence[int]) -> Iterator[Points]:
    for columns, depth in gemm_shapes(model, tp):
        for m in rows:
            yield (KernelCall("gemm", dtype, m, columns, depth),)


def _verifying(model: ModelSpec, tp: int, dtype: str) -> Iterator[Points]:
    rows = {batch * (1 + k) for batch in VERIFYING_BATCHES for k in range(MOST_DRAFTS + 1)}
    few = sorted(m for m in rows if m <= MOST_ROWS)
    yield from _gemms(model, tp, dtype, few)
    for m in few:
        yield (KernelCall("gemm", "bfloat16", m, model.vocab_size // tp, model.hidden_size),)


def _decodes(
    model: ModelSpec, tp: int, batches: Sequence[int], contexts: Sequence[int], queries: Sequence[int]
) -> Iterator[Points]:
    if model.kv_lora_rank:
        return
    heads = (model.num_heads // tp, model.kv_heads(tp), model.head_dim)
    for batch in batches:
        for context in contexts:
            for query in queries:
                yield (KernelCall("decode", "bfloat16", 0, 0, 0, batch, context, query, *heads),)


def _all_reduces(model: ModelSpec, device: Device, tp: int) -> Iterator[Points]:
    """Messages of verifying batches: rows x hidden size, two bytes each."""
    sizes = sorted(
        {2 * model.hidden_size * rows for rows in (1, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192)}
    )
    if 1 < tp <= device.gpus:
        yield tuple(KernelCall("all_reduce", gpus=tp, message_bytes=size) for size in sizes)


def planned_device(gpu: Accelerator, gpus: int) -> Device:
    """A catalogue GPU as its driver would report it, in a server with `gpus` of them."""
    return Device(gpu.name, gpu.sms, gpu.l2_bytes, gpu.hbm_bytes, gpus, gpus > 1 and gpu.linked(gpus))


def expected(topic: Topic, model: ModelSpec, tp: int, gpu: Accelerator, l2_bytes: int) -> list[Expected]:
    """What each group takes, by the kernels' prices of this package on a catalogue GPU under vLLM."""
    place = Placement.of(
        model, gpu, catalog.engine_profile("vllm-0.33"), tensor_parallel_size=tp,
        quantization="fp8" if "fp8" in gpu.flops_per_s and not model.checkpoint_quantization else None,
    )  # fmt: skip
    found = []
    for group in topic.groups:
        kernels = tuple(_kernel_s(point, place) for point in group)
        if group[0].law == "all_reduce":
            found.append(Expected(group, kernels, LINKS_S))
            continue
        calls = copies(_operand_bytes(group[0]), l2_bytes)
        wall = sum(SETUP_S + replayed_s(calls, seconds) for seconds in kernels)
        found.append(Expected(group, kernels, wall))
    return found


def _operand_bytes(point: KernelCall) -> int:
    """Bytes that are read cold by one call: weights or KV; what is copied."""
    if point.law == "gemm":
        return point.columns * point.depth * (1 if point.dtype == "fp8" else 2)
    if point.law == "decode":
        return 4 * point.batch * point.context * point.kv_heads * point.head_dim
    return max(point.message_bytes, 2)


def _kernel_s(point: KernelCall, place: Placement) -> float:
    one, gpu = np.ones(1), place.accelerator
    if point.law == "gemm":
        parts = linear(place, one * point.rows, point.columns, point.depth, point.dtype)
        return float((parts.floor_s + parts.stream_s + parts.extra_s)[0])
    if point.law == "copy":
        return 2.0 * point.message_bytes / (COPY_SHARE * gpu.hbm_bytes_per_s)
    if point.law == "all_reduce":
        law = place.all_reduce_law(point.gpus)
        assert law is not None
        return float(all_reduce_s(one * point.message_bytes, law)[0])
    if point.law != "decode":
        return LAUNCH_S
    times = AttentionTimes(
        one * point.batch, one * point.context, one * point.query, one * point.heads, one * point.kv_heads,
        one * point.head_dim, one,
    )  # fmt: skip
    law_ = place.constants.decode["bfloat16", place.attention]
    return float(fitting.decode_s(times, law_, gpu.hbm_bytes_per_s, place.c_q)[0])
