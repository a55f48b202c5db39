"""The formats of recorded traffic that can be read, by name."""

from __future__ import annotations

import os
from typing import Protocol

from specfleet.workloads.traces.aiperf import read_aiperf
from specfleet.workloads.traces.azure import read_azure
from specfleet.workloads.traces.bailian import read_bailian
from specfleet.workloads.traces.bench_lists import read_sglang_bench, read_vllm_bench
from specfleet.workloads.traces.burstgpt import read_burstgpt
from specfleet.workloads.traces.columns import read_columns
from specfleet.workloads.traces.files import TraceFile
from specfleet.workloads.traces.layout import TraceFormat, seen
from specfleet.workloads.traces.mooncake import read_mooncake
from specfleet.workloads.traces.own import read_own
from specfleet.workloads.traces.ragpulse import read_ragpulse
from specfleet.workloads.traces.report import Trace, TraceError
from specfleet.workloads.traces.sharegpt import read_messages, read_sharegpt
from specfleet.workloads.traces.splitwise import read_splitwise
from specfleet.workloads.traces.vidur import read_vidur


class TraceReader(Protocol):
    """Reads a file of one format; raises TraceError for one that cannot be used."""

    def __call__(
        self,
        path: str | os.PathLike[str],
        *,
        speed: float = 1.0,
        limit: int | None = None,
        max_tokens: int | None = None,
    ) -> Trace:
        """Returns the requests, arrivals in seconds from the first, and what was read, kept and dropped.

        The shipped ones take every field of `ReadOptions`; one of your own these three, and what it likes.

        Args:
            path: the file.
            speed: 2 halves every gap.
            limit: rows to keep, from the start.
            max_tokens: the cap that each request states; by default the largest output kept.
        """
        ...


TRACE_FORMATS: dict[str, TraceReader] = {
    "azure": read_azure,
    "mooncake": read_mooncake,
    "bailian": read_bailian,
    "burstgpt": read_burstgpt,
    "vidur": read_vidur,
    "splitwise": read_splitwise,
    "ragpulse": read_ragpulse,
    "requests": read_own,
    "vllm-bench": read_vllm_bench,
    "sglang-bench": read_sglang_bench,
    "aiperf": read_aiperf,
    "sharegpt": read_sharegpt,
    "messages": read_messages,
    "columns": read_columns,
}


KNOWN_BUT_NOT_READ = (
    (
        ("total_input_tokens", "total_output_tokens"),
        "a benchmark's totals, without its requests; run it with --save-detailed (vLLM) or --output-details "
        "(SGLang)",
    ),
    (
        ("custom_id", "body"),
        "requests of a batch: what they wrote is not in it; join the answers' token counts and map columns",
    ),
)
"""Keys of files that hold no requests, and what to do instead."""


def detected(path: str | os.PathLike[str]) -> str:
    """Returns the name of the format that a file's keys are of; TraceError where they are of none."""
    file = TraceFile(os.fspath(path))
    found = seen(file)
    for name, reader in TRACE_FORMATS.items():
        if isinstance(reader, TraceFormat) and reader.recognises(found):
            return name
    for keys, why in KNOWN_BUT_NOT_READ:
        if set(keys) <= set(found.keys):
            raise TraceError(f"{file.path}, line 1: {why}")
    raise TraceError(
        f"{file.path}, line 1: of no format that is known by its keys; found "
        f"{', '.join(found.keys)[:200] or 'none'}; name its columns (arrival_s, input_tokens, output_tokens) "
        "and time_unit, or name a format"
    )


def read_trace(path: str | os.PathLike[str], form: str | None = None, **asked: object) -> Trace:
    """Reads a file by the format named, by `columns` where they are given, or else as its keys say.

    Keywords as `ReadOptions`; those at None are left out. Raises TraceError for a file that cannot be used,
    and ValueError for options that do not fit it.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    name = form or ("columns" if given.get("columns") else detected(path))
    try:
        return TRACE_FORMATS[name](path, **given)  # type: ignore[arg-type]
    except TypeError as error:
        if isinstance(TRACE_FORMATS[name], TraceFormat):
            raise
        raise ValueError(f"the reader of {name} does not take one of {', '.join(given)} ({error})") from error
