"""Progress on stderr: points done, time left, what is running. Plain lines where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress

PLAIN_LINE_EVERY_S = 5.0


class Reporter:
    """Shows how far a run is.

    Args:
        total: simulations to run.
        quiet: show nothing.
        what: is counted, where it is not simulations.
    """

    def __init__(self, total: int, quiet: bool, what: str = "simulations") -> None:
        self.total = total
        self.what = what
        self.done = 0
        self.quiet = quiet
        self._bar: Progress | None = None
        self._started = self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        self._started = self._last_line = time.monotonic()
        if sys.stderr.isatty() and not self.quiet:
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self.total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def running(self, name: str) -> None:
        """Shows what is being simulated."""
        if self._bar is not None:
            self._bar.update(self._task, description=name)

    def more(self, simulations: int) -> None:
        """There are more to run than was thought."""
        self.total += simulations
        if self._bar is not None:
            self._bar.update(self._task, total=self.total)

    def kept(self) -> None:
        """One is there from before: it is not done again, and says nothing of how long others take."""
        self.more(-1)

    def finished(self, name: str) -> None:
        """Counts one simulation."""
        self.done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=f"finished {name}")
        elif not self.quiet:
            self._plain(name)

    def _plain(self, name: str) -> None:
        now = time.monotonic()
        if self.done < self.total and now - self._last_line < PLAIN_LINE_EVERY_S:
            return
        self._last_line = now
        spent = now - self._started
        left = spent / self.done * (self.total - self.done)
        print(
            f"{self.done}/{self.total} {self.what}, {spent:.0f} s, about {left:.0f} s left; finished {name}",
            file=sys.stderr,
        )

    def say(self, message: str) -> None:
        """Prints a line above the bar."""
        if self.quiet:
            return
        if self._bar is None:
            print(message, file=sys.stderr)
        else:
            self._bar.console.print(message, highlight=False, markup=False, soft_wrap=True)


def _bar() -> Progress:
    """A bar for a terminal; where there is none, nobody waits for the library."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
