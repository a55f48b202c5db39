"""The pages of the documentation as data: their blocks, links and headings, and how a block is run.

A fenced block says what it is by its info string and its first line:

* any language, first line `# file: NAME`: a file, written before what follows it on the page;
* `yaml`, first line `# fragment of: BLOCK`: a part of that block (`experiment`: of the whole file);
* `console`: commands after `$ `, run in order in one folder a page; what follows a command is its output;
* `console unchecked`: run, and the output not compared (it has versions or times);
* `console no-run`: cannot run in a test; `test_docs.py` lists each with the reason;
* `console no-run shared`: as that, but runs where the measurements are;
* `python`: a cell of a notebook, run in one process a page; a `text output` block right after it is what it
  prints, the value of its last line included. Without one it prints nothing.

    python tests/helpers/docs_pages.py [PAGE.md]...     runs pages and writes the outputs into them
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
FENCE = "```"
CLIENT = Path(__file__).with_name("command_client.py")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: file name.
        info: what stands behind the opening fence.
        lines: between the fences.
        start: index of the opening fence in the page's lines.
    """

    page: str
    info: tuple[str, ...]
    lines: tuple[str, ...]
    start: int

    @property
    def language(self) -> str:
        """The first word of the info string."""
        return self.info[0] if self.info else ""

    @property
    def mark(self) -> tuple[str, str]:
        """("file", NAME) or ("fragment of", BLOCK) of the first line; two empty texts without one."""
        found = re.fullmatch(r"# (file|fragment of): (\S+)", self.lines[0] if self.lines else "")
        return (found[1], found[2]) if found else ("", "")

    @property
    def text(self) -> str:
        """The block as a file holds it."""
        return "\n".join(self.lines) + "\n"

    def __str__(self) -> str:
        return f"{self.page}:{self.start + 1}"


@dataclass(frozen=True)
class Command:
    """One command of a console block, or one Python cell, with the output that the page shows.

    Attributes:
        block: where it stands.
        text: what is run.
        output: lines.
        shown_in: the block with the output; None for a cell without.
    """

    block: Block
    text: str
    output: tuple[str, ...]
    shown_in: Block | None


def pages() -> list[Path]:
    """Returns README.md and the pages in docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page."""
    found: list[Block] = []
    inside: tuple[int, tuple[str, ...], list[str]] | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines()):
        if not line.startswith(FENCE):
            if inside:
                inside[2].append(line)
        elif inside:
            found.append(Block(page.name, inside[1], tuple(inside[2]), inside[0]))
            inside = None
        else:
            inside = (number, tuple(line.removeprefix(FENCE).split()), [])
    assert inside is None, f"{page.name}: a fence that does not close"
    return found


