"""Links that transfers share: closed forms, and that nobody is given more while somebody could use it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.sim.disaggregation.network import Network, Transfer, share


class Clock:
    """Calls in order of time."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = count()

    def at(self, time_s: float, then: Callable[[float], None]) -> None:
        """As `Alarm.at`."""
        heapq.heappush(self.heap, (time_s, next(self.order), then))

    def run(self) -> None:
        """Calls until nothing is due."""
        while self.heap:
            time_s, _, then = heapq.heappop(self.heap)
            then(time_s)


def ends(
    sends: list[tuple[float, int, int, float]], bytes_per_s: list[float]
) -> tuple[dict[int, float], Network]:
    """When each transfer ends, given when it begins, from whom to whom, and its bytes."""
    clock, found = Clock(), dict[int, float]()
    network = Network(clock, bytes_per_s, found.__setitem__)

    def send(row: int, source: int, target: int, size: float) -> Callable[[float], None]:
        def begin(now: float) -> None:
            network.begin(row, source)
            network.put(row, size, now)
            network.close(row, now)
            network.open(row, target, now)

        return begin

    for row, (at_s, source, target, size) in enumerate(sends):
        clock.at(at_s, send(row, source, target, size))
    clock.run()
    return found, network


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_n_equal_transfers_over_a_link_take_n_times_as_long(n: int) -> None:
    out, _ = ends([(0.0, 0, 1 + row, 1000.0) for row in range(n)], [100.0] * (n + 1))
    into, _ = ends([(0.0, row, n, 1000.0) for row in range(n)], [100.0] * (n + 1))
    assert out == into == pytest.approx(dict.fromkeys(range(n), 10.0 * n))


def test_who_comes_later_shares_what_is_left() -> None:
    """Alone until 5 s: half is sent. Then each has half the link: 10 s. The second has 500 left, alone."""
    found, _ = ends([(0.0, 0, 1, 1000.0), (5.0, 0, 1, 1000.0)], [100.0, 100.0])
    assert found == pytest.approx({0: 15.0, 1: 20.0})


def test_what_a_slow_receiver_cannot_take_goes_to_another() -> None:
    """Of 100 bytes/s, 20 go to the slow one, and 80 to the other, not 50."""
    found, _ = ends([(0.0, 0, 1, 800.0), (0.0, 0, 2, 200.0)], [100.0, 1000.0, 20.0])
    assert found == pytest.approx({0: 10.0, 1: 10.0})


def test_an_endless_link_takes_no_time() -> None:
    found, _ = ends([(1.0, 0, 1, 1e12), (1.0, 0, 1, 5.0)], [inf, inf])
    assert found == {0: 1.0, 1: 1.0}


@pytest.mark.parametrize(("link", "due_s"), [(50.0, 21.0), (100.0, 11.0), (1000.0, 10.1), (inf, 10.0)])
def test_bytes_that_are_poured_are_sent_as_they_come(link: float, due_s: float) -> None:
    """Ten layers of 100 bytes in 10 s: the first is there at 1 s, the last at 10 s."""
    clock, found = Clock(), dict[int, float]()
    network = Network(clock, [link, link], found.__setitem__)
    network.begin(0, 0)
    network.open(0, 1, 0.0)
    clock.at(1.0, lambda now: network.pour(0, 100.0, now))
    clock.at(10.0, lambda now: network.pour(0, 0.0, now))
    clock.at(10.0, lambda now: network.put(0, 100.0, now))
    clock.at(10.0, lambda now: network.close(0, now))
    clock.run()
    assert found == {0: pytest.approx(due_s)}


FLOWS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(3, 5), st.sampled_from([0.0, 7.0]), st.sampled_from([0.0, 3.0, 40.0])
    ),
    max_size=8,
)


@given(FLOWS, st.lists(st.sampled_from([1.0, 10.0, 100.0, inf]), min_size=6, max_size=6))
def test_no_link_is_over_its_rate_and_nobody_can_be_given_more(
    rows: list[tuple[int, int, float, float]], links: list[float]
) -> None:
    flows = []
    for number, (source, target, ready, inflow) in enumerate(rows):
        flow = Transfer(number, source)
        flow.target, flow.ready, flow.inflow = target, ready, inflow
        flows.append(flow)
    share(flows, links)
    used = [
        sum(flow.rate for flow in flows if link in (flow.source, flow.target)) for link in range(len(links))
    ]
    assert all(mine <= most * (1 + 1e-12) for mine, most in zip(used, links, strict=True))
    for flow in flows:
        ends = (flow.source, flow.target)
        full = [link for link in ends if used[link] >= links[link] * (1 - 1e-12)]
        most = [max(other.rate for other in flows if link in (other.source, other.target)) for link in full]
        sated = not flow.ready and flow.rate == flow.inflow
        assert sated or any(flow.rate >= rate * (1 - 1e-12) for rate in most)


SENDS = st.lists(
    st.tuples(st.floats(0.0, 5.0), st.integers(0, 1), st.integers(2, 3), st.floats(1.0, 1e4)),
    min_size=1,
    max_size=8,
)


@given(SENDS, st.lists(st.sampled_from([10.0, 1e3, 1e5]), min_size=4, max_size=4))
def test_every_transfer_ends_and_a_single_busy_link_never_idles(
    sends: list[tuple[float, int, int, float]], links: list[float]
) -> None:
    found, _ = ends(sends, links)
    assert sorted(found) == [*range(len(sends))]
    for row, (at_s, source, target, size) in enumerate(sends):
        assert found[row] >= (at_s + size / min(links[source], links[target])) * (1 - 1e-9)
    one, _ = ends([(at_s, 0, 2, size) for at_s, _, _, size in sends], [10.0] * 4)
    now = 0.0
    for at_s, _, _, size in sorted(sends):  # a queue that works while there is work ends at the same time
        now = max(now, at_s) + size / 10.0
    assert max(one.values()) == pytest.approx(now)
