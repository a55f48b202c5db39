"""Measured results of any tool in `tools`, with the server's arguments, as measured points.

The arguments are an experiment file: its `serve:` block says what was served. Concurrency, rate, number of
requests, lengths and acceptance come from the result; what a result does not state is the file's own. Lengths
of the file's `workload:` are kept (a preset is stretched to the result's means), and so is its
`acceptance.concentration`. A result without speculation counters keeps the file's drafter and acceptance, as
many tools and versions count none. One that says that it did not draft is a server without its drafter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import acceptance_specs, placement, workload_spec
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import Fault, InputFaults
from specfleet.experiments.schema.yamlfile import read_yaml
from specfleet.experiments.tools.read import read_tools
from specfleet.experiments.tools.result import ToolResult
from specfleet.experiments.validate import profiles
from specfleet.experiments.validate.lengths import monotone, workload
from specfleet.experiments.validate.parallel import parallel_faults, says_no
from specfleet.experiments.validate.points import BENCH_KEYS, TTFT_STEPS_CONCURRENCY, MeasuredPoint
from specfleet.hardware.placement import Placement
from specfleet.workloads.build import WorkloadSpec

_PERCENTILES = range(0, 101, 2)
_OWN_LENGTHS = {"preset", "input", "input_len", "trace", "mix", "phases"}


@dataclass(frozen=True)
class Benches:
    """Results with the server's arguments.

    Args:
        points: a result each.
        said: how each file was read.
    """

    points: list[MeasuredPoint]
    said: list[str]


def read_bench(path: Path, serve: Path, format_: str | None = None) -> MeasuredPoint:
    """Returns the point of a file that holds one result; arguments and errors as `read_benches`."""
    points = read_benches([path], serve, format_).points
    if len(points) > 1:
        raise InputFaults([Fault(str(path), 0, "", f"holds {len(points)} results; one is wanted")])
    return points[0]


def read_benches(paths: Sequence[Path], serve: Path, format_: str | None = None) -> Benches:
    """Returns the points of every result.

    Args:
        paths: files of any format in `tools.read.FORMATS`.
        serve: an experiment file with the server's arguments under `serve:`.
        format_: of all of them; None tells it from what each holds.

    Raises:
        InputFaults: for a file that is no result, or arguments that are not valid.
    """
    readings = read_tools(paths, format_)
    points: list[MeasuredPoint] = []
    faults: list[Fault] = []
    for reading in readings:
        for result in reading.results:
            try:
                points.append(_point(result, reading.path, serve))
            except InputFaults as found:
                faults += found.faults
    if faults:
        raise InputFaults(faults)
    return Benches(points, [reading.said() for reading in readings])


def _point(result: ToolResult, path: Path, serve: Path) -> MeasuredPoint:
    """Returns the point of one result; InputFaults if something that it takes is stated nowhere."""
    measured = _measured(result)
    if not measured:
        raise InputFaults(
            [Fault(str(path), 0, "", f"{result.name} holds no time and no throughput to compare")]
        )
    config, assumed = _experiment(result, path, serve)
    place = placement(config.serve)
    c = config.workload.max_concurrency
    if {"ttft_median_ms", "itl_median_ms"} <= measured.keys() and (c or 0) in TTFT_STEPS_CONCURRENCY:
        measured["ttft_steps"] = measured["ttft_median_ms"] / measured["itl_median_ms"]
    assert config.serve.max_model_len
    speculative = config.serve.speculative_config
    return MeasuredPoint(
        name=result.name,
        campaign=result.label or serve.stem,
        dataset=config.workload.preset or "as measured",
        placement=place,
        max_model_len=config.serve.max_model_len,
        drafter_max_model_len=speculative.max_model_len if speculative else None,
        enable_prefix_caching=config.serve.enable_prefix_caching,
        enable_chunked_prefill=config.serve.enable_chunked_prefill,
        capacity_scheduler_policy=config.serve.capacity_scheduler_policy,
        workload=_requests(result, config, place),
        max_concurrency=c,
        acceptance=acceptance_specs(config).get(""),
        replicas=config.deployment.replicas,
        rounds=result.numbers.get("spec_decode_num_drafts") or 1.0,
        measured=measured,
        assumptions=(*_failures(result), *(f"{result.name}: {text}" for text in (*result.notes, *assumed))),
    )


def _measured(result: ToolResult) -> dict[str, float]:
    """Returns what of a result is scored."""
    numbers = result.numbers
    found = {metric: numbers.get(key, 0.0) for metric, key in BENCH_KEYS.items()}
    found["kv_pool_tokens"] = numbers.get("kv_pool_tokens", 0.0)
    return {metric: value for metric, value in found.items() if value > 0.0}


def _failures(result: ToolResult) -> tuple[str, ...]:
    """Returns what requests that failed do to the comparison; nothing if all were completed."""
    failed, completed = int(result.numbers.get("failed", 0)), int(result.completed or 0)
    if not failed:
        return ()
    return (
        f"{result.name}: {failed} of {completed + failed} requests failed; its figures are of the others, "
        "and none fails in the simulation",
    )


def _requests(result: ToolResult, config: Experiment, place: Placement) -> WorkloadSpec:
    """Returns the requests; a preset's lengths are stretched to the means of the result."""
    spec = workload_spec(config.workload)
    named = config.workload.preset
    mean_input, mean_output = result.mean("input"), result.mean("output")
    if named is None or mean_input is None or mean_output is None:
        return spec
    if profiles.dataset_entry(named)["preset"] != named:
        return spec
    shaped = workload(
        dataset=named,
        model=place.model.name,
        num_prompts=spec.num_prompts,
        mean_input=mean_input,
        mean_output=mean_output,
        cap=config.workload.output_cap or spec.max_tokens,
        ignore_eos=spec.ignore_eos,
    )
    return replace(
        spec,
        input=shaped.input,
        output=shaped.output,
        max_tokens=shaped.max_tokens,
        rank_correlation=shaped.rank_correlation,
    )


