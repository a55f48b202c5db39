"""The requests of a measured point: a data set's shape at the row's mean lengths."""

from __future__ import annotations

import math
import re

from specfleet.experiments.validate import profiles
from specfleet.workloads.build import WorkloadSpec
from specfleet.workloads.lengths import Capped, Fixed, LengthDistribution, Scaled, Shifted
from specfleet.workloads.profiles import Preset, preset


def workload(
    *,
    dataset: str,
    model: str,
    num_prompts: int,
    mean_input: float,
    mean_output: float,
    cap: int | None = None,
    ignore_eos: bool = False,
    request_rate: float = math.inf,
    burstiness: float | None = None,
) -> WorkloadSpec:
    """Returns the requests of a benchmark whose mean lengths are known.

    Args:
        dataset: its name; a preset gives the shape where one is known, else all requests are alike.
        model: whose chat template the prompts have.
        num_prompts: requests.
        mean_input, mean_output: tokens a request.
        cap: `max_tokens` of every request, or None.
        ignore_eos: outputs end by their length only.
        request_rate: requests/s; inf offers all at once.
        burstiness: gamma shape of the gaps; inf is a constant rate.
    """
    entry = profiles.dataset_entry(dataset)
    shape = preset(entry["preset"]) if entry["preset"] else None
    prompts: LengthDistribution = Fixed(max(1, round(mean_input)))
    if shape is not None:
        prompts = _prompts(shape, entry.get("template_tokens", {}), model, mean_input)
    outputs = _outputs(shape, mean_output, cap, ignore_eos)
    groups, prefix = repeated_prompts(dataset), 0
    if groups is not None:
        prompts, prefix = Fixed(1), max(0, round(mean_input) - 1)
    alike = isinstance(outputs, Fixed)
    return WorkloadSpec(
        num_prompts=num_prompts,
        input=prompts,
        output=outputs,
        max_tokens=cap if cap and not ignore_eos else None,
        ignore_eos=ignore_eos,
        rank_correlation=shape.rank_correlation if shape and not alike else 0.0,
        request_rate=request_rate,
        burstiness=burstiness or 1.0,
        prefix_tokens=prefix,
        prefix_groups=groups or 1,
    )


def _prompts(shape: Preset, template: dict[str, int], model: str, mean: float) -> LengthDistribution:
    """Returns the preset's prompts under the model's chat template, stretched to the mean."""
    law: LengthDistribution = shape.input
    for family, tokens in template.items():
        if family in model.lower():
            law = Shifted(law, tokens)
    return Scaled(law, mean / law.mean)


def _outputs(shape: Preset | None, mean: float, cap: int | None, ignore_eos: bool) -> LengthDistribution:
    """Returns outputs of the preset's shape and this mean; all alike at the cap or without a shape."""
    if cap and mean >= profiles.table("datasets")["fixed_from"] * cap and not ignore_eos:
        return Fixed(cap)
    if shape is None or ignore_eos:
        return Fixed(max(1, round(mean)))
    if cap is None:
        return Scaled(shape.output, mean / shape.output.mean)
    return stretched(shape.output, mean, cap)


def stretched(law: LengthDistribution, mean: float, cap: int) -> Capped:
    """Returns `law` times a factor, cut at `cap`, so that the mean after the cut is `mean` (bisection)."""
    low, high = 1e-3, 1e3
    for _ in range(40):
        factor = math.sqrt(low * high)
        below = Capped(Scaled(law, factor), cap).mean < mean
        low, high = (factor, high) if below else (low, factor)
    return Capped(Scaled(law, high), cap)


def repeated_prompts(dataset: str) -> int | None:
    """Returns how many different prompts a description states, each asked again and again, or None.

    "10 system prompts x 10 users, 128 system + 64 question tokens" is 100 prompts.
    """
    found = re.search(r"(\d+) system prompts x (\d+) users", dataset)
    return int(found[1]) * int(found[2]) if found else None


def monotone(steps: tuple[float, ...]) -> tuple[float, ...]:
    """Returns survival by position with rounding errors of a rise taken out."""
    out: list[float] = []
    for step in steps:
        out.append(min(step, out[-1]) if out else step)
    return tuple(out)
