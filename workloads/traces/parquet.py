"""Parquet files as rows, through pyarrow, which is imported here alone: the extra `parquet`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from specfleet.workloads.traces.report import TraceError

ROWS_AT_ONCE = 65_536


def columns_of(path: str) -> tuple[str, ...]:
    """The names of the columns; TraceError without pyarrow, or for a broken file."""
    return tuple(str(name) for name in _opened(path).schema_arrow.names)


def rows_of(path: str) -> Iterator[tuple[int, dict[str, object]]]:
    """(row from 1, values by column); numbers with a fraction and dates as texts."""
    number = 0
    opened = _opened(path)
    try:
        for batch in opened.iter_batches(ROWS_AT_ONCE):
            for row in batch.to_pylist():
                number += 1
                yield number, {str(name): _plain(value) for name, value in row.items()}
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: broken after row {number} ({str(error)[:120]}); fetch it again") from error


def _opened(path: str) -> Any:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise TraceError(
            f"{path}: a Parquet file, which pyarrow reads; pip install 'specfleet[parquet]', or write CSV"
        ) from error
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: a broken Parquet file ({str(error)[:120]}); fetch it again") from error


def _plain(value: object) -> object:
    """Whole numbers, lists and mappings as they are, anything else as text."""
    return value if value is None or isinstance(value, int | list | dict) else str(value)