def commands(block: Block) -> list[Command]:
    """Returns the commands of a console block; a line that ends with a backslash goes on."""
    starts = [i for i, line in enumerate(block.lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"{block}: a console block starts with `$ `"
    found = []
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        lines = list(block.lines[start:end])
        text = [lines.pop(0).removeprefix("$ ")]
        while text[-1].endswith("\\"):
            text.append(lines.pop(0))
        found.append(Command(block, "\n".join(text), tuple(lines), block))
    return found


def cell(found: Sequence[Block], at: int) -> Command:
    """Returns the Python cell at a place among a page's blocks, with the output block after it."""
    after = found[at + 1] if at + 1 < len(found) else None
    shown = after if after and after.info == ("text", "output") else None
    return Command(found[at], found[at].text, shown.lines if shown else (), shown)


@cache
def command_server() -> str | None:
    """Starts a process from which commands are forked, which ends with this one; returns its socket, or None
    where the system does not tell when a process ends."""
    if not hasattr(os, "pidfd_open"):
        return None
    folder = tempfile.mkdtemp(prefix="commands-")
    server = subprocess.Popen(
        [sys.executable, str(CLIENT.with_name("command_server.py")), f"{folder}/socket"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None and server.stdout.read(1)
    atexit.register(shutil.rmtree, folder, True)
    atexit.register(server.kill)
    return f"{folder}/socket"


class Workshop:
    """A folder with the presets and a `specfleet` command, in which a page's commands run in order.

    Args:
        folder: below which it is made.
        measurements: those beside the repository, if they are there.
        served: whether commands are forked from one process that has imported them, and not started.
    """

    def __init__(self, folder: Path, measurements: Path | None = None, served: bool = False) -> None:
        self.folder = folder / "work"
        self.measurements = measurements
        self.folder.mkdir()
        for name in ("experiments", "tests"):
            (self.folder / name).symlink_to(ROOT / name)
        programs = folder / "bin"
        programs.mkdir()
        server = command_server() if served else None
        asks = f' -ISE "{CLIENT}" "{server}"' if server else " -m specfleet"
        for name, arguments in (("specfleet", asks), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
            program.chmod(0o755)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
        self.environment.pop("COLUMNS", None)
        if measurements:
            self.environment["SPECFLEET_SHARED"] = str(measurements)
        self._notebook: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._notebook is not None:
            self._notebook.kill()
            self._notebook.communicate()

    def run(self, command: Command) -> tuple[int, tuple[str, ...], str]:
        """Runs a command or cell; returns exit status, lines of stdout without trailing blanks, stderr."""
        if command.block.language == "python":
            return self._run_cell(command.text)
        done = subprocess.run(
            ["/bin/sh", "-c", command.text],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        return done.returncode, _lines(done.stdout), done.stderr

    def _run_cell(self, text: str) -> tuple[int, tuple[str, ...], str]:
        """Runs a cell in the page's one Python process."""
        if self._notebook is None:
            self._notebook = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("docs_cells.py"))],
                cwd=self.folder,
                env=self.environment | {"COLUMNS": "110"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._notebook.stdin and self._notebook.stdout
        self._notebook.stdin.write(json.dumps(text) + "\n")
        self._notebook.stdin.flush()
        printed, failure = json.loads(self._notebook.stdout.readline())
        return int(failure is not None), _lines(printed), failure or ""

    def steps(self, found: Sequence[Block]) -> Iterator[Command]:
        """Writes a page's files as they come, and yields the commands to run."""
        for at, block in enumerate(found):
            kind, name = block.mark
            if kind == "file":
                (self.folder / name).write_text(block.text, encoding="utf-8")
            elif block.language == "console" and self._runs(block):
                yield from commands(block)
            elif block.language == "python":
                yield cell(found, at)

    def _runs(self, block: Block) -> bool:
        return "no-run" not in block.info or ("shared" in block.info and self.measurements is not None)


def _lines(printed: str) -> tuple[str, ...]:
    return tuple(line.rstrip() for line in printed.rstrip().splitlines())


def rewritten(page: Path, workshop: Workshop) -> str:
    """Runs a page's commands and returns the page with what they print now."""
    lines = page.read_text(encoding="utf-8").splitlines()
    shown: dict[int, list[str]] = {}
    for command in workshop.steps(blocks(page)):
        status, output, said = workshop.run(command)
        assert status == 0, f"{command.block}: {command.text}: {said}"
        assert command.shown_in or not output, f"{command.block}: prints {output}; add a `text output` block"
        now = command.output if "unchecked" in command.block.info else output
        asked = f"$ {command.text}".split("\n") if command.block.language == "console" else []
        if command.shown_in:
            shown.setdefault(command.shown_in.start, []).extend([*asked, *now])
    for block in reversed(blocks(page)):
        if block.start in shown:
            lines[block.start + 1 : block.start + 1 + len(block.lines)] = shown[block.start]
    return "\n".join(lines) + "\n"


def main(names: Sequence[str]) -> None:
    """Rewrites the named pages, all if none is named."""
    shared = (ROOT / os.environ.get("SPECFLEET_SHARED", "../shared")).resolve()
    measurements = shared if shared.is_dir() else None
    for page in pages():
        if names and page.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder, Workshop(Path(folder), measurements) as workshop:
            page.write_text(rewritten(page, workshop), encoding="utf-8")
        print(page.name)


if __name__ == "__main__":
    main(sys.argv[1:])
