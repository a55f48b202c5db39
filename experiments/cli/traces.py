"""`specfleet trace FILE` and `specfleet trace fit FILE`: recorded traffic looked at, replayed, imitated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from specfleet.experiments.cli.base import fail, plain_errors


class _ShowFirst(TyperGroup):
    """`trace FILE` is `trace show FILE`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Puts the command in front of a file."""
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


traces = typer.Typer(
    cls=_ShowFirst,
    help="Say what a trace file holds (trace FILE), or imitate it by a law (trace fit FILE).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace: CSV, JSON, JSONL or Parquet, gzip too.")]
Form = Annotated[
    str | None, typer.Option("--format", help="How it is written; as its keys say, if left out.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Rows to keep.")]
Columns = Annotated[
    str | None, typer.Option(help="arrival_s=COLUMN,input_tokens=COLUMN,output_tokens=COLUMN and so on.")
]
TimeUnit = Annotated[str | None, typer.Option(help="Of arrival_s: s, ms, us, ns or iso.")]
BlockSize = Annotated[int | None, typer.Option(help="Tokens of a block of hash_ids.")]
Characters = Annotated[float | None, typer.Option(help="For a file that holds text.")]
OnReset = Annotated[str | None, typer.Option(help="error, append or sort.")]
Ties = Annotated[str | None, typer.Option(help="keep or spread.")]
Turns = Annotated[
    str | None, typer.Option(help="arrivals, or after_answer: a turn waits for the answer before it.")
]
PauseS = Annotated[float | None, typer.Option(help="Seconds before turns whose pause is not recorded.")]
Context = Annotated[str | None, typer.Option(help="Of turns: recorded or accumulate.")]


def _asked(
    columns: str | None,
    time_unit: str | None,
    block_size: int | None,
    characters_per_token: float | None,
    on_reset: str | None,
    ties: str | None,
) -> dict[str, object]:
    """How a file is read, by the keys of `workload.trace`."""
    mapped = dict(one.partition("=")[::2] for one in columns.split(",")) if columns else None
    asked = {
        **{"columns": mapped, "time_unit": time_unit, "block_size": block_size},
        **{"characters_per_token": characters_per_token, "on_reset": on_reset, "ties": ties},
    }
    return {name: value for name, value in asked.items() if value is not None}


def _known(form: str | None) -> None:
    from specfleet.experiments.schema.faults import did_you_mean
    from specfleet.workloads.traces.formats import TRACE_FORMATS

    if form is not None and form not in TRACE_FORMATS:
        fail(f"--format {form} is not supported; {did_you_mean(form, TRACE_FORMATS)}", 2)


@traces.command()
def show(
    file: File,
    form: Form = None,
    speed: Annotated[float, typer.Option(help="Replay this much faster.")] = 1.0,
    limit: Limit = None,
    columns: Columns = None,
    time_unit: TimeUnit = None,
    block_size: BlockSize = None,
    characters_per_token: Characters = None,
    on_reset: OnReset = None,
    ties: Ties = None,
    turns: Turns = None,
    pause_s: PauseS = None,
    context: Context = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw rate, lengths and dispersion, PNG or SVG.")
    ] = None,
) -> None:
    """Say what a trace file holds, what was dropped and why, how bursty it is; the YAML of a replay."""
    from specfleet.experiments.words.trace import replay_yaml
    from specfleet.workloads.traces.formats import read_trace
    from specfleet.workloads.traces.statistics import statistics_text

    _known(form)
    with plain_errors():
        asked = _asked(columns, time_unit, block_size, characters_per_token, on_reset, ties)
        waits = {"turns": turns, "pause_s": pause_s, "context": context}
        asked |= {name: value for name, value in waits.items() if value is not None}
        found = read_trace(file, form, speed=speed, limit=limit, **asked)
        print(found.report.render())
        print(statistics_text(found))
        print(f"\nTo replay it:\n{replay_yaml(file, form, speed, limit, asked, found.report.timed)}")
        print(f"\nTo imitate it: specfleet trace fit {file}")
        if figure is not None:
            from specfleet.experiments.figures.traffic import draw_traffic

            draw_traffic(found, figure)


@traces.command()
def fit(
    file: File,
    out: Annotated[Path | None, typer.Option(help="The file to write (default: NAME-fit.yaml).")] = None,
    on: Annotated[
        Path | None, typer.Option(metavar="EXPERIMENT", help="Hold it against the replay on this engine.")
    ] = None,
    form: Form = None,
    limit: Limit = None,
    columns: Columns = None,
    time_unit: TimeUnit = None,
    block_size: BlockSize = None,
    characters_per_token: Characters = None,
    on_reset: OnReset = None,
    ties: Ties = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw rate, lengths and dispersion, PNG or SVG.")
    ] = None,
) -> None:
    """Write an experiment whose traffic imitates a trace, and say how well it does."""
    from specfleet.experiments.run.files import write_whole
    from specfleet.experiments.run.imitated import experiment_of, held_against
    from specfleet.experiments.schema.faults import MAPPING
    from specfleet.experiments.schema.given import plain
    from specfleet.experiments.words.trace import fit_lines, fit_yaml, held_text, lost, replay_block
    from specfleet.workloads.traces.formats import read_trace
    from specfleet.workloads.traces.imitation import imitate

    _known(form)
    with plain_errors():
        asked = _asked(columns, time_unit, block_size, characters_per_token, on_reset, ties)
        found = read_trace(file, form, limit=limit, **asked)
        law = imitate(found)
        lines = fit_lines(law, lost(found))
        print("\n".join(lines))
        if law.request_rate is not None:
            block = replay_block(file.resolve(), form, 1.0, limit, asked, found.report.timed)
            replay = {key: plain(value, MAPPING, f"workload.{key}") for key, value in block.items()}
            held = held_text(*held_against(replay, law, on, len(found.requests)))
            print(f"\n{held}")
            lines += ["", *held.splitlines()]
        target = out or Path(f"{file.name.partition('.')[0]}-fit.yaml")
        source = f"{file.name} ({len(found.requests):,} requests)"
        text = fit_yaml(experiment_of(law, on), source, lines)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, lambda path: path.write_text(text, encoding="utf-8"))
        print(f"\nwritten: {target}")
        if figure is not None:
            from specfleet.experiments.figures.traffic import draw_traffic

            draw_traffic(found, figure, law)
