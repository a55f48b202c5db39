"""`RequestTable`: frozen columns, and faults named in plain words."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.workloads.requests import RequestTable

Prompts = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), min_size=1, max_size=12)


def segmented(prompts: list[list[int]]) -> RequestTable:
    """A table whose row i is made of segments of the given lengths."""
    offset = np.concatenate(([0], np.cumsum([len(parts) for parts in prompts])))
    tokens = [n for parts in prompts for n in parts]
    totals = [sum(parts) for parts in prompts]
    return RequestTable.of(totals, [1] * len(prompts), segments=(offset, [-1] * len(tokens), tokens))


def test_columns_cannot_be_written() -> None:
    table = RequestTable.of([3, 4], [1, 2])
    for name in table.column_names():
        with pytest.raises(ValueError, match="read-only"):
            getattr(table, name)[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.turn = table.priority  # type: ignore[misc]


def test_a_table_does_not_follow_the_arrays_it_was_made_from() -> None:
    prompt = np.array([3, 4])
    table = RequestTable.of(prompt, [1, 2])
    prompt[0] = 99
    assert table.prompt_tokens.tolist() == [3, 4]


def test_left_out_columns_are_neutral() -> None:
    table = RequestTable.of([3, 4], [1, 2])
    assert table.max_tokens.tolist() == [1, 2]
    assert table.session_id.tolist() == [0, 1]
    assert not table.arrival_s.any() and not table.turn.any() and not table.priority.any()
    assert table.segment_offset is None and table.class_names == ("default",)


def test_a_fractional_token_count_is_refused_not_cut() -> None:
    with pytest.raises(ValueError, match="prompt_tokens holds float64 values; give whole numbers"):
        RequestTable.of([3.5], [1])


def test_a_matrix_is_no_column() -> None:
    with pytest.raises(ValueError, match="output_tokens has 2 dimensions"):
        RequestTable.of([3], [[1]])
    with pytest.raises(ValueError, match="arrival_s has 0 dimensions"):
        RequestTable.of([3], [1], arrival_s=0.0)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"arrival_s": [0.0, 2.0, 1.0]}, r"earlier than in the row before; sort .* \(row 2\)"),
        ({"arrival_s": [0.0, np.nan, 1.0]}, r"not a finite number \(row 1\)"),
        ({"arrival_s": [-1.0, 0.0, 1.0]}, r"arrival_s is negative.*\(row 0\)"),
        ({"prompt_tokens": [0, 5, -5]}, r"prompt_tokens is below 1 \(2 rows, first 0\)"),
        ({"output_tokens": [1, 0, 1]}, r"output_tokens is below 1 \(row 1\)"),
        ({"max_tokens": [4, 4, 3]}, r"output_tokens is above max_tokens.*\(row 2\)"),
        ({"class_id": [0, 1, 0]}, r"class_id has no name among \['default'\] \(row 1\)"),
        ({"temperature": [0.0, 0.0, -1.0]}, r"temperature is negative or not a number \(row 2\)"),
        ({"turn": [0, 0]}, "turn has 2 rows, arrival_s has 3"),
        ({"segment_offset": [0, 1, 2, 3]}, "segment_stream, segment_tokens is missing; give all or none"),
    ],
)
def test_each_fault_is_named(columns: dict[str, list[float]], message: str) -> None:
    good = RequestTable.of([5, 5, 5], [4, 4, 4], max_tokens=[9, 9, 9])
    changed = {name: np.asarray(values) for name, values in columns.items()}
    bad = dataclasses.replace(good, **changed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        bad.validate()


def test_validate_lists_every_fault_at_once() -> None:
    with pytest.raises(ValueError) as caught:
        RequestTable.of([0, 1], [0, 9], arrival_s=[1.0, 0.0], max_tokens=[1, 1])
    assert len(str(caught.value).splitlines()) == 5


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        (([0, 2], [-1, 0], [2, 2]), r"do not add up to prompt_tokens \(row 0\)"),
        (([0, 2], [-1, 0], [5, 0]), "segment_tokens is below 1"),
        (([0, 2], [-1], [2, 3]), "segment_stream has 1 rows, segment_tokens has 2"),
        (([0, 1, 2], [-1, 0], [2, 3]), "segment_offset has 3 rows"),
        (([0, 1], [-1, 0], [2, 3]), "segment_offset must rise from 0"),
    ],
)
def test_segments_that_are_not_the_prompt_are_refused(
    segments: tuple[list[int], list[int], list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RequestTable.of([5], [1], segments=segments)


@given(Prompts, st.integers(0, 15))
def test_a_head_is_a_valid_table_of_the_first_rows(prompts: list[list[int]], n: int) -> None:
    head = segmented(prompts).head(n)
    head.validate()
    expected = segmented(prompts[:n]) if n else None
    assert len(head) == min(n, len(prompts))
    if expected is not None and head.segment_tokens is not None and expected.segment_tokens is not None:
        assert head.segment_tokens.tolist() == expected.segment_tokens.tolist()
        assert head.prompt_tokens.tolist() == expected.prompt_tokens.tolist()


def test_a_head_without_segments_keeps_the_columns() -> None:
    head = RequestTable.of([5, 6], [1, 2], arrival_s=[0.5, 1.5]).head(1)
    assert head.arrival_s.tolist() == [0.5] and head.output_tokens.tolist() == [1]


def test_a_negative_head_is_refused() -> None:
    with pytest.raises(ValueError, match=r"head\(-1\)"):
        RequestTable.of([5], [1]).head(-1)
