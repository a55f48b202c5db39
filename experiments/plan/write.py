"""plan.json and rollout.md of a plan."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from pathlib import Path

from specfleet import __version__
from specfleet.experiments.plan.answer import answer, deployment
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.capacity import mean
from specfleet.experiments.plan.deploy.winner import winning_pools
from specfleet.experiments.plan.deploy.write import write_deployment
from specfleet.experiments.plan.flags import sglang_command, vllm_command
from specfleet.experiments.plan.fleet.apart import splits_as_json
from specfleet.experiments.plan.fleet.day import day_as_json
from specfleet.experiments.plan.fleet.fleets import fleets_as_json
from specfleet.experiments.plan.fleet.scaled import AtTraffic
from specfleet.experiments.plan.neighbours import Neighbour
from specfleet.experiments.plan.numbers import (
    Place,
    front,
    latencies,
    memory,
    money,
    one_more,
    places,
    shifts,
)
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.predicted import chance_to_pay
from specfleet.experiments.plan.report import status, trust
from specfleet.experiments.plan.rollout import rollout
from specfleet.experiments.plan.search import Entry
from specfleet.experiments.plan.sensitivity import Changed
from specfleet.experiments.plan.speculation import crossover, gains, schedule
from specfleet.experiments.run.columnfiles import write_json
from specfleet.experiments.run.files import write_text, write_whole
from specfleet.experiments.run.gains import judge as judge_gain
from specfleet.sim.statistics.interval import Interval
from specfleet.sim.statistics.verdict import LEAST_GAIN


def write_plan(this: Planned, folder: Path) -> None:
    """Writes plan.json, and rollout.md and deploy/ where something meets the SLO.

    The same plan gives the same bytes.
    """
    content = _plain(as_json(this))
    write_whole(folder / "plan.json", lambda path: write_json(path, content))
    if this.winner is not None:
        write_text(folder / "rollout.md", rollout(this))
        write_deployment(*winning_pools(this), folder)


def as_json(this: Planned) -> dict[str, object]:
    """Returns a plan as plain values, `answer` first."""
    found: dict[str, object] = {"specfleet": __version__, "name": this.experiment.name}
    found |= {"objective": this.plan.objective, "settled": this.settled}
    found |= {"winner": _winner(this), "between": this.between}
    found["answer"] = answer(this)
    if this.winner is not None:
        found["deployment"] = _deployment(this)
        found["capacity"] = _capacity(this)
        found["speculation"] = _speculation(this)
        found["neighbours"] = [_bare(n) for n in this.neighbours]
        found["sensitivity"] = [_bare(change) for change in this.changed]
        found["fleets"] = fleets_as_json(this.fleets, this.plan.spare_replicas)
        found["disaggregated"] = splits_as_json(this.splits, this.plan.spare_replicas)
        found["day"] = day_as_json(this.day)
        found["other_traffic"] = [_bare(at) for at in this.elsewhere]
        found["pareto"] = [_place(place) for place in front(places(this))]
        found["schedule"] = [asdict(shift) for shift in shifts(this)]
        found["backing"] = trust(this)
    found["traffic"] = asdict(this.traffic)
    found["slo"] = this.experiment.slo.model_dump(exclude_none=True) if this.experiment.slo else None
    found["seeds"] = list(this.seeds)
    found["simulations"] = this.asked
    found["candidates"] = _candidates(this)
    return found


def _winner(this: Planned) -> str | None:
    """What to buy, where that is settled."""
    return deployment(this) if this.settled and this.winner is not None else None


def _verdict(entry: Entry) -> str:
    """Whether the replicas shown meet the SLO."""
    if entry.bound.rate == 0.0:
        return "missed"
    return "met" if entry.known else "not settled" if entry.unsettled else "not looked at"


def _bare(record: Neighbour | Changed | AtTraffic) -> dict[str, object]:
    """A record's fields, candidates by name."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {key: v.id if isinstance(v, Candidate) else v for key, v in values.items()}


def _deployment(this: Planned) -> dict[str, object]:
    assert this.winner is not None and this.winner.high is not None
    mine, replicas = this.winner.candidate, this.winner.high
    runs = this.runs[mine.id]
    bought, spare = replicas + this.plan.spare_replicas, one_more(this)
    return {
        "candidate": mine.id,
        "gpu": mine.gpu,
        "tensor_parallel_size": mine.tensor_parallel_size,
        "data_parallel_size": mine.data_parallel_size,
        "pipeline_parallel_size": mine.pipeline_parallel_size,
        "enable_expert_parallel": mine.expert_parallel,
        "quantization": mine.quantization,
        "method": mine.method,
        "num_speculative_tokens": mine.k,
        "replicas_needed": replicas,
        "as_planned": asdict(money(this, mine, bought, runs, this.traffic.rate)),
        "n_plus_1": None if spare is None else asdict(spare),
        "ratio_to_slo": this.winner.ratio,
        "binding_limit": this.winner.limit,
        "replica_ms": latencies(runs),
        "deployment_ms": latencies(this.whole),
        "other_spreads": [
            {"spread": end.spread, **{key: getattr(end.judged, key) for key in ("verdict", "ratio", "limit")}}
            for end in this.ends
        ],
        "request_goodput_per_gpu": mean(runs, "request_goodput") / mine.gpus,
        "slo_attainment": mean(runs, "slo_attainment"),
        "acceptance_length": mean(runs, "spec_decode_acceptance_length") if mine.k else 1.0,
        "kv": asdict(memory(this, mine)),
        "engine": mine.config.serve.engine,
        "vllm": None if mine.config.serve.draft_tree else vllm_command(mine.config),
        "sglang": sglang_command(mine.config),
    }


