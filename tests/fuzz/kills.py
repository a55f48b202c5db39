"""Kills commands at random moments and looks at what is left.

    python tests/fuzz/kills.py N [--seed S] [--kinds fresh,report] [--writes]

Every command runs in a process of its own, forked from this one. It is killed after so many writes to its
folder, renames and removals among them, or after so many seconds. Then:

* nothing of its session is left running;
* what calls itself whole has the bytes of an undisturbed run;
* gone on with (or done again, where there is no --resume) it writes the bytes of an undisturbed run.
"""

from __future__ import annotations

import argparse
import atexit
import io
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

from specfleet.__main__ import main
from specfleet.experiments.cli.main import main as command_line
from specfleet.experiments.run.folder import located, manifest_of

RUN = """
name: x
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  max_model_len: 4096
  num_gpu_blocks_override: 20000
  speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3,
    max_model_len: 4096}
acceptance: {by_position: [0.7, 0.5, 0.35], concentration: 18}
workload: {input_len: 300, output_len: 20, max_concurrency: 8, num_prompts: 40}
sweep: {axes: {serve.max_num_seqs: [16, 32, 64]}}
"""
PLAN = """
name: x
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  max_model_len: 4096
workload: {input_len: 300, output_len: 20, request_rate: 5, num_prompts: 60}
slo: {p99_tpot_ms: 50, p99_ttft_ms: 2000}
plan: {candidates: {gpu: [h100-sxm], tensor_parallel_size: [1]}}
"""
WRITES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink"}
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
BY_TIME = ("jobs 2", "cluster")
"""Kinds whose processes write, each by itself, so that no count of writes names a moment."""
MOST_S = 120.0
"""After which a command counts as hung."""

Content = dict[str, bytes]


@dataclass
class Kind:
    """A way to use the product.

    Attributes:
        name: of the way.
        command: which is killed.
        again: which goes on with it or does it again.
        folder: whose content counts.
        files: patterns of the content.
        before: what was done in the folder earlier.
        seconds: how long the undisturbed command takes, `writes` how often it writes; set by a first one.
    """

    name: str
    command: Sequence[str]
    again: Sequence[str]
    folder: str
    files: Sequence[str]
    before: Sequence[Sequence[str]] = ()
    seconds: float = 0.0
    writes: int = 0
    reference: Content = field(default_factory=dict)

    def content(self, folder: Path) -> Content:
        """Returns the files that count, by path in the folder."""
        found = (path for pattern in self.files for path in located(folder / self.folder).glob(pattern))
        return {str(path.relative_to(located(folder / self.folder))): path.read_bytes() for path in found}


OPTIONS = ("-q", "--no-plots", "--jobs", "1")
OTHER = "workload.num_prompts=30"
OF_A_RUN = ("summary.csv", "resolved.yaml", "experiment.yaml", "points/*/*")
FRESH = ("run", "run.yaml", *OPTIONS)
IN_PLACE = (*FRESH, "--out", "mine")
PLANNED = ("plan", "plan.yaml", *OPTIONS)
SEARCHED = ("breakeven", "run.yaml", "sweep={}", "--tolerance", "0.2", *OPTIONS)


