"""`specfleet measure`: times a model's kernels on this machine's GPU and writes constants for `serve:`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from specfleet.experiments.measure.entry import Fits
from specfleet.experiments.measure.points import Backend, Grid, Points, make_plan, time_points
from specfleet.experiments.measure.reference import find_reference, nearest
from specfleet.experiments.measure.text import plan_text, summary
from specfleet.experiments.measure.torch_gpu import Unavailable, cuda_backend
from specfleet.experiments.measure.unsettled import expected, planned_device, unsettled
from specfleet.experiments.measure.write import SUMMARY, serve_block, write_constants, write_plan, write_rows
from specfleet.hardware import catalog
from specfleet.hardware.catalog import CatalogError
from specfleet.hardware.model import ModelSpec

DTYPES = ("bfloat16", "fp8")
USUAL_GPU = "h100-sxm"
"""Whose plan is shown where no GPU is found and none is named."""
_FIT_S = 10.0
"""Kept of the time budget for the fits."""


def measure_command(
    model: str,
    out: Path,
    tensor_parallel_size: int = 1,
    dtype: str = "bfloat16",
    minutes: float = 5.0,
    gpu: str | None = None,
    attention: str | None = None,
    quiet: bool = False,
    plan: bool = False,
) -> int:
    """Measure, write `rows.csv`, `constants.json` and `summary.txt` into `out`, print the summary.

    `model` is a catalogue name, a Hugging Face id or the path of a `config.json`. `gpu` names the catalogue's
    GPU whose datasheet the shares refer to, by default found by the driver's name. Returns the exit status: 2
    when the input is wrong or there is nothing to measure on, with one sentence on stderr.

    `plan`: only what no public table settles (`unsettled`); the plan is printed and written to `plan.csv`
    before it is run, and where there is no GPU that is all.
    """
    try:
        spec = _model(model)
        _check(spec, tensor_parallel_size, dtype, minutes)
        if gpu is not None:
            catalog.accelerator(gpu)
        if plan:
            return _planned(spec, out, tensor_parallel_size, minutes, gpu, attention, quiet)
        backend = cuda_backend(attention)
        out.mkdir(parents=True, exist_ok=True)
        print(
            measure(backend, spec, out, tensor_parallel_size, dtype, 60.0 * minutes, gpu=gpu, say=_say(quiet))
        )
    except (Unavailable, CatalogError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def measure(
    backend: Backend,
    model: ModelSpec,
    out: Path,
    tensor_parallel_size: int,
    dtype: str,
    seconds: float,
    *,
    gpu: str | None = None,
    grid: Grid | None = None,
    groups: Sequence[Points] | None = None,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Time on `backend` for at most `seconds`, fit, write into the folder `out`; returns the summary.

    `groups` are timed in place of the usual plan. ValueError when so little ran that there is nothing to fit.
    """
    start = clock()
    plan = (
        groups if groups is not None else make_plan(model, tensor_parallel_size, dtype, backend.device, grid)
    )
    timed = time_points(backend, plan, max(seconds - _FIT_S, 0.5 * seconds), clock, say)
    reference = find_reference(backend.device, timed.rows, gpu)
    fits = Fits(timed.rows, reference, backend)
    fits.run()
    write_rows(out, timed, fits)
    constants = write_constants(out, fits)
    block = serve_block(constants, fits, backend)
    text = summary(timed, fits, backend, model, block, clock() - start)
    (out / SUMMARY).write_text(text + "\n", encoding="utf-8")
    return text


def _planned(
    model: ModelSpec, out: Path, tp: int, minutes: float, gpu: str | None, attention: str | None, quiet: bool
) -> int:
    """Prints what is to be timed, and times it where there is a GPU."""
    backend, reason = None, ""
    try:
        backend = cuda_backend(attention)
    except Unavailable as error:
        reason = str(error)
    accelerator = (
        catalog.accelerator(gpu)
        if gpu
        else nearest(backend.device)
        if backend
        else catalog.accelerator(USUAL_GPU)
    )
    device = backend.device if backend else planned_device(accelerator, tp)
    topics = unsettled(model, tp, "fp8" in accelerator.flops_per_s, device)
    taken = [expected(topic, model, tp, accelerator, device.l2_bytes) for topic in topics]
    out.mkdir(parents=True, exist_ok=True)
    write_plan(out, topics, taken)
    print(plan_text(topics, taken, model, accelerator, tp, 60.0 * minutes))
    if backend is None:
        print(f"not timed: {reason}")
        return 0
    groups = [group for topic in topics for group in topic.groups]
    say = _say(quiet)
    print()
    print(
        measure(backend, model, out, tp, "fp8", 60.0 * minutes, gpu=accelerator.name, groups=groups, say=say)
    )
    return 0


def _model(name: str) -> ModelSpec:
    return catalog.model({"hf_config": name} if name.endswith(".json") else name)


def _check(model: ModelSpec, tp: int, dtype: str, minutes: float) -> None:
    """ValueError, saying what to change, for what cannot be measured."""
    if dtype not in DTYPES:
        raise ValueError(f"--dtype is {dtype!r}; use one of {', '.join(DTYPES)}")
    if minutes <= 0:
        raise ValueError(f"--minutes is {minutes}; it must be positive")
    widths = {"num_heads": model.num_heads, "intermediate_size": model.intermediate_size}
    for what, width in widths.items():
        if tp < 1 or width % tp:
            raise ValueError(f"--tensor-parallel-size {tp} does not divide {what} {width} of {model.name}")


def _say(quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else (lambda words: print(words, file=sys.stderr))
