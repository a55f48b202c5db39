"""ShareGPT: text is counted by a stated ratio or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.workloads.traces.formats import detected, read_trace
from specfleet.workloads.traces.report import TraceError


def test_text_is_counted_by_the_ratio_stated(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    turns = [
        {"from": "human", "value": "x" * 41},
        {"from": "gpt", "value": "y" * 80},
        {"from": "human", "value": "z"},
    ]
    path.write_text(
        json.dumps([{"id": "a", "conversations": turns}, {"id": "b", "conversations": turns[:1]}])
    )
    requests, report = read_trace(path, characters_per_token=4.0)
    assert detected(path) == "sharegpt" and not report.timed
    assert (requests.prompt_tokens.tolist(), requests.output_tokens.tolist()) == ([11], [20])
    assert [(drop.reason, drop.rows) for drop in report.dropped] == [("fewer than two turns", 1)]
    with pytest.raises(TraceError, match="set characters_per_token"):
        read_trace(path)
