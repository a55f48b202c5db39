"""The `workload:` block that replays a trace, as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml


def replay_yaml(
    file: Path, form: str | None, speed: float, limit: int | None, asked: Mapping[str, object], timed: bool
) -> str:
    """Returns the block; a trace without times comes with a rate to be set.

    Args:
        file: the trace.
        form: its format, where it was named.
        speed: of the replay.
        limit: rows to keep.
        asked: how it is read besides, by the keys of `workload.trace`.
        timed: it records arrivals.
    """
    trace: object = {"file": str(file), **asked} if asked else str(file)
    block: dict[str, object] = {"trace": trace}
    if form is not None:
        block["trace_format"] = form
    if speed != 1:
        block["speed"] = speed
    if limit is not None:
        block["limit"] = limit
    if not timed:
        block["request_rate"] = 1.0
    note = "" if timed else "# it records no times: set the rate, requests/s\n"
    return note + yaml.safe_dump({"workload": block}, sort_keys=False, width=200).rstrip()
