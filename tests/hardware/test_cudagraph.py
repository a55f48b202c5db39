"""The CUDA-graph ladder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.hardware.cudagraph import capture_sizes, padded


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
