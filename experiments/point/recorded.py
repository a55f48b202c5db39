"""The rows of a trace as the requests of a point, or of one class of it."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import numpy as np

from specfleet.experiments.schema.blocks.workload import Workload
from specfleet.workloads.requests import RequestTable
from specfleet.workloads.tables import kept


def recorded_requests(workload: Workload, max_model_len: int | None) -> RequestTable:
    """Returns the rows of a trace that are asked for, arrivals as recorded, from the first that is kept.

    Args:
        workload: with a trace; `num_prompts` is not looked at.
        max_model_len: rows that are longer are left out where the workload says so; None: none is.

    Raises:
        ValueError, OSError: as `read_trace`, and where no row is kept.
    """
    asked = {name: getattr(workload, name) for name in ("trace", "trace_format", "limit", "max_tokens")}
    asked |= {name: getattr(workload, name) for name in ("speed", "on_too_long", "ignore_eos", "temperature")}
    return _rows(Workload(**asked), max_model_len)


@lru_cache(maxsize=8)
def _rows(workload: Workload, max_model_len: int | None) -> RequestTable:
    from specfleet.workloads.traces.formats import read_trace

    assert workload.trace_file is not None
    table = read_trace(
        workload.trace_file, workload.trace_format, speed=workload.speed, **workload.trace_asked
    ).requests
    longest = np.iinfo(np.int64).max if max_model_len is None else max_model_len
    if workload.on_too_long == "drop":
        rows = np.flatnonzero(table.prompt_tokens + table.output_tokens <= longest)
        if not len(rows):
            raise ValueError(f"none of its rows fits in serve.max_model_len, {longest}; raise that")
        table = kept(table, rows)
    output = table.output_tokens
    most = np.minimum(table.max_tokens, longest - table.prompt_tokens)
    if workload.ignore_eos:
        most = output
    return dataclasses.replace(
        table,
        output_tokens=np.minimum(output, most),
        arrival_s=table.arrival_s - table.arrival_s[0],
        max_tokens=most,
        temperature=np.full(len(table), workload.temperature),
    )


def replayed_requests(workload: Workload, max_model_len: int | None) -> int:
    """Returns how many requests a mix has until the first trace of a class that has its own times ends.

    Raises as `recorded_requests`.
    """
    tables = [recorded_requests(workload.of_class(name), max_model_len) for name in workload.replayed]
    until_s = min(float(table.arrival_s[-1]) for table in tables)
    rows = sum(int((table.arrival_s <= until_s).sum()) for table in tables)
    return rows + round((workload.rate_of_classes or 0.0) * until_s)
