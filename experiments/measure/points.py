"""What `specfleet measure` times, the most valuable first, and the loop that stops in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from specfleet.hardware.model import ModelSpec


class KernelCall(NamedTuple):
    """One thing to time; fields that its law does not have stay 0.

    Laws: launch_graph and launch_eager (a kernel of no work, in a CUDA graph and from the host), copy (device
    to device), gemm, decode and prefill (attention), all_reduce (among the GPUs of this server).
    GEMM: (rows x depth) @ (depth x columns) in `dtype`. Attention of one layer: `batch` sequences of
    `context` KV tokens, of which `query` are new. `message_bytes` is what is copied or, on each of `gpus`,
    reduced.
    """

    law: str
    dtype: str = "bfloat16"
    rows: int = 0
    columns: int = 0
    depth: int = 0
    batch: int = 0
    context: int = 0
    query: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    gpus: int = 1
    message_bytes: int = 0


Points = tuple[KernelCall, ...]
"""What is timed together: one point, or one all-reduce by size."""


class TimedCall(NamedTuple):
    """A point and its median time in seconds."""

    point: KernelCall
    seconds: float


class Device(NamedTuple):
    """The GPU as its driver reports it, how many there are, whether they reach each other's memory."""

    name: str
    sms: int
    l2_bytes: int
    memory_bytes: int
    gpus: int
    peers: bool


class DoesNotRun(Exception):  # noqa: N818 (a point that this GPU cannot run is no failure of the command)
    """A point that the GPU, its memory or the software cannot run; the message says why."""


class Backend(Protocol):
    """Runs points. `software` names what ran, `attention` the attention kernel, for the reader.

    `quantises` says whether an FP8 GEMM's time includes the pass that quantises its input.
    """

    device: Device
    software: str
    attention: str
    quantises: bool

    def seconds(self, points: Sequence[KernelCall]) -> list[float]:
        """Median seconds of each; several points only for one all-reduce by size. Raises DoesNotRun."""
        ...


@dataclass(frozen=True)
class Grid:
    """Sizes to time: `few_` first, the rest while there is time. Contexts, lengths and rows in tokens."""

    few_rows: tuple[int, ...] = (1, 16, 64, 128, 256, 512, 2048)
    rows: tuple[int, ...] = (
        *(2, 4, 8, 24, 32, 48, 96, 160, 192, 224, 320, 384, 448),
        *(768, 1024, 1536, 4096, 8192),
    )
    few_batches: tuple[int, ...] = (1, 8, 64)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    few_contexts: tuple[int, ...] = (1024, 4096)
    contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    few_queries: tuple[int, ...] = (1, 2, 4, 8)
    queries: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    prefill: tuple[tuple[int, int], ...] = (
        *((1, 512), (1, 2048), (1, 8192), (1, 128), (1, 256), (1, 1024), (1, 4096), (1, 16384)),
        *((4, 128), (4, 512), (4, 2048), (16, 256), (16, 1024)),
    )
    message_bytes: tuple[int, ...] = tuple(2**power for power in range(13, 27))
    copy_bytes: int = 2**30


class Timed(NamedTuple):
    """Rows timed, points left for lack of time, and points that did not run with the reason."""

    rows: list[TimedCall]
    left: list[KernelCall]
    failed: list[tuple[KernelCall, str]]


def time_points(
    backend: Backend,
    plan: Sequence[tuple[KernelCall, ...]],
    seconds: float,
    clock: Callable[[], float],
    say: Callable[[str], None] = lambda _: None,
) -> Timed:
    """Run the plan in order until `seconds` have passed on `clock`; a point begun is finished."""
    end = clock() + seconds
    timed = Timed([], [], [])
    for place, points in enumerate(plan):
        if clock() >= end:
            timed.left.extend(points)
            continue
        if place % 50 == 0:
            say(f"{place} of {len(plan)}: {points[0].law}")
        try:
            results = backend.seconds(points)
        except DoesNotRun as reason:
            timed.failed.extend((point, str(reason)) for point in points)
            continue
        timed.rows.extend(TimedCall(point, value) for point, value in zip(points, results, strict=True))
    return timed


