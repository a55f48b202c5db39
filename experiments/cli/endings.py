"""How a command ends when it is asked to: by Ctrl-C, by a scheduler's SIGTERM, with its terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ASKED_TO_END = ("SIGTERM", "SIGHUP")


@contextmanager
def ended_alike() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end a command as SIGINT does; one that is ignored (nohup) stays ignored."""
    known = [getattr(signal, name) for name in ASKED_TO_END if hasattr(signal, name)]
    before = {asked: signal.getsignal(asked) for asked in known}
    for asked, handler in before.items():
        if handler == signal.SIG_DFL:
            signal.signal(asked, _interrupt)
    try:
        yield
    finally:
        for asked, handler in before.items():
            if handler is not None:
                signal.signal(asked, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
