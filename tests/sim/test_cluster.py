"""Client, router and clock: what is said for one request is said for many, and times are exact."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specfleet.sim.clients import Sends
from specfleet.sim.environment import Environment
from specfleet.sim.router import Blind, LeastOutstanding, Random, RoundRobin

TIMES = st.floats(0, 1e9, allow_subnormal=False)


class Loaded:
    """A replica that says how many requests it has."""

    def __init__(self, outstanding: int) -> None:
        self.outstanding = outstanding


@given(st.lists(TIMES, min_size=1, max_size=30))
def test_events_happen_at_the_very_time_asked_for_and_arrivals_before_wakes(times: list[float]) -> None:
    env, seen = Environment(), list[tuple[float, int]]()
    for time_s in times:
        env.wake(time_s, lambda event: seen.append((env.now, 2)))
        env.until(time_s).callbacks.append(lambda event: seen.append((env.now, 1)))
    env.run()
    assert seen == sorted((time_s, kind) for time_s in times for kind in (1, 2))


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=20))
def test_a_process_hears_of_a_moment_at_its_time(pairs: list[tuple[float, float]]) -> None:
    env, heard = Environment(), list[tuple[float, float]]()

    def user(first: float, later: float):  # type: ignore[no-untyped-def] # a generator of events
        answer = env.moment()
        env.wake(first, lambda event: answer.happen(first + later))
        heard.append(((yield answer), env.now))

    for first, later in pairs:
        env.process(user(first, later))
    env.run()
    assert sorted(heard) == sorted((first + later, first + later) for first, later in pairs)


@given(st.lists(TIMES, max_size=30).map(sorted), st.sampled_from([0.0, 0.0005, 3.0]), st.integers(0, 30))
def test_sends_of_many_are_the_sends_of_each(due: list[float], serial_s: float, cut: int) -> None:
    one, many = Sends(serial_s), Sends(serial_s)
    alone = [one.next(time_s) for time_s in due]
    together = [many.all(np.array(part)) for part in (due[:cut], due[cut:])]
    assert np.concatenate(together).tolist() == alone
    assert all(later - sooner >= serial_s * (1 - 1e-9) - 1e-6 for sooner, later in pairwise(alone))
    assert all(sent >= time_s for sent, time_s in zip(alone, due, strict=True))


@given(
    st.lists(st.integers(0, 2**40), max_size=30), st.integers(1, 9), st.integers(0, 2**32), st.integers(0, 30)
)
def test_a_blind_router_picks_for_many_what_it_picks_for_each(
    ids: list[int], replicas: int, seed: int, cut: int
) -> None:
    for kind in (RoundRobin, Random):
        one, many = kind(seed), kind(seed)
        assert isinstance(many, Blind)
        fleet = [Loaded(0) for _ in range(replicas)]
        together = [many.picks(np.array(part, dtype=np.int64), replicas) for part in (ids[:cut], ids[cut:])]
        assert np.concatenate(together).tolist() == [one.pick(row, fleet) for row in ids]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_least_outstanding_takes_the_lowest_number_of_the_least_loaded(outstanding: list[int]) -> None:
    router = LeastOutstanding(0)
    assert not isinstance(router, Blind)
    chosen = router.pick(7, [Loaded(count) for count in outstanding])
    assert chosen == router.choose(7, outstanding)
    assert (outstanding[chosen], chosen) == min((count, index) for index, count in enumerate(outstanding))
