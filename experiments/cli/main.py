"""The command line. Results on stdout, progress and warnings on stderr; exit 0 done, 1 a run failed,
2 the input is wrong, 70 a fault of Specfleet's own, 130 interrupted."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specfleet.experiments.cli import studies as cli_studies
from specfleet.experiments.cli.base import (
    AsJson,
    Cluster,
    File,
    FileOrLine,
    Jobs,
    Overrides,
    Quiet,
    ToolFormatName,
    fail,
    plain_errors,
)
from specfleet.experiments.cli.door import Engine, Gpu, Line, Models, experiment_from, init
from specfleet.experiments.cli.endings import ended_alike, is_interrupt
from specfleet.experiments.cli.figures import draw, plot, report, say_stale
from specfleet.experiments.cli.results import results
from specfleet.experiments.cli.traces import traces

if TYPE_CHECKING:
    from specfleet.experiments.run.processes import Workers
    from specfleet.experiments.run.progress import Reporter
    from specfleet.experiments.run.results import Row
    from specfleet.experiments.run.run import Run
    from specfleet.experiments.run.runner import Task

app = typer.Typer(
    name="specfleet",
    help="Does speculative decoding pay on your model, your GPU, your traffic?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        from specfleet import __version__

        print(f"specfleet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Discrete-event simulator of LLM serving clusters with speculative decoding."""


@app.command()
def run(
    file: FileOrLine = None,
    overrides: Overrides = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Exactly this folder (default: the next of results/NAME/1, 2, ..)."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the latest; keep what is finished.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Prove the laws after every engine turn, not at the end alone.")
    ] = False,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw the figures.")] = True,
    as_json: AsJson = False,
    quiet: Quiet = False,
    vllm: Line = None,
    gpu: Gpu = None,
    engine: Engine = None,
    models: Models = None,
) -> None:
    """Simulate every point of an experiment; print the table, write a results folder with plots."""
    from specfleet.experiments.run.cluster.crew import crew
    from specfleet.experiments.run.processes import default_jobs
    from specfleet.experiments.run.progress import Reporter
    from specfleet.experiments.run.run import Run
    from specfleet.experiments.run.runner import worthwhile

    reporter = Reporter(0, quiet)
    with ExitStack() as hired:
        with plain_errors():
            given, changes = experiment_from(file, vllm, overrides or (), gpu, models or (), engine)
            this = Run(given, changes, out, check)
            workers = hired.enter_context(crew(jobs, cluster, reporter.say))
            todo = this.prepare(resume)
        reporter.total = len(todo)
        for notice in this.loaded.notices:
            reporter.say(f"note: {notice}")
        if jobs is None:
            workers.at_most(worthwhile(todo, default_jobs()))
        if plots:
            from specfleet.experiments.figures.run import ready_to_draw

            workers.afterwards(ready_to_draw)
        ended = _executed(this, todo, workers, reporter)
        try:
            with plain_errors():
                if rows := this.summary():
                    _answer(this, rows, as_json)
                    if plots and this.whole:
                        draw(this.folder, workers)
        finally:
            this.release()
    if not as_json:
        print(f"results: {this.folder}")
    _end(this, ended)


def _end(this: Run, ended: tuple[str, int] | None) -> None:
    """Ends the command with the status of a run that did not become whole."""
    if ended is not None:
        said, code = ended
        whole = sum(task.done for task in this.tasks)
        fail(f"{said}: {whole} of {len(this.tasks)} simulations are whole; go on with --resume", code)
    if this.failures:
        fail(f"{len(this.failures)} of {len(this.tasks)} simulations failed: {this.failures[0][1]}", 1)


def _executed(this: Run, todo: list[Task], workers: Workers, reporter: Reporter) -> tuple[str, int] | None:
    """Runs what is to be done; what ended it before, with its exit code, or None."""
    from specfleet.experiments.run.processes import WorkersGone

    try:
        this.execute(todo, workers, reporter)
    except KeyboardInterrupt:
        workers.stop(at_once=True)
        return "interrupted", 130
    except WorkersGone as gone:
        workers.stop(at_once=True)
        return str(gone), 1
    return None


def _answer(this: Run, rows: Sequence[Row], as_json: bool) -> None:
    """Prints what a run found, and on stderr what of it was stepped."""
    from specfleet.experiments.words.as_json import json_text
    from specfleet.experiments.words.pace import stepped_sentences
    from specfleet.experiments.words.run import run_facts, run_text
    from specfleet.experiments.words.width import say

    for sentence in stepped_sentences(this.folder):
        print(f"note: {sentence}", file=sys.stderr)
    if as_json:
        print(json_text(run_facts(this, rows)), flush=True)
    else:
        say(run_text(this, rows))
        sys.stdout.flush()


