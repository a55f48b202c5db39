"""The calendar takes nothing that it does not know: what is new is stepped, obeyed and named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from handover_toys import Split, splits
from hypothesis import given, settings
from hypothesis import strategies as st
from patient_worlds import PATIENT, impatient
from session_worlds import Sessions, sessions
from sglang_worlds import sglang_worlds
from sim_toys import ENGINE, ToyCost, World, drafting
from test_timeline import HUNT
from timeline_worlds import LUCK, Affine, both, differences, policies, requests, sharing, worlds
from trtllm_worlds import capacity_worlds

from specfleet.hardware.kernels import Array
from specfleet.sim.calendar import gate
from specfleet.sim.calendar.gate import REFUSED, UNDERSTOOD
from specfleet.sim.config import DeploymentConfig, EngineConfig, SpeculativeConfig
from specfleet.sim.fleet.patience import PatienceConfig
from specfleet.sim.router import ROUTERS, Candidate
from specfleet.sim.scenario import Scenario
from specfleet.sim.scheduler import Scheduler
from specfleet.sim.sequence import Batch
from specfleet.sim.speculation import lives
from specfleet.sim.speculation.acceptance import Acceptance, AcceptanceSpec
from specfleet.sim.speculation.policies import POLICIES, Static
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.summarise import summarise
from specfleet.workloads.requests import RequestTable

CROWD = World([50] * 40, [8] * 40, engine=replace(ENGINE, max_num_seqs=8))
"""Everybody at once, in front of a few seats."""
DRAFTING = replace(CROWD, engine=replace(drafting(3), max_num_seqs=8), classes={"": LUCK[0]})


def refused(record: type) -> set[str]:
    """The fields of a record that a rule of the gate looks at."""
    return {name for rule in REFUSED if rule.record is record for name in rule.names}


@pytest.mark.parametrize("record", UNDERSTOOD, ids=lambda record: record.__name__)
def test_understood_and_refused_together_are_all_fields(record: type) -> None:
    understood = set(UNDERSTOOD[record])
    assert not understood & refused(record)
    assert understood | refused(record) == {field.name for field in fields(record)}


def test_every_shipped_router_and_policy_is_named() -> None:
    assert set(ROUTERS.values()) <= set(gate.UNDERSTOOD_ROUTERS)
    assert set(POLICIES.values()) <= {*gate.UNDERSTOOD_POLICIES, *gate.PICKY_POLICIES}


def parts(scenario: Scenario, table: RequestTable) -> Iterator[object]:
    """The records that describe a run."""
    engine = scenario.engine
    yield from (scenario, engine, scenario.deployment, scenario.client, scenario.load, table)
    others = (engine.speculative, engine.kv_layout, engine.sglang, scenario.policy)
    yield from (part for part in others if part is not None)
    yield from scenario.acceptance.values()


def test_the_random_worlds_draw_every_understood_field() -> None:
    seen: dict[tuple[str, str], set[str]] = {}
    loops, everything = ("open", "closed", "capped", "balanced"), partial(worlds, replicas=3)

    def see(world: World, policy: PolicySpec | None, table: RequestTable | None = None) -> None:
        scenario = replace(world.scenario(world.classes or {}), policy=policy)
        see_parts(scenario, requests(world) if table is None else table)

    def see_parts(scenario: Scenario, table: RequestTable) -> None:
        for part in parts(scenario, table):
            for field in fields(part):  # type: ignore[arg-type]
                values = seen.setdefault((type(part).__name__, field.name), set())
                values.add(repr(getattr(part, field.name)))

    @settings(HUNT, max_examples=300)
    @given(st.one_of(everything(loops), everything(loops, tight=True), sharing(loops, 3)), policies())
    def look(world: World, policy: PolicySpec) -> None:
        see(world, policy)

    @settings(HUNT, max_examples=40)
    @given(sglang_worlds())
    def look_at_sglang(world: World) -> None:
        see(world, None)

    @settings(HUNT, max_examples=40)
    @given(capacity_worlds())
    def look_at_trtllm(world: World) -> None:
        see(world, None)

    @settings(HUNT, max_examples=10)
    @given(sessions())
    def look_at_sessions(drawn: Sessions) -> None:
        see(drawn.world, None, drawn.table)

    @settings(HUNT, max_examples=40)
    @given(splits())
    def look_at_decoding(split: Split) -> None:
        see_parts(split.scenario.part(split.scenario.pools[1]), split.table)

    @settings(HUNT, max_examples=5)
    @given(worlds(), PATIENT)
    def look_at_impatient(world: World, patience: PatienceConfig) -> None:
        see(impatient(world, patience), None)

    look_at_impatient()
    look_at_decoding()
    look_at_sglang()
    look_at_trtllm()
    look_at_sessions()
    look()
    for record, names in UNDERSTOOD.items():
        for field in fields(record):
            values = seen[record.__name__, field.name]
            default = field.default if field.default_factory is MISSING else field.default_factory()
            drawn = len(values) > 1 if default is MISSING else bool(values - {repr(default)})
            assert drawn or field.name not in names, f"{record.__name__}.{field.name} is always {values}"


@pytest.mark.parametrize("name", ["watermark", "sliding_window", "async_scheduling"])
def test_a_field_that_is_not_named_is_stepped_unless_it_stands_at_its_default(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tuple(field for field in UNDERSTOOD[EngineConfig] if field != name)
    monkeypatch.setitem(UNDERSTOOD, EngineConfig, known)
    assert both(CROWD, 0)[0].stepped_share == 0.0
    changed: dict[str, Any] = {name: {"watermark": 0.1, "sliding_window": 9, "async_scheduling": True}[name]}
    is_stepped(replace(CROWD, engine=replace(CROWD.engine, **changed)), f"EngineConfig.{name}")


def is_stepped(world: World, because: str, policy: PolicySpec | None = None) -> None:
    """Fails unless a world is stepped from beginning to end, and says why, whole or summed up."""
    ours, theirs = both(world, 0, policy)
    assert not differences(ours, theirs)
    assert ours.stepped_share == 1.0
    assert because in ours.stepped_because
    scenario = replace(world.scenario(world.classes or {}), policy=policy)
    assert summarise(scenario, requests(world), 0).whole is not None


@dataclass(frozen=True, slots=True)
class SwitchedConfig(EngineConfig):
    """An engine with a switch of its own."""

    max_admissions_per_step: int = 0


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that obeys `max_admissions_per_step`: those beyond it do not queue yet."""
    schedule = Scheduler.schedule

    def obeying(self: Scheduler, now: float = 0.0) -> Batch:
        most = getattr(self.config, "max_admissions_per_step", 0)
        later = list(self.waiting)[most:] if most else []
        self.waiting.discard(later)
        batch = schedule(self, now)
        for sequence in later:
            self.waiting.add(sequence)
        return batch

    monkeypatch.setattr(Scheduler, "schedule", obeying)


