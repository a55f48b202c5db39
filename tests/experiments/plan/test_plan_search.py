"""The search of a plan on replicas that meet the SLO up to a known rate, and the words of its answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_toys import every, load_small

from specfleet.experiments.plan.answer import other_side
from specfleet.experiments.plan.asking import Laboratory, Question, Reply
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.capacity import LoadCurve, resource
from specfleet.experiments.plan.neighbours import steps
from specfleet.experiments.plan.numbers import Place, front
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.search import TRIES, Entry, Search
from specfleet.experiments.plan.seen import Allowed, Judged, TrialFigures, judge
from specfleet.experiments.plan.sensitivity import sensitivity
from specfleet.experiments.plan.speculation import FACTORS, TOLERANCE, BestK, crossing, crossover, schedule
from specfleet.experiments.plan.traffic import Traffic, Trial
from specfleet.experiments.plan.trials import trial_key
from specfleet.experiments.point.bounds import Bound
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.statistics.limits import Kept

# The search, on a toy laboratory


def shown(ratio: float) -> TrialFigures:
    """A run whose P99 TPOT is the limit times a ratio."""
    limits = {"p99_tpot_ms": Allowed(0.99, "tpot", 1.0)}
    return TrialFigures({"in_flight": 1.0}, {"tpot": np.full(4, ratio)}, limits)


class Toy:
    """A laboratory whose replicas meet the SLO up to a rate of their own, and count what they are asked.

    Args:
        rates: by name.
        fog: of rates within so much of a replica's own nothing can be told.
    """

    def __init__(self, rates: dict[str, float], fog: float = 0.0) -> None:
        self.rates, self.fog = rates, fog
        self.asked: set[str] = set()

    def _ratio(self, config: Experiment) -> float:
        return (config.workload.request_rate or 0.0) / self.rates[config.name]

    def ask(self, questions: Sequence[Question]) -> list[Reply]:
        """A ratio that grows with the rate, and whether it is below 1."""
        found = []
        for question in questions:
            self.asked.add(question.key)
            ratio = self._ratio(question.trials(None)[0].config)
            settled: Kept = "met" if ratio <= 1.0 else "missed"
            verdict: Kept = "not settled" if abs(ratio - 1.0) < self.fog else settled
            found.append(Reply(Judged(verdict, ratio, "p99_tpot_ms"), [shown(ratio)], None, 1))
        return found

    def run(self, trials: Sequence[Trial]) -> list[TrialFigures]:
        """The same of single simulations; one request at a time meets any SLO."""
        self.asked |= {trial_key(trial) for trial in trials}
        closed = [trial.config.workload.max_concurrency is not None for trial in trials]
        return [
            shown(0.1 if alone else self._ratio(trial.config))
            for trial, alone in zip(trials, closed, strict=True)
        ]


def toys(experiment: Experiment, prices: Sequence[float]) -> list[Candidate]:
    """Candidates that differ in name and price."""
    base = every(experiment)[0]
    return [
        Candidate(
            f"gpu{i}", 1, None, "none", "", 0, price, base.config.model_copy(update={"name": f"gpu{i}"})
        )
        for i, price in enumerate(prices)
    ]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(0.5, 70.0), st.floats(1.0, 2.5)), min_size=1, max_size=7
    ),
    st.integers(0, 2),
)
def test_the_search_finds_what_brute_force_finds(drawn: list[tuple[int, float, float]], spare: int) -> None:
    chosen = toys(load_small(), [float(price) for price, _, _ in drawn])
    rates = {c.gpu: rate for c, (_, rate, _) in zip(chosen, drawn, strict=True)}
    bounds = {
        c.id: Bound(rate * slack, 1.0, "TPOT") for c, (_, rate, slack) in zip(chosen, drawn, strict=True)
    }
    toy = Toy(rates)
    search = Search(cast("Laboratory", toy), Traffic(60.0), (0, 1), spare)
    winner = search.run(search.entries(chosen, bounds))
    costs = {c.id: c.price_per_hour_usd * (math.ceil(60.0 / rates[c.gpu] - 1e-12) + spare) for c in chosen}
    assert winner is not None and winner.high is not None
    assert search.cost(winner) == pytest.approx(min(costs.values()))


def test_bisection_asks_few_questions_of_many_replicas() -> None:
    (one,) = toys(load_small(), [1.0])
    toy = Toy({"gpu0": 60.0 / 700.5})
    search = Search(cast("Laboratory", toy), Traffic(60.0), (0,))
    winner = search.run(search.entries([one], {one.id: Bound(60.0 / 300.0, 1.0, "TPOT")}))
    assert winner is not None and winner.high == 701
    assert len(toy.asked) < 30


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(0.5, 70.0), st.floats(1.0, 2.5)), min_size=1, max_size=7
    ),
    st.floats(0.01, 0.4),
)
def test_the_winner_is_sure_and_whatever_may_be_cheaper_is_named(
    drawn: list[tuple[int, float, float]], fog: float
) -> None:
    chosen = toys(load_small(), [float(price) for price, _, _ in drawn])
    rates = {c.gpu: rate for c, (_, rate, _) in zip(chosen, drawn, strict=True)}
    bounds = {
        c.id: Bound(rate * slack, 1.0, "TPOT") for c, (_, rate, slack) in zip(chosen, drawn, strict=True)
    }
    search = Search(cast("Laboratory", Toy(rates, fog)), Traffic(60.0), (0,))
    entries = search.entries(chosen, bounds)
    winner = search.run(entries)
    assert winner is not None and winner.high is not None
    assert 60.0 / winner.high <= rates[winner.candidate.gpu] * (1.0 - fog) * (1.0 + 1e-9)
    truth = min(c.price_per_hour_usd * math.ceil(60.0 / rates[c.gpu] - 1e-12) for c in chosen)
    named = [search.cost(entry, n) for entry, n in search.in_question(entries, winner)]
    assert min([*named, search.cost(winner)]) <= truth + 1e-9
    assert all(cost < search.cost(winner) for cost in named)


def test_under_heavier_traffic_too_few_replicas_are_not_looked_at_again() -> None:
    chosen = toys(load_small(), [1.0, 2.1])
    bounds = {c.id: Bound(70.0, 1.0, "TPOT") for c in chosen}
    search = Search(cast("Laboratory", Toy({"gpu0": 21.0, "gpu1": 61.0})), Traffic(60.0), (0,))
    entries = search.entries(chosen, bounds)
    winner = search.run(entries)
    assert winner is not None and (winner.candidate.gpu, winner.high) == ("gpu1", 1)

    class Counting(Toy):
        def __init__(self) -> None:
            super().__init__({"gpu0": 21.0, "gpu1": 61.0})
            self.looked: list[tuple[str, int]] = []

        def ask(self, questions: Sequence[Question]) -> list[Reply]:
            self.looked += [(question.config.name, question.replicas) for question in questions]
            return super().ask(questions)

        def each(self, work: object, items: Sequence[Candidate]) -> list[Bound]:
            return [Bound(70.0, 1.0, "TPOT") for _ in items]

    again = Counting()
    found = sensitivity(cast("Laboratory", again), Traffic(60.0), (0,), 0, [winner, entries[0]], None)
    assert [change.verdict for change in found] == ["met", "met", "missed", "met", "met"]
    assert found[2].best is not None and found[2].best_replicas > 1
    assert ("gpu0", entries[0].low) not in again.looked and entries[0].low >= 1


@given(st.floats(0.06, 0.99), st.floats(0.2, 5.0))
def test_the_break_even_is_found_to_its_tolerance_in_few_looks(truth: float, bent: float) -> None:
    asked: list[float] = []

    def loss(factor: float) -> float:
        asked.append(factor)
        return math.exp(-bent * (factor - truth)) - 1.0

    low, high = FACTORS
    found = crossing(loss, low, loss(low), high, -loss(high))
    assert truth <= found + 1e-12 and found - TOLERANCE <= truth + 1e-12
    assert len(asked) <= 14


@pytest.mark.parametrize(("again", "bought"), [("met", 2), ("missed", 3), ("not settled", 3)])
def test_a_winner_that_fresh_seeds_do_not_confirm_needs_more_replicas(again: Kept, bought: int) -> None:
    class Lucky(Toy):
        def ask(self, questions: Sequence[Question]) -> list[Reply]:
            (reply,) = super().ask(questions)
            (question,) = questions
            if question.seeds == (0,):
                return [reply]
            assert set(question.seeds) == {1, 2, 3, 4, 5} and question.confirms is not None
            return [replace(reply, judged=replace(reply.judged, verdict=again))]

    (one,) = toys(load_small(), [1.0])
    search = Search(cast("Laboratory", Lucky({"gpu0": 30.0})), Traffic(60.0), (0,))
    entries = search.entries([one], {one.id: Bound(40.0, 1.0, "TPOT")})
    winner = search.run(entries)
    assert winner is not None and winner.high == 2
    assert search.again(winner, (math.inf, math.inf)).judged.verdict == again
    winner = search.run(entries)
    assert winner is not None and winner.high == bought
    named = [n for _, n in search.in_question(entries, winner)]
    assert named == ([2] if again == "not settled" else [])


def normal_runs(limit: float, runs: int = 1, unsteady: int = 0) -> list[TrialFigures]:
    """Runs whose TPOT is 10 +- 1 ms and correlated over 50 requests, the first ones still filling."""
    rng = np.random.default_rng(0)
    limits = {"p99_tpot_ms": Allowed(0.99, "tpot", limit)}
    series = [10.0 + np.repeat(rng.standard_normal(200), 50) for _ in range(runs)]
    states = ["still filling" if i < unsteady else "stationary" for i in range(runs)]
    return [TrialFigures({}, {"tpot": s}, limits, state) for s, state in zip(series, states, strict=True)]


def test_a_limit_near_which_nothing_was_seen_is_taken_as_kept_only_where_it_may_be_and_it_is_said() -> None:
    assert judge(normal_runs(30.0)).taken == ("p99_tpot_ms",)
    assert judge(normal_runs(30.0)).verdict == "met"
    assert judge(normal_runs(30.0), take=False).verdict == "not settled"


def test_one_of_five_runs_may_seem_to_fill_by_chance_and_two_may_not() -> None:
    assert judge(normal_runs(30.0, 1, 1)).verdict == "not settled"
    assert judge(normal_runs(30.0, 5, 1)).verdict == "met"
    assert judge(normal_runs(30.0, 5, 2)).verdict == "not settled"


def test_a_share_right_at_what_is_allowed_is_not_settled() -> None:
    limits = {"p99_tpot_ms": Allowed(0.99, "tpot", 1.5)}
    values = np.where(np.arange(1000) % 100 == 0, 2.0, 1.0)
    judged = judge([TrialFigures({}, {"tpot": values}, limits)])
    assert judged.verdict == "not settled" and judged.longer >= 1.0


def test_what_one_request_at_a_time_misses_is_not_looked_for_among_replicas() -> None:
    class Hopeless(Toy):
        def run(self, trials: Sequence[Trial]) -> list[TrialFigures]:
            self.asked |= {trial_key(trial) for trial in trials}
            limits = {"p99_itl_ms": Allowed(0.99, "tpot", 3.0)}
            return [TrialFigures({}, {"tpot": np.full(400, 8.0)}, limits) for _ in trials]

    (one,) = toys(load_small(), [1.0])
    toy = Hopeless({"gpu0": 1e-6})
    search = Search(cast("Laboratory", toy), Traffic(60.0), (0,))
    (entry,) = search.entries([one], {one.id: Bound(20.0, 1.0, "TPOT")})
    assert search.run([entry]) is None
    assert len(toy.asked) == TRIES + 1
    assert "one request at a time" in entry.bound.limit


def test_nothing_is_found_where_the_plan_allows_too_few() -> None:
    (one,) = toys(load_small(), [1.0])
    few = Candidate(**{**vars(one), "most_replicas": 5})
    search = Search(cast("Laboratory", Toy({"gpu0": 10.0})), Traffic(60.0), (0,))
    assert search.run(search.entries([few], {few.id: Bound(20.0, 1.0, "TPOT")})) is None


def test_a_load_curve_brackets_the_largest_rate() -> None:
    (one,) = toys(load_small(), [1.0])
    curve = LoadCurve(cast("Laboratory", Toy({"gpu0": 37.0})), Traffic(60.0), one, 2, (0, 1))
    low, high = curve.bracket()
    assert 30.0 * low <= 37.0 <= 30.0 * high and high / low <= 1.031
    assert [30.0 * factor for factor in curve.crossings()] == pytest.approx([37.0, 37.0])


@pytest.mark.parametrize(("near", "looks"), [(0.4, 12), (1.2, 4), (1.24, 3), (3.0, 10)])
def test_a_load_curve_brackets_the_largest_rate_from_wherever_it_begins(near: float, looks: int) -> None:
    (one,) = toys(load_small(), [1.0])
    curve = LoadCurve(cast("Laboratory", Toy({"gpu0": 37.0})), Traffic(60.0), one, 2, (0,))
    low, high = curve.around(near)
    assert 30.0 * low <= 37.0 <= 30.0 * high and high / low <= 1.031
    assert len(curve.points) <= looks


@pytest.mark.parametrize(
    ("price", "said"), [(1.0, "at $2.00/h, which is as cheap."), (1.5, "$3.00/h, 50 % more.")]
)
def test_a_rival_that_costs_the_same_is_said_to_be_as_cheap(price: float, said: str) -> None:
    mine = replace(toys(load_small(), [1.0])[0], k=3)
    other = toys(load_small(), [price])[0]
    bound = Bound(40.0, 1.0, "TPOT")
    entries = [Entry(mine, bound, 1, 2), Entry(other, bound, 1, 2)]
    this = Planned(load_small(), Traffic(60.0), (0,), (mine, other), entries=entries)
    this.winner, this.rival = entries
    assert other_side(this).endswith(said)


# Words


@pytest.mark.parametrize(
    ("shares", "limit", "said"),
    [
        ({"at_kv_cache": 0.4, "prefill_share": 0.9}, "p99_ttft_ms", "KV cache"),
        ({"at_max_num_seqs": 0.4}, "p99_ttft_ms", "max_num_seqs"),
        ({"at_token_budget": 0.5}, "p99_tpot_ms", "token budget"),
        ({"past_graphs": 0.8}, "p99_tpot_ms", "CUDA graph cap"),
        ({"prefill_share": 0.7}, "p99_tpot_ms", "prefill compute"),
        ({"prefill_share": 0.2}, "p99_tpot_ms", "decode compute"),
        ({"prefill_share": 0.2}, "p99_ttft_ms", "prefill compute"),
    ],
)
def test_what_stops_an_engine_has_a_name(shares: dict[str, float], limit: str, said: str) -> None:
    assert resource([TrialFigures(shares)], limit) == said


def loads(*ratios: float) -> list[BestK]:
    """K = 3 against plain at 1, 4, 16, .. in flight."""
    return [
        BestK(
            4**i,
            {
                0: TrialFigures({"output_throughput": 100.0}),
                3: TrialFigures({"output_throughput": 100.0 * r}),
            },
        )
        for i, r in enumerate(ratios)
    ]


def test_the_crossover_lies_between_the_last_gain_and_the_first_loss() -> None:
    assert crossover(loads(2.0, 1.5, 0.5), 3) == pytest.approx(8.0)
    assert crossover(loads(2.0, 1.5), 3) is None
    assert crossover(loads(0.9, 0.8), 3) == 0.0


def test_the_schedule_of_k_has_no_gap() -> None:
    table = schedule(loads(2.0, 1.5, 0.5), 64)
    assert table == [[1, 8, 3], [9, 64, 0]]
    assert all(later[0] == earlier[1] + 1 for earlier, later in itertools.pairwise(table))


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=30))
def test_nothing_beats_a_place_on_the_front(points: list[tuple[float, float]]) -> None:
    places = [Place(cast("Candidate", None), x, y, 1.0, False, True) for x, y in points]
    edge = front(places)
    assert edge
    for place in edge:
        assert not any(
            p.per_user >= place.per_user
            and p.per_gpu >= place.per_gpu
            and (p.per_user, p.per_gpu) != (place.per_user, place.per_gpu)
            for p in places
        )


def test_neighbours_differ_in_one_thing() -> None:
    all_ = every(load_small())
    winner = next(c for c in all_ if c.id == "1 x h100-sxm fp8, eagle3 K = 3")
    found = {(step, c.id) for step, c in steps(winner, all_)}
    assert found == {
        ("gpu", "1 x a100-80gb fp8, eagle3 K = 3"),
        ("tp", "3 x h100-sxm fp8, eagle3 K = 3"),
        ("dtype", "1 x h100-sxm bf16, eagle3 K = 3"),
        ("method", "1 x h100-sxm fp8, plain"),
        ("k", "1 x h100-sxm fp8, eagle3 K = 1"),
    }