@app.command()
def check(file: File, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Validate an experiment, print its points and what fits in memory; run nothing."""
    from specfleet.experiments.run.check import check as checked
    from specfleet.experiments.words.as_json import json_text
    from specfleet.experiments.words.check import check_text
    from specfleet.experiments.words.width import say

    with plain_errors():
        found = checked(file, overrides or ())
    if as_json:
        print(json_text(found.facts()))
    else:
        say(check_text(found))
    if not found.fits:
        raise typer.Exit(2)


@app.command()
def explain(
    file: File,
    overrides: Overrides = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences decoding (default: 64, or what a step holds).")
    ] = None,
    context: Annotated[int, typer.Option(min=1, help="Cached tokens of each.")] = 2048,
    k: Annotated[int | None, typer.Option(min=0, help="Drafts a round (default: the file's).")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the step and its stairs, PNG or SVG.")] = None,
) -> None:
    """Show where one decoding step's time goes, with and without drafts."""
    from specfleet.experiments.run.explain import explain_pools
    from specfleet.experiments.words.explain import explain_text
    from specfleet.experiments.words.width import say

    with plain_errors():
        try:
            explained = explain_pools(file, overrides or (), batch, context, k)
        except ValueError as error:
            fail(str(error), 2)
        for at, (pool, said) in enumerate(explained.items()):
            say((("\n" if at else "") + f"pool {pool}: " if pool else "") + explain_text(said))
            if figure is not None:
                from specfleet.experiments.figures.explain import draw_explanation

                draw_explanation(said, figure.with_stem(f"{figure.stem}-{pool}") if pool else figure)


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="A B", help="Two runs of the same workload and seeds; or one.")
    ],
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE...", help="With one run: your server's own results of any tool, over its curves."
        ),
    ] = None,
    format_: ToolFormatName = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write the comparison as a page.")] = None,
) -> None:
    """Compare two runs request by request, with intervals; or a run with measured results."""
    if measured:
        _compare_measured(runs[0], [*measured, *runs[1:]], format_)
        return
    if len(runs) != 2:
        fail(f"compare takes two runs, not {len(runs)}; or one, and --measured FILE", 2)
    from specfleet.experiments.run.compare import NotComparable
    from specfleet.experiments.words.compare import compare_text
    from specfleet.experiments.words.width import say

    a, b = runs
    with plain_errors():
        try:
            say_stale(a, b)
            say(compare_text(a, b))
            if html is not None:
                from specfleet.experiments.page.compare import write_comparison

                print(write_comparison(a, b, html))
        except NotComparable as error:
            fail(str(error), 2)


def _compare_measured(run: Path, files: list[Path], format_: str | None) -> None:
    from specfleet.experiments.validate.measured import measured_command
    from specfleet.experiments.words.width import say

    with plain_errors():
        say_stale(run)
        text, drawn = measured_command(run, files, format_)
        say(text)
        for path in drawn:
            print(path)


@app.command()
def catalog(
    kind: Annotated[
        str | None, typer.Argument(help="models, drafters, accelerators, engines, workloads or acceptance.")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="One entry, with its source.")] = None,
) -> None:
    """List what can be named in an experiment: models, drafters, GPUs, engines, workloads, acceptance."""
    from specfleet.experiments.words.catalog import catalog_text

    with plain_errors():
        print(catalog_text(kind, name))


@app.command()
def schema() -> None:
    """Print the JSON schema of an experiment file, for editors."""
    import json

    from specfleet.experiments.load.starter import json_schema

    print(json.dumps(json_schema(), indent=1))


for _study in (
    init,
    plot,
    report,
    cli_studies.validate,
    cli_studies.calibrate,
    cli_studies.measure,
    cli_studies.theory,
    cli_studies.breakeven,
    cli_studies.plan,
):
    app.command()(_study)

app.add_typer(results, name="results")
app.add_typer(traces, name="trace")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the `specfleet` command."""
    # what imports make stays: looking through it for cycles again and again is 7 % of a short command
    gc.set_threshold(100_000)
    # pydantic looks through every installed distribution for plugins; nothing here is validated by one
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    with ended_alike():
        _run(
            lambda: app(arguments, prog_name=app.info.name), sys.argv[1:] if arguments is None else arguments
        )


def _run(command: Callable[[], object], arguments: Sequence[str]) -> None:
    from specfleet.experiments.words.width import fitting

    try:
        with fitting():
            command()
    except BrokenPipeError:
        sys.stderr.close()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if is_interrupt(error):
            sys.exit(130)
        from specfleet.experiments.cli.net import unforeseen

        message, code = unforeseen(error, arguments)
        print(message, file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    main()
