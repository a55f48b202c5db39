"""Who is at work in a folder: a file with process and host, there from the first write to the last."""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path

from specfleet.experiments.run.files import FolderFault, naming

NAME = ".specfleet-lock"


@dataclass(frozen=True)
class LockHolder:
    """A process at work in a folder.

    Attributes:
        process: its number.
        host: the machine's name.
        started: when it began, as the system counts; empty where the system does not say. Another process
            that got the same number later began at another time.
    """

    process: int
    host: str
    started: str

    @classmethod
    def me(cls) -> LockHolder:
        """Returns the calling process."""
        return cls(os.getpid(), socket.gethostname(), _started(os.getpid()))

    @property
    def here(self) -> bool:
        """Whether it is of this machine."""
        return self.host == socket.gethostname()

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended; a process of another machine never is."""
        if not self.here or os.name == "nt":
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            return False
        return bool(self.started) and self.started != _started(self.process)


def _started(process: int) -> str:
    """When a process began, from /proc; empty for one that ended and was not yet collected."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def holder(folder: Path) -> LockHolder | None:
    """Returns the process that is at work in a folder; None if none is."""
    found = _read(folder / NAME)
    return found if found is not None and not found.gone else None


def _read(path: Path) -> LockHolder | None:
    try:
        found = json.loads(path.read_text())
        return LockHolder(int(found["process"]), str(found["host"]), str(found["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Lock:
    """Holds a folder for the calling process until it is released, is forgotten, or the process ends.

    Raises:
        FolderFault: another process is at work there.
    """

    def __init__(self, folder: Path) -> None:
        path, mine = folder / NAME, LockHolder.me()
        beside = path.with_name(f"{NAME}.{mine.process}")
        with naming(path):
            beside.write_text(json.dumps(asdict(mine)) + "\n")
        try:
            while not _put(beside, path):
                if (other := holder(folder)) is not None:
                    raise FolderFault(folder, _busy(other, path))
                _take_away(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        self.release = weakref.finalize(self, _release, path, mine)


def _busy(other: LockHolder, path: Path) -> str:
    away = "" if other.here else f"; if it is not any more, remove {path}"
    return f"process {other.process} on {other.host} is at work here; wait for it, or use another --out{away}"


def _put(beside: Path, path: Path) -> bool:
    """Gives a written file its name; False if the name is taken."""
    try:
        os.link(beside, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        try:
            with path.open("x") as file:
                file.write(beside.read_text())
        except FileExistsError:
            return False
    return True


def _take_away(beside: Path, path: Path) -> None:
    """Removes the lock of a process that has ended; one process at a time, or it might be a new one's."""
    turn = path.with_name(f"{NAME}.turn")
    if not _put(beside, turn):
        other = _read(turn)
        if other is None or other.gone:
            turn.unlink(missing_ok=True)
        else:
            time.sleep(0.01)
        return
    try:
        if holder(path.parent) is None:
            path.unlink(missing_ok=True)
    finally:
        turn.unlink(missing_ok=True)


def _release(path: Path, mine: LockHolder) -> None:
    if os.getpid() == mine.process and _read(path) == mine:
        path.unlink(missing_ok=True)
