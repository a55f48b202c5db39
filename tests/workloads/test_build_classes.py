"""Laws of classes of sessions and of recorded requests: how much there is of each, who notices whom."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.workloads.build import WorkloadSpec, build_requests
from specfleet.workloads.build_classes import class_requests, requests_a_session
from specfleet.workloads.classes import Mix, TrafficClass, mixed
from specfleet.workloads.lengths import Fixed, Uniform
from specfleet.workloads.pauses import FixedPause, UniformPause
from specfleet.workloads.requests import RequestTable
from specfleet.workloads.sessions import Cut, SessionSpec, Tools

TALK = SessionSpec(Uniform(1, 6), UniformPause(0.5, 2.0), system_tokens=20, system_pools=2)
AGENT = SessionSpec(
    Uniform(3, 9),
    FixedPause(1.0),
    cut=Cut(400, 60, summarises=True),
    tool=Tools(0.5, FixedPause(0.2), Fixed(70), Fixed(9)),
    max_model_len=900,
)
RECORDED = RequestTable.of(np.arange(1, 301), np.full(300, 7), arrival_s=np.arange(300) / 4.0, segments=None)
CHAT = TrafficClass("chat", Uniform(20, 60), Uniform(5, 40), request_rate=8.0, burstiness=0.5)
BATCH = TrafficClass("batch", Fixed(500), Uniform(1, 9), request_rate=3.0, prefix_tokens=64, prefix_groups=3)
TALKS = TrafficClass(
    "talks", Uniform(9, 40), Uniform(5, 30), request_rate=5.0, sessions=TALK, temperature=0.5
)
AGENTS = TrafficClass("agents", Fixed(50), Uniform(5, 30), request_rate=6.0, sessions=AGENT, priority=2)
LOG = TrafficClass("log", Fixed(1), Fixed(1), recorded=RECORDED)
EVERY = (CHAT, BATCH, TALKS, AGENTS, LOG)
KEPT = (
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "turn",
    "temperature",
    "priority",
    "luck_ids",
    "think_s",
)


def spec_of(*classes: TrafficClass, n: int = 500, request_rate: float = math.inf) -> WorkloadSpec:
    prompt, output = (mixed(classes, side) for side in ("input", "output"))
    return WorkloadSpec(n, prompt, output, request_rate=request_rate, mix=Mix(classes))


def by_share(each: TrafficClass, share: float) -> TrafficClass:
    return replace(each, share=share, request_rate=None, burstiness=1.0)


def of_class(table: RequestTable, name: str, *more: str) -> list[list[float]]:
    """What the requests of a class are, in order."""
    mine = table.class_id == table.class_names.index(name)
    thought = np.zeros(len(table)) if table.think_s is None else table.think_s
    columns = [thought if key == "think_s" else getattr(table, key) for key in (*KEPT, *more)]
    return [column[mine].tolist() for column in columns]


def pieces(table: RequestTable, name: str) -> list[object]:
    """What the prompts and outputs of a class share, by the order in which its streams are first named."""
    assert table.segment_offset is not None and table.segment_stream is not None
    assert table.segment_tokens is not None and table.output_stream is not None
    names: dict[int, int] = {}
    found: list[object] = []
    for row in np.flatnonzero(table.class_id == table.class_names.index(name)):
        low, high = table.segment_offset[row], table.segment_offset[row + 1]
        streams = [*table.segment_stream[low:high].tolist(), int(table.output_stream[row])]
        found.append(
            ([names.setdefault(one, len(names)) for one in streams], table.segment_tokens[low:high].tolist())
        )
    return found


def same_beginning(a: list[list[float]], b: list[list[float]]) -> bool:
    n = min(len(a[0]), len(b[0]))
    return n > 0 and all(x[:n] == y[:n] for x, y in zip(a, b, strict=True))


@given(
    others=st.lists(st.sampled_from(EVERY), min_size=1, max_size=4, unique_by=lambda one: one.name),
    mine=st.sampled_from((TALKS, AGENTS, LOG, CHAT)),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_a_class_is_the_same_whoever_else_is_there(
    others: list[TrafficClass], mine: TrafficClass, seed: int
) -> None:
    others = [one for one in others if one.name != mine.name]
    alone = class_requests(spec_of(mine, TALKS if mine is CHAT else CHAT), seed)
    among = class_requests(spec_of(*others, mine, replace(TALKS, name="more")), seed)
    assert same_beginning(*(of_class(table, mine.name, "arrival_s") for table in (alone, among)))
    if alone.output_stream is not None:
        a, b = (pieces(table, mine.name) for table in (alone, among))
        assert a[: min(len(a), len(b))] == b[: min(len(a), len(b))]


@given(
    shares=st.tuples(st.floats(0.05, 0.9), st.floats(0.05, 0.9)),
    seed=st.integers(0, 99),
    n=st.integers(1, 700),
)
@settings(max_examples=15, deadline=None)
def test_a_class_with_a_share_has_the_same_requests_whatever_its_share(
    shares: tuple[float, float], seed: int, n: int
) -> None:
    tables = [
        class_requests(
            spec_of(by_share(TALKS, share), by_share(CHAT, 1 - share), n=n, request_rate=9.0), seed
        )
        for share in shares
    ]
    for name in ("talks", "chat"):
        a, b = (of_class(table, name) for table in tables)
        assert not a[0] or not b[0] or same_beginning(a, b)
    assert all(n <= len(table) <= n + 6 for table in tables)


@given(
    classes=st.lists(st.sampled_from(EVERY), min_size=1, max_size=5, unique_by=lambda one: one.name),
    seed=st.integers(0, 99),
    n=st.integers(1, 600),
)
@settings(max_examples=15, deadline=None)
def test_sessions_are_whole_and_one_behind_the_other_and_no_two_classes_share_a_token(
    classes: list[TrafficClass], seed: int, n: int
) -> None:
    table = class_requests(spec_of(*classes, replace(AGENTS, name="last"), n=n), seed)
    table.validate()
    assert n <= len(table) <= n + 30
    assert table.turn[0] == 0 and table.segment_stream is not None and table.segment_offset is not None
    owner = np.repeat(table.class_id, np.diff(table.segment_offset))
    assert table.output_stream is not None
    streams = np.concatenate([table.segment_stream, table.output_stream])
    pairs = set(zip(streams.tolist(), np.concatenate([owner, table.class_id]).tolist(), strict=True))
    assert len(pairs) == len({one for one, _ in pairs})
    session = table.session_id[np.concatenate([[True], np.diff(table.session_id) != 0])]
    assert len(set(session.tolist())) == len(session)


@given(talks=st.floats(1, 20), agents=st.floats(1, 20), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_turns_come_at_the_rate_of_their_class(talks: float, agents: float, seed: int) -> None:
    classes = (replace(TALKS, request_rate=talks), replace(AGENTS, request_rate=agents), CHAT)
    table = class_requests(spec_of(*classes, n=4000), seed)
    for place, rate in enumerate((talks, agents, CHAT.request_rate)):
        expected = (rate or 0.0) * float(table.arrival_s[-1])
        assert abs((table.class_id == place).sum() - expected) < 5 * math.sqrt(12 * expected) + 12


@given(share=st.floats(0.05, 0.95), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_a_share_is_one_of_requests_and_not_of_sessions(share: float, seed: int) -> None:
    classes = (by_share(AGENTS, share), by_share(CHAT, 1 - share))
    table = class_requests(spec_of(*classes, n=4000, request_rate=20.0), seed)
    assert abs((table.class_id == 0).mean() - share) < 0.07
    assert len(table) / table.arrival_s[-1] == pytest.approx(20.0, rel=0.01)


def test_the_length_of_a_session_is_its_laws_unless_turns_are_added_or_left_out() -> None:
    assert requests_a_session(CHAT) == 1.0
    assert requests_a_session(TALKS) == 3.5
    table = class_requests(spec_of(AGENTS, replace(CHAT, request_rate=0.0), n=20_000), 3)
    assert requests_a_session(AGENTS) == pytest.approx(len(table) / (table.turn == 0).sum(), rel=0.03)
    assert requests_a_session(AGENTS) > 6.2


def test_recorded_requests_come_when_they_came_and_end_where_they_end() -> None:
    table = class_requests(spec_of(LOG, TALKS, n=900), 1)
    mine = table.class_id == 0
    assert table.arrival_s[mine].tolist() == RECORDED.arrival_s.tolist()
    assert table.prompt_tokens[mine].tolist() == RECORDED.prompt_tokens.tolist()
    alone = class_requests(spec_of(LOG, replace(CHAT, request_rate=0.0), n=900), 1)
    assert len(alone) == 300 and alone.think_s is None


def test_classes_of_single_requests_are_those_of_a_mix_without_sessions() -> None:
    among = class_requests(spec_of(CHAT, BATCH, TALKS), 5)
    without = build_requests(spec_of(CHAT, BATCH), 5)
    for name in ("chat", "batch"):
        assert same_beginning(*(of_class(table, name, "arrival_s") for table in (among, without)))


def test_more_requests_are_the_same_and_then_more() -> None:
    few, many = (class_requests(spec_of(*EVERY, n=n), 2) for n in (100, 1500))
    for name in ("arrival_s", "prompt_tokens", "session_id", "turn"):
        assert getattr(few, name).tolist() == getattr(many, name)[: len(few)].tolist()


def test_what_has_no_rows_to_be_drawn_is_refused_by_who_draws_rows() -> None:
    with pytest.raises(ValueError, match="use class_requests"):
        build_requests(spec_of(CHAT, TALKS), 1)
