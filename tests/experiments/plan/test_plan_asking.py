"""Questions of a plan: how they grow, what is not simulated twice, and when a winner counts as confirmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pytest
from plan_toys import every, load_small
from queues import bursty

from specfleet.experiments.plan import asking
from specfleet.experiments.plan.asking import CONFIRMING, PORTION, Question, ask
from specfleet.experiments.plan.heavier import backlog, heavier
from specfleet.experiments.plan.seen import Allowed, TrialFigures
from specfleet.experiments.plan.traffic import Traffic, Trial
from specfleet.experiments.point.bounds import SLACK, Bound
from specfleet.sim.statistics.series import F64
from specfleet.sim.statistics.stopping import RunLengths
from specfleet.workloads.requests import RequestTable

FRESH = (1, 2, 3, 4, 5)
Draw = Callable[[np.random.Generator, int], F64]
Put = Callable[[Draw, float], "Bench"]


class Bench:
    """Stands in for the simulator: values drawn for a trial's seed and number of requests.

    Args:
        draw: values of a run.
        limit: on their P99.
    """

    def __init__(self, draw: Draw, limit: float) -> None:
        self.draw, self.limit = draw, limit
        self.asked: list[tuple[int, int]] = []

    def __call__(self, trial: Trial) -> TrialFigures:
        """Returns the run of a trial."""
        prompts = trial.config.workload.num_prompts
        assert isinstance(prompts, int)
        self.asked.append((trial.seed, prompts))
        values = self.draw(np.random.default_rng([trial.seed, 3]), prompts)
        return TrialFigures({}, {"ttft": values}, {"p99_ttft_ms": Allowed(0.99, "ttft", self.limit)})


BOUND = Bound(80.0, 10.0, "TPOT", 0.3)


def question(seeds: Sequence[int] = (0,), confirms: Bound | None = None, most: int = 50_000) -> Question:
    """Whether one replica of some engine meets the SLO."""
    config = every(load_small())[0].config
    return Question(Traffic(60.0), config, 1, tuple(seeds), RunLengths(1_000, most), confirms=confirms)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts a bench in the simulator's place."""

    def put(draw: Draw, limit: float) -> Bench:
        made = Bench(draw, limit)
        monkeypatch.setattr(asking, "measure", made)
        return made

    return put


def slow(rng: np.random.Generator, n: int) -> F64:
    """Values around 10 that stay alike for 400 requests."""
    return np.asarray(10.0 + np.repeat(rng.standard_normal(n // 400 + 1), 400)[:n])


def quick(rng: np.random.Generator, n: int) -> F64:
    """Independent values around 10."""
    return np.asarray(10.0 + rng.standard_normal(n))


def test_nothing_is_simulated_twice_and_no_run_is_longer_than_a_portion(
    bench: Put,
) -> None:
    made = bench(slow, 12.3)
    reply = ask(question())
    assert len(set(made.asked)) == len(made.asked) == reply.spent
    assert max(prompts for _, prompts in made.asked) == PORTION == reply.used
    whole = [seed for seed, prompts in made.asked if prompts == PORTION]
    assert len(reply.runs) == len(whole) == 50_000 // PORTION


def test_a_winner_clear_of_its_limit_is_confirmed_by_five_runs(bench: Put) -> None:
    made = bench(quick, 14.0)
    reply = ask(question(FRESH, BOUND))
    assert reply.judged.verdict == "met" and not reply.judged.taken
    assert sorted(made.asked) == [(seed, CONFIRMING) for seed in FRESH]


def test_a_winner_close_to_its_limit_takes_five_more_on_seeds_of_their_own(bench: Put) -> None:
    made = bench(slow, 12.6)
    reply = ask(question(FRESH, BOUND))
    assert len({seed for seed, _ in made.asked}) == len(made.asked) == len(reply.runs) == 10
    assert {prompts for _, prompts in made.asked} == {CONFIRMING}


def test_a_longest_run_that_is_short_confirms_with_what_may_be(bench: Put) -> None:
    made = bench(quick, 14.0)
    assert ask(question((1, 2), BOUND, most=3_000)).used == 3_000
    assert made.asked == [(1, 3_000), (2, 3_000)]


def test_a_winner_is_not_confirmed_early_where_heavier_loads_come_than_were_simulated(
    bench: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench(quick, 14.0)
    monkeypatch.setattr(asking, "heavier", lambda trials, parts, bound: 0.02)
    assert ask(question(FRESH, BOUND)).spent == 10


def test_rare_bursts_that_break_a_limit_are_seldom_confirmed(
    bench: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many as may be lie beyond it, in some bursts of 300 among 10,000 requests."""
    made = bench(bursty, 82.0)
    beyond = np.concatenate([bursty(np.random.default_rng([99, i]), 400_000) > made.limit for i in range(4)])
    assert 0.015 < beyond.mean() < 0.025

    def work(trials: Callable[[int], Sequence[Trial]], parts: int, bound: Bound) -> float:
        drawn = [[made(trial).series["ttft"] for trial in trials(part)] for part in range(4 * parts)]
        most = max(values.max() for part in drawn[:parts] for values in part)
        return float(np.mean([values > 1.1 * most for part in drawn[parts:] for values in part]))

    monkeypatch.setattr(asking, "heavier", work)
    said = [ask(question(range(100 * n, 100 * n + 5), BOUND)).judged.verdict for n in range(1, 21)]
    assert said.count("met") <= 1


class Drawn:
    """Stands in for a trial: its requests alone.

    Args:
        seed: of them.
        bursts: come three times as fast, a few in 10,000.
    """

    def __init__(self, seed: int, bursts: int) -> None:
        self.seed, self.bursts = seed, bursts

    def table(self) -> RequestTable:
        """Returns 10,000 requests at 10 a second."""
        rng = np.random.default_rng([self.seed, 5])
        gaps = rng.exponential(0.1, 10_000)
        if self.bursts:
            start = int(rng.integers(0, 10_000 - self.bursts))
            gaps[start : start + self.bursts] /= 4.0
        tokens = rng.integers(50, 150, 10_000)
        return RequestTable.of(tokens, tokens, arrival_s=np.cumsum(gaps))


def test_requests_under_a_load_that_no_simulation_had_are_counted() -> None:
    bound = Bound(16.0 * SLACK, 10.0, "TPOT", 0.4)

    def after(bursts: int) -> Callable[[int], Sequence[Trial]]:
        return lambda part: cast("list[Trial]", [Drawn(part, bursts if part else 0)])

    assert heavier(after(0), 1, bound) < 0.002
    assert 0.05 < heavier(after(600), 1, bound) < 0.2


def test_a_queue_in_closed_form_adds_work_and_takes_away_time() -> None:
    table = RequestTable.of(np.array([1, 3]), np.array([3, 1]), arrival_s=np.array([0.0, 1.0]))
    assert backlog(table, Bound(2.0 * SLACK, 1.0, "TPOT", 0.0)).tolist() == [1.5, 0.5]
    assert backlog(table, Bound(2.0 * SLACK, 1.0, "TPOT", 1.0)).tolist() == [0.5, 1.5]
