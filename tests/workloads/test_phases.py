"""Traffic that changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.workloads.build import WorkloadSpec, build_requests
from specfleet.workloads.lengths import Fixed
from specfleet.workloads.phases import Phase

COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def spec(phases: list[Phase], warmups: int = 0) -> WorkloadSpec:
    total = sum(phase.num_prompts for phase in phases)
    return WorkloadSpec(
        num_prompts=total - warmups,
        num_warmups=warmups,
        input=Fixed(10),
        output=Fixed(5),
        phases=tuple(phases),
    )


@given(COUNTS, st.integers(0, 5))
def test_phases_follow_each_other_and_each_ends_at_its_count_over_its_rate(
    counts: list[int], seed: int
) -> None:
    phases = [Phase(n, rate) for n, rate in zip(counts, (1.0, 4.0, 0.5, 2.0, 8.0), strict=False)]
    arrivals = build_requests(spec(phases), seed).arrival_s
    assert (np.diff(arrivals) >= 0).all()
    ends = np.cumsum([phase.num_prompts / phase.request_rate for phase in phases])
    last = np.cumsum(counts) - 1
    assert arrivals[last] == pytest.approx(ends)


def test_one_phase_is_the_plain_workload() -> None:
    plain = WorkloadSpec(num_prompts=30, input=Fixed(10), output=Fixed(5), request_rate=3.0)
    phased = build_requests(spec([Phase(30, 3.0)]), 7)
    assert np.array_equal(build_requests(plain, 7).arrival_s, phased.arrival_s)


def test_classes_come_in_stretches() -> None:
    phases = [Phase(2, math.inf, "easy"), Phase(3, math.inf, "hard"), Phase(1, math.inf, "easy")]
    table = build_requests(spec(phases), 0)
    assert [table.class_names[i] for i in table.class_id] == ["easy", "easy", "hard", "hard", "hard", "easy"]
    assert not table.arrival_s.any()


def test_what_does_not_add_up_is_refused() -> None:
    with pytest.raises(ValueError, match="phases hold 4 requests, the workload 5"):
        WorkloadSpec(num_prompts=5, input=Fixed(1), output=Fixed(1), phases=(Phase(4),))
    with pytest.raises(ValueError, match="both say which class"):
        WorkloadSpec(
            num_prompts=4, input=Fixed(1), output=Fixed(1), phases=(Phase(4),), class_mix=(("a", 1.0),)
        )
    with pytest.raises(ValueError, match="at least one request"):
        Phase(0)
