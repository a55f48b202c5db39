"""Every key of the schema reaches the engines of `breakeven` and `plan` as it reaches those of `run`.

That a key changes what it should is tested on `run`; here nothing of it may be lost on the way to what the
two commands simulate, and a plan's server command must say it or own up that it cannot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from key_cases import CASES
from key_files import overrides, with_key, written
from key_worlds import NGRAM, PLAN, REFUSED, SC, TR, WL, Around, Case

from specfleet.experiments.breakeven.cell import search
from specfleet.experiments.breakeven.question import Breakeven
from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.from_line import translate
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.plan.flags import server_text, unsaid
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.planner import Planner
from specfleet.experiments.plan.trials import measure
from specfleet.experiments.run.runner import run_task, tasks
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults

SAID_AROUND = {"name", "report", "sweep", "claim", "plan", "run"}
"""Blocks that do not say what is simulated."""
ASKED: Around = {
    f"{WL}.max_concurrency": None,
    f"{WL}.request_rate": 5.0,
    "slo": {"p99_ttft_ms": 500.0},
    "plan": {},
}
"""What a plan needs."""
DECIDED = (
    *(
        "is what the plan finds",
        "a plan chooses by itself",
        "a plan tries the trees",
        "caps the load",
        "a plan finds the loads",
        "is not planned yet",
    ),
    *("needs traffic", "needs workload.max_concurrency"),
    *("a plan deals them out one by one", "comes at its trace's own times", "a plan scales the traffic"),
)
"""Why a key does not go with a plan."""
OURS = {"gpu", "memory", "cost_model"}
"""Keys of `serve` that describe a machine or choose a price: no server is told."""
UNSAID = {
    "capacity_scheduler_policy": ("capacity_scheduler_policy",),
    "draft_policy": ("draft_policy",),
    "engine": ("engine", "scheduler_reserve_full_isl", "speculative_config.max_model_len"),
    "reroll_on_reject": ("reroll_on_reject",),
    "sglang.speculative_": ("sglang.speculative_",),
    "eagle3-for-": ("speculative_config.model.",),
    "dspark-for-": ("speculative_config.model.",),
}
"""How a clause of `unsaid` begins, and what a command may lack then."""
BY_BATCH = {"draft_policy", "speculative_config.num_speculative_tokens_per_batch_size"}
"""A policy of ours and a field of vLLM's that say the same."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The experiment, and the files that cases name."""
    return written(tmp_path)


def of_a_run(file: Path, changes: list[str]) -> Experiment:
    """The first point of a run of the same file."""
    return expand(load_experiment(file, changes))[0].config


def simulated(config: Experiment) -> dict[str, Any]:
    """Everything of a point that an engine or its requests are built from."""
    return config.model_dump(exclude=SAID_AROUND)


def drafting(around: Around) -> Around:
    """The same with a drafter, which a case of plain decoding has not."""
    if SC in around and around[SC] is None:
        return {**{key: value for key, value in around.items() if key != "acceptance"}, **NGRAM}
    return around


@pytest.mark.parametrize("key", [key for key in CASES if key != "sweep.axes" and not key.startswith("plan.")])
def test_every_key_reaches_the_searches_of_breakeven(file: Path, key: str) -> None:
    case, around = CASES[key], drafting(with_key(key, CASES[key]))
    if case.seen == REFUSED:
        with pytest.raises(InputFaults, match=key):
            Breakeven(file, overrides(file, around))
        return
    if f"{WL}.phases" in around or key in (f"{WL}.speed", f"{WL}.mix.speed"):
        with pytest.raises(InputFaults, match=r"give max_concurrency|give one of them"):
            Breakeven(file, overrides(file, around))
        around = {**around, f"{WL}.max_concurrency": 3}
    changes = overrides(file, around)
    this = Breakeven(file, changes)
    mine = this.configs[this.loads[0], this.drafts[0]]
    assert simulated(mine) == simulated(of_a_run(file, changes))
    plain = this.configs[this.loads[0], 0].serve
    assert plain.speculative_config is None or not plain.speculative_config.num_speculative_tokens


def test_break_even_is_asked_of_a_plan_s_file_as_well(file: Path) -> None:
    around = {**PLAN, "plan.candidates.tensor_parallel_size": [1, 2]}
    this = Breakeven(file, overrides(file, around))
    assert (this.axis, this.loads) == (f"{WL}.request_rate", (5.0,))


@pytest.mark.parametrize(
    "key", ["acceptance.decay", "serve.block_size", "client.turn_ms", f"{WL}.prefix.tokens"]
)
def test_what_breakeven_and_plan_simulate_has_the_figures_of_a_run(file: Path, key: str) -> None:
    changes = overrides(file, with_key(key, CASES[key]))
    this = Breakeven(file, changes)
    (plain,) = this.cells((0,))
    this.found[plain.load, 0, plain.seed] = search(plain)
    (cell,) = this.cells((3,))
    asked = overrides(file, planned(key, CASES[key]))
    candidate = next(each for each in Planner(file, asked).planned.every if each.k)
    trial = Planner(file, asked).planned.traffic.trial(candidate.config, 1, 0)
    own, alone = search(cell).own, measure(trial)
    for mine, given in ((own, changes), (alone, asked)):
        (task,) = tasks(expand(load_experiment(file, given))[:1], 1, 0, file.parent / "out")
        run_task(task)
        ran = json.loads((task.path / "bench.json").read_text())
        assert mine["output_throughput"] == ran["output_throughput"]
    assert own["p99_tpot_ms"] != search(plain).own["p99_tpot_ms"]