def make_plan(
    model: ModelSpec, tp: int, dtype: str, device: Device, grid: Grid | None = None
) -> list[tuple[KernelCall, ...]]:
    """Groups of points to run together, the most valuable first, each once.

    Order: launch and copy; GEMMs at few row counts; few batches, contexts and query lengths; all-reduce where
    the model needs it; the rest of the GEMM and attention grids; prefill; shapes at twice the
    tensor-parallel size, which tell the floor from the bandwidth. KV sets above a third of the memory are
    left out. A model with MLA has no attention points: no law here describes it.
    """
    grid = grid or Grid()
    limit = device.memory_bytes // 3
    groups: dict[tuple[KernelCall, ...], None] = {}
    for group in _ordered(model, tp, dtype, device, grid):
        kv_bytes = max(4 * p.batch * p.context * p.kv_heads * p.head_dim for p in group)
        if kv_bytes <= limit:
            groups.setdefault(group)
    return list(groups)


def _ordered(
    model: ModelSpec, tp: int, dtype: str, device: Device, grid: Grid
) -> Iterator[tuple[KernelCall, ...]]:
    yield (KernelCall("launch_graph"),)
    yield (KernelCall("launch_eager"),)
    yield (KernelCall("copy", message_bytes=grid.copy_bytes),)
    yield from _gemms(model, tp, dtype, grid.few_rows)
    yield from _decodes(model, tp, grid.few_batches, grid.few_contexts, grid.few_queries)
    reduces = list(_all_reduces(device, grid))
    if tp > 1:
        yield from reduces
    yield from _gemms(model, tp, dtype, grid.rows)
    yield from _decodes(model, tp, grid.batches, grid.contexts, (1,))
    yield from _prefills(model, tp, grid)
    yield from reduces
    yield from _decodes(model, tp, grid.few_batches, grid.contexts, grid.queries)
    if tp * 2 <= model.num_heads and not (model.num_heads % (2 * tp) or model.intermediate_size % (2 * tp)):
        yield from _gemms(model, 2 * tp, dtype, (*grid.few_rows, *grid.rows))
    yield from _decodes(model, tp, grid.batches, grid.contexts, grid.queries)


def gemm_shapes(model: ModelSpec, tp: int) -> tuple[tuple[int, int], ...]:
    """(columns, depth) of the distinct GEMMs of all layers on one GPU; routed experts are not among them."""
    shapes = [gemm for group in model.layer_groups(tp) for gemm in group.gemms]
    return tuple(dict.fromkeys(shapes))


def _gemms(model: ModelSpec, tp: int, dtype: str, rows: Sequence[int]) -> Iterator[tuple[KernelCall, ...]]:
    """Layer shapes in `dtype` and, as drafters run there, in BF16; the LM head in BF16."""
    head = (model.vocab_size // tp, model.hidden_size)
    for kind in dict.fromkeys((dtype, "bfloat16")):
        for columns, depth in gemm_shapes(model, tp) + ((head,) if kind == "bfloat16" else ()):
            for m in rows:
                yield (KernelCall("gemm", kind, m, columns, depth),)


def _decodes(
    model: ModelSpec, tp: int, batches: Sequence[int], contexts: Sequence[int], queries: Sequence[int]
) -> Iterator[tuple[KernelCall, ...]]:
    if model.kv_lora_rank:
        return
    for batch in batches:
        for context in contexts:
            for query in queries:
                yield (_attention("decode", model, tp, batch, context, query),)


def _prefills(model: ModelSpec, tp: int, grid: Grid) -> Iterator[tuple[KernelCall, ...]]:
    if model.kv_lora_rank:
        return
    for batch, length in grid.prefill:
        yield (_attention("prefill", model, tp, batch, length, length),)


def _attention(law: str, model: ModelSpec, tp: int, batch: int, context: int, query: int) -> KernelCall:
    return KernelCall(
        law,
        batch=batch,
        context=context,
        query=query,
        heads=model.num_heads // tp,
        kv_heads=model.kv_heads(tp),
        head_dim=model.head_dim,
    )


def _all_reduces(device: Device, grid: Grid) -> Iterator[tuple[KernelCall, ...]]:
    for gpus in (2, 4, 8):
        if gpus <= device.gpus:
            yield tuple(
                KernelCall("all_reduce", gpus=gpus, message_bytes=size) for size in grid.message_bytes
            )
