"""Laws of traffic of several classes: how much there is of each, and that none notices the others."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.workloads.build import RequestStream, WorkloadSpec, build_requests
from specfleet.workloads.classes import Mix, TrafficClass, mixed
from specfleet.workloads.lengths import Fixed, Recorded, Uniform
from specfleet.workloads.requests import RequestTable

CHAT = TrafficClass("chat", Uniform(20, 60), Uniform(5, 40), request_rate=8.0, burstiness=0.5)
CODE = TrafficClass("code", Uniform(200, 900), Fixed(30), request_rate=4.0, temperature=0.7, priority=2)
BATCH = TrafficClass("batch", Fixed(500), Uniform(1, 9), request_rate=1.0, prefix_tokens=64, prefix_groups=3)
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "temperature", "priority")


def spec_of(*classes: TrafficClass, n: int = 600, request_rate: float = math.inf) -> WorkloadSpec:
    prompt, output = (mixed(classes, side) for side in ("input", "output"))
    return WorkloadSpec(n, prompt, output, request_rate=request_rate, mix=Mix(classes))


def by_share(each: TrafficClass, share: float) -> TrafficClass:
    return replace(each, share=share, request_rate=None, burstiness=1.0)


def of_class(table: RequestTable, name: str) -> list[np.ndarray]:
    """What the requests of a class are, in order."""
    mine = table.class_id == table.class_names.index(name)
    return [getattr(table, column)[mine] for column in (*COLUMNS, "luck_ids")]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    n = min(len(a[0]), len(b[0]))
    return n > 0 and all(np.array_equal(x[:n], y[:n]) for x, y in zip(a, b, strict=True))


@given(share=st.floats(0.02, 0.98), seed=st.integers(0, 1 << 40))
@settings(max_examples=20)
def test_shares_of_requests_come_out(share: float, seed: int) -> None:
    n = 4000
    table = build_requests(spec_of(by_share(CHAT, share), by_share(CODE, 1 - share), n=n), seed)
    assert abs((table.class_id == 0).mean() - share) < 5 * math.sqrt(share * (1 - share) / n)


@given(chat=st.floats(0.5, 20), code=st.floats(0.5, 20), seed=st.integers(0, 1 << 40))
@settings(max_examples=20)
def test_rates_come_out_and_so_do_the_shares_that_follow_from_them(
    chat: float, code: float, seed: int
) -> None:
    n = 4000
    pair = (replace(CHAT, request_rate=chat, burstiness=1.0), replace(CODE, request_rate=code))
    table = build_requests(spec_of(*pair, n=n), seed)
    assert (np.diff(table.arrival_s) >= 0).all()
    for place, rate in enumerate((chat, code)):
        expected = rate * float(table.arrival_s[-1])
        assert abs((table.class_id == place).sum() - expected) < 5 * math.sqrt(expected) + 1


@given(
    others=st.lists(st.sampled_from([CODE, BATCH]), min_size=1, max_size=2, unique=True),
    seed=st.integers(0, 99),
)
@settings(max_examples=20)
def test_a_request_of_a_stream_is_the_same_whoever_else_is_there(
    others: list[TrafficClass], seed: int
) -> None:
    alone = build_requests(spec_of(CHAT), seed)
    among = build_requests(spec_of(*others, CHAT), seed)
    assert same(of_class(alone, "chat"), of_class(among, "chat"))


def test_a_class_of_rate_0_is_as_if_it_were_not_there() -> None:
    alone, off = (
        build_requests(spec_of(CHAT, *more), 3) for more in ((), (replace(CODE, request_rate=0.0),))
    )
    assert same(of_class(alone, "chat"), of_class(off, "chat")) and len(off) == len(alone)
    assert off.class_names == ("chat", "code") and not (off.class_id == 1).any()


def test_a_class_whose_neighbour_has_share_0_is_the_workload_of_it_alone() -> None:
    off = build_requests(spec_of(by_share(CHAT, 1.0), by_share(BATCH, 0.0), request_rate=5.0), 7)
    plain = build_requests(WorkloadSpec(600, CHAT.input, CHAT.output, request_rate=5.0), 7)
    for name in COLUMNS:
        assert np.array_equal(getattr(off, name), getattr(plain, name)), name
    assert off.luck_id is None and off.segment_offset is None


def test_a_class_with_a_prefix_alone_is_the_workload_with_that_prefix() -> None:
    off = build_requests(spec_of(by_share(CHAT, 0.0), by_share(BATCH, 1.0)), 7)
    plain = build_requests(WorkloadSpec(600, BATCH.input, BATCH.output, prefix_tokens=64, prefix_groups=3), 7)
    for name in ("prompt_tokens", "segment_offset", "segment_stream", "segment_tokens"):
        assert np.array_equal(getattr(off, name), getattr(plain, name)), name


@pytest.mark.parametrize("shares", [None, (0.5, 0.3, 0.2)])
def test_the_order_in_the_file_changes_the_numbers_of_the_classes_alone(
    shares: tuple[float, ...] | None,
) -> None:
    classes = [CHAT, CODE, BATCH]
    if shares is not None:
        classes = [by_share(each, share) for each, share in zip(classes, shares, strict=True)]
    one = build_requests(spec_of(*classes), 5)
    other = build_requests(spec_of(*reversed(classes)), 5)
    for name in (*COLUMNS, "luck_ids", "segment_stream", "segment_tokens"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    named = [np.array(table.class_names)[table.class_id].tolist() for table in (one, other)]
    assert named[0] == named[1]


@pytest.mark.parametrize("classes", [(CHAT, CODE, BATCH), (by_share(CHAT, 0.6), by_share(CODE, 0.4))])
@given(size=st.integers(1, 700))
@settings(max_examples=10)
def test_portions_are_the_rows_of_the_whole(classes: tuple[TrafficClass, ...], size: int) -> None:
    spec = spec_of(*classes, request_rate=6.0 if classes[0].share else math.inf)
    whole = build_requests(spec, 2)
    parts = list(RequestStream(spec, 2).portions(size))
    for name in (*COLUMNS, "class_id", *(("luck_id",) if whole.luck_id is not None else ())):
        pieces = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(pieces, getattr(whole, name)), name


def test_more_requests_are_the_same_and_then_more() -> None:
    few, many = (build_requests(spec_of(CHAT, CODE, n=n), 2) for n in (100, 5000))
    assert np.array_equal(few.arrival_s, many.arrival_s[:100])
    assert np.array_equal(few.prompt_tokens, many.prompt_tokens[:100])


def test_prompts_of_two_classes_share_no_prefix() -> None:
    other = replace(BATCH, name="other")
    table = build_requests(spec_of(BATCH, other), 1)
    assert table.segment_stream is not None
    groups = table.segment_stream[::2]
    assert set(groups[table.class_id == 0]) == {-1, -2, -3}
    assert set(groups[table.class_id == 1]) == {-4, -5, -6}


def test_rows_of_a_trace_keep_prompt_and_output_together() -> None:
    rows = np.array([[10, 7], [20, 5], [30, 6]])
    each = by_share(replace(CHAT, input=Recorded(rows[:, 0]), output=Recorded(rows[:, 1])), 1.0)
    table = build_requests(spec_of(each, by_share(CODE, 0.0), n=900), 1)
    pairs, counts = np.unique(
        np.stack([table.prompt_tokens, table.output_tokens], 1), axis=0, return_counts=True
    )
    assert pairs.tolist() == rows.tolist() and (abs(counts - 300) < 75).all()


def test_the_law_of_all_classes_together_is_that_of_what_is_drawn() -> None:
    spec = spec_of(CHAT, CODE, BATCH, n=40_000)
    table = build_requests(spec, 4)
    assert spec.input.mean == pytest.approx(table.prompt_tokens.mean(), rel=0.02)
    assert spec.output.mean == pytest.approx(table.output_tokens.mean(), rel=0.02)
    assert spec.input.maximum == 900 and spec.output.maximum == 40
    u = np.array([0.1, 0.5, 0.9])
    assert spec.input.quantile(u) == pytest.approx(np.quantile(table.prompt_tokens, u), rel=0.05, abs=2)


def test_what_is_no_mix_is_refused() -> None:
    with pytest.raises(ValueError, match="not both"):
        replace(CHAT, share=0.5)
    with pytest.raises(ValueError, match="one kind"):
        Mix((CHAT, by_share(CODE, 0.5)))
    with pytest.raises(ValueError, match="one name"):
        Mix((CHAT, CHAT))
    with pytest.raises(ValueError, match="sends anything"):
        Mix((replace(CHAT, request_rate=0.0),))
    with pytest.raises(ValueError, match="below 0"):
        replace(CHAT, request_rate=-1.0)
    with pytest.raises(ValueError, match="each say which class"):
        replace(spec_of(CHAT, CODE), class_mix=(("chat", 1.0),))
