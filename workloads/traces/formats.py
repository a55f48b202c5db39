"""The formats of recorded traffic that can be read, by name."""

from __future__ import annotations

import os
from typing import Protocol

from specfleet.workloads.traces.azure import read_azure
from specfleet.workloads.traces.report import Trace


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

        Args:
            path: the file.
            speed: 2 halves every gap.
            limit: rows to keep, from the start.
            max_tokens: the cap that each request states; by default the largest output kept.
        """
        ...


TRACE_FORMATS: dict[str, TraceReader] = {"azure": read_azure}