def _capacity(this: Planned) -> dict[str, object]:
    assert this.winner is not None and this.capacity is not None
    mine, at = this.winner.candidate, this.capacity
    full = money(this, mine, 1, this.runs[mine.id], at.rate)
    return {
        "request_rate": at.rate,
        "request_rate_ci95": at.rate_ci95,
        "max_concurrency": at.concurrency,
        "binding_limit": at.limit,
        "binding_resource": at.resource,
        "request_goodput_per_gpu": mean(at.at_rate, "request_goodput") / mine.gpus,
        "per_million_output_usd": full.per_million_output_usd,
        "per_million_total_usd": full.per_million_total_usd,
    }


def _speculation(this: Planned) -> dict[str, object] | None:
    drafting, plain = this.drafting, this.plain
    assert this.winner is not None
    if drafting is None or plain is None:
        return None
    return {
        "speculate": bool(this.winner.candidate.k),
        "method": drafting.method,
        "num_speculative_tokens": drafting.k,
        "gains_at_planned_load": {
            name: _interval(found)
            for name, found in gains(this.runs[drafting.id], this.runs[plain.id]).items()
        },
        "every_k": {
            str(way.k): latencies(this.runs[way.id])
            | {"request_goodput": mean(this.runs[way.id], "request_goodput")}
            for way in this.ways
        },
        "by_load": [
            {
                "concurrency": load.concurrency,
                "best_k_throughput": load.by_throughput,
                "best_k_p99_tpot": load.by_p99,
                "output_throughput": {str(k): run["output_throughput"] for k, run in load.figures.items()},
                "p99_tpot_ms": {str(k): run["p99_tpot_ms"] for k, run in load.figures.items()},
            }
            for load in this.loads
        ],
        "num_speculative_tokens_per_batch_size": schedule(
            this.loads, drafting.config.serve.max_num_seqs or 1
        ),
        "crossover_concurrency": {
            metric: crossover(this.loads, drafting.k, metric)
            for metric in ("output_throughput", "p99_tpot_ms")
        }
        if this.loads
        else None,
        "break_even": asdict(this.break_even) if this.break_even else None,
        "chance_to_pay": chance_to_pay(drafting, this.break_even, this.runs[drafting.id][0])
        if this.break_even
        else None,
        "rival": None
        if this.rival is None or this.rival.high is None
        else {
            "candidate": this.rival.candidate.id,
            "replicas": this.rival.high,
            "per_hour_usd": this.rival.candidate.replica_usd * (this.rival.high + this.plan.spare_replicas),
        },
    }


def _interval(found: Interval | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {
        "ratio": found.value,
        "low": found.low,
        "high": found.high,
        "verdict": judge_gain(found, LEAST_GAIN),
    }


def _place(place: Place) -> dict[str, object]:
    return {
        "candidate": place.candidate.id,
        "concurrency": place.concurrency,
        "output_tokens_per_s_per_user": place.per_user,
        "output_tokens_per_s_per_gpu": place.per_gpu,
    }


def _candidates(this: Planned) -> list[dict[str, object]]:
    known = {entry.candidate.id: entry for entry in this.entries}
    rows: list[dict[str, object]] = []
    for candidate in this.every:
        entry = known.get(candidate.id)
        row: dict[str, object] = {"candidate": candidate.id, "replica_usd": candidate.replica_usd}
        if entry is None:
            row |= {"status": f"cannot be had: {candidate.refusal}"}
        else:
            row |= {
                "status": status(this, entry),
                "bound_request_rate": entry.bound.rate,
                "bound_limit": entry.bound.limit,
                "too_few_replicas": entry.low,
                "enough_replicas": entry.high,
                "verdict": _verdict(entry),
                "tried": [
                    [n, answer.used, answer.judged.verdict, answer.judged.ratio, answer.judged.limit]
                    for n, answer in entry.tried.items()
                ],
            }
        rows.append(row)
    return rows


def _plain(content: object) -> object:
    """Plain values: tuples as lists, NaN as null, nine significant digits."""
    if isinstance(content, float):
        return None if not math.isfinite(content) else float(f"{content:.9g}")
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    return content