def kinds() -> dict[str, Kind]:
    """Returns every way, by name."""
    jobs = (*FRESH[:-1], "2")
    cluster = (*jobs, "--cluster", "local")
    found = (
        Kind("fresh", FRESH, (*FRESH, "--resume"), "results/x", OF_A_RUN),
        Kind("next number", FRESH, (*FRESH, "--resume"), "results/x", OF_A_RUN, [(*FRESH, OTHER)]),
        Kind("in place", IN_PLACE, (*IN_PLACE, "--resume"), "mine", OF_A_RUN, [(*IN_PLACE, OTHER)]),
        Kind("resumed", (*FRESH, "--resume"), (*FRESH, "--resume"), "results/x", OF_A_RUN, [("cut", *FRESH)]),
        Kind("jobs 2", jobs, (*jobs, "--resume"), "results/x", OF_A_RUN),
        Kind("cluster", cluster, (*FRESH, "--resume"), "results/x", OF_A_RUN),
        Kind("plan", PLANNED, (*PLANNED, "--resume"), "results/x-plan", ("plan.json", "rollout.md")),
        Kind("breakeven", SEARCHED, SEARCHED, "results/x-breakeven", ("breakeven.*",)),
        Kind(
            "report", ("report", "results/x"), ("report", "results/x"), "results/x", ("report.html",), [FRESH]
        ),
    )
    return {kind.name: kind for kind in found}


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, or minus its signal; what it said; its seconds and writes."""

    code: int
    said: str
    seconds: float
    writes: int


def start(folder: Path, words: Sequence[str], after: int | None = None, number: int = 0) -> int:
    """Starts a command in a folder, in a session of its own; returns its process.

    Args:
        folder: to work in.
        words: the command.
        after: writes after which it sends itself a signal; None is never.
        number: of the signal.
    """
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs this behind
        out = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1) for n in (1, 2))
        sys.addaudithook(_counting(after, number))
        code = _ended(words)
    except KeyboardInterrupt:  # before the command began, or after its end
        code = 130
    finally:
        os._exit(code)


def _ended(words: Sequence[str]) -> int:
    """Runs a command to the end of its process; returns its exit code."""
    sys.argv = ["specfleet", *words]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    return 0


def _counting(after: int | None, number: int) -> Callable[[str, tuple[object, ...]], None]:
    """Counts the writes below the working folder into the file `writes`, and sends the signal."""
    count = itertools.count(1)
    tally = os.open("writes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        opened = event == "open" and isinstance(arguments[1], str) and arguments[1][0] in "wxa"
        if not opened and event not in WRITES:
            return
        os.write(tally, b".")
        if next(count) == after:
            os.kill(os.getpid(), number)

    return hook


def wait(process: int, folder: Path, began: float, until_s: float | None, number: int = 0) -> Ended:
    """Waits for a command, kills it at its moment, and whatever is left of it once it hangs."""
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        spent = time.monotonic() - began
        if done:
            break
        if until_s is not None and spent >= until_s:
            os.kill(process, number)
            until_s = None
        if spent > MOST_S:
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.002)
    said, tally = ((folder / name) for name in ("said", "writes"))
    for path in (said, tally):
        path.touch()  # killed before it began
    ended = Ended(os.waitstatus_to_exitcode(status), said.read_text(), spent, tally.stat().st_size)
    for path in (said, tally):
        path.unlink()
    return ended


def whole(folder: Path, words: Sequence[str]) -> Ended:
    """Runs a command to its end."""
    return wait(start(folder, words), folder, time.monotonic(), None)


def orphans(session: int) -> list[int]:
    """Returns the processes of a session that are there, given ten seconds to end."""
    until = time.monotonic() + 10.0
    while (left := _session(session)) and time.monotonic() < until:
        time.sleep(0.02)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return left


def _session(session: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def ready(kind: Kind, folder: Path) -> None:
    """Makes a folder in which the kind's command can begin."""
    folder.mkdir()
    (folder / "run.yaml").write_text(RUN)
    (folder / "plan.yaml").write_text(PLAN)
    for words in kind.before:
        cut = words[0] == "cut"
        ended = whole(folder, words[1:] if cut else words)
        assert ended.code == 0, ended.said
        if cut:
            run = located(folder / kind.folder)
            shutil.rmtree(sorted(run.glob("points/*"))[-1])
            text = (run / "manifest.json").read_text()
            (run / "manifest.json").write_text(text.replace('"whole": true', '"whole": false'))


def warm_up(root: Path) -> None:
    """Runs two commands in this process: those forked from it find catalogues read and prices made."""
    (root / "warm").mkdir()
    (root / "warm" / "run.yaml").write_text(RUN)
    with chdir(root / "warm"), redirect_stdout(io.StringIO()):
        for words in (FRESH, ("report", "results/x")):
            with suppress(SystemExit):
                command_line([*words])


def measure(kind: Kind, root: Path) -> None:
    """Runs a kind undisturbed and keeps what it wrote."""
    folder = root / f"undisturbed {kind.name}"
    ready(kind, folder)
    ended = whole(folder, kind.command)
    assert ended.code == 0, ended.said
    kind.seconds, kind.writes, kind.reference = ended.seconds, ended.writes, kind.content(folder)
    assert kind.reference


