"""How `make test` spreads its tests: long ones first for every worker, processors of its own for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from dealing import dealt, processors_of
from hypothesis import given
from xdist.scheduler.worksteal import WorkStealingScheduling  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Test:
    """What `dealt` looks at of a test."""

    __test__ = False
    name: int
    long: bool

    def get_closest_marker(self, name: str) -> bool:
        """Whether it is marked so."""
        return name == "long" and self.long


@dataclass(eq=False)
class Worker:
    """What the scheduler of pytest-xdist asks of a worker.

    Attributes:
        got: the tests that it was sent first.
    """

    gateway: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(id="gw"))
    got: list[int] = field(default_factory=list)
    shutting_down: bool = False

    def send_runtest_some(self, tests: list[int]) -> None:
        """Notes what it is sent."""
        self.got = self.got or list(tests)


def sent_first(tests: list[Test], workers: int, monkeypatch: pytest.MonkeyPatch) -> list[list[Test]]:
    """Returns what `--dist worksteal` sends to each worker before it has done anything."""
    monkeypatch.setattr("xdist.scheduler.worksteal.parse_tx_spec_config", lambda config: [None] * workers)
    scheduler = WorkStealingScheduling(None, log=Silent())
    nodes = [Worker() for _ in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, [str(test.name) for test in tests])
    scheduler.schedule()
    return [[tests[place] for place in node.got] for node in nodes]


class Silent:
    """A log that keeps nothing."""

    def __getattr__(self, name: str) -> Silent:
        return self

    def __call__(self, *said: object) -> None:
        """Says nothing."""


SUITES = st.lists(st.booleans(), min_size=1, max_size=60).map(
    lambda marks: [Test(name, long) for name, long in enumerate(marks)]
)


@given(SUITES, st.integers(1, 5))
def test_no_test_is_lost_or_dealt_twice_and_those_of_a_kind_keep_their_order(
    tests: list[Test], workers: int
) -> None:
    order = dealt(tests, workers)
    assert sorted(test.name for test in order) == list(range(len(tests)))
    names = [test.name for test in order if not test.long]
    assert names == sorted(names)


def test_a_single_worker_takes_tests_as_they_were_collected() -> None:
    tests = [Test(name, name % 3 == 2) for name in range(9)]
    assert dealt(tests, 1) == tests


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("long", [[7], [0, 1, 2, 3, 4, 5], [30, 31, 32, 38, 39]])
def test_each_worker_begins_with_its_share_of_the_long_tests(
    workers: int, long: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = [Test(name, name in long) for name in range(40)]
    share = [len(long[worker::workers]) for worker in range(workers)]

    def as_meant(order: list[Test]) -> bool:
        dealt_first = sent_first(order, workers, monkeypatch)
        return all(
            [test.long for test in sent] == [True] * first + [False] * (len(sent) - first)
            for sent, first in zip(dealt_first, share, strict=True)
        )

    assert as_meant(dealt(tests, workers))
    assert not as_meant(tests)


def test_workers_have_processors_of_their_own_and_together_all() -> None:
    shares = [processors_of(f"gw{worker}", 3, {8, 2, 5, 11, 3}) for worker in range(3)]
    assert shares == [{2, 8}, {3, 11}, {5}]


def test_more_workers_than_processors_share_them() -> None:
    assert [processors_of(f"gw{worker}", 3, {4, 6}) for worker in range(3)] == [{4}, {6}, {4}]