def _experiment(result: ToolResult, path: Path, serve: Path) -> tuple[Experiment, list[str]]:
    """Returns the experiment that the result measured, every default filled in, and what was assumed."""
    document = read_yaml(serve)
    own, given = (_block(document.data, key) for key in ("workload", "serve"))
    missing = [*_load_missing(result, own, path, serve), *_lengths_missing(result, own, path, serve)]
    missing += [Fault(str(path), 0, key, said) for key, said in parallel_faults(result.served)]
    missing += [Fault(str(path), 0, key, said) for key, said in _spread_missing(result, given, serve)]
    drafting, assumed = _drafting(result, document.data, own, path, serve)
    if missing:
        raise InputFaults(missing)
    assumed += _other_spread(result, given, serve)
    lengths = [] if own.keys() & _OWN_LENGTHS else _lengths(result)
    points = expand(load_experiment(serve, [*_load(result), *lengths, *drafting]))
    if len(points) > 1:
        message = "is a sweep; the arguments of one server are wanted"
        raise InputFaults([Fault(str(serve), 1, "sweep", message)])
    return points[0].config, assumed


def _spread_missing(
    result: ToolResult, given: Mapping[str, object], serve: Path
) -> Iterator[tuple[str, str]]:
    """Yields (key, what to write) where a result has ranks of which the arguments do not speak."""
    ranks = _stated(given, "data_parallel_size", "dp")
    if not says_no(result.served.get("dp_attention")) and ranks == 1:
        message = (
            f"is true: its attention is data-parallel, and {serve.name} has one rank; give "
            "data_parallel_size, and tensor_parallel_size of a rank"
        )
        yield "dp_attention", message


def _stated(given: Mapping[str, object], *keys: str) -> int:
    found = next((given[key] for key in keys if key in given), 1)
    return found if isinstance(found, int) else 1


def _other_spread(result: ToolResult, given: Mapping[str, object], serve: Path) -> list[str]:
    """Returns where a result says other numbers of GPUs, ranks or stages than the arguments."""
    ranks = _stated(given, "data_parallel_size", "dp")
    tp = _stated(given, "tensor_parallel_size", "tp")
    spread_over = "" if says_no(result.served.get("dp_attention")) else " in all"
    said = {
        "tp": (tp * ranks if spread_over else tp, f"GPUs{spread_over}"),
        "dp": (ranks, "data-parallel ranks"),
        "pp": (_stated(given, "pipeline_parallel_size", "pp"), "stages"),
    }
    found = []
    for key, (stated, what) in said.items():
        ran = result.served.get(key)
        if isinstance(ran, int) and ran != stated:
            found.append(
                f"it ran on {ran} {what} and {serve.name} says {stated}; it is simulated on {stated}"
            )
    return found


