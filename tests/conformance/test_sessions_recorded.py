"""A session written as one stream gives the hits that vLLM was recorded to find of its turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import calendar_replay
import pytest
from replay import compare, engine_config

MULTITURN = "golden/vllm_scheduler/s08b_prefix_multiturn.json"


def as_session(trace: dict[str, Any], answers_kept: bool = True) -> dict[str, Any]:
    """The recorded conversation with one stream for what its turns add, prompts and outputs.

    Request 2 asks for the first half of an answer, and goes on by itself: a branch.
    """
    for request in trace["requests"]:
        own = [piece for piece in request["prompt"] if piece[0] != "sysA"]
        branch = [own.pop()] if request["id"] == 2 else []
        whole = [["session", sum(tokens for _, tokens in own)], *branch]
        request["prompt"] = [["sysA", 40], *whole]
        if answers_kept and not branch:
            request["output_stream"] = "session"
    return trace


def test_turns_hit_prompts_and_answers_as_recorded(shared: Path) -> None:
    trace = as_session(json.loads((shared / MULTITURN).read_text()))
    assert [request["prompt"] for request in trace["requests"]] == [
        [["sysA", 40], ["session", 30]],
        [["sysA", 40], ["session", 65]],
        [["sysA", 40], ["session", 40], ["2/in", 15]],
        [["sysA", 40], ["session", 78]],
    ]
    assert compare(trace).lines == []
    calendar = calendar_replay.compare(trace, engine_config(trace))
    assert (calendar.found.lines, calendar.obstacle) == ([], None)


@pytest.mark.parametrize("crowd", ["listed", "calendar"])
def test_without_its_answers_a_session_hits_less_than_recorded(shared: Path, crowd: str) -> None:
    trace = as_session(json.loads((shared / MULTITURN).read_text()), answers_kept=False)
    listed = crowd == "listed"
    found = compare(trace) if listed else calendar_replay.compare(trace, engine_config(trace)).found
    assert any("cached" in line for line in found.lines)
