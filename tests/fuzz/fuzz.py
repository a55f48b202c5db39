"""Hands the product thousands of wrong files: no traceback, only documented exits, none slow or large.

    python tests/fuzz/fuzz.py --minutes 5 [--seed 0] [--only check|readers] [--keep FOLDER]
    python tests/fuzz/fuzz.py --minutes 90 --only check --first 0 --inputs 200000

What fails is kept with its number; the same seed and number make the same input. Time is CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import pickle
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import mutations
import yaml
from readers import Reader, readers
from typer.main import get_command

from specfleet.experiments.cli.main import app
from specfleet.experiments.load.config import load
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import counted_requests, workload_spec
from specfleet.experiments.run.runner import run_task, tasks

MOST_CPU_S = 2.0
STOPPED_AFTER_S = 20.0
MOST_BYTES = 500 << 20
RUN_TOKENS = 6_000
"""Expected output of a point that is still run, tokens."""
COMMAND = get_command(app)
"""The command line, put together once."""


class TooLong(BaseException):
    """Work that did not end by itself."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooLong


def guarded(work: Callable[[], str]) -> tuple[str, str]:
    """Returns the outcome of some work, and the traceback if it was none of those allowed."""
    begun, held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    before = signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, STOPPED_AFTER_S)
    said = ""
    try:
        outcome = work()
    except TooLong:
        outcome, said = "BAD no end", traceback.format_exc()
    except Exception as error:
        outcome, said = f"BAD {type(error).__name__}", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    spent = time.process_time() - begun
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held)
    if not outcome.startswith("BAD") and spent > MOST_CPU_S:
        outcome, said = "BAD slow", f"{spent:.1f} s after {outcome}"
    elif not outcome.startswith("BAD") and grown > MOST_BYTES:
        outcome, said = "BAD large", f"{grown / (1 << 20):.0f} MiB after {outcome}"
    return outcome, said


def exit_of(arguments: list[str]) -> int:
    """The exit status of a command run in this process; exceptions that the last net would catch leave it."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            COMMAND(arguments)
        except SystemExit as end:
            if end.code == 2 and not (err.getvalue() + out.getvalue()).strip():
                raise AssertionError("exit 2 without a word") from None
            return int(end.code or 0)
    return 0


class Experiments:
    """Mutated experiments and overrides through `check`, and what it accepts through a tiny run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "x.yaml"
        self._sound = [mutations.written(data) for data in mutations.presets()]
        self._data = [pickle.dumps(yaml.safe_load(sound)) for sound in self._sound]

    def made(self, chance: random.Random) -> tuple[bytes, list[str]]:
        """One input: the file, and what stands behind it."""
        number = chance.randrange(len(self._sound))
        sound, kind = self._sound[number], chance.random()
        if kind < 0.2:
            return mutations.content(sound, chance), []
        if kind < 0.4:
            return sound, [mutations.override(chance) for _ in range(chance.choice((1, 1, 2)))]
        data: Any = pickle.loads(self._data[number])
        mutations.structure(data, chance)
        return mutations.written(data), []

    def tried(self, made: tuple[bytes, list[str]]) -> str:
        """The outcome of one input."""
        code = self.checked(*made)
        if code not in (0, 2):
            return f"BAD exit {code}"
        return "check refuses" if code else self._run(self._path, made[1])

    def checked(self, content: bytes, overrides: list[str]) -> int:
        """The exit status of `check`."""
        self._path.write_bytes(content)
        return exit_of(["check", str(self._path), *overrides])

    def _run(self, path: Path, overrides: list[str]) -> str:
        """What check accepts must run; the first point, if it is a small one."""
        point = expand(load(path, overrides).experiment)[:1]
        config = point[0].config
        if config.workload.trace is not None or config.deployment.replicas > 8:
            return "accepted, not run"
        n = counted_requests(config.workload)
        spec = workload_spec(config.workload)
        if n > 200 or (n + spec.num_warmups) * (spec.output.mean + spec.input.mean / 10) > RUN_TOKENS:
            return "accepted, not run"
        with tempfile.TemporaryDirectory() as folder:
            for task in tasks(point, 1, 0, Path(folder)):
                run_task(task)
        return "accepted, ran"


class Files:
    """Mutated files of measurements through their readers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers = readers(folder)

    def made(self, chance: random.Random) -> tuple[bytes, list[str]]:
        """One input: the file, and its kind."""
        name = chance.choice(list(self._readers))
        reader = self._readers[name]
        if reader.suffix == ".json" and chance.random() < 0.7:
            data = json.loads(reader.sound)
            mutations.structure(data, chance)
            return json.dumps(data, indent=1).encode("utf-8", "backslashreplace"), [name]
        return mutations.content(reader.sound, chance), [name]

    def tried(self, made: tuple[bytes, list[str]]) -> str:
        """The outcome of one input."""
        content, (name,) = made
        reader: Reader = self._readers[name]
        path = self._folder / f"x{reader.suffix}"
        path.write_bytes(content)
        try:
            reader.read(path)
        except reader.expected as error:
            if not str(error).strip():
                raise AssertionError("refused without a word") from error
            return f"{name} refused"
        return f"{name} read"


def fuzz(
    kind: Experiments | Files, seed: int, numbers: range, until: float, keep: Path | None
) -> tuple[Counter[str], list[str]]:
    """Tries inputs by number until a time; returns outcomes, and what was wrong with those that fail."""
    outcomes: Counter[str] = Counter()
    failures = []
    for number in numbers:
        if time.monotonic() > until:
            break
        made = kind.made(random.Random(f"{seed} {type(kind).__name__} {number}"))
        outcome, said = guarded(lambda made=made: kind.tried(made))  # type: ignore[misc]
        outcomes[outcome] += 1
        if outcome.startswith("BAD"):
            failures.append(f"{type(kind).__name__} {number}: {outcome}: {made[1]}\n{said}")
            if keep is not None:
                (keep / f"{type(kind).__name__}-{number}").write_bytes(made[0])
                (keep / f"{type(kind).__name__}-{number}.txt").write_text(failures[-1])
    return outcomes, failures


def main() -> int:
    """Runs the command; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--inputs", type=int, default=1 << 62, help="most inputs of a kind")
    parser.add_argument("--only", choices=("check", "readers"))
    parser.add_argument("--keep", type=Path, help="folder for inputs that fail")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        kinds: list[Experiments | Files] = []
        kinds += [Experiments(Path(name))] if asked.only != "readers" else []
        kinds += [Files(Path(name))] if asked.only != "check" else []
        for kind in kinds:
            until = time.monotonic() + 60.0 * asked.minutes / len(kinds)
            numbers = range(asked.first, asked.first + asked.inputs)
            outcomes, failures = fuzz(kind, asked.seed, numbers, until, asked.keep)
            print(f"{type(kind).__name__}: {sum(outcomes.values())} inputs", flush=True)
            for outcome, n in sorted(outcomes.items()):
                print(f"  {n:7} {outcome}")
            for text in failures[:20]:
                print(text)
            wrong += len(failures)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
