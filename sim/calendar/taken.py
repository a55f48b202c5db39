"""Whether the calendar takes a run, before it begins; what runs it is not imported to tell."""

from __future__ import annotations

from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.gate import stranger, why_not
from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.errors import Unsuited
from specfleet.sim.scenario import Scenario
from specfleet.sim.speculation.lives import Lives
from specfleet.workloads.requests import RequestTable


def why_stepped(scenario: Scenario, table: RequestTable, seed: int, lives: Lives | None) -> str:
    """Returns why a run would be stepped as a whole; empty where the calendar begins it. Runs nothing.

    Arguments as `on_the_calendar`; single steps of a run that begins there may be stepped all the same.
    """
    try:
        taken(scenario, table, seed, lives)
    except Unsuited as reason:
        return str(reason)
    return ""


def may_be_given_up(scenario: Scenario, table: RequestTable, seed: int, lives: Lives | None) -> bool:
    """Whether a run that the calendar begins may well be stepped after all, once KV or budget are short.

    Arguments as `on_the_calendar`. Whoever is thrown out is not always followed with a prefix cache behind a
    policy, a short drafter or look-ups, or where answers may be asked for; nor are rows that are cut where
    drafts differ from request to request, or behind a short drafter.
    """
    run, rules = taken(scenario, table, seed, lives)
    if run.by_rows:
        return False  # it looks at whoever it throws out
    caches, changes = run.config.enable_prefix_caching, run.policy is not None or run.reaches
    if rules is not None and table.output_stream is not None:
        return caches  # contexts grow from turn to turn
    if run.patient and run.over_budget:
        return True
    own = rules is not None and run.drafting is not None
    if rules is not None and (own or run.reaches) and run.over_budget:
        return True
    if rules is None or run.never_short(rules):
        return False
    return caches and (own or changes or run.repeats is not None)


def taken(
    scenario: Scenario, table: RequestTable, seed: int, lives: Lives | None, rows: I64 | None = None
) -> tuple[CalendarRun, Footprints | None]:
    """Returns a run that the calendar begins, and its rules: None where they are SGLang's.

    Args:
        scenario, table, seed, lives: as `on_the_calendar`.
        rows: the requests that may come here, where that is not all of them.

    Raises:
        Unsuited: it has to be stepped, and why.
    """
    if reason := stranger(scenario, table, lives):
        raise Unsuited(reason)
    run = CalendarRun(scenario, table, seed, lives, rows)
    if reason := why_not(run):
        raise Unsuited(reason)
    if scenario.engine.sglang is not None:
        return run, None
    if (rules := run.rules()) is None:
        raise Unsuited("counts that do not fit in one integer")
    return run, rules
