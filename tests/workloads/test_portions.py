"""Requests made in portions are those of the whole table, byte for byte."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.workloads.build import RequestStream, WorkloadSpec, build_requests
from specfleet.workloads.lengths import Fixed, LengthDistribution, LogNormal, Uniform
from specfleet.workloads.phases import Phase

PROMPTS: list[LengthDistribution] = [Fixed(30), Uniform(1, 90), LogNormal(3.0, 1.0, 1, 300)]
RATES = st.sampled_from([0.5, 17.0, math.inf])


@st.composite
def specs(draw: st.DrawFn) -> WorkloadSpec:
    """Workloads with everything that is drawn."""
    phases = tuple(
        Phase(draw(st.integers(1, 40)), draw(RATES), name)
        for name in draw(st.lists(st.sampled_from(["a", "b"]), max_size=4))
    )
    n = sum(phase.num_prompts for phase in phases) or draw(st.integers(1, 120))
    return WorkloadSpec(
        n,
        draw(st.sampled_from(PROMPTS)),
        Uniform(1, 50),
        rank_correlation=draw(st.sampled_from([0.0, 0.4])),
        request_rate=draw(RATES),
        burstiness=draw(st.sampled_from([1.0, 0.3, 4.0, math.inf])),
        prefix_tokens=draw(st.sampled_from([0, 12])),
        prefix_groups=3,
        class_mix=() if phases else draw(st.sampled_from([(), (("chat", 2.0), ("code", 1.0))])),
        phases=phases,
    )


@settings(deadline=None)
@given(specs(), st.integers(0, 2**32), st.integers(1, 50))
def test_portions_are_the_rows_of_the_whole_table(spec: WorkloadSpec, seed: int, size: int) -> None:
    whole = build_requests(spec, seed)
    parts = list(RequestStream(spec, seed).portions(size))
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    for name in whole.column_names():
        own = np.concatenate([getattr(part, name) for part in parts])
        if name != "session_id":
            assert own.tobytes() == getattr(whole, name).tobytes(), name
    if whole.segment_stream is not None:
        streams = [part.segment_stream for part in parts]
        assert np.concatenate(streams).tobytes() == whole.segment_stream.tobytes()  # type: ignore[arg-type]


def test_arrivals_over_many_portions_add_up_to_the_same_bytes() -> None:
    spec = WorkloadSpec(200_000, Fixed(5), Fixed(5), request_rate=3.0, burstiness=0.7)
    parts = [part.arrival_s for part in RequestStream(spec, 5).portions(33_333)]
    assert np.concatenate(parts).tobytes() == build_requests(spec, 5).arrival_s.tobytes()
