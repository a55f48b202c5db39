"""Sessions turn by turn: what a prompt holds of those before it, what is cut, and how long pauses are."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.workloads.build import WorkloadSpec
from specfleet.workloads.build_sessions import session_requests
from specfleet.workloads.lengths import Fixed, Uniform
from specfleet.workloads.pauses import (
    EmpiricalPause,
    ExponentialPause,
    FixedPause,
    LogNormalPause,
    PauseLaw,
    UniformPause,
)
from specfleet.workloads.rates import schedule
from specfleet.workloads.requests import RequestTable
from specfleet.workloads.sessions import Cut, SessionSpec, Tools

SPEC = WorkloadSpec(num_prompts=60, input=Uniform(5, 40), output=Uniform(1, 30), num_warmups=5)
PLAIN = SessionSpec(Uniform(1, 9), ExponentialPause(4.0))
TOOL = Tools(0.6, FixedPause(0.5), Uniform(50, 90), Fixed(3))
CUTS = (None, Cut(150, 60, summarises=False), Cut(150, 40, summarises=True))
MIDPOINTS = (np.arange(20_000) + 0.5) / 20_000


@st.composite
def specs(draw: st.DrawFn) -> SessionSpec:
    """Sessions of every kind."""
    return replace(
        PLAIN,
        first=draw(st.sampled_from([None, Fixed(70)])),
        cut=draw(st.sampled_from(CUTS)),
        system_tokens=draw(st.sampled_from([0, 13])),
        system_pools=draw(st.sampled_from([1, 3])),
        tool=draw(st.sampled_from([None, TOOL])),
        reasoning_share=draw(st.sampled_from([0.0, 0.5])),
        max_model_len=draw(st.sampled_from([None, 260])),
    )


def prompts(table: RequestTable) -> list[list[tuple[int, int]]]:
    """Each prompt as (stream, tokens)."""
    assert table.segment_offset is not None
    assert table.segment_stream is not None
    assert table.segment_tokens is not None
    pieces = list(zip(table.segment_stream.tolist(), table.segment_tokens.tolist(), strict=True))
    cuts = table.segment_offset.tolist()
    return [pieces[a:b] for a, b in pairwise(cuts)]


@settings(max_examples=60, deadline=None)
@given(specs(), st.integers(0, 2**32))
def test_a_prompt_is_that_of_the_turn_before_with_its_answer_and_more_unless_it_was_cut(
    spec: SessionSpec, seed: int
) -> None:
    table = session_requests(SPEC, spec, seed)
    assert len(table) >= SPEC.num_requests
    assert table.output_stream is not None
    held = prompts(table)
    owners: dict[int, int] = {}
    for row, prompt in enumerate(held):
        stream, own = prompt[-1]
        assert owners.setdefault(stream, table.session_id[row]) == table.session_id[row], "of one session"
        assert prompt[:-1] == ([(prompt[0][0], spec.system_tokens)] if spec.system_tokens else [])
        if not table.turn[row]:
            continue
        before, known = held[row - 1][-1]
        if before != stream:
            assert spec.cut is not None, "only a cut begins anew"
            continue
        assert prompt[:-1] == held[row - 1][:-1], "the system prompt stays"
        answer = int(table.output_tokens[row - 1])
        kept = answer if table.output_stream[row - 1] == stream else answer - round(0.5 * answer)
        summary = spec.cut is not None and spec.cut.summarises and table.output_tokens[row] == spec.cut.to
        assert own - known - kept in range(5, 91) or (summary and own == known + kept)
    if spec.max_model_len is not None:
        assert (table.prompt_tokens + table.max_tokens <= spec.max_model_len).all()


@settings(max_examples=30, deadline=None)
@given(specs(), st.integers(0, 2**32), st.integers(1, 200))
def test_more_requests_leave_the_sessions_before_them_as_they_are(
    spec: SessionSpec, seed: int, n: int
) -> None:
    more, fewer = (session_requests(replace(SPEC, num_prompts=m), spec, seed) for m in (200, n))
    for name in ("prompt_tokens", "output_tokens", "session_id", "turn", "think_s", "output_stream"):
        np.testing.assert_array_equal(getattr(more, name)[: len(fewer)], getattr(fewer, name), err_msg=name)


def test_a_trimmed_context_drops_the_oldest_turns_whole() -> None:
    spec = SessionSpec(Fixed(8), FixedPause(0.0), cut=Cut(100, 60, summarises=False), system_tokens=10)
    work = WorkloadSpec(num_prompts=8, input=Fixed(10), output=Fixed(10))
    table = session_requests(work, spec, 0)
    # 20, 40, 60, 80, 100; 120 is above 100, and whole turns of 20 go until at most 60 are left
    assert table.prompt_tokens.tolist() == [20, 40, 60, 80, 100, 60, 80, 100]
    streams = [prompt[-1][0] for prompt in prompts(table)]
    assert len(set(streams[:5])) == len(set(streams[5:])) == 1
    assert streams[4] != streams[5]
    assert table.new_tokens.tolist() == [20, 10, 10, 10, 10, 60, 10, 10]


def test_a_compacted_context_costs_a_request_that_reads_it_all() -> None:
    spec = SessionSpec(Fixed(6), FixedPause(2.0), cut=Cut(100, 7, summarises=True), system_tokens=10)
    work = WorkloadSpec(num_prompts=6, input=Fixed(10), output=Fixed(10))
    table = session_requests(work, spec, 0)
    # the sixth turn would be 120: first the context of 110 is read and summed up in 7 tokens
    assert table.prompt_tokens.tolist() == [20, 40, 60, 80, 100, 110, 27]
    assert table.output_tokens.tolist() == [10, 10, 10, 10, 10, 7, 10]
    assert table.think_s is not None
    assert table.think_s.tolist() == [0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0]
    assert table.turn.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert table.new_tokens.tolist() == [20, 10, 10, 10, 10, 0, 27]


def test_answers_call_tools_as_often_as_asked_and_never_at_the_end() -> None:
    spec = replace(PLAIN, turns=Fixed(5), think=FixedPause(9.0), tool=TOOL)
    table = session_requests(replace(SPEC, num_prompts=20_000), spec, 3)
    assert table.think_s is not None
    calls, results = table.output_tokens == 3, np.equal(table.think_s, 0.5)
    assert results[table.turn > 0].mean() == pytest.approx(0.6, abs=0.01)
    assert calls[np.flatnonzero(results) - 1].all()
    new = table.new_tokens
    assert new[results].min() >= 50 > 40 >= new[~results].max()


def test_a_session_ends_before_a_turn_that_does_not_fit() -> None:
    spec = SessionSpec(Fixed(10), FixedPause(0.0), max_model_len=100)
    work = WorkloadSpec(num_prompts=9, input=Fixed(10), output=Fixed(10))
    table = session_requests(work, spec, 0)
    assert table.prompt_tokens.tolist() == [10, 30, 50, 70, 90] * 2
    assert (table.prompt_tokens + table.max_tokens).max() == 100
    with pytest.raises(ValueError, match="first turn of session 1 exceeds max_model_len, 15"):
        session_requests(work, replace(spec, max_model_len=15), 0)


def test_without_its_reasoning_an_answer_is_not_found_again() -> None:
    spec = SessionSpec(Fixed(3), FixedPause(0.0), reasoning_share=0.6)
    table = session_requests(WorkloadSpec(num_prompts=3, input=Fixed(10), output=Fixed(10)), spec, 0)
    assert table.prompt_tokens.tolist() == [10, 24, 38]
    assert table.output_stream is not None
    assert table.output_stream.tolist() == [0, 1, 2], "private"
    assert table.new_tokens.tolist() == [10, 14, 14]


def test_sessions_begin_so_often_that_the_rate_of_requests_is_kept() -> None:
    table = session_requests(replace(SPEC, num_prompts=5000, request_rate=8.0), PLAIN, 1)
    assert table.arrival_s[-1] == pytest.approx(len(table) / 8.0)
    wave = replace(SPEC, num_prompts=5000, curve=schedule([1.0, 9.0], 100.0))
    changing = session_requests(wave, PLAIN, 1)
    busy = (changing.arrival_s % 200.0) >= 100.0
    assert busy.mean() == pytest.approx(0.9, abs=0.03)
    classes = replace(SPEC, num_prompts=5000, class_mix=(("chat", 3.0), ("code", 1.0)))
    mixed = session_requests(classes, PLAIN, 1)
    assert (np.diff(mixed.class_id)[np.diff(mixed.session_id) == 0] == 0).all(), "a session is of one class"
    assert mixed.class_id[mixed.turn == 0].mean() == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize(
    ("law", "mean", "p90"),
    [
        (FixedPause(3.0), 3.0, 3.0),
        (UniformPause(1.0, 5.0), 3.0, 4.6),
        (ExponentialPause(3.0), 3.0, 3.0 * math.log(10)),
        (LogNormalPause(3.0, 0.5, 1e6), 3.0 * math.exp(0.125), 3.0 * math.exp(0.5 * 1.2815516)),
        (LogNormalPause(3.0, 2.0, 4.0), None, 4.0),
        (EmpiricalPause((0.0, 50.0, 100.0), (0.0, 2.0, 10.0)), 3.5, 8.4),
    ],
)
def test_laws_of_pauses_have_their_means_and_quantiles(law: PauseLaw, mean: float | None, p90: float) -> None:
    drawn = law.quantile(MIDPOINTS)
    assert (np.diff(drawn) >= 0).all()
    assert (drawn >= 0).all()
    assert float(law.quantile(np.array([0.9]))[0]) == pytest.approx(p90)
    if mean is not None:
        assert drawn.mean() == pytest.approx(mean, rel=1e-3)
