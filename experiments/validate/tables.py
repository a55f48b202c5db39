"""Tables of measured points: which kind a file is, and for each row that is not scored, why."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from specfleet.experiments.validate.columns import SERVED, CsvRow, bench_point, served_point
from specfleet.experiments.validate.offline import is_offline, offline_point
from specfleet.experiments.validate.points import MeasuredPoint, Readout, Unusable

Records = Mapping[str, Sequence[CsvRow]]
"""Rows by what was measured together: one server, with and without drafts."""


def read_csv(path: Path, frozen: bool) -> Readout:
    """Reads every row of a file.

    Args:
        path: CSV with a header.
        frozen: published constants instead of those found for a machine.

    Raises:
        ValueError: if the header is none of the known kinds.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        header = rows.fieldnames or []
        if SERVED in header:
            make = served_point
        elif {"target_model", "gpu"} <= set(header):
            make = row_point
        else:
            raise ValueError(
                f"{path}: no column target_model with gpu, and no {SERVED}; "
                "use a file of measured points, or `vllm bench serve` JSON with --serve"
            )
        read = [CsvRow(cells) for cells in rows]
    readout, records = Readout(), dict[str, list[CsvRow]]()
    for row in read:
        records.setdefault(row.text("record_id"), []).append(row)
    for line, row in enumerate(read, 2):
        _add(readout, f"{path.name}:{line}", row, make, frozen, records)
    return readout


def _add(readout: Readout, name: str, row: CsvRow, make: object, frozen: bool, records: Records) -> None:
    assert callable(make)
    record = row.text("record_id")
    beside = {"record": records[record]} if make is row_point and record else {}
    try:
        readout.points.append(make(name, row, frozen, **beside))
    except Unusable as reason:
        readout.skipped[str(reason)] += 1
        readout.why[name] = str(reason)
    except ValueError as error:
        readout.errors[str(error)] += 1
        readout.why[name] = str(error)


def row_point(name: str, row: CsvRow, frozen: bool, record: Sequence[CsvRow] = ()) -> MeasuredPoint:
    """Returns the point of a served run, or of an offline batch among the rows of its record."""
    return offline_point(name, row, frozen, record) if is_offline(row) else bench_point(name, row, frozen)
