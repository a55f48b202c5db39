"""Work in forked processes: how it ended, what it told, how much CPU it took."""

from __future__ import annotations

import math
import os
import pickle
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_S = 0.01
HANGS_S, HANGS = 60.0, 10.0
"""A test hangs after so many seconds on the clock, and so many times those that it should take."""
SURVIVED, NOTICED, UNCHANGED, DIED = 0, 1, 2, 3
NO_LIVING = "no living function changed"
_said: list[int] = []


class UnchangedError(Exception):
    """No living function was changed by a mutant."""


def cpu_s() -> float:
    """Returns the CPU seconds of this process and of those that it waited for."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def begin(name: str, limit_s: float, wall_s: float = math.inf) -> None:
    """Says, in a forked process, which test begins, and ends the process if it takes too long.

    Args:
        name: of the test.
        limit_s: CPU seconds of this process that it may take.
        wall_s: seconds on the clock: one that waits for what never comes uses no CPU.
    """
    if _said:
        os.write(_said[0], name.encode() + b"\n")
    signal.setitimer(signal.ITIMER_REAL, wall_s if wall_s < math.inf else 0.0)
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime + limit_s), hard))


def _fork(work: Callable[[int], int], wall_s: float) -> tuple[int, bytes]:
    """Does some work in a process of its own, in silence.

    Returns:
        Its status as `os.waitpid` has it, and what it wrote.
    """
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        status = DIED
        try:
            os.setpgid(0, 0)
            os.close(out)
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silent, stream)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            status = work(into)
        finally:
            os._exit(status)
    os.close(into)
    os.set_blocking(out, False)
    said, end_s, status = b"", time.monotonic() + wall_s, 0
    while True:
        said += _rest(out)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end_s:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    with suppress(ProcessLookupError):  # what it started and did not wait for
        os.killpg(pid, signal.SIGKILL)
    while more := _rest(out):
        said += more
    os.close(out)
    return status, said


def _rest(pipe: int) -> bytes:
    try:
        return os.read(pipe, 1 << 20)
    except BlockingIOError:
        return b""


def ends(work: Callable[[], bool], wall_s: float) -> str:
    """Returns how the tests of a mutant ended: `survived`, or `killed` and by which test.

    `killed (hangs)` is one that was still there after its seconds on the clock.
    """

    def inside(pipe: int) -> int:
        _said[:] = [pipe]
        try:
            return NOTICED if work() else SURVIVED
        except UnchangedError:
            return UNCHANGED

    status, said = _fork(inside, wall_s)
    last = said.decode(errors="replace").strip().rpartition("\n")[2] or "collection"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return f"killed (hangs) by {last}"
    if os.WIFSIGNALED(status):
        return f"killed (too long or too large) by {last}"
    code = os.WEXITSTATUS(status)
    if code == SURVIVED:
        return "survived"
    return f"survived: {NO_LIVING}" if code == UNCHANGED else f"killed by {last}"


def told(work: Callable[[], Any], limit_s: float) -> Any:
    """Returns what some work returns in a process of its own; None if it took longer or died."""

    def inside(pipe: int) -> int:
        begin("", limit_s, max(HANGS_S, HANGS * limit_s))
        answer = pickle.dumps(work())
        os.set_blocking(pipe, True)
        with os.fdopen(pipe, "wb") as stream:
            stream.write(answer)
        return 0

    status, said = _fork(inside, 60.0 + 40.0 * limit_s)
    return pickle.loads(said) if not status and said else None


def alone(work: Callable[[], None]) -> None:
    """Does some work in a process of its own, seen and waited for."""
    pid = os.fork()
    if not pid:
        status = DIED
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    os.waitpid(pid, 0)


def replace(path: Path, content: bytes) -> None:
    """Writes a file beside itself first."""
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.replace(path)
