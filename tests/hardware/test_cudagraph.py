"""The CUDA-graph ladder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.hardware import catalog
from specfleet.hardware.cudagraph import capture_sizes, padded, padding

NEW = catalog.engine_profile("vllm-0.33")


@given(cap=st.integers(0, 2048), query=st.integers(1, 9))
def test_every_rung_is_a_multiple_of_the_query_length_within_the_cap(cap: int, query: int) -> None:
    sizes = capture_sizes(cap, query)
    assert all(size % query == 0 and 0 < size <= cap for size in sizes)
    assert list(sizes) == sorted(set(sizes))


@given(cap=st.integers(1, 600), query=st.integers(1, 9), tokens=st.integers(1, 700))
def test_padding_never_shrinks_and_is_idempotent(cap: int, query: int, tokens: int) -> None:
    sizes = capture_sizes(cap, query)
    run = padded(tokens, sizes)
    assert run >= tokens
    assert padded(run, sizes) == run
    assert run in sizes or run == tokens > (sizes[-1] if sizes else 0)


@given(cap=st.integers(0, 600), query=st.integers(1, 9), largest=st.integers(1, 700))
def test_a_column_of_steps_is_padded_as_each_of_them(cap: int, query: int, largest: int) -> None:
    sizes = capture_sizes(cap, query)
    each = [0, *(padded(tokens, sizes) for tokens in range(1, largest + 1))]
    assert padding(sizes, largest).tolist() == each


def test_the_plain_ladder_is_vllms() -> None:
    sizes = capture_sizes(512, 1)
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[sizes.index(248) :][:3] == (248, 256, 272)
    assert (sizes[-1], len(sizes)) == (512, 51)


@pytest.mark.parametrize(
    ("drafts", "requests", "graph"),
    [
        *[(0, 17, 24), (0, 33, 40), (1, 17, 40), (1, 65, 136), (2, 5, 18), (2, 9, 33), (3, 9, 40)],
        *[(3, 65, 272), (5, 17, 108), (5, 100, 600), (7, 33, 272), (7, 65, 520)],
    ],
)
def test_uniform_batches_are_padded_as_documented(drafts: int, requests: int, graph: int) -> None:
    query = 1 + drafts
    assert padded(requests * query, capture_sizes(512, query)) == graph


@pytest.mark.parametrize(("drafts", "requests"), [(0, 512), (1, 256), (2, 166), (3, 128), (5, 83), (7, 64)])
def test_the_largest_uniform_batch_with_a_graph(drafts: int, requests: int) -> None:
    assert capture_sizes(512, 1 + drafts)[-1] == requests * (1 + drafts)


def test_without_graphs_nothing_is_padded() -> None:
    assert capture_sizes(0, 4) == ()
    assert padded(13, ()) == 13


def test_a_query_length_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="query_len is 0"):
        capture_sizes(512, 0)


@given(
    query=st.integers(1, 17),
    requests=st.integers(1, 300),
    most=st.integers(1, 300),
    budget=st.sampled_from([512, 8192]),
)
def test_a_uniform_batch_is_padded_to_whole_sequences_and_to_few_of_them(
    query: int, requests: int, most: int, budget: int
) -> None:
    requests = min(requests, most)
    sizes = NEW.capture_sizes(most, budget, query)
    apart = NEW.uniform_sizes(sizes, query, most)
    run = padded(requests * query, apart)
    assert run % query == 0 and run >= requests * query
    counts = NEW.capture_sizes(most, budget, 1)
    assert run <= max(padded(requests, counts) * query, requests * query)


@given(tokens=st.integers(1, 512), query=st.integers(2, 17))
def test_drafts_leave_the_padding_of_mixed_batches_as_it_is_or_lower_it(tokens: int, query: int) -> None:
    plain, drafting = (NEW.capture_sizes(1024, 8192, length) for length in (1, query))
    assert tokens <= padded(tokens, drafting) <= padded(tokens, plain)


def test_four_requests_of_three_tokens_run_as_twelve() -> None:
    sizes = NEW.capture_sizes(256, 8192, 3)
    assert padded(4 * 3, NEW.uniform_sizes(sizes, 3, 256)) == 12
    assert padded(4 * 3, capture_sizes(512, 3)) == 18, "as the build of January 2026 has it"


def test_under_a_schedule_each_k_has_graphs_up_to_its_widest_batch() -> None:
    tiers = ((4, 16), (2, 64), (1, 256))
    sizes = NEW.capture_sizes(256, 8192, 4, tiers=tiers)
    assert {4 * 16, 2 * 64, 256} < set(sizes) and 12 not in capture_sizes(512, 1)
    assert 6 not in sizes, "three requests are padded to four"
    assert all(size % 2 == 0 for size in NEW.uniform_sizes(sizes, 2, 256))


def test_where_a_model_or_the_user_sets_the_largest_graph_nothing_is_added() -> None:
    assert NEW.capture_sizes(1024, 8192, 3, own=1024) == capture_sizes(1024, 1)
    assert NEW.capture_sizes(100, 8192, 1)[-2:] == (192, 200) and 100 in NEW.capture_sizes(100, 8192, 1)


def test_a_rung_of_sequences_has_a_query_each_and_ends_at_the_most_tokens() -> None:
    ladder = ((1, 4, 1), (8, 16, 4))
    assert capture_sizes(36, 3, ladder=ladder, counts_sequences=True) == (3, 6, 9, 12, 24, 36)
    assert capture_sizes(35, 3, ladder=ladder, counts_sequences=True) == (3, 6, 9, 12, 24)
    assert capture_sizes(12, 1, ladder=ladder, counts_sequences=True) == (1, 2, 3, 4, 8, 12)