def switched(world: World, most: int) -> World:
    """The same with at most so many admissions a step (0: any number)."""
    values = {field.name: getattr(world.engine, field.name) for field in fields(EngineConfig)}
    return replace(world, engine=SwitchedConfig(**values, max_admissions_per_step=most))


@pytest.mark.usefixtures("switch")
@pytest.mark.parametrize("world", [CROWD, DRAFTING], ids=["plain", "drafting"])
def test_a_switch_of_one_s_own_is_obeyed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    is_stepped(switched(world, 1), "SwitchedConfig is not known")
    # the same field in a record that the calendar knows, as if it had been added to `EngineConfig` itself
    monkeypatch.setitem(UNDERSTOOD, SwitchedConfig, (*UNDERSTOOD[EngineConfig], *refused(EngineConfig)))
    is_stepped(switched(world, 1), "SwitchedConfig.max_admissions_per_step is not known")
    free, slow = (both(switched(world, most), 0)[0] for most in (0, 1))
    assert free.stepped_share == 0.0, "at its default it says nothing"
    assert slow.requests["first_token_s"].mean() > free.requests["first_token_s"].mean()


class FirstFit:
    """The first replica with fewer than three requests outstanding, or else the last."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns it."""
        return next((i for i, r in enumerate(replicas) if r.outstanding < 3), len(replicas) - 1)


