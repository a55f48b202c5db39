"""The search of a plan on replicas that meet the SLO up to a known rate, and the words of its answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_toys import every, load_small

from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.capacity import LoadCurve, resource
from specfleet.experiments.plan.neighbours import steps
from specfleet.experiments.plan.numbers import Place, front
from specfleet.experiments.plan.search import Search, rungs
from specfleet.experiments.plan.speculation import BestK, crossover, schedule
from specfleet.experiments.plan.traffic import Traffic, Trial
from specfleet.experiments.plan.trials import Laboratory, TrialFigures, trial_key
from specfleet.experiments.point.bounds import Bound
from specfleet.experiments.schema.blocks.experiment import Experiment

# The search, on a toy laboratory


class Toy:
    """A laboratory whose replicas meet the SLO up to a rate of their own, and count what they are asked."""

    def __init__(self, rates: dict[str, float]) -> None:
        self.rates = rates
        self.asked: set[str] = set()

    def run(self, trials: Sequence[Trial]) -> list[TrialFigures]:
        """A ratio that grows with the rate."""
        found = []
        for trial in trials:
            self.asked.add(trial_key(trial))
            config = trial.config
            ratio = (config.workload.request_rate or 0.0) / self.rates[config.name]
            found.append(TrialFigures({"in_flight": 1.0}, {"p99_tpot_ms": (0.99, [ratio])}))
        return found


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


def test_short_runs_fail_only_clearly() -> None:
    ladder = rungs(3)
    assert [rung.seeds for rung in ladder] == [1, 1, 3]
    assert ladder[0].part < 1.0 and ladder[0].fails_from > ladder[1].fails_from > ladder[2].fails_from == 1.0


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
    assert resource([TrialFigures(shares, {})], limit) == said


def loads(*ratios: float) -> list[BestK]:
    """K = 3 against plain at 1, 4, 16, .. in flight."""
    return [
        BestK(
            4**i,
            {
                0: TrialFigures({"output_throughput": 100.0}, {}),
                3: TrialFigures({"output_throughput": 100.0 * r}, {}),
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
