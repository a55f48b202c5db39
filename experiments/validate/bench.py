"""Reads `vllm bench serve --save-result` JSON, with the server's arguments, as measured points.

The arguments are an experiment file: its `serve:` block says what was served. Concurrency, rate, number of
requests, lengths and acceptance come from the result; lengths of the file's own `workload:` are kept (a
preset is stretched to the result's means), and so is its `acceptance.concentration`. A plain result (no
`spec_decode_*` keys) is a server without its drafter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import acceptance_specs, placement, workload_spec
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import Fault, InputFaults
from specfleet.experiments.schema.yamlfile import read_yaml
from specfleet.experiments.validate import profiles
from specfleet.experiments.validate.impossible import RATES, bench_faults, number
from specfleet.experiments.validate.lengths import monotone, workload
from specfleet.experiments.validate.points import BENCH_KEYS, TTFT_STEPS_CONCURRENCY, MeasuredPoint
from specfleet.hardware.placement import Placement
from specfleet.workloads.build import WorkloadSpec

_NEEDED = ("completed", "total_input_tokens", "total_output_tokens", "mean_tpot_ms")
_PERCENTILES = range(0, 101, 2)


@dataclass(frozen=True)
class BenchFile:
    """A result of `vllm bench serve`, read.

    Attributes:
        numbers: its figures and settings that are one number each.
        label: given to the run, or empty.
        request_rate: as written, "inf" without one.
        per_position_acceptance_rates: empty without a drafter, or where the server counts no positions.
        input_lens, output_lens: of every request; empty without `--save-detailed`.
    """

    numbers: Mapping[str, float]
    label: str
    request_rate: str
    per_position_acceptance_rates: tuple[float, ...]
    input_lens: tuple[float, ...]
    output_lens: tuple[float, ...]

    @classmethod
    def of(cls, result: Mapping[str, object]) -> BenchFile:
        """Returns what a JSON object says; what is missing or null is left out."""
        numbers = {key: found for key, value in result.items() if (found := number(value)) is not None}
        return cls(
            numbers=numbers,
            label=str(result.get("label") or ""),
            request_rate=str(result.get("request_rate", "inf")),
            per_position_acceptance_rates=_list(result.get(RATES)),
            input_lens=_list(result.get("input_lens")),
            output_lens=_list(result.get("output_lens")),
        )

    @property
    def completed(self) -> float:
        """Requests."""
        return self.numbers["completed"]

    def mean(self, total: str) -> float:
        """Returns a total by completed request."""
        return self.numbers[total] / self.completed


def _list(value: object) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, list) else ()


def read_bench(path: Path, serve: Path) -> MeasuredPoint:
    """Returns the point of one result.

    Args:
        path: JSON of `vllm bench serve --save-result` (`--save-detailed` adds the lengths of every request).
        serve: an experiment file with the server's arguments under `serve:`.

    Raises:
        InputFaults: for a file that is no such result, or arguments that are not valid.
    """
    result = read_result(path)
    config = _experiment(result, serve)
    place = placement(config.serve)
    c = config.workload.max_concurrency
    numbers = result.numbers
    measured = {
        metric: numbers[key] for metric, key in BENCH_KEYS.items() if key in numbers and numbers[key] > 0.0
    }
    if {"ttft_median_ms", "itl_median_ms"} <= measured.keys() and (c or 0) in TTFT_STEPS_CONCURRENCY:
        measured["ttft_steps"] = measured["ttft_median_ms"] / measured["itl_median_ms"]
    assert config.serve.max_model_len
    speculative = config.serve.speculative_config
    return MeasuredPoint(
        name=path.name,
        campaign=result.label or serve.stem,
        dataset=config.workload.preset or "as measured",
        placement=place,
        max_model_len=config.serve.max_model_len,
        drafter_max_model_len=speculative.max_model_len if speculative else None,
        enable_prefix_caching=config.serve.enable_prefix_caching,
        enable_chunked_prefill=config.serve.enable_chunked_prefill,
        workload=_requests(result, config, place),
        max_concurrency=c,
        acceptance=acceptance_specs(config).get(""),
        rounds=numbers.get("spec_decode_num_drafts") or 1.0,
        measured=measured,
        assumptions=_failures(result, path.name),
    )


def _failures(result: BenchFile, name: str) -> tuple[str, ...]:
    """Returns what requests that failed do to the comparison; nothing if all were completed."""
    failed, completed = int(result.numbers.get("failed", 0)), int(result.completed)
    if not failed:
        return ()
    return (
        f"{name}: {failed} of {completed + failed} requests failed; its figures are of the others, and none "
        "fails in the simulation",
    )


def _requests(result: BenchFile, config: Experiment, place: Placement) -> WorkloadSpec:
    """Returns the requests; a preset's lengths are stretched to the means of the result."""
    spec = workload_spec(config.workload)
    named = config.workload.preset
    if named is None or profiles.dataset_entry(named)["preset"] != named:
        return spec
    shaped = workload(
        dataset=named,
        model=place.model.name,
        num_prompts=spec.num_prompts,
        mean_input=result.mean("total_input_tokens"),
        mean_output=result.mean("total_output_tokens"),
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


def read_result(path: Path) -> BenchFile:
    """Returns what a JSON of `vllm bench serve --save-result` says; InputFaults if the file is none."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputFaults([Fault(str(path), 0, "", "there is no such file; check the path")]) from None
    except (ValueError, RecursionError) as error:
        raise InputFaults([Fault(str(path), 0, "", f"is no JSON: {error}")]) from None
    result = result if isinstance(result, dict) else {}
    missing = [key for key in _NEEDED if number(result.get(key)) is None]
    if missing:
        message = f"lacks {', '.join(missing)}; give a result of `vllm bench serve --save-result`"
        raise InputFaults([Fault(str(path), 0, "", message)])
    if faults := [Fault(str(path), 0, key, said) for key, said in bench_faults(result)]:
        raise InputFaults(faults)
    found = BenchFile.of(result)
    if not found.completed:
        raise InputFaults([Fault(str(path), 0, "completed", "no request was completed; nothing to compare")])
    return found


def _experiment(result: BenchFile, serve: Path) -> Experiment:
    """Returns the experiment that the result measured, every default filled in."""
    document = read_yaml(serve)
    given = {key: document.data.get(key) for key in ("workload", "acceptance")}
    points = expand(load_experiment(serve, [*_load(result), *_drafts(result, given, document.data)]))
    if len(points) > 1:
        message = "is a sweep; the arguments of one server are wanted"
        raise InputFaults([Fault(str(serve), 1, "sweep", message)])
    return points[0].config


def _load(result: BenchFile) -> list[str]:
    """Returns the load of the result as overrides."""
    numbers, rate = result.numbers, result.request_rate
    concurrency = numbers.get("max_concurrency")
    overrides = [
        f"workload.num_prompts={int(result.completed) + int(numbers.get('failed', 0))}",
        f"workload.request_rate={'.inf' if rate == 'inf' else rate}",
        f"workload.burstiness={numbers.get('burstiness') or 1.0}",
    ]
    if concurrency:
        overrides.append(f"workload.max_concurrency={int(concurrency)}")
    return overrides


def _drafts(result: BenchFile, given: Mapping[str, object], data: Mapping[str, object]) -> list[str]:
    """Returns lengths and acceptance of the result as overrides."""
    workload, acceptance = given["workload"], given["acceptance"]
    own = workload if isinstance(workload, dict) else {}
    overrides = [] if own.keys() & {"preset", "input", "input_len", "trace"} else _lengths(result)
    rates = result.per_position_acceptance_rates
    length = result.numbers.get("spec_decode_acceptance_length")
    serve = data.get("serve")
    speculative = serve.get("speculative_config") if isinstance(serve, dict) else None
    if not rates and length is None:
        return [*overrides, "serve.speculative_config=null", "acceptance=null"]
    process: dict[str, object] = {"source": "measured in the same run"}
    if rates:
        process["by_position"] = list(monotone(rates))
        if isinstance(speculative, dict):
            overrides.append(f"serve.speculative_config.num_speculative_tokens={len(rates)}")
    else:
        process["acceptance_length"] = length
    if isinstance(acceptance, dict) and "concentration" in acceptance:
        process["concentration"] = acceptance["concentration"]
    else:
        process["concentration"] = _default_concentration(data, own)
    text = json.dumps(process).replace("Infinity", ".inf")
    return [*overrides, f"acceptance={text}"]


def _default_concentration(data: Mapping[str, object], workload: Mapping[str, object]) -> float:
    """Returns the shipped concentration for the served model on the workload's data."""
    serve = data.get("serve")
    named = serve.get("model") if isinstance(serve, dict) else None
    target = profiles.model(named) if isinstance(named, str) else None
    return profiles.concentration(target, "*", str(workload.get("preset", "")))


def _lengths(result: BenchFile) -> list[str]:
    """Returns prompt and output lengths: percentiles of those recorded, else the means."""
    overrides = []
    for side, lengths, total in (
        ("input", result.input_lens, "total_input_tokens"),
        ("output", result.output_lens, "total_output_tokens"),
    ):
        if lengths and max(lengths) > min(lengths):
            values = np.maximum(np.percentile(lengths, list(_PERCENTILES)), 1.0)
            nodes = [[p, round(float(v))] for p, v in zip(_PERCENTILES, values, strict=True)]
            overrides.append(f"workload.{side}={json.dumps({'quantiles': nodes})}")
        else:
            mean = max(1, math.floor(result.mean(total) + 0.5))
            overrides.append(f"workload.{side}={json.dumps({'fixed': mean})}")
    return overrides
