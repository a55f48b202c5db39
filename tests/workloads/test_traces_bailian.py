"""Qwen-Bailian: Mooncake's keys, seconds and blocks of 16 tokens, sessions by their root."""

from __future__ import annotations

import json
from pathlib import Path

from specfleet.workloads.traces.formats import detected, read_trace


def test_chat_id_makes_it_seconds_and_sixteen_token_blocks(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    same = {"input_length": 40, "output_length": 5, "type": "text"}
    rows = [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "hash_ids": [1, 2, 3], **same},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 61.432, "hash_ids": [1, 2, 4], **same},
        {"chat_id": 3, "parent_chat_id": 2, "timestamp": 70, "hash_ids": [1, 2, 5], **same},
        {"chat_id": 4, "parent_chat_id": -1, "timestamp": 71, "hash_ids": [9, 8, 7], **same},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    requests, report = read_trace(path)
    assert detected(path) == "bailian" and report.block_size == 16 and report.sessions == 2
    assert requests.arrival_s.tolist() == [0.0, 60.932, 69.5, 70.5]
    assert requests.segment_tokens is not None
    assert requests.segment_tokens.tolist()[:3] == [16, 16, 8]
    assert report.classes == {"text": 4}
