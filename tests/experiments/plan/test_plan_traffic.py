"""Other traffic: the same search at so many times the rate, on replicas of a known rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_toys import every, load_small

from specfleet.experiments.plan.asking import Laboratory, Question, Reply
from specfleet.experiments.plan.fleet.report import traffic_lines
from specfleet.experiments.plan.fleet.scaled import AtTraffic, at_other_traffic
from specfleet.experiments.plan.search import Search
from specfleet.experiments.plan.seen import Allowed, Judged, TrialFigures
from specfleet.experiments.plan.traffic import Traffic, Trial
from specfleet.experiments.point.bounds import Bound
from specfleet.sim.statistics.limits import Kept

PLAIN = [c for c in every(load_small()) if not c.refusal and not c.k][:2]
RATES = {PLAIN[0].gpu: 30.0, PLAIN[1].gpu: 11.0}
LIMITS = {"p99_tpot_ms": Allowed(0.99, "tpot", 1.0)}


class Toy:
    """A laboratory in which a replica meets the SLO up to a rate by its GPU; above `fog` no miss is sure."""

    def __init__(self, fog: float = 1e9) -> None:
        self.fog = fog

    def ask(self, questions: Sequence[Question]) -> list[Reply]:
        """A ratio that grows with the rate of a replica."""
        found = []
        for question in questions:
            ratio = question.traffic.rate / question.replicas / RATES[str(question.config.serve.gpu)]
            verdict: Kept = "met" if ratio <= 1.0 else "missed"
            if question.traffic.rate > self.fog and verdict == "missed":
                verdict = "not settled"
            found.append(Reply(Judged(verdict, ratio, "p99_tpot_ms"), [], None, 1))
        return found

    def run(self, trials: Sequence[Trial]) -> list[TrialFigures]:
        """One request at a time meets any SLO."""
        return [TrialFigures({}, {"tpot": np.full(4, 0.1)}, LIMITS) for _ in trials]


def elsewhere(rate: float, factors: Sequence[float], fog: float = 1e9, spare: int = 0) -> list[AtTraffic]:
    """The answers of a plan for so many requests/s."""
    laboratory = cast("Laboratory", Toy(fog))
    search = Search(laboratory, Traffic(rate), (0,), spare)
    bounds = {c.id: Bound(1.1 * RATES[c.gpu], 1.0, "TPOT") for c in PLAIN}
    entries = search.entries(PLAIN, bounds)
    winner = search.run(entries)
    assert winner is not None
    ordered = [winner, *(entry for entry in entries if entry is not winner)]
    return at_other_traffic(laboratory, Traffic(rate), (0,), spare, None, ordered, factors)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(5.0, 200.0),
    st.lists(st.floats(0.1, 8.0), min_size=1, max_size=4, unique=True),
    st.integers(0, 2),
)
def test_at_each_traffic_it_is_the_cheapest_that_brute_force_finds(
    rate: float, factors: list[float], spare: int
) -> None:
    found = elsewhere(rate, factors, spare=spare)
    assert [at.factor for at in found] == sorted({1.0, *factors})
    for at in found:
        costs = [
            c.replica_usd * (int(np.ceil(rate * at.factor / RATES[c.gpu] - 1e-12)) + spare) for c in PLAIN
        ]
        assert at.cost == min(costs) or abs(at.cost - min(costs)) < 0.02
        assert at.candidate is not None
        assert at.cost == at.candidate.replica_usd * at.replicas


def test_the_table_has_a_row_a_traffic_and_says_what_changes() -> None:
    text = "\n".join(traffic_lines(elsewhere(30.0, (0.5, 2.0)), None))
    rows = [line for line in text.splitlines() if " x " in line and "requests/s" not in line]
    assert [row.split()[0] for row in rows] == ["0.5", "1", "2"]
    assert "the plan" in rows[1] and "the same engine" in rows[2]


def test_what_may_be_cheaper_at_other_traffic_is_named() -> None:
    found = elsewhere(30.0, (4.0,), fog=60.0)[-1]
    assert found.cheaper
    assert "not settled whether something cheaper" in "\n".join(traffic_lines([found, found], None))


def test_nothing_is_said_where_nobody_asked() -> None:
    assert list(traffic_lines(elsewhere(30.0, ()), None)) == []


def test_where_nothing_meets_the_slo_it_says_so() -> None:
    none = replace(elsewhere(30.0, ())[0], factor=5.0, candidate=None, replicas=0, cost=0.0)
    assert "nothing that the plan may buy meets the SLO" in "\n".join(traffic_lines([none, none], None))
