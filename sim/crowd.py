"""Those who run in an engine, and the one text that decides a step for them.

There are two ways to know who runs: sequences listed one by one (`listed.ListedCrowd`), and their running sum
(`calendar.crowd.CalendarCrowd`), which costs the same for one sequence and for a thousand but needs to know
each life in advance. What a step may give is counted by `Step`, what it takes by `rules`, for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

from specfleet.sim.step import Candidate, Step

Life = TypeVar("Life")


class Crowd(Protocol[Life]):
    """The running sequences of one engine, and those who wait to join them.

    Attributes:
        step: what the present step has to give and gave.
    """

    step: Step

    def serve(self) -> None:
        """Gives those who run what they get of the step; who finds no KV blocks throws out the last one."""
        ...

    def in_turn(self) -> Iterator[Candidate[Life]]:
        """Yields who waits, in turn."""
        ...

    def join(self, life: Life, tokens: int, blocks: int, drafts: int) -> None:
        """Takes in who was let in; arguments as `step.Admission`."""
        ...

    def end(self) -> None:
        """Learns that the step is decided."""
        ...


def schedule(crowd: Crowd[Life]) -> None:
    """Decides a step: running sequences first, then those who wait, unless somebody was thrown out."""
    step = crowd.step
    crowd.serve()
    if not step.preempted:
        for life, tokens, blocks, drafts in step.admissions(crowd.in_turn()):
            crowd.join(life, tokens, blocks, drafts)
    crowd.end()
