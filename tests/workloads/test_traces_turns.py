"""Recorded requests as turns: what follows what and when, and the rules for what a file lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.workloads.tables import kept
from specfleet.workloads.traces.formats import read_trace
from specfleet.workloads.traces.report import Trace, TraceError
from specfleet.workloads.traces.statistics import statistics_text

MAP = {"arrival_s": "t", "input_tokens": "i", "output_tokens": "o", "session": "s", "turn": "n"}
ENDS = {**MAP, "end_s": "e"}
SHARED = Path(__file__).parents[3] / "shared" / "traces"


def read(folder: Path, rows: list[str], columns: dict[str, str], **asked: Any) -> Trace:
    path = folder / "log.csv"
    path.write_text("\n".join(["t,i,o,s,n,e,d,p", *rows]) + "\n")
    asked = {"time_unit": "s", "turns": "after_answer"} | asked
    return read_trace(path, columns=columns, **asked)


def said(trace: Trace) -> str:
    return "; ".join(trace.report.turns)


TALK = [
    "0,100,10,a,1,2,2,",
    "1,50,5,b,1,1.5,0.5,",
    "5,130,20,a,2,6,1,",
    "6,9,9,,,6.5,0.5,",
    "7,200,5,a,3,8,1,",
    "9,70,5,b,2,9.5,0.5,",
]


def test_a_turn_waits_for_the_answer_before_it_and_its_pause(tmp_path: Path) -> None:
    table = read(tmp_path, TALK, ENDS).requests
    assert table.session_id.tolist() == [0, 0, 0, 1, 1, 2]
    assert table.turn.tolist() == [0, 1, 2, 0, 1, 0]
    assert table.arrival_s.tolist() == [0, 0, 0, 1, 1, 6]
    assert table.prompt_tokens.tolist() == [100, 130, 200, 50, 70, 9]
    assert table.think_s is not None and table.think_s.tolist() == [0, 3, 1, 0, 7.5, 0]
    assert table.output_stream is None and table.segment_offset is None
    table.validate()


def test_a_pause_is_what_is_stated_or_counted_from_the_end_or_the_duration_of_the_answer(
    tmp_path: Path,
) -> None:
    by_end = read(tmp_path, TALK, ENDS).requests
    by_duration = read(tmp_path, TALK, {**MAP, "duration_s": "d"}).requests
    assert by_end.think_s is not None and by_duration.think_s is not None
    assert by_end.think_s.tolist() == by_duration.think_s.tolist()
    stated = [row + str(number) for number, row in enumerate(TALK)]
    table = read(tmp_path, stated, {**ENDS, "think_s": "p"}).requests
    assert table.think_s is not None and table.think_s.tolist() == [0, 2, 4, 0, 5, 0]


def test_a_file_that_tells_no_pause_needs_one_stated(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"3 of 3 turns behind another without a pause.*give pause_s"):
        read(tmp_path, TALK, MAP)
    trace = read(tmp_path, TALK, MAP, pause_s=2.5)
    assert trace.requests.think_s is not None
    assert trace.requests.think_s.tolist() == [0, 2.5, 2.5, 0, 2.5, 0]
    assert "3 pauses not recorded; 2.5 s each" in said(trace)


def test_numbers_of_turns_go_before_times_and_without_them_times_do(tmp_path: Path) -> None:
    swapped = ["4,100,10,a,2,5,,", "2,50,5,a,1,3,,", "9,60,5,a,3,9.5,,"]
    numbered = read(tmp_path, swapped, ENDS, on_reset="sort")
    timed = read(tmp_path, swapped[::-1], {k: v for k, v in ENDS.items() if k != "turn"}, on_reset="sort")
    for trace in (numbered, timed):
        assert trace.requests.prompt_tokens.tolist() == [50, 100, 60]
        assert trace.requests.think_s is not None and trace.requests.think_s.tolist() == [0, 1, 4]


def test_turns_that_are_missing_are_closed_up_and_those_that_overlap_come_at_once(tmp_path: Path) -> None:
    trace = read(tmp_path, ["0,9,9,a,1,5,,", "3,9,9,a,2,6,,", "20,9,9,a,7,21,,"], ENDS)
    assert trace.requests.turn.tolist() == [0, 1, 2]
    assert trace.requests.think_s is not None and trace.requests.think_s.tolist() == [0, 0, 14]
    assert "4 numbers of turns missing" in said(trace)
    assert "1 turn began before the answer before had ended; no pause" in said(trace)


def test_a_number_that_is_there_twice_is_dropped_and_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, ["0,9,9,a,1,1,,", "2,8,9,a,1,3,,", "4,7,9,a,2,5,,", "5,7,9,a,x,5,,"], ENDS)
    assert trace.requests.prompt_tokens.tolist() == [9, 7]
    reasons = {drop.reason: drop.rows for drop in trace.report.dropped}
    assert reasons == {
        "its session has a turn of this number already": 1,
        "the number of a turn is not a whole number": 1,
    }


def test_contexts_accumulate_where_prompts_are_long_enough_and_are_cut_where_not(tmp_path: Path) -> None:
    rows = ["0,100,10,a,1,1,,", "2,130,20,a,2,3,,", "4,90,5,a,3,5,,", "6,200,5,a,4,7,,", "7,30,5,b,1,8,,"]
    trace = read(tmp_path, rows, ENDS, context="accumulate")
    table = trace.requests
    assert table.segment_stream is not None and table.output_stream is not None
    assert table.segment_stream.tolist() == [-1, -1, -2, -2, -3] == table.output_stream.tolist()
    assert table.new_tokens.tolist() == [100, 20, 90, 105, 30]
    assert "2 prompts begin with prompt and answer of the turn before" in said(trace)
    assert "unbounded cache, as contexts accumulate, answers left out" in statistics_text(trace)
    assert "1 prompt shorter than prompt and answer before" in said(trace)


def test_blocks_of_a_trace_stay_with_their_turns(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [
        {"t": 0, "i": 6, "o": 3, "s": "a", "h": [1, 2], "e": 1},
        {"t": 1, "i": 4, "o": 3, "s": "b", "h": [1], "e": 2},
        {"t": 2, "i": 9, "o": 3, "s": "a", "h": [1, 2, 3], "e": 3},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    columns = {**ENDS, "hash_ids": "h"}
    columns.pop("turn")
    asked: dict[str, Any] = {"columns": columns, "time_unit": "s", "block_size": 4, "turns": "after_answer"}
    table = read_trace(path, **asked).requests
    assert table.segment_stream is not None and table.segment_stream.tolist() == [-1, -2, -1, -2, -3, -1]
    assert table.prompt_tokens.tolist() == [6, 9, 4]
    with pytest.raises(TraceError, match="hash_ids say what prompts share; remove context"):
        read_trace(path, **asked, context="accumulate")


@given(
    turns=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(1, 40), st.integers(1, 9), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    context=st.sampled_from(["recorded", "accumulate"]),
)
@settings(max_examples=40, deadline=None)
def test_rows_read_are_kept_or_dropped_and_every_kept_one_is_a_turn_of_its_session(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[int, int, int, int, bool]], context: str
) -> None:
    rows = [
        f"{at},{prompt},{output},{'' if session == 4 else session},{at if numbered else ''},{at + 1},,"
        for at, (session, _, prompt, output, numbered) in enumerate(turns)
    ]
    times: dict[int, list[int]] = {}
    for at, (session, *_) in enumerate(turns):
        times.setdefault(session if session != 4 else -1 - at, []).append(at)
    if max(times) < 0:
        return
    table, report = read(tmp_path_factory.mktemp("log"), rows, ENDS, context=context)
    assert report.rows_read == len(rows) == report.rows_kept
    table.validate()
    every = times.values()
    waited = [max(b - a - 1, 0) for mine in every for a, b in zip([mine[0], *mine], mine, strict=False)]
    assert table.think_s is not None and table.think_s.tolist() == waited
    assert table.prompt_tokens.tolist() == [turns[at][2] for mine in every for at in mine]
    assert table.turn.tolist() == [turn for mine in every for turn in range(len(mine))]


def test_rows_that_are_left_out_close_their_session_up(tmp_path: Path) -> None:
    table = read(tmp_path, TALK, ENDS, context="accumulate").requests
    left = kept(table, np.array([1, 2, 3, 4, 5]))
    left.validate()
    assert left.turn.tolist() == [0, 1, 0, 1, 0] and left.session_id.tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("asked", "error", "why"),
    [
        ({"turns": "arrivals", "pause_s": 1.0}, ValueError, "pause_s is of turns that wait for answers"),
        ({"turns": "arrivals", "context": "accumulate"}, ValueError, "context is of turns that wait"),
        ({"turns": "later"}, ValueError, "turns must be one of arrivals, after_answer"),
        ({"pause_s": -1.0}, ValueError, "pause_s must be 0 or more seconds"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, asked: dict[str, object], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        read(tmp_path, TALK, ENDS, **asked)


def test_a_file_without_sessions_has_no_turns(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request names a session"):
        read(tmp_path, ["0,9,9,,1,1,,"], ENDS)


CHAT = [
    {"from": "system", "value": "be brief"},
    {"from": "human", "value": "x" * 32},
    {"from": "gpt", "value": "y" * 40},
    {"from": "human", "value": "z" * 20},
    {"from": "gpt", "value": "w" * 8},
]


@pytest.mark.parametrize("form", ["sharegpt", "messages"])
def test_conversations_are_sessions_whose_prompts_are_all_that_was_said(tmp_path: Path, form: str) -> None:
    path = tmp_path / "talk.json"
    roles = {"human": "user", "gpt": "assistant", "system": "system"}
    messages = [{"role": roles[one["from"]], "content": one["value"]} for one in CHAT]
    talk = {"conversations": CHAT} if form == "sharegpt" else {"messages": messages}
    path.write_text(json.dumps([{"id": "1", **talk}, {"id": "2", **talk}]))
    asked: dict[str, Any] = {
        "characters_per_token": 4.0,
        "turns": "after_answer",
        "pause_s": 1.0,
        "context": "accumulate",
    }
    table, report = read_trace(path, **asked)
    assert table.prompt_tokens.tolist() == [10, 25, 10, 25] and table.output_tokens.tolist() == [10, 2, 10, 2]
    assert table.session_id.tolist() == [0, 0, 1, 1] and table.new_tokens.tolist() == [10, 5, 10, 5]
    assert not report.timed and report.sessions == 2
    single = read_trace(path, characters_per_token=4.0).requests
    assert len(single) == 2 and single.think_s is None


def test_burstgpt_has_the_pauses_and_cut_contexts_that_were_measured_on_it() -> None:
    path = SHARED / "burstgpt" / "BurstGPT_3.head400.csv"
    trace = read_trace(path, turns="after_answer", context="accumulate")
    table = trace.requests
    assert table.think_s is not None
    pauses = table.think_s[table.turn > 0]
    assert len(pauses) == 259
    assert np.percentile(pauses, [10, 50, 90]) == pytest.approx([18, 116, 1372], rel=0.02)
    assert trace.report.session is not None
    assert int((table.turn == 0).sum()) == 134 + int((trace.report.session == -1).sum())
    assert "71 prompts shorter" in said(trace)


def test_aiperf_names_turns_and_when_answers_ended(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    rows = []
    for turn, (start, end) in enumerate(((0, 3), (5, 6))):
        about = {"conversation_id": "c", "turn_index": turn, "benchmark_phase": "profiling"}
        about |= {"request_start_ns": int(1e18) + start * 10**9, "request_end_ns": int(1e18) + end * 10**9}
        lengths = {"input_sequence_length": {"value": 9}, "output_sequence_length": {"value": 5}}
        rows.append(json.dumps({"metadata": about, "metrics": lengths}))
    path.write_text("\n".join(rows))
    table = read_trace(path, turns="after_answer").requests
    assert table.think_s is not None and table.think_s.tolist() == [0.0, 2.0]


MANY = [
    f"{s + 3 * turn},{10 + turn},5,{s},{turn + 1},{s + 3 * turn + 1},1,"
    for s in range(40)
    for turn in range(3)
]


@pytest.mark.parametrize(
    ("scale", "least", "most"), [(0.5, 8, 32), (1.0, 40, 40), (2.0, 80, 80), (2.5, 85, 115)]
)
def test_rate_scale_takes_whole_sessions_and_moves_them_as_one(
    tmp_path: Path, scale: float, least: int, most: int
) -> None:
    rows = sorted(MANY, key=lambda row: float(row.split(",")[0]))
    trace = read(tmp_path, rows, ENDS, rate_scale=scale)
    table = trace.requests
    table.validate()
    sessions = int(table.session_id.max()) + 1
    assert least <= sessions <= most and len(table) == 3 * sessions
    assert table.turn.tolist() == [0, 1, 2] * sessions
    assert table.think_s is not None and table.think_s.tolist() == [0, 2, 2] * sessions
    assert table.prompt_tokens.tolist() == [10, 11, 12] * sessions
    assert (table.arrival_s <= 39 + 6).all() and (np.diff(table.arrival_s) >= 0).all()
    assert scale == 1.0 or any("120 requests of 40 sessions" in notice for notice in trace.report.notices)


def test_a_single_turn_is_told_in_the_singular(tmp_path: Path) -> None:
    trace = read(tmp_path, [TALK[0]], ENDS)
    assert said(trace).startswith("1 request as turns of 1 session, each sent after its answer")
