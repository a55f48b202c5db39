"""What the calendar understands. Everything else is stepped, and the result says why.

The calendar works out what an engine will do before it does it, so it has to know every rule there is.
What it knows is named here: the fields of each record that describes a run, and the classes of routers,
policies and acceptance processes. A field that is not named has to stand at its default, and a class that is
not named (a subclass of a known one, too) is never taken for one that is. So a switch that was just added to
the scheduler is obeyed, by stepping, until somebody teaches it to the calendar and names it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specfleet.hardware.stepcost import TERMS, StepCost, StepShape
from specfleet.sim.calendar.patience.refused import IMPATIENT
from specfleet.sim.config import (
    ClientConfig,
    DeploymentConfig,
    EngineConfig,
    LoadConfig,
    RoutingConfig,
    SglangConfig,
    SpeculativeConfig,
)
from specfleet.sim.disaggregation.config import STEPPED
from specfleet.sim.kvlayout import KvLayout
from specfleet.sim.router import ROUTERS, SHIPPED, Looking
from specfleet.sim.scenario import Scenario
from specfleet.sim.sglang.rules import SglangRules
from specfleet.sim.speculation.acceptance import Acceptance
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.oracle import Oracle
from specfleet.sim.speculation.policies import (
    POLICIES,
    BatchSizeSchedule,
    ByClass,
    DisableAboveQueue,
    EarlyStop,
    Static,
    TemperatureGate,
)
from specfleet.sim.speculation.policies_learning import (
    AcceptanceGate,
    AdaptiveTiers,
    AdaptiveVerification,
    Bandit,
    Goodput,
    SloBudget,
)
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.speculation.processes import (
    BurstAcceptance,
    HotColdAcceptance,
    OwnAcceptance,
    ReplayAcceptance,
)
from specfleet.sim.speculation.spec import AcceptanceSpec
from specfleet.workloads.requests import RequestTable

if TYPE_CHECKING:
    from specfleet.sim.calendar.plan import CalendarRun

UNDERSTOOD: dict[type, tuple[str, ...]] = {
    Scenario: ("engine", "cost", "acceptance", "deployment", "client", "load", "policy"),
    EngineConfig: (
        "max_num_seqs",
        "max_num_batched_tokens",
        "num_gpu_blocks",
        "block_size",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "long_prefill_token_threshold_adaptive",  # says nothing without the threshold
        "spares_lone_long_prefill",  # the same
        "watermark",
        "async_scheduling",
        "scheduler_reserve_full_isl",
        "lookahead_at_admission",
        "prefix_hash_covers_next_token",
        "skips_unused_drafts",
        "charges_draft_slots",
        "speculative",
        "sliding_window",
        "kv_layout",
        "reserves_max_tokens",
        "static_batching",
        "cuts_prompts_at_blocks",
        "sglang",
        "receives_kv",
        "rebuilds_drafter_kv",
    ),
    SglangConfig: (
        "chunked_prefill_size",
        "max_prefill_tokens",
        "prefill_max_requests",
        "schedule_policy",
        "schedule_conservativeness",
        "enable_priority_scheduling",
        "schedule_low_priority_values_first",
        "priority_scheduling_preemption_threshold",
        "disable_priority_preemption",
        "retraction_policy",
        "ignore_eos",
        "speculative_num_steps",
        "speculative_eagle_topk",
    ),
    KvLayout: ("window_tokens", "window_per_1024", "sequence_slots"),
    SpeculativeConfig: ("method", "num_speculative_tokens", "parallel_drafting", "draft_depth"),
    DeploymentConfig: ("replicas", "router"),
    ClientConfig: ("send_s", "receive_s", "turn_s", "send_serial_s", "chunk_s"),
    LoadConfig: ("max_concurrency", "num_warmups", "patience"),
    PolicySpec: ("name", "parameters"),
    AcceptanceSpec: (
        "by_position",
        "conditional_acceptance",
        "acceptance_length",
        "draft_acceptance_rate",
        "measured_at_k",
        "concentration",
        "low_atom",
        "decay",
        "burst",
        "context_multiplier",
        "temperature_multiplier",
        "turn_multiplier",
        "overlap",
        "length_rank_correlation",
        "proposal_persistence",
        "tree",
        "by_rank",
        "synthetic",
        "source",
    ),
    RequestTable: (
        "arrival_s",
        "prompt_tokens",
        "output_tokens",
        "max_tokens",
        "class_id",
        "priority",  # says nothing in a queue by arrival
        "temperature",
        "session_id",
        "turn",
        "segment_offset",
        "segment_stream",
        "segment_tokens",
        "class_names",
        "think_s",
        "output_stream",
        "luck_id",
    ),
}
"""Fields that the calendar obeys, by record. Those that name something are looked up below, too."""

METHODS = ("eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model", "medusa", "ngram", "suffix")
"""Drafting methods that the calendar knows."""
UNDERSTOOD_ROUTERS = SHIPPED
"""Classes of routers that look at requests and at who is outstanding; or which a rule below refuses."""
UNDERSTOOD_POLICIES = (Static, BatchSizeSchedule, DisableAboveQueue, Goodput, AdaptiveTiers, Bandit)
"""Classes of policies that choose one number of drafts for all, and are asked as the engine asks them."""
PICKY_POLICIES = (
    EarlyStop, AcceptanceGate, TemperatureGate, ByClass, SloBudget, AdaptiveVerification, Oracle
)  # fmt: skip
"""Classes of policies that look at single requests: known, and refused below where they look at more."""
UNDERSTOOD_PROCESSES = (Acceptance, BurstAcceptance, HotColdAcceptance, ReplayAcceptance, OwnAcceptance)
"""Classes of acceptance processes whose luck is drawn ahead, or which a rule below refuses."""


FALLIBLE = "replicas that fail, with requests that begin anew elsewhere"
RANKED = "priority scheduling"
"""Why those are stepped."""


class Refusal(NamedTuple):
    """Something that is known, and left to stepping.

    Attributes:
        record: the record whose fields say so.
        names: those fields.
        applies: whether a run has it.
        reason: what the result says then.
    """

    record: type
    names: tuple[str, ...]
    applies: Callable[[CalendarRun], bool]
    reason: str


def _drafts_too_deep(run: CalendarRun) -> bool:
    plans = run.plans()
    return plans is not None and max(plans.table, default=0) > run.config.num_speculative_tokens


def _pads(run: CalendarRun) -> bool:
    config, prompts = run.config, run.table.prompt_tokens[run.served]
    pads = config.num_speculative_tokens and config.pads_one_token_admission and run.policy is None
    pads = pads and config.sglang is None
    return bool(pads) and bool((prompts == 1).any())


def _reaches(run: CalendarRun, limit: int | None) -> bool:
    """Whether the longest request comes so near a limit of positions that drafts may be cut there.

    SGLang cuts outputs instead.
    """
    if run.config.sglang is not None:
        return False
    return limit is not None and run.longest_tokens + 3 * (run.config.num_speculative_tokens + 1) > limit


def _misses_count(run: CalendarRun) -> bool:
    """Whether a step whose look-up finds nothing is another step, or its rounds go by bursts.

    Under SGLang's rules such a row is verified in vain, at full width.
    """
    bursts = any(spec.burst is not None for spec in run.scenario.acceptance.values())
    return bursts or not (run.config.async_scheduling or run.drafting is not None or run.verifies_in_vain)


def _rerolls(run: CalendarRun) -> bool:
    return run.config.speculative is not None and run.config.speculative.reroll_on_reject


def _slides_under_sglang(run: CalendarRun) -> bool:
    """Whether rows of one batch would verify different drafts, of which a window sees some."""
    return run.sglang_window > 0 and run.policy is not None


def _writes_nothing(run: CalendarRun) -> bool:
    if run.config.sglang is None:
        return False
    rules, rows = SglangRules.of(run.config), run.served
    most = rules.max_new_tokens_each(run.table.prompt_tokens[rows], run.table.max_tokens[rows])
    return bool((most < 1).any())


REFUSED = (
    Refusal(
        SglangConfig,
        ("enable_mixed_chunk",),
        lambda run: run.config.sglang is not None and run.config.sglang.enable_mixed_chunk,
        "SGLang's mixed batches",
    ),
    Refusal(
        Scenario,
        (),
        lambda run: run.config.sglang is not None and not run.sglang_follows(run.config.sglang),
        "SGLang's scheduler under a draft policy",
    ),
    Refusal(
        EngineConfig,
        (),
        lambda run: run.config.reserves_max_tokens and run.shared,
        "prompts that share prefixes, where KV is reserved for max_tokens",
    ),
    Refusal(EngineConfig, (), _slides_under_sglang, "a sliding window under a policy in SGLang"),
    Refusal(RequestTable, (), _writes_nothing, "an output that SGLang's pool leaves no room for"),
    Refusal(
        Scenario,
        (),
        lambda run: run.looks_at_requests and run.drafting is None and not run.by_rows,
        "a policy that looks at single requests",
    ),
    Refusal(Scenario, (), _drafts_too_deep, "a policy with more drafts than num_speculative_tokens"),
    Refusal(Scenario, ("pools",), lambda run: bool(run.scenario.pools), "several pools, seen as one"),
    Refusal(
        DeploymentConfig,
        ("routing",),
        lambda run: run.scenario.deployment.routing != RoutingConfig(),
        "routing between pools",
    ),
    Refusal(
        DeploymentConfig,
        ("refresh_s", "gateway"),
        lambda run: run.scenario.deployment.refresh_s > 0.0 or run.scenario.deployment.gateway is not None,
        "old views, or a gateway, before a pool seen as one",
    ),
    Refusal(
        DeploymentConfig,
        ("failures",),
        lambda run: run.scenario.deployment.failures is not None,
        FALLIBLE,
    ),
    Refusal(
        DeploymentConfig,
        (),
        lambda run: (
            run.config.sglang is not None and issubclass(ROUTERS[run.scenario.deployment.router], Looking)
        ),
        "a router that looks into SGLang's engines",
    ),
    Refusal(
        DeploymentConfig,
        ("lockstep",),
        lambda run: run.scenario.deployment.lockstep > 1,
        "ranks in lockstep",
    ),
    Refusal(EngineConfig, ("hands_kv_over",), lambda run: run.config.hands_kv_over, STEPPED),
    Refusal(
        EngineConfig,
        (),
        lambda run: run.config.receives_kv and (run.shared or run.outgrows_drafter),
        "prompts that share prefixes, or reach drafter_max_model_len, where their KV comes from elsewhere",
    ),
    *(Refusal(LoadConfig, (), applies, reason) for applies, reason in IMPATIENT),
    Refusal(DeploymentConfig, ("handover",), lambda run: bool(run.scenario.deployment.handover), STEPPED),
    Refusal(
        EngineConfig,
        ("pipeline_parallel_size",),
        lambda run: run.config.pipeline_parallel_size > 1,
        "batches of a pipeline overlap",
    ),
    Refusal(EngineConfig, ("policy",), lambda run: run.config.policy != "fcfs" and not run.ranks, RANKED),
    Refusal(
        EngineConfig,
        ("long_prefill_token_threshold",),
        lambda run: run.config.long_prefill_token_threshold > 0,
        "long_prefill_token_threshold",
    ),
    Refusal(
        EngineConfig,
        ("trims_drafts_to_max_tokens",),
        lambda run: run.config.num_speculative_tokens > 0 and run.config.trims_drafts_to_max_tokens,
        "drafts trimmed to max_tokens",
    ),
    Refusal(
        SpeculativeConfig,
        ("reroll_on_reject",),
        lambda run: (
            _rerolls(run) and (run.may_step or run.policy is not None or run.config.sglang is not None)
        ),
        "reroll_on_reject under a policy or a token budget below all rows",
    ),
    Refusal(RequestTable, (), lambda run: not len(run.served), "no request is served"),
    Refusal(EngineConfig, ("pads_one_token_admission",), _pads, "prompts of one token"),
    Refusal(
        SpeculativeConfig,
        ("drafter_max_model_len",),
        lambda run: run.outgrows_drafter and not run.reaches,
        "requests that reach drafter_max_model_len",
    ),
    Refusal(
        EngineConfig,
        ("max_model_len",),
        lambda run: _reaches(run, run.config.max_model_len),
        "requests that reach max_model_len",
    ),
    Refusal(
        Scenario,
        (),
        lambda run: run.config.num_speculative_tokens > 0 and run.luck is None,
        "no acceptance process",
    ),
    Refusal(
        AcceptanceSpec,
        ("own",),
        lambda run: any(spec.own is not None for spec in run.scenario.acceptance.values()),
        "an acceptance process of one's own",
    ),
    Refusal(
        AcceptanceSpec,
        ("replay",),
        lambda run: run.luck is not None and not run.luck.by_rounds,
        "recorded drafts",
    ),
    Refusal(
        AcceptanceSpec,
        ("hot_cold", "proposal_probability"),
        lambda run: run.luck is not None and not run.luck.every_step and _misses_count(run),
        "drafts that are not proposed every step",
    ),
)
"""What is known and stepped, in the order in which it is asked."""


def stranger(scenario: Scenario, table: RequestTable, lives: Lives | None) -> str:
    """Returns what a run has that the calendar does not know, in words; empty if it knows everything.

    Names, types and defaults are looked at; nothing unknown is made or called, but a price for its terms.
    """
    return next(_strangers(scenario, table, lives), "")


def why_not(run: CalendarRun) -> str:
    """Returns what a run has that the calendar knows and leaves to stepping; empty if it takes the run."""
    return next((refusal.reason for refusal in REFUSED if refusal.applies(run)), "")


def _strangers(scenario: Scenario, table: RequestTable, lives: Lives | None) -> Iterator[str]:
    engine, records = scenario.engine, [scenario, scenario.engine, scenario.engine.speculative]
    records += [engine.sglang]
    records += [scenario.deployment, scenario.client, scenario.load, table]
    policy = scenario.policy if engine.num_speculative_tokens else None
    if engine.num_speculative_tokens:
        records += [policy, *scenario.acceptance.values()]
    for record in records:
        if record is not None:
            yield from _unknown_fields(record)
    if engine.speculative is not None and engine.speculative.method not in METHODS:
        yield f"the method {engine.speculative.method} is not known to the calendar"
    router = scenario.deployment.router
    if ROUTERS[router] not in UNDERSTOOD_ROUTERS:
        yield f"the router {router} is not known to the calendar"
    if policy is not None and POLICIES.get(policy.name) not in (*UNDERSTOOD_POLICIES, *PICKY_POLICIES):
        yield f"the policy {policy.name} is not known to the calendar"
    for process in {} if lives is None else lives.by_class.values():
        if type(process) not in UNDERSTOOD_PROCESSES:
            yield f"the acceptance process {type(process).__name__} is not known to the calendar"
    room = engine.max_num_batched_tokens - 1
    yield from _odd_prices(scenario.cost, min(engine.num_speculative_tokens, room))


def _unknown_fields(record: Any) -> Iterator[str]:
    """Yields the fields of a record that are not known and do not stand at their default."""
    kind = type(record)
    if kind not in UNDERSTOOD:
        yield f"{kind.__name__} is not known to the calendar"
        return
    known = {*UNDERSTOOD[kind], *(name for rule in REFUSED if rule.record is kind for name in rule.names)}
    for field in fields(record):
        if field.name not in known and _is_set(field, getattr(record, field.name)):
            yield f"{kind.__name__}.{field.name} is not known to the calendar"


def _is_set(field: Field[Any], value: object) -> bool:
    """Whether a field says anything else than when it is left out."""
    default = field.default
    if default is MISSING and field.default_factory is not MISSING:
        default = field.default_factory()
    return value is not default and (isinstance(value, np.ndarray) or value != default)


def _odd_prices(cost: StepCost, k: int) -> Iterator[str]:
    """Yields what keeps a price of steps from being asked for many steps at once."""
    terms = getattr(cost, "terms", None)
    if not callable(terms):
        yield "a step price without `terms`"
        return
    nothing, query = StepShape(*[0] * len(StepShape._fields)), 1 + k
    step = nothing._replace(tokens=query, decode_sequences=1, logit_rows=query, draft_tokens=k)
    step = step._replace(kv_tokens=query, kv_tokens_in_window=query, draft_passes=k)
    names = terms({name: np.array([value]) for name, value in step._asdict().items()}).keys()
    if odd := sorted(names - set(TERMS)):
        yield f"a step price with terms that are not known: {', '.join(odd)}"