def _block(data: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def _load_missing(result: ToolResult, own: Mapping[str, object], path: Path, serve: Path) -> list[Fault]:
    """Returns what says nothing of how many requests came, and how."""
    faults = []
    if (
        not result.request_rate
        and not result.max_concurrency
        and not own.keys() & {"max_concurrency", "request_rate"}
    ):
        message = f"states no load; add workload.max_concurrency or workload.request_rate to {serve}"
        faults.append(Fault(str(path), 0, "", f"{result.name} {message}"))
    if _prompts(result) is None and "num_prompts" not in own:
        message = f"states no number of requests; add workload.num_prompts to {serve}"
        faults.append(Fault(str(path), 0, "", f"{result.name} {message}"))
    return faults


def _lengths_missing(result: ToolResult, own: Mapping[str, object], path: Path, serve: Path) -> list[Fault]:
    """Returns that neither the result nor the file says how long requests are."""
    if own.keys() & _OWN_LENGTHS or (result.mean("input") and result.mean("output")):
        return []
    message = f"{result.name} states no lengths; add workload.input_len and workload.output_len to {serve}"
    return [Fault(str(path), 0, "", message)]


def _prompts(result: ToolResult) -> int | None:
    """Returns how many requests were sent."""
    if result.completed is not None:
        return int(result.completed) + int(result.numbers.get("failed", 0))
    prompts = result.numbers.get("num_prompts")
    return int(prompts) if prompts else None


def _load(result: ToolResult) -> list[str]:
    """Returns the load of the result as overrides; what it does not state is left to the file."""
    rate, prompts, concurrency = result.request_rate, _prompts(result), result.max_concurrency
    overrides = []
    if prompts is not None:
        overrides.append(f"workload.num_prompts={prompts}")
    if rate:
        overrides.append(f"workload.request_rate={'.inf' if rate == 'inf' else rate}")
        overrides.append(f"workload.burstiness={result.numbers.get('burstiness') or 1.0}")
    if concurrency:
        overrides.append(f"workload.max_concurrency={concurrency}")
    return overrides


def _drafting(
    result: ToolResult, data: Mapping[str, object], own: Mapping[str, object], path: Path, serve: Path
) -> tuple[list[str], list[str]]:
    """Returns drafter and acceptance of the result as overrides, and what of them is the file's."""
    given = _block(data, "serve")
    sglang = given.get("speculative_algorithm") is not None
    drafts_in_file = given.get("speculative_config") is not None or "spec_method" in given or sglang
    rates, length = result.per_position_acceptance_rates, result.acceptance_length
    if result.drafts == 0:
        key = "speculative_algorithm" if sglang else "speculative_config"
        return [f"serve.{key}=null", "acceptance=null"], []
    if rates or length is not None:
        if not drafts_in_file:
            message = (
                f"{result.name} counts drafts, and {serve} has no serve.speculative_config; add the drafter"
            )
            raise InputFaults([Fault(str(path), 0, "", message)])
        return _counted(result, data, own), []
    if not drafts_in_file:
        return ["acceptance=null"], []
    if data.get("acceptance") is None:
        message = (
            f"{result.name} holds no speculation counters, and {serve} drafts without an acceptance; state "
            "`acceptance:` there, or remove serve.speculative_config if the server did not draft"
        )
        raise InputFaults([Fault(str(path), 0, "", message)])
    return [], [f"no speculation counters; drafter and acceptance are those of {serve.name}"]


def _counted(result: ToolResult, data: Mapping[str, object], own: Mapping[str, object]) -> list[str]:
    """Returns what the result counted of its drafts as overrides."""
    rates, acceptance = result.per_position_acceptance_rates, data.get("acceptance")
    overrides = []
    process: dict[str, object] = {"source": "measured in the same run"}
    if rates:
        process["by_position"] = list(monotone(rates))
    else:
        process["acceptance_length"] = result.acceptance_length
    k = len(rates) or result.drafts
    if k and isinstance(_block(data, "serve").get("speculative_config"), dict):
        overrides.append(f"serve.speculative_config.num_speculative_tokens={k}")
    elif k and "speculative_num_steps" in _block(data, "serve"):
        overrides.append(f"serve.speculative_num_steps={k}")
    if isinstance(acceptance, dict) and "concentration" in acceptance:
        process["concentration"] = acceptance["concentration"]
    else:
        process["concentration"] = _default_concentration(data, own)
    text = json.dumps(process).replace("Infinity", ".inf")
    return [*overrides, f"acceptance={text}"]


def _default_concentration(data: Mapping[str, object], workload: Mapping[str, object]) -> float:
    """Returns the shipped concentration for the served model on the workload's data."""
    named = _block(data, "serve").get("model", _block(data, "serve").get("model_path"))
    target = profiles.model(named) if isinstance(named, str) else None
    return profiles.concentration(target, "*", str(workload.get("preset", "")))


def _lengths(result: ToolResult) -> list[str]:
    """Returns prompt and output lengths: percentiles of those recorded, else the means."""
    overrides = []
    for side, lengths in (("input", result.input_lens), ("output", result.output_lens)):
        if lengths and max(lengths) > min(lengths):
            values = np.maximum(np.percentile(lengths, list(_PERCENTILES)), 1.0)
            nodes = [[p, round(float(v))] for p, v in zip(_PERCENTILES, values, strict=True)]
            overrides.append(f"workload.{side}={json.dumps({'quantiles': nodes})}")
        else:
            mean = max(1, math.floor((result.mean(side) or 1.0) + 0.5))
            overrides.append(f"workload.{side}={json.dumps({'fixed': mean})}")
    return overrides
