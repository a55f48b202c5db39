"""What all commands share: the arguments they have in common, and errors without tracebacks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def _file_or_preset(given: Path | None) -> Path | None:
    from specfleet.experiments.load.presets import file_or_preset

    return given if given is None else file_or_preset(given)


_FILE = typer.Argument(
    metavar="FILE",
    help="An experiment YAML, or a preset's name (specfleet init --list).",
    show_default=False,
    callback=_file_or_preset,
)
File = Annotated[Path, _FILE]
FileOrLine = Annotated[Path | None, _FILE]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key=value]...", help="Changes to the file, for example serve.max_num_seqs=64."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes (default: all cores).")]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Simulate on the workers of this Dask scheduler, HOST:PORT; or local (docs/scale.md).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
ToolFormatName = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="Of results: vllm-bench, sglang-bench, guidellm, aiperf, llmperf, inferencex, bench-table, "
        "prometheus, vllm-log, sglang-log, llamacpp-log, trtllm-log (default: told from what a file holds).",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


def fail(message: str, code: int) -> None:
    """Ends the command with a message on stderr."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turns a user's mistake into messages and exit 2, whatever module noticed it.

    A lost worker, or a disk that takes no more, is exit 1.
    """
    from specfleet.experiments.run.processes import WorkerLost
    from specfleet.experiments.schema.faults import UserError
    from specfleet.experiments.words.mistakes import as_user_errors

    try:
        with as_user_errors():
            yield
    except WorkerLost as lost:
        fail(str(lost), 1)
    except UserError as error:
        fail(str(error), 2)
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
