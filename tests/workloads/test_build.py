"""Arrivals and the table built from a `WorkloadSpec`: vLLM's open loop, and common random numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specfleet.workloads.arrivals import open_loop
from specfleet.workloads.build import Purpose, WorkloadSpec, build_requests, stream
from specfleet.workloads.lengths import Fixed, LogNormal, Uniform
from specfleet.workloads.requests import RequestTable

SPEC = WorkloadSpec(
    num_prompts=50,
    input=LogNormal(5, 1, 1, 2000),
    output=Uniform(1, 300),
    num_warmups=4,
    rank_correlation=0.4,
    max_tokens=200,
    request_rate=4.0,
    burstiness=0.8,
    prefix_tokens=32,
    prefix_groups=3,
    temperature=0.7,
    class_mix=(("chat", 3.0), ("code", 1.0)),
)
BY_ROW = ("prompt_tokens", "output_tokens", "max_tokens", "class_id")
seeds = st.integers(0, 2**64 - 1)


def assert_same(left: RequestTable, right: RequestTable, names: tuple[str, ...]) -> None:
    """Both tables agree in these columns."""
    for name in names:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


@given(
    st.integers(1, 200),
    st.floats(0.01, 1000),
    st.one_of(st.floats(0.05, 20), st.just(math.inf)),
    st.integers(0, 99),
)
def test_the_last_request_leaves_exactly_at_n_over_rate(
    n: int, rate: float, burstiness: float, seed: int
) -> None:
    arrivals = open_loop(n, rate, burstiness, stream(seed, Purpose.ARRIVAL))
    assert arrivals[-1] == n / rate
    assert arrivals[0] >= 0 and (np.diff(arrivals) >= 0).all()


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_gamma_of_the_given_shape(burstiness: float) -> None:
    gaps = np.diff(open_loop(20_000, 5.0, burstiness, stream(1, Purpose.ARRIVAL)))
    assert gaps.mean() == pytest.approx(0.2, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)
    assert stats.kstest(gaps, "gamma", args=(burstiness, 0, 0.2 / burstiness)).pvalue > 1e-3


def test_an_infinite_rate_offers_all_at_zero() -> None:
    assert not open_loop(9, math.inf, 1.0, stream(1, Purpose.ARRIVAL)).any()


def test_an_infinite_burstiness_spaces_evenly() -> None:
    arrivals = open_loop(4, 2.0, math.inf, stream(1, Purpose.ARRIVAL))
    assert arrivals.tolist() == [0.5, 1.0, 1.5, 2.0]


def test_two_rates_see_the_same_pattern() -> None:
    slow, fast = (open_loop(99, rate, 0.5, stream(3, Purpose.ARRIVAL)) for rate in (1.0, 8.0))
    np.testing.assert_allclose(slow, 8 * fast, rtol=1e-12)


@pytest.mark.parametrize(
    ("rate", "burstiness", "message"),
    [
        (0.0, 1.0, "request_rate"),
        (math.nan, 1.0, "request_rate"),
        (1.0, 0.0, "burstiness"),
        (1.0, 1e-9, "all gaps are 0"),
    ],
)
def test_impossible_arrivals_are_refused(rate: float, burstiness: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_loop(5, rate, burstiness, stream(1, Purpose.ARRIVAL))


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_the_same_seed_gives_the_same_bytes(seed: int) -> None:
    one, two = build_requests(SPEC, seed), build_requests(SPEC, seed)
    for name in (*one.column_names(), "segment_offset", "segment_stream", "segment_tokens"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()


def test_the_bytes_of_a_seed_never_change() -> None:
    table = build_requests(SPEC, 42)
    assert table.prompt_tokens[:4].tolist() == [155, 438, 241, 1182]
    assert table.output_tokens[:4].tolist() == [200, 54, 138, 128]


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(1, 80))
def test_a_request_does_not_change_when_more_are_asked_for(seed: int, more: int) -> None:
    short = build_requests(SPEC, seed)
    long = build_requests(replace(SPEC, num_prompts=SPEC.num_prompts + more), seed).head(len(short))
    assert_same(short, long, (*BY_ROW, "session_id", "segment_offset", "segment_stream", "segment_tokens"))


@pytest.mark.parametrize(
    "change",
    [
        {"request_rate": 9.0},
        {"request_rate": math.inf},
        {"burstiness": 0.1},
        {"temperature": 0.0},
        {"prefix_groups": 7},
        {"num_warmups": 0, "num_prompts": 54},
    ],
)
def test_lengths_do_not_change_with_the_rest(change: dict[str, float]) -> None:
    changed = replace(SPEC, **change)  # type: ignore[arg-type]
    assert_same(build_requests(SPEC, 5), build_requests(changed, 5), BY_ROW)


def test_prompts_do_not_change_with_the_output_law() -> None:
    changed = replace(SPEC, output=Fixed(9), rank_correlation=-0.9)
    assert_same(build_requests(SPEC, 5), build_requests(changed, 5), ("prompt_tokens", "arrival_s"))


def test_two_seeds_and_two_purposes_give_different_numbers() -> None:
    draws = {tuple(stream(seed, purpose).random(3)) for seed in (0, 1, 2**64 - 1) for purpose in Purpose}
    assert len(draws) == 3 * len(Purpose)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed must be"):
        build_requests(SPEC, seed)


def test_warm_ups_come_on_top_of_the_counted_requests() -> None:
    assert len(build_requests(SPEC, 1)) == SPEC.num_requests == 54
    assert build_requests(SPEC, 1).arrival_s[-1] == 54 / 4.0


def test_long_outputs_are_cut_at_the_cap_and_short_ones_end_by_themselves() -> None:
    table = build_requests(replace(SPEC, num_prompts=3000), 1)
    assert (table.max_tokens == 200).all()
    assert (table.output_tokens == 200).mean() == pytest.approx(101 / 300, abs=0.03)


def test_without_a_cap_the_law_itself_is_the_cap() -> None:
    assert (build_requests(replace(SPEC, max_tokens=None), 1).max_tokens == 300).all()


def test_ignore_eos_states_exactly_what_is_written() -> None:
    table = build_requests(replace(SPEC, ignore_eos=True), 1)
    assert (table.max_tokens == table.output_tokens).all() and table.output_tokens.max() <= 200


def test_requests_of_a_group_share_the_prefix_and_nothing_else() -> None:
    table = build_requests(replace(SPEC, num_prompts=3000), 1)
    assert table.segment_stream is not None and table.segment_tokens is not None
    streams, tokens = table.segment_stream.reshape(-1, 2), table.segment_tokens.reshape(-1, 2)
    assert set(streams[:, 0].tolist()) == {-1, -2, -3} and (tokens[:, 0] == 32).all()
    assert (np.bincount(-1 - streams[:, 0]) / len(table)).tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    assert (streams[:, 1] == np.arange(len(table))).all()
    without = build_requests(replace(SPEC, num_prompts=3000, prefix_tokens=0), 1)
    assert (without.prompt_tokens + 32 == table.prompt_tokens).all() and without.segment_offset is None


def test_classes_come_by_weight() -> None:
    table = build_requests(replace(SPEC, num_prompts=8000), 1)
    assert table.class_names == ("chat", "code")
    assert (table.class_id == 1).mean() == pytest.approx(0.25, abs=0.02)
    assert build_requests(replace(SPEC, class_mix=()), 1).class_names == ("default",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_prompts": 0}, "num_prompts must be at least 1"),
        ({"num_warmups": -1}, "num_warmups must not be negative"),
        ({"rank_correlation": 2.0}, "rank_correlation is outside"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"request_rate": 0.0}, "request_rate must be positive"),
        ({"burstiness": -1.0}, "burstiness must be positive"),
        ({"prefix_tokens": -1}, "prefix_tokens must not be negative"),
        ({"prefix_groups": 0}, "prefix_groups must be at least 1"),
        ({"temperature": -0.1}, "temperature must be 0 or more"),
        ({"class_mix": (("a", 1.0), ("a", 2.0))}, "names a class twice"),
        ({"class_mix": (("a", 0.0),)}, "weights must be positive"),
        ({"num_prompts": 0, "burstiness": 0.0}, "num_prompts .*; burstiness"),
    ],
)
def test_a_workload_out_of_range_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SPEC, **change)  # type: ignore[arg-type]
