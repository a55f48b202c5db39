"""Pauses alike in one row are the pauses; rows that nobody asked for are made when somebody does."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specfleet.sim.calendar.harvest import by_end
from specfleet.sim.pauses import LatePauses, alike
from specfleet.sim.recorder import Columns

ROWS = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0]), st.sampled_from([0.5, 0.25]), st.integers(1, 3), st.integers(0, 1))
)


def columns(rows: list[tuple[float, float, int, int]]) -> Columns:
    """Returns pauses: end, length, tokens, counted."""
    end_s, gap_s, tokens, counted = zip(*rows, strict=True) if rows else ((), (), (), ())
    given_ = {"end_s": np.array(end_s), "gap_s": np.array(gap_s)}
    return given_ | {"tokens": np.array(tokens, dtype=int), "counted": np.array(counted, dtype=int)}


@given(ROWS)
def test_pauses_alike_are_the_counted_ones_and_no_two_in_a_row_are_alike(
    rows: list[tuple[float, float, int, int]],
) -> None:
    found, written = alike(columns(rows)), Counter[tuple[float, float, int]]()
    for end_s, gap_s, chunks in zip(*found, strict=True):
        for tokens, count in enumerate(chunks.tolist()):
            if count:
                written[float(end_s), float(gap_s), tokens] += count
    assert written == Counter(row[:3] for row in rows if row[3])
    assert found.tokens() == sum(row[2] for row in rows if row[3])
    pairs = list(zip(found.end_s.tolist(), found.gap_s.tolist(), strict=True))
    assert all(one != other for one, other in pairwise(pairs))
    again = found._replace(chunks=np.pad(found.chunks, ((0, 0), (0, 2)))).together()
    assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))


def test_rows_are_made_once_and_only_when_asked_for() -> None:
    whole, asked = columns([(1.0, 0.5, 2, 1), (2.0, 0.25, 1, 0)]), 0

    def make() -> Columns:
        nonlocal asked
        asked += 1
        return dict(whole)

    late = LatePauses(make, alike(whole))
    assert alike(late).tokens() == 2 and asked == 0
    assert list(late) == list(whole) and late["tokens"].tolist() == [2, 1] and len(late) == 4
    assert {**late, "more": np.zeros(2)}.keys() == {*whole, "more"}
    assert asked == 1
    copy = pickle.loads(pickle.dumps(LatePauses(make, alike(whole))))
    assert type(copy) is dict and copy["end_s"].tolist() == [1.0, 2.0] and asked == 2
    merged = by_end([LatePauses(make, alike(whole)), LatePauses(make, alike(whole))])
    assert merged["end_s"].tolist() == [1.0, 1.0, 2.0, 2.0]
