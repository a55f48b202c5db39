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


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is an interrupt, or one that a library made of it.

    pydantic, interrupted while it builds a validator, raises a SchemaError that only names it.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or KeyboardInterrupt.__name__ in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
