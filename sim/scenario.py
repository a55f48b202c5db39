"""What a run is given, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from specfleet.hardware.stepcost import StepCost
from specfleet.sim.config import ClientConfig, DeploymentConfig, EngineConfig, LoadConfig
from specfleet.sim.disaggregation.config import DECODE, PREFILL
from specfleet.sim.fleet.failing import FailuresConfig
from specfleet.sim.fleet.scaling import AutoscaleConfig, ScalingLog
from specfleet.sim.fleet.spot import SpotConfig
from specfleet.sim.recorder import Columns
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.policy import PolicySpec


@dataclass(frozen=True)
class ReplicaPool:
    """Replicas of a cluster that are alike: one GPU, engine, drafter and K.

    Args:
        name: of the pool. Two of one name are replicas of one pool that differ in speed.
        engine, cost, acceptance, policy: as in `Scenario`.
        members: their numbers among all replicas of the cluster, rising.
        lockstep: as in `DeploymentConfig`.
        role: where KV is handed over, `PREFILL` or `DECODE`.
        bytes_per_s: of a replica's link, either way.
        autoscale: how many of them are there, if they come and go.
        spot: which of those are on spot instances, if any.
    """

    name: str
    engine: EngineConfig
    cost: StepCost
    members: tuple[int, ...]
    acceptance: Mapping[str, AcceptanceSpec] = field(default_factory=dict)
    policy: PolicySpec | None = None
    lockstep: int = 1
    role: str = ""
    bytes_per_s: float = inf
    autoscale: AutoscaleConfig | None = None
    spot: SpotConfig | None = None

    def failing(self, failures: FailuresConfig | None) -> FailuresConfig | None:
        """Returns how its replicas fail: requests that a spot pool loses go on as that says."""
        if failures is None or self.spot is None:
            return failures
        return replace(failures, keep_partial=self.spot.keep_partial)


@dataclass(frozen=True)
class Scenario:
    """Everything one run needs besides its requests and its seed.

    An engine, its price, its luck and its policy are those of every replica, or, with `pools`, of the first
    pool; who asks for them does so of `part(pool)`, which is a scenario of that pool alone.

    Args:
        engine: limits and rules of each replica.
        cost: prices a step of a replica.
        acceptance: by traffic class name; the key `""` serves classes not named. Empty without
            speculation.
        deployment: replicas and router.
        client: the load generator's delays.
        load: how requests are offered.
        policy: chooses the drafts while running; None is always K.
        pools: where replicas are of several kinds, each of them; empty where all are alike.
    """

    engine: EngineConfig
    cost: StepCost
    acceptance: Mapping[str, AcceptanceSpec] = field(default_factory=dict)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)
    client: ClientConfig = field(default_factory=ClientConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    policy: PolicySpec | None = None
    pools: tuple[ReplicaPool, ...] = ()

    @classmethod
    def of_pools(
        cls,
        pools: Sequence[ReplicaPool],
        deployment: DeploymentConfig,
        client: ClientConfig | None = None,
        load: LoadConfig | None = None,
    ) -> Scenario:
        """Returns a cluster of several pools.

        Args:
            pools: of which every replica of `deployment` is in exactly one.
            deployment, client, load: of the whole cluster.
        """
        first = pools[0]
        assert sorted(member for pool in pools for member in pool.members) == [*range(deployment.replicas)]
        return cls(
            first.engine,
            first.cost,
            first.acceptance,
            deployment,
            client or ClientConfig(),
            load or LoadConfig(),
            first.policy,
            tuple(pools),
        )

    def part(self, pool: ReplicaPool) -> Scenario:
        """Returns a pool as a cluster of its own, whose replicas are numbered from 0; who is sent there, and
        when, is decided outside of it."""
        engine = pool.engine
        if pool.role:
            engine = replace(engine, hands_kv_over=pool.role == PREFILL, receives_kv=pool.role == DECODE)
        return Scenario(
            engine,
            pool.cost,
            pool.acceptance,
            DeploymentConfig(
                len(pool.members), lockstep=pool.lockstep, failures=pool.failing(self.deployment.failures)
            ),
            self.client,
            replace(self.load, max_concurrency=None),
            pool.policy if pool.role != PREFILL else None,
        )

    @property
    def stages(self) -> int:
        """Most stages of a pipeline that any replica has."""
        engines = [pool.engine for pool in self.pools] or [self.engine]
        return max(engine.pipeline_parallel_size for engine in engines)

    @property
    def drafts(self) -> bool:
        """Whether any replica drafts."""
        engines = [pool.engine for pool in self.pools] or [self.engine]
        return any(engine.num_speculative_tokens for engine in engines)


@dataclass(frozen=True)
class Outage:
    """A failure that happened. Times in seconds; inf is never.

    Attributes:
        replica, kind: as in `FailureConfig`; `TAKEN` of a spot instance.
        at_s: when it began, or notice was given. found_s: when health checks found it. back_s: when the
            replica was as before; of one that is replaced, when another served in its place, or was not
            needed any more.
        lost: the requests that were inside when it was gone.
        settled_s: when the last of those had ended; `at_s` without any.
        gone_s: from when it did not work: `at_s`, or the end of the notice; inf of one that is slow.
    """

    replica: int
    kind: str
    at_s: float
    found_s: float
    back_s: float
    lost: tuple[int, ...] = ()
    settled_s: float = 0.0
    gone_s: float = inf


@dataclass(frozen=True)
class RunResult:
    """What happened in one run. Times are seconds from its start.

    Attributes:
        scenario: what was run.
        seed: of its luck.
        requests: columns, a row a request (row number = request id): those of
            `recorder.REQUEST_TIMES` and `REQUEST_COUNTS`, `prompt_tokens`, `max_tokens`, `class_id`,
            and `counted` (False for warm-ups); with several pools `pool`, by number of its name, -1 of
            requests that none served. `sent_s`, `first_chunk_s`, `last_chunk_s` are on the
            client's clock, the others on the engine's. Of sessions `session_id`, `turn` and `think_s`, too.
        iterations: columns, a row an iteration: `recorder.ITERATION_COLUMNS`, `start_s`, `end_s`,
            and `gaps_by_tokens`.
        odd_gaps: pauses longer than one iteration (preemption, a full budget); columns of `odd_gaps()`.
        rounds_by_accepted: counted verifications, by the drafts accepted in them (0 to K).
        refusals: reasons for which requests were refused, with counts.
        steps_without_drafter: steps in which the longest sequence was past the drafter's positions.
        stepped_share: share of iterations that `Engine` stepped; the others come from a calendar.
        stepped_because: why the calendar did not take the run; empty if it did.
        parts: what each of `scenario.pools` did, as a run of its own: its requests alone (`request_id` says
            which), its replicas numbered from 0. Empty where all replicas are alike.
        scaling: of a part, how many replicas there were, where they come and go.
        attempts, cuts: where replicas fail, as `attempts.Attempts` has them: every attempt of requests that
            were cut short, and the steps that were.
        outages: the failures that happened, in order of time.
        standing: where KV is handed over, when replicas stood still with requests inside: `replica`,
            `start_s`, `end_s`, `waiting`.
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
    parts: tuple[RunResult, ...] = ()
    scaling: ScalingLog | None = None
    attempts: Columns = field(default_factory=dict)
    cuts: Columns = field(default_factory=dict)
    outages: tuple[Outage, ...] = ()
    standing: Columns = field(default_factory=dict)


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
    attempts: Columns = field(default_factory=dict)
    cuts: Columns = field(default_factory=dict)
    standing: Columns = field(default_factory=dict)
