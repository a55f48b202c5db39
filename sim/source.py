"""Where the requests of a run come from, when it does not keep them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specfleet.workloads.requests import RequestTable

FITS = 2_000_000
"""Most requests of a run that is simulated as a whole: some 400 MB."""


class Source(Protocol):
    """Where requests come from, such as `workloads.build.RequestStream`."""

    def __len__(self) -> int: ...

    def portions(self, size: int) -> Iterator[RequestTable]:
        """Yields successive rows, the same bytes every time."""
        ...


@dataclass(frozen=True)
class Table:
    """A table that is there already, as a source."""

    table: RequestTable

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.table)

    def portions(self, size: int) -> Iterator[RequestTable]:
        """Yields successive rows; their prompts' segments are left out unless it is one portion."""
        if size >= len(self.table):
            yield self.table
            return
        for low in range(0, len(self.table), size):
            yield some_rows(self.table, slice(low, low + size))


def some_rows(table: RequestTable, rows: npt.NDArray[np.int64] | slice) -> RequestTable:
    """Returns some rows of a table, without segments."""
    columns = {name: getattr(table, name)[rows] for name in table.column_names()}
    return RequestTable(**columns, class_names=table.class_names, luck_id=table.lucky(rows))