PLANNED: dict[str, Callable[[Planned], object]] = {
    "candidates.engine": lambda this: [each.config.serve.engine for each in this.every],
    "candidates.gpu": lambda this: [each.gpu for each in this.every],
    "candidates.tensor_parallel_size": lambda this: [each.tensor_parallel_size for each in this.every],
    "candidates.data_parallel_size": lambda this: [e.config.serve.data_parallel_size for e in this.every],
    "candidates.enable_expert_parallel": lambda this: [
        e.config.serve.enable_expert_parallel for e in this.every
    ],
    "candidates.pipeline_parallel_size": lambda this: [e.pipeline_parallel_size for e in this.every],
    "candidates.quantization": lambda this: [each.quantization for each in this.every],
    "candidates.drafting.num_speculative_tokens": lambda this: [each.k for each in this.every],
    "candidates.router": lambda this: this.plan.candidates.router,
    "candidates.pools": lambda this: this.plan.candidates.pools,
    "prices_per_hour_usd": lambda this: [each.price_per_hour_usd for each in this.every],
    "prices_file": lambda this: [each.price_per_hour_usd for each in this.every],
    "price_kind": lambda this: [each.price_per_hour_usd for each in this.every],
    "also_at": lambda this: this.plan.also_at,
    "gpus_available": lambda this: [each.most_replicas for each in this.every],
    "max_gpus": lambda this: [each.most_replicas for each in this.every],
    "schedule": lambda this: this.traffic.rate,
    **{
        f"day.{key}": lambda this: (this.plan.day, this.traffic.rate)
        for key in ("preset", "trace", "date", "mean_per_s", "peak_hour", "faster")
    },
    "growth": lambda this: this.traffic.rate,
    "objective": lambda this: this.plan.objective,
    "spare_replicas": lambda this: this.plan.spare_replicas,
}
"""Key of `plan:` -> what it changes of what is searched."""


def test_every_key_of_plan_is_among_those_whose_effect_is_looked_at() -> None:
    assert {f"plan.{key}" for key in PLANNED} == {key for key in CASES if key.startswith("plan.")}


@pytest.mark.parametrize("key", PLANNED)
def test_every_key_of_plan_changes_what_is_searched(file: Path, key: str) -> None:
    case = CASES[f"plan.{key}"]
    around = (case.around, with_key(f"plan.{key}", case))
    before, after = (PLANNED[key](Planner(file, overrides(file, each)).planned) for each in around)
    assert before != after


def planned(key: str, case: Case) -> Around:
    """What stands around a key in a plan."""
    around = with_key(key, case)
    if any(name.startswith((TR, f"{WL}.phases", "plan.schedule")) for name in around):
        return {name: value for name, value in ASKED.items() if name != f"{WL}.request_rate"} | dict(around)
    capped = f"{WL}.max_concurrency"
    return {**ASKED, **{name: value for name, value in around.items() if name != capped or key == capped}}


def differing(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """Where two dumps differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in sorted(a.keys() | b.keys()):
            yield from differing(a.get(name), b.get(name), f"{path}.{name}" if path else name)
    elif a != b:
        yield path


def read_back(config: Experiment) -> Experiment:
    """The experiment that the product makes of a server command that it printed."""
    data = translate(server_text(config), gpu="h100-sxm").data
    acceptance = config.model_dump(mode="json", exclude_none=True).get("acceptance")
    rest = {name: value for name, value in data.items() if name not in ("sweep", "report", "acceptance")}
    rest["workload"] |= {"max_concurrency": 1}
    rest |= {} if acceptance is None else {"acceptance": acceptance}
    return expand(load_experiment(rest))[0].config


@pytest.mark.parametrize("key", [key for key in CASES if not key.startswith(("plan.", "claim.", "report."))])
def test_every_key_reaches_the_candidates_of_a_plan_and_its_command(file: Path, key: str) -> None:
    case = CASES[key]
    changes = overrides(file, planned(key, case))
    if case.seen == REFUSED:
        with pytest.raises(InputFaults, match=key):
            Planner(file, changes)
        return
    try:
        this = Planner(file, changes).planned
    except InputFaults as faults:
        faults_named = [fault.message for fault in faults.faults]
        assert all(any(why in said for why in DECIDED) for said in faults_named), faults_named
        return
    drafts = [candidate for candidate in this.every if candidate.k]
    config = (drafts or list(this.every))[0].config
    assert simulated(config) == simulated(of_a_run(file, changes))
    again, missing = read_back(config).serve.model_dump(exclude=OURS), unsaid(config)
    lost = set(differing(config.serve.model_dump(exclude=OURS), again))
    for said, paths in UNSAID.items():
        if any(clause.startswith(said) for clause in missing):
            lost = {path for path in lost if not path.startswith(paths)}
    assert not lost or (
        lost == BY_BATCH and again["speculative_config"]["num_speculative_tokens_per_batch_size"]
    )
