"""A run draws each request from its class's process, at its own temperature and rank among its class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specfleet.sim.speculation.acceptance import Acceptance, AcceptanceSpec
from specfleet.sim.speculation.bursts import HotCold
from specfleet.sim.speculation.joint import output_ranks
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.processes import process
from specfleet.sim.speculation.replay import NO_MATCH
from specfleet.workloads.requests import RequestTable

OUTPUT = [40, 60, 10, 90, 60, 30]


def lives(**specs: AcceptanceSpec) -> Lives:
    """Six requests, of class `a` and `b` in turn, the second half at temperature 1."""
    table = RequestTable.of(
        [100] * 6,
        OUTPUT,
        class_id=[0, 1, 0, 1, 0, 1],
        class_names=("a", "b"),
    )
    table = replace(table, temperature=np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]))
    return Lives({name.removeprefix("_"): spec for name, spec in specs.items()}, table, 3, seed=5)


def test_plain_requests_draw_as_their_process_does() -> None:
    spec = AcceptanceSpec(by_position=(0.7, 0.5, 0.4), concentration=9.0)
    drawn, plain = lives(_=spec), Acceptance(spec, 3, 5)
    for row, output in enumerate(OUTPUT):
        assert drawn.accepted(row) == plain.accepted(row, 100, output)
        assert drawn.proposals(row) is None
        assert drawn.confidence(row) == plain.confidence(row, 100)


def test_each_class_draws_from_its_own_process_and_the_rest_from_the_nameless_one() -> None:
    never, always = (AcceptanceSpec(conditional_acceptance=alpha) for alpha in (0.0, 1.0))
    drawn = lives(a=never, _=always)
    assert [set(drawn.accepted(row)) for row in range(4)] == [{0}, {3}, {0}, {3}]
    assert set(drawn.by_class) == {"a", ""}


def test_requests_meet_their_own_temperature() -> None:
    spec = AcceptanceSpec(conditional_acceptance=1.0, temperature_multiplier=((0.0, 1.0), (1.0, 1e-9)))
    drawn = lives(_=spec)
    assert [set(drawn.accepted(row)) for row in (0, 5)] == [{3}, {0}]
    assert drawn.confidence(5)[0] < 1e-8


def test_the_rank_is_among_the_outputs_of_the_class() -> None:
    spec = AcceptanceSpec(conditional_acceptance=0.6, concentration=3.0, length_rank_correlation=0.9)
    drawn = lives(a=spec, b=AcceptanceSpec(conditional_acceptance=0.5))
    own = np.array(OUTPUT)[[0, 2, 4]]
    alone, ranks = process(spec, 3, 5, own), output_ranks(own)
    for place, row in enumerate((0, 2, 4)):
        rank = (float(ranks[place, 0]), float(ranks[place, 1]))
        assert drawn.accepted(row) == alone.accepted(row, 100, OUTPUT[row], rank=rank)


def test_recorded_requests_are_drawn_by_place() -> None:
    drawn = lives(_=AcceptanceSpec(replay=(bytes([2, NO_MATCH]),)))
    assert drawn.process(0).by_output_position
    assert drawn.accepted(2) == bytes([2, 0] * 5 + [2])
    assert drawn.proposals(2) == bytes([1, 0] * 5 + [1])


def test_ahead_every_step_verifies_and_of_one_that_found_nothing_none_is_accepted() -> None:
    half = AcceptanceSpec(conditional_acceptance=0.8, proposal_probability=0.5)
    runs = AcceptanceSpec(by_position=(0.4, 0.3, 0.2), hot_cold=HotCold(0.7, 0.2, 0.9, 0.3))
    ours = lives(_=half, a=runs)
    for row in range(6):
        found, accepted = ours.proposals(row), ours.accepted(row)
        assert found is not None and len(found) == OUTPUT[row]
        rounds = iter(accepted)
        assert list(ours.accepted(row, ahead=True)) == [next(rounds) if hit else 0 for hit in found]
    always = lives(_=replace(half, proposal_probability=1.0))
    assert all(always.accepted(row, ahead=True) == always.accepted(row) for row in range(6))


def test_ahead_recorded_requests_keep_their_places() -> None:
    recorded = lives(_=AcceptanceSpec(replay=(bytes([2, 9, 9, 1, NO_MATCH, 3]),)))
    assert list(recorded.accepted(2, ahead=True))[:6] == [
        n if hit else 0
        for n, hit in zip(recorded.accepted(2)[:6], recorded.proposals(2)[:6], strict=True)  # type: ignore[index]
    ]
    assert 0 in recorded.accepted(2, ahead=True)[4:5]
