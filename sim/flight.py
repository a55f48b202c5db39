"""A batch under way, and the integers that it is priced by."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

from specfleet.hardware.stepcost import StepShape, prefill_pairs, shape_fields
from specfleet.sim.sequence import NEVER, Batch

if TYPE_CHECKING:
    from specfleet.sim.scheduler import Scheduler
    from specfleet.sim.sglang.scheduler import SglangScheduler


class Flight:
    """A batch in flight: its rows' tokens, when it runs, and the shape it was priced at.

    `noted`: somebody else has written down already what it does.
    """

    __slots__ = (
        "batch",
        "end_s",
        "kv_blocks_used",
        "noted",
        "reroll",
        "running",
        "sampled",
        "shape",
        "start_s",
        "waiting",
    )

    def __init__(self, batch: Batch, scheduler: Scheduler | SglangScheduler) -> None:
        self.batch = batch
        self.sampled: list[int] = []
        self.reroll = 0
        self.start_s = self.end_s = inf
        self.running, self.waiting = scheduler.num_running, len(scheduler.waiting)
        self.kv_blocks_used = scheduler.kv.total_blocks - scheduler.kv.free_blocks
        self.shape: StepShape | None = None
        self.noted = False


def shape_of(batch: Batch, passes: int, sliding_window: int) -> StepShape:
    """Returns the integers a step is priced by: sums over its rows.

    Args:
        batch: that begins now.
        passes: of the drafter, behind it.
        sliding_window: keys that the model's windowed layers see; 0: it has none.
    """
    tail, total, head = batch.tail, batch.total_tokens, batch.head
    rows, drafts = len(tail.sequences), sum(tail.num_drafts)
    window = sliding_window or NEVER
    decodes = kv = seen = pairs = 0
    if head is not None:
        rows, drafts, decodes = rows + head.n, drafts + head.num_drafts, head.n
        seen = kv = int(np.add.reduce(head.ends))
        if sliding_window:
            seen = int(np.minimum(head.ends, window).sum())
    elif total == rows + drafts:
        seen = kv = sum([sequence.num_computed_tokens for sequence in batch.sequences])
        if sliding_window:
            seen = sum([min(sequence.num_computed_tokens, window) for sequence in batch.sequences])
        return StepShape(*shape_fields(rows, drafts, kv, seen, 0, 0, 0, passes))
    for sequence, n, d in zip(tail.sequences, tail.num_tokens, tail.num_drafts, strict=True):
        end = sequence.num_computed_tokens
        if n == 1 + d:
            decodes += 1
            kv += end
            seen += min(end, window)
        else:
            pairs += prefill_pairs(n, end - n)
    chunk = total - decodes - drafts
    return StepShape(*shape_fields(decodes, drafts, kv, seen, rows - decodes, chunk, pairs, passes))


def standstill(scheduler: Scheduler | SglangScheduler, replica: int, now: float) -> str:
    """Says why nothing can be scheduled although requests are left."""
    head = next(iter(scheduler.waiting), None)
    kv = scheduler.kv
    lines = [
        f"replica {replica} stands still at {now:.6f} s: {len(scheduler.running)} running, "
        f"{len(scheduler.waiting)} waiting, {kv.free_blocks} of {kv.total_blocks} KV blocks free"
    ]
    if head is not None:
        lines.append(
            f"first in line: request {head.id} with {head.num_tokens} known tokens "
            f"(prompt {head.prompt_tokens}, max_tokens {head.max_tokens})"
        )
    return "; ".join(lines)
