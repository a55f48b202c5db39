"""Any CSV or JSONL by a map of its columns, with the unit of its times stated."""

from __future__ import annotations

import dataclasses
import os

from specfleet.workloads.traces.files import Record, TraceFile
from specfleet.workloads.traces.layout import TraceFormat, seen, text
from specfleet.workloads.traces.options import FIELDS, ReadOptions
from specfleet.workloads.traces.report import Trace
from specfleet.workloads.traces.rows import UNITS, Row

NEEDED = ("input_tokens", "output_tokens")


def read_columns(path: str | os.PathLike[str], **asked: object) -> Trace:
    """The requests of a file by `columns`, field -> column; a key inside an object is written `a.b`.

    `input_tokens` and `output_tokens` are needed; `arrival_s` needs `time_unit`, since no number says whether
    it is seconds or milliseconds; `hash_ids`, a list, needs `block_size`. Raises as `TraceFormat` does.
    """
    options = ReadOptions(**asked)  # type: ignore[arg-type] # named by ReadOptions alone
    columns = options.columns
    for name in NEEDED:
        if name not in columns:
            raise ValueError(f"columns: {name} is missing; map it, as in {name}: n_tokens")
    if "arrival_s" in columns and options.time_unit is None:
        raise ValueError(
            f"time_unit is missing: it is not guessed; give the unit of {columns['arrival_s']}, one of "
            f"{', '.join(UNITS)}"
        )
    if "hash_ids" in columns and options.block_size is None:
        raise ValueError("block_size is missing: it is not guessed; give the tokens of a block of hash_ids")
    found = seen(TraceFile(os.fspath(path)))
    top = [column if column in found.keys else column.split(".")[0] for column in columns.values()]
    layout = TraceFormat(
        "columns as mapped",
        found.shape,
        tuple(dict.fromkeys(top)),
        lambda record: _row(record, columns),
        unit=options.time_unit if "arrival_s" in columns else None,
    )
    inner = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    return layout(path, **{**inner, "columns": {}, "time_unit": None})


def _row(record: Record, columns: object) -> Row:
    """A row of the mapped columns."""
    assert isinstance(columns, dict)
    value = {name: _at(record, columns[name]) for name in FIELDS if name in columns}
    hashes = value.get("hash_ids")
    return Row(
        value.get("arrival_s"),
        value["input_tokens"],
        value["output_tokens"],
        text(value.get("session")),
        text(value.get("traffic_class")),
        hashes if isinstance(hashes, list) else None,
        turn=value.get("turn"),
        pause=value.get("think_s"),
        end=value.get("end_s"),
        took=value.get("duration_s"),
    )


def _at(record: Record, column: str) -> object:
    """What stands under a column, or under a path of keys."""
    if column in record:
        return record[column]
    here: object = record
    for key in column.split("."):
        here = here.get(key) if isinstance(here, dict) else None
    return here
