"""Requests and luck whose sample agrees with what was measured on the sample.

A measured row gives the means of its own 50 to 2,560 requests and the acceptance counted over them. Drawing
lengths and luck freely would add the sampling error of a second experiment (2 % of the mean output and 4 % of
the acceptance length at 50 requests) to what is compared. So lengths are drawn from equal steps of
probability, and the acceptance asked for is shifted until the one drawn is the one measured.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.acceptance import Acceptance, AcceptanceSpec
from specfleet.workloads.build import Purpose, WorkloadSpec, build_requests, stream
from specfleet.workloads.lengths import correlated_uniforms
from specfleet.workloads.requests import RequestTable

F64 = npt.NDArray[np.float64]

_ROUNDS_OF_CORRECTION = 3


def levelled_requests(spec: WorkloadSpec, seed: int) -> RequestTable:
    """Returns `build_requests(spec, seed)` with its lengths moved to equal steps of probability.

    Ranks and correlation stay those of the seed; the sample's means are the law's.
    """
    table = build_requests(spec, seed)
    n = len(table)
    u = _levelled(stream(seed, Purpose.PROMPT).random(n))
    v = _levelled(stream(seed, Purpose.OUTPUT).random(n))
    w = _levelled(correlated_uniforms(u, v, spec.rank_correlation))
    prompt, output = spec.input.quantile(u) + spec.prefix_tokens, spec.output.quantile(w)
    if spec.prefix_tokens:
        return table
    most = output if spec.ignore_eos else table.max_tokens
    return replace(
        table, prompt_tokens=prompt, output_tokens=np.minimum(output, most), max_tokens=np.asarray(most)
    )


def _levelled(u: F64) -> F64:
    """Returns the midpoints of n equal steps in the order of `u`."""
    ranks = np.argsort(np.argsort(u, kind="stable"), kind="stable")
    return np.asarray((ranks + 0.5) / len(u), dtype=np.float64)


def matched(spec: AcceptanceSpec, k: int, table: RequestTable, seed: int) -> AcceptanceSpec:
    """Returns the acceptance to ask for so that the seed's luck on `table` gives `spec.by_position`.

    Other quantities than `by_position` are returned as they are.
    """
    if spec.by_position is None:
        return spec
    target = np.array(spec.by_position[:k])
    asked = target
    for _ in range(_ROUNDS_OF_CORRECTION):
        drawn = drawn_by_position(replace(spec, by_position=tuple(asked.tolist())), k, table, seed)
        moved = np.clip(asked * target / np.maximum(drawn, 1e-9), 0.0, 1.0)
        asked = np.minimum.accumulate(np.where(target > 0.0, moved, 0.0))
    return replace(spec, by_position=tuple(asked.tolist()))


def drawn_by_position(spec: AcceptanceSpec, k: int, table: RequestTable, seed: int) -> F64:
    """Returns P(first i drafts accepted) over the rounds that a seed's luck gives, shape `(k,)`.

    The first token comes with the prompt, so a request verifies until it has its output less one.
    """
    process = Acceptance(spec, k, seed)
    counts = np.zeros(k + 1, dtype=np.int64)
    lengths = zip(table.prompt_tokens.tolist(), table.output_tokens.tolist(), strict=True)
    for row, (prompt, output) in enumerate(lengths):
        if output > 1:
            accepted = np.frombuffer(process.accepted(row, prompt, output), dtype=np.uint8)
            emitted = np.cumsum(accepted.astype(np.int64) + 1)
            rounds = int(np.searchsorted(emitted, output - 1)) + 1
            counts += np.bincount(accepted[:rounds], minlength=k + 1)
    reached = np.cumsum(counts[::-1])[::-1][1:]
    return np.asarray(reached / max(int(counts.sum()), 1), dtype=np.float64)
