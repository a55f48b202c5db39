"""Who waits in front of an engine under SGLang's rules: as they came, or as SGLang sorts them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Protocol

from specfleet.sim.calendar.sglang.asking import Asking, Followed
from specfleet.sim.calendar.sglang.kv import Shared
from specfleet.sim.calendar.sglang.lives import SglangTrajectories
from specfleet.sim.calendar.waiting import WaitingLine
from specfleet.sim.config import SglangConfig
from specfleet.sim.requests import segments_of
from specfleet.sim.sequence import NEVER, stretches_of
from specfleet.sim.sglang.queue import SglangQueue
from specfleet.workloads.requests import RequestTable


class SglangLine(Protocol):
    """What a lane asks of those who wait."""

    arrived_s: array[float]
    visible: int

    @property
    def count(self) -> int:
        """How many wait."""
        ...

    def submit(self, place: int, now: float) -> None:
        """Puts a request into the inbox at `now`."""
        ...

    def see(self, now: float) -> None:
        """Lets those in who have arrived by `now`."""
        ...

    def next_arrival(self, until: float) -> float:
        """Returns when the next one arrives whose time is known, at most `until`."""
        ...

    def sort(self) -> None:
        """A prefill batch is put together."""
        ...

    def in_turn(self) -> Iterator[Asking]:
        """Yields who waits, in turn."""
        ...

    def take(self, admitted: list[Asking]) -> None:
        """Some of them are admitted."""
        ...


class AsTheyCame(WaitingLine):
    """Requests in order of arrival, looked at when their turn comes.

    Args:
        inbox, arrived_s: as `WaitingLine`.
        lives: the requests.
        ignore_eos: every request writes all it may.
    """

    def __init__(
        self, inbox: array[int] | range, arrived_s: array[float], lives: SglangTrajectories, ignore_eos: bool
    ) -> None:
        super().__init__(inbox, arrived_s)
        self.lives, self.ignore_eos = lives, ignore_eos
        self._prompt, self._most = lives.asked_each()

    @property
    def count(self) -> int:
        """How many wait."""
        return self.visible - self.head

    def asked_by(self, place: int) -> tuple[int, int]:
        """Returns prompt and max_tokens of a request."""
        return self._prompt[place], self._most[place]

    def asked_first(self) -> list[tuple[int, int]]:
        """Returns the same of the first of them alone, if there is one."""
        if self.head == self.visible:
            return []
        place = self.inbox[self.head]
        return [(self._prompt[place], self._most[place])]

    def asked(self) -> Iterator[tuple[int, int]]:
        """Yields prompt and max_tokens of who waits, in turn."""
        inbox, prompt, most = self.inbox, self._prompt, self._most
        for index in range(self.head, self.visible):
            place = inbox[index]
            yield prompt[place], most[place]

    def sort(self) -> None:
        """They stand as they came."""

    def in_turn(self) -> Iterator[Asking]:
        """Yields who waits, in turn."""
        for index in range(self.head, self.visible):
            place = self.inbox[index]
            block, j = self.lives.life(place)
            asking = Asking(place, block.prompt[j], block.most[j], self.ignore_eos)
            asking.live(block, j)
            yield asking

    def take(self, admitted: list[Asking]) -> None:
        """The first so many are admitted."""
        self.head += len(admitted)


class Sorted(WaitingLine):
    """Requests in SGLang's queue, with all that it may sort by; those who were retracted wait there again.

    Args:
        inbox, arrived_s: as `WaitingLine`.
        lives: the requests. table: the same, as they were asked for.
        config: the policy.
        kv: where prefixes are looked up.
    """

    def __init__(
        self,
        inbox: array[int] | range,
        arrived_s: array[float],
        lives: SglangTrajectories,
        table: RequestTable,
        config: SglangConfig,
        kv: Shared,
    ) -> None:
        super().__init__(inbox, arrived_s)
        self.lives, self.table, self.ignore_eos = lives, table, config.ignore_eos
        self._by_priority = config.retraction_policy == "priority"
        self.queue: SglangQueue[Followed] = SglangQueue(config, kv)
        self.sort = self.queue.sort

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self.queue.queue)

    def see(self, now: float) -> None:
        """Lets those in who have arrived by `now`."""
        before = self.visible
        super().see(now)
        for index in range(before, self.visible):
            self.queue.add(self._told(self.inbox[index]))

    def _told(self, place: int) -> Followed:
        """Returns a request with what is asked of it."""
        table, row = self.table, int(self.lives.order[place])
        prompt, most = self.lives.asked(row)
        output = int(table.output_tokens[row])
        stream = ("out", row) if table.output_stream is None else int(table.output_stream[row])
        return Followed(
            place,
            prompt,
            most,
            self.ignore_eos,
            output if output < int(table.max_tokens[row]) else NEVER,
            stretches_of(segments_of(table, row) or ((("in", row), prompt),), stream),
            int(table.priority[row]),
        )

    def keeps(self, told: Followed, outputs: int) -> tuple[int, ...]:
        """As `SglangScheduler._keeps`, of one with so many outputs."""
        key = (outputs, -told.prompt_tokens)
        return (-self.queue.rank(told)[0], *key) if self._by_priority else key

    def in_turn(self) -> Iterator[Followed]:
        """Yields who waits, in turn."""
        return iter(self.queue.queue)

    def take(self, admitted: list[Asking]) -> None:
        """Some of them are admitted."""
        self.queue.take({asking.place for asking in admitted})
        for asking in admitted:
            if asking.admitted < 0:
                asking.live(*self.lives.life(asking.place))