def killed(kind: Kind, root: Path, name: str, moment: int | float) -> str:
    """Kills a kind at a moment; returns what became of it, `fault: ..` where something is not as it must be.

    Args:
        kind: measured.
        root: where folders are made.
        name: of the signal.
        moment: writes (an int) or seconds.
    """
    folder = root / f"{kind.name} {name} {moment}"
    shutil.rmtree(folder, ignore_errors=True)
    ready(kind, folder)
    number = getattr(signal, name)
    began = time.monotonic()
    writes, seconds = (moment, None) if isinstance(moment, int) else (None, moment)
    process = start(folder, kind.command, writes, number)
    ended = wait(process, folder, began, seconds, number)
    found = _judged(kind, folder, ended, orphans(process))
    if not found.startswith("fault"):
        shutil.rmtree(folder)
    return found


def _judged(kind: Kind, folder: Path, ended: Ended, left: Sequence[int]) -> str:
    if left:
        return f"fault: {len(left)} processes left"
    if (
        ended.code not in (0, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
        or "Traceback" in ended.said
    ):
        return f"fault: exit {ended.code}: {ended.said[-300:]}"
    place = located(folder / kind.folder)
    manifest = manifest_of(place) if place.is_dir() else None
    says_whole = manifest is not None and manifest.get("whole") is True
    stays = says_whole and _of_before(kind, folder, place)
    if kind.name == "report":
        if kind.content(folder) not in ({}, kind.reference):
            return "fault: half a page"
    elif says_whole and not stays and kind.content(folder) != kind.reference:
        return "fault: taken for whole"
    elif kind.files == OF_A_RUN and not says_whole and whole(folder, ("report", kind.folder)).code == 0:
        return "fault: reported"
    again = whole(folder, kind.command if stays or _nothing_begun(kind, folder) else kind.again)
    if again.code != 0 or "Traceback" in again.said:
        return f"fault: not gone on with: exit {again.code}: {again.said[-300:]}"
    if kind.content(folder) != kind.reference:
        return "fault: other bytes"
    return "was done already" if ended.code == 0 else "whole already" if says_whole else "gone on with"


def _of_before(kind: Kind, folder: Path, place: Path) -> bool:
    """Whether what is there is, whole and as it was, what was run before the command that was killed."""
    if kind.name == "next number":
        return place.name == "1"
    same = "resolved.yaml"
    return kind.name == "in place" and kind.content(folder).get(same) != kind.reference[same]


def _nothing_begun(kind: Kind, folder: Path) -> bool:
    return not (folder / kind.folder).exists()


def campaign(
    count: int, seed: int, names: Sequence[str] = (), writes_only: bool = False
) -> list[tuple[str, str, str]]:
    """Kills so many commands, the kinds and signals in turn, the moments at random.

    Args:
        count: of kills.
        seed: of the moments.
        names: of kinds; none is all.
        writes_only: whether moments are counts of writes, the same wherever this is run.

    Returns:
        Kind, signal and what became of it, a row a kill.
    """
    rng = random.Random(seed)
    found = []
    root = tempfile.mkdtemp(prefix="kills-")  # no object that a forked command would clean up at its end
    try:
        warm_up(Path(root))
        every = [kind for name, kind in kinds().items() if not names or name in names]
        for kind in every:
            measure(kind, Path(root))
        for turn in range(count):
            kind, name = every[turn % len(every)], SIGNALS[turn // len(every) % len(SIGNALS)]
            by_time = not writes_only and (kind.name in BY_TIME or rng.random() < 0.5)
            moment = rng.uniform(0.0, 1.05 * kind.seconds) if by_time else rng.randint(1, kind.writes)
            found.append((kind.name, name, killed(kind, Path(root), name, moment)))
            if found[-1][2].startswith("fault"):
                print(*found[-1], moment, flush=True)
    finally:
        shutil.rmtree(root)
    return found


def table(found: Sequence[tuple[str, str, str]]) -> str:
    """Returns the outcomes, a row a kind and signal."""
    counted = Counter(found)
    pairs = dict.fromkeys((kind, name) for kind, name, _ in found)
    lines = []
    for kind, name in pairs:
        outcomes = ", ".join(f"{n} {what}" for (k, s, what), n in counted.items() if (k, s) == (kind, name))
        lines.append(f"{kind:12} {name:8} {outcomes}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--writes", action="store_true")
    asked = parser.parse_args()
    outcomes = campaign(asked.count, asked.seed, [*filter(None, asked.kinds.split(","))], asked.writes)
    faults = sum(what.startswith("fault") for *_, what in outcomes)
    print(table(outcomes))
    print(f"{len(outcomes)} kills, {faults} faults")
    sys.exit(bool(faults))
