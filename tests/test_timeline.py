"""The fast path equals stepping, to the last bit, wherever it applies; and the proof can fail."""

from __future__ import annotations

import inspect
from types import FunctionType, ModuleType

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sim_toys import World
from timeline_worlds import both, differences, worlds

from sim import (
    timeline_lane,
    timeline_ledger,
    timeline_luck,
    timeline_seat,
    timeline_tail,
    timeline_trajectories,
    timeline_watch,
)

LAWS = settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.too_slow])
HUNT = settings(
    max_examples=500,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SEEDS = st.integers(0, 2**32)


@pytest.fixture(autouse=True)
def small_windows_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a few iterations, blocks of a few requests and short calendars, so that small worlds
    cross all their borders."""
    for module in (timeline_lane, timeline_ledger, timeline_tail, timeline_trajectories):
        monkeypatch.setattr(module, "BLOCK", 5)
    for module in (timeline_lane, timeline_tail):
        monkeypatch.setattr(module, "LONGEST_WINDOW", 40)
        monkeypatch.setattr(module, "WINDOW", 3)
    monkeypatch.setattr(timeline_tail, "SHORTEST_CALENDAR", 0)


def prove(world: World, seed: int) -> None:
    """Fails where the two ways differ."""
    assert not (found := differences(*both(world, seed))), "\n".join(found)


@LAWS
@given(worlds(("open", "open", "sparse")), SEEDS)
def test_an_open_loop_equals_stepping(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(worlds(("open", "closed", "balanced"), 2, tight=True), SEEDS)
def test_running_out_of_blocks_equals_stepping(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(worlds(("closed", "capped")), SEEDS)
def test_closed_and_capped_loops_equal_stepping(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(worlds(("open", "balanced", "closed", "capped"), replicas=3), SEEDS)
def test_a_fleet_equals_stepping(world: World, seed: int) -> None:
    prove(world, seed)


FAULTS = {
    "a draft too many": (
        timeline_luck,
        "gains: U8 = np.ones(len(draws), ",
        "gains: U8 = np.full(len(draws), 2, ",
        ("open",),
    ),
    "luck of the other half": (timeline_luck, 'mix(x).view("<u4")', 'mix(x).view(">u4")', ("open",)),
    "luck used again after a preemption": (
        timeline_seat,
        "self.gains[done : done + rounds]",
        "self.gains[:rounds]",
        ("tight",),
    ),
    "the prefill after a preemption emits nothing": (
        timeline_seat,
        "- (rules.query - 1)",
        "- rules.query",
        ("tight",),
    ),
    "the last round not cut": (timeline_ledger, "gains[last] = block.kept[some]", "pass", ("open",)),
    "drafter's slots forgotten": (
        timeline_trajectories,
        "self.query + self.lookahead + size - 1",
        "self.query + size - 1",
        ("open",),
    ),
    "no certain end": (
        timeline_trajectories,
        "certain = known + 1 >= most",
        "certain = known > most",
        ("open",),
    ),
    "an arrival on a tie comes too late": (
        timeline_lane,
        "while now < limit and it < stop",
        "while now <= limit and it < stop",
        ("open",),
    ),
    "the victim is not the tail": (timeline_tail, "self.stays.pop()", "self.stays.pop(0)", ("tight",)),
    "who was thrown out queues behind the others": (
        timeline_tail,
        "self.back.append(seat.rest(",
        "self.back.insert(0, seat.rest(",
        ("tight",),
    ),
    "terms added in another order": (
        timeline_lane,
        "for term in ordered[1:]",
        "for term in ordered[:0:-1]",
        ("tight",),
    ),
    "times added before the clock": (
        timeline_lane,
        "np.add.accumulate(times, out=times)",
        "times[1:] = np.cumsum(times[1:]) + times[0]",
        ("open",),
    ),
    "one turn too many in a window": (
        timeline_lane,
        "np.searchsorted(turns, limit)",
        "np.searchsorted(turns, limit, 'right')",
        ("sparse",),
    ),
    "idle drafter passes": (
        timeline_trajectories,
        "known + 1 >= most) & (rounds",
        "known >= most) & (rounds",
        ("open",),
    ),
    "an end is heard of early": (
        timeline_lane,
        "watch.commit(self.committed)",
        "watch.commit(self.committed + 1)",
        ("closed",),
    ),
    "the router sees the step in flight": (
        timeline_watch,
        "while due and due[0] <= upto:\n            ended += len",
        "while due and due[0] <= upto + 1:\n            ended += len",
        ("balanced",),
    ),
    "chunks ranked among the dead": (timeline_watch, "index + gone + 1", "index + 1", ("closed",)),
}
"""What went wrong, where, what stands there, what is planted, and the loop in which it shows."""


def plant(patch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str) -> None:
    """Replaces a piece of a module's source and puts the functions that come of it in place."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
    spoilt = dict(vars(module))
    exec(compile(source.replace(old, new), str(module.__file__), "exec"), spoilt)
    for name, thing in list(vars(module).items()):
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        if isinstance(thing, FunctionType):
            patch.setattr(module, name, spoilt[name])
        elif isinstance(thing, type):
            for attribute, value in vars(spoilt[name]).items():
                if isinstance(value, FunctionType | classmethod | staticmethod):
                    patch.setattr(thing, attribute, value)
            spoilt[name] = thing


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new, loops = FAULTS[fault]
    plant(monkeypatch, module, old, new)

    @HUNT
    @given(worlds(("open",), tight=True) if loops == ("tight",) else worlds(loops, 3), SEEDS)
    def hunt(world: World, seed: int) -> None:
        prove(world, seed)

    with pytest.raises(AssertionError):
        hunt()