@pytest.mark.parametrize("base", [*ROUTERS.values(), FirstFit], ids=lambda base: base.__name__)
@pytest.mark.parametrize("users", [None, 8])
def test_a_router_of_one_s_own_is_obeyed(
    base: type, users: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = next(vars(kind)["__init__"] for kind in base.__mro__ if "__init__" in vars(kind))
    own = base if base is FirstFit else type("Own", (FirstFit, base), {"__init__": made})
    monkeypatch.setitem(ROUTERS, "own", own)
    fleet = replace(CROWD, arrival_s=[0.01 * i for i in range(40)], deployment=DeploymentConfig(4, "own"))
    world = replace(fleet, load=replace(fleet.load, max_concurrency=users))
    is_stepped(world, "the router own is not known")
    known = replace(world, deployment=DeploymentConfig(4, "least_outstanding"))
    ours, theirs = both(world, 0)[0], both(known, 0)[0]
    assert theirs.stepped_share == 0.0
    assert not np.array_equal(ours.requests["replica"], theirs.requests["replica"])


class Timid(Static):
    """No drafts at all, whatever it is told."""

    def choose(self, rows: int, kv_tokens: int, waiting: int) -> int:
        """Returns none."""
        return 0


def test_a_policy_of_one_s_own_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "timid", Timid)
    is_stepped(DRAFTING, "the policy timid is not known", PolicySpec("timid"))
    assert both(DRAFTING, 0, PolicySpec("timid"))[0].requests["draft_tokens"].max() <= 3


class Unlucky(Acceptance):
    """Accepts nothing in the first rounds of a request."""

    def accepted(self, *args: Any, **kwargs: Any) -> bytes:
        """Returns the drafts accepted by round."""
        drawn = super().accepted(*args, **kwargs)
        return bytes(min(3, len(drawn))) + drawn[3:]


def test_a_process_of_one_s_own_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "process", Unlucky)
    is_stepped(DRAFTING, "the acceptance process Unlucky is not known")


@dataclass(frozen=True, slots=True)
class OwnSpec(AcceptanceSpec):
    """Something else that was measured."""

    mood: float = 1.0


@dataclass(frozen=True)
class Seconds:
    """A price of one step, and no way to ask for many."""

    def seconds(self, shape: Any) -> float:
        """Seconds of one step."""
        return ToyCost().seconds(shape)


@dataclass(frozen=True)
class Toll(ToyCost):
    """A price with a part that nobody adds up by name."""

    def seconds(self, shape: Any) -> float:
        """Seconds of one step."""
        return super().seconds(shape) + 0.001

    def terms(self, columns: Mapping[str, np.ndarray[tuple[int], np.dtype[np.int64]]]) -> dict[str, Array]:
        """The same by term."""
        return super().terms(columns) | {"toll": np.full(len(columns["tokens"]), 0.001)}


def test_what_else_is_not_known_is_stepped() -> None:
    cases: dict[str, World] = {
        "the method telepathy": replace(
            DRAFTING, engine=replace(CROWD.engine, speculative=SpeculativeConfig("telepathy", 3))
        ),
        "OwnSpec": replace(DRAFTING, classes={"": OwnSpec(conditional_acceptance=0.6)}),
        "without `terms`": replace(CROWD, cost=Seconds()),  # type: ignore[arg-type]
        "terms that are not known: toll": replace(CROWD, cost=Toll()),
    }
    for because, world in cases.items():
        is_stepped(world, because)


def test_what_does_not_matter_without_drafts_is_not_asked_for() -> None:
    world = replace(CROWD, classes={"": OwnSpec(conditional_acceptance=0.6)}, cost=Affine(0.01, 0, 0, 0, 0))  # type: ignore[arg-type]
    assert both(world, 0)[0].stepped_share == 0.0
