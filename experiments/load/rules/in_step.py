"""What is said where requests move in step: plain decoding in a closed loop, with outputs of equal length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from specfleet.experiments.point.build import counted_requests, workload_spec
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.workload import Workload

IN_STEP = (
    "without drafts requests move in step here: in a closed loop, outputs of equal length that are admitted "
    "together end together, and the prompts after them come in waves that make TTFT (drafts undo it, so that "
    "the two are not comparable); spread the lengths, for example workload.output: "
    "{uniform: {low: 50, high: 450}}, or give a request_rate"
)
_LEVELS = (np.arange(64) + 0.5) / 64
_ALIKE = 0.9
"""Share of the outputs that have one length: 10 % to either side of it already undoes the waves."""


def in_step_notices(points: Sequence[Experiment]) -> Iterator[str]:
    """Says it once, if it holds for any point."""
    plain = (point for point in points if point.serve.speculative_config is None)
    if any(_in_step(workload) for workload in {repr(p.workload): p.workload for p in plain}.values()):
        yield IN_STEP


def _in_step(workload: Workload) -> bool:
    if workload.trace is not None or workload.phases is not None or not workload.closed_loop:
        return False
    if min(workload.max_concurrency or counted_requests(workload), counted_requests(workload)) < 2:
        return False
    outputs = workload_spec(workload).output.quantile(_LEVELS)
    return max(Counter(outputs.tolist()).values()) > _ALIKE * len(outputs)
