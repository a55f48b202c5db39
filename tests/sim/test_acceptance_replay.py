"""Recorded requests: exact at any draft length, place by place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.experiments.point.acceptance_traces import read_traces
from specfleet.sim.speculation.acceptance import AcceptanceSpec, survival_table
from specfleet.sim.speculation.processes import ReplayAcceptance, process
from specfleet.sim.speculation.replay import NO_MATCH, placed, rounds_of, survival_of, walk

TRACES = st.lists(st.integers(0, 9) | st.just(NO_MATCH), min_size=1, max_size=40).map(bytes)


def replaying(*traces: bytes, k: int = 3) -> ReplayAcceptance:
    """The process that follows these requests."""
    found = process(AcceptanceSpec(replay=traces), k, seed=0)
    assert isinstance(found, ReplayAcceptance)
    return found


def test_a_round_accepts_what_is_recorded_where_it_starts_and_jumps_behind_its_own_token() -> None:
    trace = bytes([9, 2, 9, 9, 0, 3, 9, 9, 9, 1])
    #               p=1: 2 accepted -> 4; p=4: 0 -> 5; p=5: 3 -> 9; p=9: 1 -> 11
    assert list(walk(trace, 5, 10)) == [(1, 2), (4, 0), (5, 3), (9, 1)]
    assert list(walk(trace, 1, 10)) == [(1, 1), (3, 1), (5, 1), (7, 1), (9, 1)]


@given(TRACES, st.integers(1, 8), st.integers(2, 80))
def test_every_token_is_written_once(trace: bytes, k: int, tokens: int) -> None:
    at = 1
    for position, accepted in walk(trace, k, tokens):
        assert position == at < tokens
        at += 1 if accepted == NO_MATCH else 1 + accepted
    assert tokens <= at <= tokens + k


@given(TRACES, st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(2, 60))
@settings(max_examples=60)
def test_luck_by_place_serves_any_sequence_of_draft_lengths(trace: bytes, ks: list[int], tokens: int) -> None:
    accepted, found = replaying(trace).at_positions(0, tokens)
    assert len(accepted) == tokens + 1
    at, step = 1, 0
    while at < tokens:
        recorded, k = trace[at % len(trace)], ks[step % len(ks)]
        drafts = k if found is None or found[at] else 0
        assert bool(drafts) == bool(k and recorded != NO_MATCH)
        kept = min(accepted[at], drafts)
        assert kept == (min(recorded, k) if recorded != NO_MATCH else 0)
        at, step = at + 1 + kept, step + 1


@given(TRACES, st.integers(1, 6), st.integers(2, 60))
def test_rounds_in_succession_are_those_by_place(trace: bytes, k: int, tokens: int) -> None:
    replay = replaying(trace, k=k)
    accepted = list(replay.accepted(0, 100, tokens))
    found = replay.proposals(0, tokens)
    by_place, matches = replay.at_positions(0, tokens)
    at, sampling = 1, 0
    while at < tokens:
        proposes = found is None or bool(found[sampling])
        assert proposes == (matches is None or bool(matches[at]))
        kept = accepted.pop(0) if proposes else 0
        assert kept == min(by_place[at], k)
        at, sampling = at + 1 + kept, sampling + 1
    assert not accepted


def test_requests_take_the_traces_in_turn_and_start_again_when_they_end() -> None:
    replay = replaying(b"\x00", b"\x02\x01", k=2)
    assert [replay.trace(request) for request in range(4)] == [b"\x00", b"\x02\x01"] * 2
    assert placed(b"\x02\x01", 4) == b"\x02\x01\x02\x01\x02"
    assert replay.accepted(3, 100, 7) == bytes([1, 1, 1])


def test_pooled_survival_is_that_of_the_walks() -> None:
    traces = (bytes([3, 0, 1, 2]), bytes([0, 0, NO_MATCH, 5]))
    assert [*rounds_of(traces[0], 2, 4, start=0)] == [2, 2]
    assert [*rounds_of(traces[1], 2, 4, start=0)] == [0, 0, 2]
    assert survival_of(traces, 2) == pytest.approx([3 / 5, 3 / 5])
    assert survival_table(AcceptanceSpec(replay=traces), 2)[17] == pytest.approx([3 / 5, 3 / 5])
    assert replaying(*traces, k=2).confidence(0, 10) == pytest.approx((1.0, 1.0))


def test_only_a_trace_without_gaps_always_proposes() -> None:
    assert replaying(b"\x01\x02").proposals(0, 9) is None
    assert replaying(bytes([1, NO_MATCH])).proposals(0, 9) is not None


def test_a_shared_position_trace_of_a_process_gives_its_acceptance_length_at_every_k() -> None:
    spec = AcceptanceSpec(conditional_acceptance=0.65)
    source = process(spec, 8, seed=3)
    traces = tuple(source.accepted(request, 100, 2000) for request in range(40))
    for k in (1, 3, 5):
        expected = [0.65**i for i in range(1, k + 1)]
        assert survival_of(traces, k) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv"])
def test_a_file_holds_one_request_a_line(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name.endswith("jsonl"):
        file.write_text('[2, 0, null, 1]\n\n{"id": 7, "accepted": [300]}\n')
    else:
        file.write_text("2, 0, , 1\n\n300\n")
    assert read_traces(str(file)) == (bytes([2, 0, NO_MATCH, 1]), bytes([254]))


def test_counts_of_tokens_are_one_more_than_accepted_drafts(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("3,1,,2\n")
    assert read_traces(str(file), "tokens") == (bytes([2, 0, NO_MATCH, 1]),)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.jsonl", "[1]\n[1, -2]\n", r"t\.jsonl:2: position 1 is -2"),
        ("t.jsonl", "[1\n", r"t\.jsonl:1: "),
        ("t.jsonl", '{"id": 1}\n', r"t\.jsonl:1: a request is a list"),
        ("t.csv", "1,x\n", r"t\.csv:1: position 1 is 'x'"),
        ("t.csv", "\n", "holds no request"),
    ],
)
def test_what_is_no_count_is_named_with_its_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_traces(str(file))
    with pytest.raises(ValueError, match=r"cannot read gone\.csv"):
        read_traces(str(tmp_path / "gone.csv"))


@pytest.mark.parametrize(
    "beside",
    [
        {"conditional_acceptance": 0.5},
        {"context_multiplier": ((1.0, 1.0),)},
        {"length_rank_correlation": 0.3},
        {"proposal_probability": 0.5},
    ],
)
def test_replay_leaves_no_room_for_another_source(beside: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="replay"):
        AcceptanceSpec(replay=(b"\x01",), **beside)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        AcceptanceSpec(replay=(b"",))


def test_only_replay_has_luck_by_place() -> None:
    plain = process(AcceptanceSpec(conditional_acceptance=0.5), 2, seed=0)
    assert not plain.by_output_position and replaying(b"\x01").by_output_position
    with pytest.raises(ValueError, match="by round"):
        plain.at_positions(0, 10)
    assert np.frombuffer(replaying(b"\x05").at_positions(0, 3)[0], dtype=np.uint8).tolist() == [5, 5, 5, 5]
