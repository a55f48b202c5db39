"""Runs whose clients give up and which are stepped: what the calendar cannot take a single request out of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specfleet.sim.calendar.plan import CalendarRun


def _where(applies: Callable[[CalendarRun], bool]) -> Callable[[CalendarRun], bool]:
    """Returns whether clients may give up, and something else applies."""
    return lambda run: run.patient and applies(run)


def _rerolls(run: CalendarRun) -> bool:
    return run.config.speculative is not None and run.config.speculative.reroll_on_reject


def _changes_k(run: CalendarRun) -> bool:
    """Whether K changes for all, and more has to be told of who leaves than its rounds."""
    changes = run.reaches or (run.policy is not None and run.drafting is None)
    plans = run.plans()
    return changes and (run.shared or (plans is not None and plans.learns))


GIVEN_UP = "requests that their clients give up"
IMPATIENT: tuple[tuple[Callable[[CalendarRun], bool], str], ...] = (
    (_where(lambda run: run.config.sglang is not None), f"{GIVEN_UP}, under SGLang's scheduler"),
    (_where(lambda run: run.by_rows), f"{GIVEN_UP}, under a policy that looks at all rows of a step"),
    (
        _where(_changes_k),
        f"{GIVEN_UP}, under a policy that learns, or where K changes and prompts share prefixes",
    ),
    (_where(_rerolls), f"{GIVEN_UP}, with reroll_on_reject"),
)
"""What applies and is stepped, and why, in the order in which it is asked."""
