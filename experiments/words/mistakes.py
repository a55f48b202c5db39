"""Which errors are a user's mistake: they are said in words, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specfleet.experiments.schema.faults import UserError


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Turns a user's mistake into a `UserError`, whatever module noticed it."""
    from specfleet.hardware.memory import DoesNotFit
    from specfleet.workloads.traces.report import TraceError

    try:
        yield
    except (DoesNotFit, TraceError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(str(error)) from None
