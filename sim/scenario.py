"""What a run is given, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specfleet.hardware.stepcost import StepCost
from specfleet.sim.config import ClientConfig, DeploymentConfig, EngineConfig, LoadConfig
from specfleet.sim.recorder import Columns
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.policy import PolicySpec


@dataclass(frozen=True)
class Scenario:
    """Everything one run needs besides its requests and its seed.

    Args:
        engine: limits and rules of each replica.
        cost: prices a step of a replica.
        acceptance: by traffic class name; the key `""` serves classes not named. Empty without
            speculation.
        deployment: replicas and router.
        client: the load generator's delays.
        load: how requests are offered.
        policy: chooses the drafts while running; None is always K.
    """

    engine: EngineConfig
    cost: StepCost
    acceptance: Mapping[str, AcceptanceSpec] = field(default_factory=dict)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)
    client: ClientConfig = field(default_factory=ClientConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    policy: PolicySpec | None = None


@dataclass(frozen=True)
class RunResult:
    """What happened in one run. Times are seconds from its start.

    Attributes:
        scenario: what was run.
        seed: of its luck.
        requests: columns, a row a request (row number = request id): those of
            `recorder.REQUEST_TIMES` and `REQUEST_COUNTS`, `prompt_tokens`, `max_tokens`, `class_id`,
            and `counted` (False for warm-ups). `sent_s`, `first_chunk_s`, `last_chunk_s` are on the
            client's clock, the others on the engine's.
        iterations: columns, a row an iteration: `recorder.ITERATION_COLUMNS`, `start_s`, `end_s`,
            and `gaps_by_tokens`.
        odd_gaps: pauses longer than one iteration (preemption, a full budget); columns of `odd_gaps()`.
        rounds_by_accepted: counted verifications, by the drafts accepted in them (0 to K).
        refusals: reasons for which requests were refused, with counts.
        steps_without_drafter: steps in which the longest sequence was past the drafter's positions.
        stepped_share: share of iterations that `Engine` stepped; the others come from a calendar.
        stepped_because: why the calendar did not take the run; empty if it did.
    """

    scenario: Scenario
    seed: int
    requests: Columns
    iterations: Columns
    odd_gaps: Columns
    rounds_by_accepted: tuple[int, ...]
    refusals: Mapping[str, int]
    steps_without_drafter: int
    stepped_share: float = 1.0
    stepped_because: str = ""


@dataclass(frozen=True)
class Ran:
    """What a run leaves behind: the fields of `RunResult` of the same names."""

    requests: Columns
    iterations: Columns
    odd_gaps: Columns
    rounds_by_accepted: tuple[int, ...]
    refusals: Mapping[str, int]
    steps_without_drafter: int = 0
    stepped_share: float = 0.0
    stepped_because: str = ""
