"""The commands that ask a question of their own: validate, calibrate, measure, theory, breakeven, plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specfleet.experiments.cli.base import (
    AsJson,
    Cluster,
    File,
    Jobs,
    Overrides,
    Quiet,
    ToolFormatName,
    fail,
    plain_errors,
)


def validate(
    points: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[POINTS]...", help="CSV of measured points, or results of a benchmark, a log, a scrape."
        ),
    ] = None,
    serve: Annotated[
        Path | None, typer.Option(help="For results: a YAML with the server's arguments under `serve:`.")
    ] = None,
    format_: ToolFormatName = None,
    seeds: Annotated[int, typer.Option(min=1, help="Replications of each point.")] = 4,
    jobs: Jobs = None,
    cluster: Cluster = None,
    mode: Annotated[
        str, typer.Option(help="Acceptance: given by the row, or predicted from the other rows.")
    ] = "given",
    method: Annotated[
        str | None, typer.Option(help="simulate or closed_form (default: what the columns allow).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    max_mape: Annotated[
        float | None, typer.Option(help="Exit 1 if mean TPOT is off by more than this, in percent.")
    ] = None,
    frozen: Annotated[bool, typer.Option("--frozen", help="Only published constants.")] = False,
    free: Annotated[
        bool, typer.Option("--free", help="Also drawn freely, and with other spreads between requests.")
    ] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw predicted against measured.")] = None,
    quiet: Quiet = False,
) -> None:
    """Simulate measured points and score them; without POINTS, a shipped table of published ones."""
    from specfleet.experiments.validate.command import validate_command

    with plain_errors():
        code = validate_command(
            points or (),
            serve=serve,
            format_=format_,
            seeds=seeds,
            jobs=jobs,
            cluster=cluster,
            mode=mode,
            method=method,
            as_json=as_json,
            max_mape=max_mape,
            frozen=frozen,
            free=free,
            figure=figure,
            quiet=quiet,
        )
    raise typer.Exit(code)


def calibrate(
    bench: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[BENCH]...", help="Results: `vllm bench serve`, SGLang, guidellm and others."
        ),
    ] = None,
    serve: Annotated[
        Path | None, typer.Option(help="With BENCH: a YAML with the server's arguments under `serve:`.")
    ] = None,
    acceptance: Annotated[
        Path | None,
        typer.Option(metavar="REPORT", help="A server's log, a scrape of /metrics, or per-request metrics."),
    ] = None,
    format_: ToolFormatName = None,
    before: Annotated[
        Path | None, typer.Option(metavar="REPORT", help="A scrape from the start, taken off the other.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="With --acceptance: the way of drafting (eagle3, mtp, ..): predicts every K."),
    ] = None,
    other_data_set: Annotated[
        bool, typer.Option("--other-data-set", help="Predict for other prompts than the report's.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The engine profile to write.")] = Path("calibrated.yaml"),
    fit: Annotated[str, typer.Option(help="What to fit.")] = "scale,step,sequence",
) -> None:
    """Fit at most three numbers to your own results, or read your acceptance; write what `serve.engine` and
    `acceptance:` take."""
    from specfleet.experiments.calibrate.acceptance import acceptance_command
    from specfleet.experiments.calibrate.command import calibrate_command

    if not bench and acceptance is None:
        fail("nothing to calibrate on; give BENCH results with --serve, or --acceptance REPORT", 2)
    if bench and serve is None:
        fail("--serve is missing: the server's arguments that BENCH was measured with", 2)
    code = 0
    with plain_errors():
        if bench and serve is not None:
            code = calibrate_command(bench, serve=serve, out=out, fit=fit, format_=format_)
        if acceptance is not None:
            code = max(code, acceptance_command(acceptance, before, out, format_, method, other_data_set))
    raise typer.Exit(code)


def measure(
    model: Annotated[str, typer.Argument(help="Catalogue name, Hugging Face id or path of a config.json.")],
    out: Annotated[Path, typer.Option(help="Folder for rows, constants and summary.")] = Path("measured"),
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "--tp", min=1, help="Shards of the model.")
    ] = 1,
    dtype: Annotated[str, typer.Option(help="bfloat16 or fp8 weights.")] = "bfloat16",
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Time to spend (default: 5; with --plan 10).")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only what no table settles: print the plan, run it on a GPU.")
    ] = False,
    gpu: Annotated[
        str | None, typer.Option(help="Catalogue name of this GPU (default: by its driver's name).")
    ] = None,
    attention: Annotated[
        str | None, typer.Option(help="Attention backend (default: the best found).")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Time this machine's GPU kernels for a model; write constants that `serve.gpu` can name."""
    from specfleet.experiments.measure.command import measure_command

    with plain_errors():
        spend = minutes if minutes is not None else 10.0 if plan else 5.0
        code = measure_command(model, out, tensor_parallel_size, dtype, spend, gpu, attention, quiet, plan)
    raise typer.Exit(code)


def theory(
    alpha: Annotated[
        list[float] | None, typer.Option(help="Conditional acceptance; repeat for several.")
    ] = None,
    k: Annotated[list[int] | None, typer.Option("--k", help="Drafts a round; repeat for several.")] = None,
    cost_ratio: Annotated[float, typer.Option(help="One drafter pass over one target step.")] = 0.05,
    overhead: Annotated[float, typer.Option(help="Verification beyond a plain step, as a share.")] = 0.0,
    target_speedup: Annotated[
        float | None, typer.Option(help="Solve for the acceptance that gives this.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it, PNG or SVG.")] = None,
    exactness: Annotated[
        bool, typer.Option("--exactness", help="Instead, measure on tokens that output is the target's.")
    ] = False,
) -> None:
    """Tables of expected tokens, speedup, best K and break-even, from the closed forms."""
    from specfleet.experiments.theory.command import OF_CLOSED_FORMS, exactness_command, theory_command

    with plain_errors():
        if exactness:
            asked = (alpha, k, cost_ratio != 0.05, overhead, target_speedup, figure)
            code = exactness_command(
                [name for name, value in zip(OF_CLOSED_FORMS, asked, strict=True) if value]
            )
        else:
            code = theory_command(alpha or (), k or (), cost_ratio, overhead, target_speedup, figure)
    raise typer.Exit(code)


def breakeven(
    file: File,
    overrides: Overrides = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder (default: results/NAME-breakeven).")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Width at which the search for acceptance stops.")] = 0.01,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the searches that are finished.")] = False,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw the figures.")] = True,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find the acceptance at which speculation stops paying at each load, and the best K."""
    from specfleet.experiments.breakeven.command import breakeven_command

    with plain_errors():
        code = breakeven_command(
            file, overrides or (), jobs, out, tolerance, plots, quiet, as_json, resume, cluster
        )
    raise typer.Exit(code)


def plan(
    file: File,
    overrides: Overrides = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the plan (default: results/NAME-plan).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the simulations that are finished.")] = False,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw the figures.")] = True,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print plan.json.")] = False,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV or YAML of $/GPU-hour, as plan.prices_file.")
    ] = None,
) -> None:
    """Find the cheapest deployment that meets the SLO; write plan.json, rollout.md, deploy/ and figures."""
    from specfleet.experiments.plan.command import plan_command

    given = [*(overrides or ()), *([] if prices is None else [f"plan.prices_file={prices}"])]
    with plain_errors():
        code = plan_command(file, given, jobs, out, resume, plots, quiet, as_json, cluster)
    raise typer.Exit(code)
