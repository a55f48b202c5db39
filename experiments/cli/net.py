"""The last net: what nobody foresaw ends in one sentence, and its details in a file."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence

UNFORESEEN = 70
"""Exit status of a fault of Specfleet's own (EX_SOFTWARE of sysexits.h)."""


def unforeseen(error: Exception, arguments: Sequence[str]) -> tuple[str, int]:
    """Returns what to say of an exception that no command expected, and the exit status.

    The details go to a file in the temporary folder. A system that refuses memory or a file is not a fault
    of Specfleet's: 1.
    """
    if isinstance(error, MemoryError):
        return "out of memory; ask for fewer requests or points, or set report.requests: none", 1
    if isinstance(error, OSError) and error.strerror:
        at = f"{error.filename}: " if error.filename is not None else ""
        return f"{at}{error.strerror}", 1
    first = next(iter(str(error).splitlines()), "")
    what = f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__
    where = _details(error, arguments)
    return (
        f"Specfleet failed, and not through your input ({what}); the details are {where}: please report "
        "them, with the experiment file",
        UNFORESEEN,
    )


def _details(error: Exception, arguments: Sequence[str]) -> str:
    """Writes what is needed to find the fault; returns where it lies."""
    from specfleet import __version__

    text = "\n".join(
        [
            f"specfleet {__version__}, Python {platform.python_version()}, {platform.platform()}",
            f"arguments: {list(arguments)!r}",
            "".join(traceback.format_exception(error)),
        ]
    )
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="specfleet-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
    except OSError:
        print(text, file=sys.stderr)
        return "above"
    return f"in {file.name}"
