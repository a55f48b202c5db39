"""What a user brings to `init` and `run`: a command line, a file of one, stdin, a preset."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specfleet.experiments.cli.base import fail, plain_errors
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults

Line = Annotated[
    str | None,
    typer.Option("--vllm", help="Run this command line: text, a file of it, or - for stdin."),
]
Gpu = Annotated[str | None, typer.Option("--gpu", help="GPU for a command line (catalog accelerators).")]
Engine = Annotated[
    str | None,
    typer.Option("--engine", help="Build for a command line (catalog engines; the newest if not given)."),
]
Models = Annotated[
    list[Path] | None,
    typer.Option("--models", help="Folder of config.json files: org/name/config.json or org--name.json."),
]


def text_of_line(given: str) -> tuple[str, Path]:
    """What was given as a command line, and the folder that its paths are seen from.

    Raises:
        InputFaults: one word that is no file: nothing can be started by it.
    """
    if given == "-":
        return sys.stdin.read(), Path()
    try:
        file = Path(given)
        if file.is_file():
            return file.read_text(encoding="utf-8"), file.parent
    except (OSError, ValueError):
        pass
    if len(given.split()) == 1:
        message = f"{given.strip()} is no file that can be read as text, and no command line"
        raise InputFaults([Fault(COMMAND_LINE, 0, "", message)])
    return given, Path()


def init(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The file to write.")] = None,
    line: Annotated[
        str | None,
        typer.Option("--from", help="Begin with this command line: text, a file of it, or - for stdin."),
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="Begin with a shipped experiment.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the shipped experiments.")] = False,
    gpu: Gpu = None,
    engine: Engine = None,
    models: Models = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --from: print the resolved settings, write nothing.")
    ] = False,
) -> None:
    """Write an experiment: a commented starter, a shipped one, or what a `vllm serve` line says."""
    from specfleet.experiments.load.presets import preset_file, preset_text
    from specfleet.experiments.load.starter import write_new, write_starter

    with plain_errors():
        if listed:
            print(preset_text())
            return
        if line is not None and as_json:
            print(json.dumps(_resolved(line, gpu, models or ()), indent=1))
            return
        target = file or Path("experiment.yaml" if preset is None else f"{preset}.yaml")
        try:
            if line is not None:
                from specfleet.experiments.load.from_line import translate

                text, here = text_of_line(line)
                this = translate(text, gpu=gpu, folders=models or (), here=here, engine=engine)
                write_new(target, this.text())
                for note in this.notes:
                    print(f"note: {note}", file=sys.stderr)
            elif preset is not None:
                write_new(target, preset_file(preset).read_text(encoding="utf-8"))
            else:
                write_starter(target)
        except FileExistsError:
            fail(f"{target} exists already; name another file", 2)
    print(f"wrote {target}; next: specfleet check {target}, then specfleet run {target}")


def _resolved(line: str, gpu: str | None, models: Sequence[Path]) -> dict[str, object]:
    """The settings of a line, as the engine resolves them."""
    from specfleet.experiments.load.from_line import resolved_settings

    text, here = text_of_line(line)
    return resolved_settings(text, gpu=gpu, folders=models, here=here)


def experiment_from(
    file: Path | None,
    line: str | None,
    overrides: Sequence[str],
    gpu: str | None,
    models: Sequence[Path],
    engine: str | None,
) -> tuple[Path | dict[str, object], list[str]]:
    """The experiment that `run` is given, and its overrides: a file, a preset, or a command line.

    With a command line the first argument is a change, not a file.
    """
    if line is None:
        if file is None:
            fail("name an experiment file, a preset (specfleet init --list), or --vllm 'vllm serve ...'", 2)
            raise AssertionError
        return file, list(overrides)
    from specfleet.experiments.load.from_line import translate

    text, here = text_of_line(line)
    if file is not None and "=" not in str(file):
        fail(f"{file} and --vllm are two experiments; give one", 2)
    this = translate(text, gpu=gpu, folders=models, here=here, engine=engine)
    for note in this.notes:
        print(f"note: {note}", file=sys.stderr)
    first = [] if file is None else [str(file)]
    return {"name": "vllm-line", **this.data}, [*first, *overrides]
