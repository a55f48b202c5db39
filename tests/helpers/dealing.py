"""How tests are dealt to the workers of `make test`, and which processors each of these has."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar


class Marked(Protocol):
    """A test, as pytest collects it."""

    def get_closest_marker(self, name: str) -> object:
        """Returns the mark of that name, if it has one."""
        ...


Test = TypeVar("Test", bound=Marked)


def dealt(items: Sequence[Test], workers: int) -> list[Test]:
    """Returns the tests in such an order that of the even stretches that `--dist worksteal` gives to workers
    each begins with its share of those marked `long`: nobody is alone with one at the end."""
    if workers == 1:
        return list(items)
    long = [item for item in items if item.get_closest_marker("long")]
    rest = iter([item for item in items if not item.get_closest_marker("long")])
    order: list[Test] = []
    for worker in range(workers):
        stretch, share = (len(items) - len(order)) // (workers - worker), long[worker::workers]
        order += [*share, *itertools.islice(rest, max(0, stretch - len(share)))]
    return order


def processors_of(worker: str, workers: int, all_of_them: Collection[int]) -> set[int]:
    """Returns the processors of one worker: its share of all, or one that it shares with others.

    Args:
        worker: `gw0`, `gw1` and so on.
        workers: how many there are.
        all_of_them: their numbers.
    """
    number, order = int(worker.removeprefix("gw")), sorted(all_of_them)
    return set(order[number::workers]) or {order[number % len(order)]}
