"""Work spread over processes: the same results for any number of them.

A worker is a fresh interpreter (forkserver where there is one, else spawn), so nothing that the calling
process holds, threads among it, is copied into it.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from specfleet.experiments.schema.registry import Address, from_python

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

Item = TypeVar("Item")
Result = TypeVar("Result")


class Writing(Protocol):
    """Work that makes a folder, whole or not at all."""

    @property
    def path(self) -> Path:
        """The folder."""

    @property
    def done(self) -> bool:
        """Whether it is there."""

    def placed(self, root: Path) -> Self:
        """Returns the same work with its folder somewhere below another root."""


Written = TypeVar("Written", bound=Writing)
Running = Callable[[Sequence[int]], None]
"""Told the positions of what is being worked on."""


KILLED = "a worker process was killed, perhaps because memory ran out; fewer --jobs need less of it"


class WorkerLost(RuntimeError):  # noqa: N818 - reads as what happened
    """A worker process ended without an answer; what it and the others had not finished is lost."""

    def __init__(self, said: str = KILLED) -> None:
        super().__init__(said)


class WorkersGone(WorkerLost):
    """There is nobody left to work; what was finished is kept."""


def default_jobs() -> int:
    """Returns the processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def at_hand(jobs: int | Workers) -> AbstractContextManager[Workers]:
    """Returns so many processes to be entered, or those that are there and stay."""
    return nullcontext(jobs) if isinstance(jobs, Workers) else Workers(jobs)


class Workers:
    """Up to `jobs` processes to work in, started when first needed; leaving the `with` ends them.

    An interrupt reaches the calling process only. It, or any other error that leaves the `with`, ends the
    workers at once, in the middle of what they do.

    Args:
        jobs: processes; 1 works in the calling process.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._pool: ProcessPoolExecutor | None = None
        self._afterwards: Callable[[], object] | None = None
        self._others: set[object] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(at_once=error is not None)

    @property
    def jobs(self) -> int:
        """Processes that work at once, at most."""
        return self._jobs

    @property
    def started(self) -> bool:
        """Whether processes are there to work in."""
        return self._pool is not None

    def at_most(self, jobs: int) -> None:
        """No more processes than these are worth their start."""
        self._jobs = min(self._jobs, jobs)

    def afterwards(self, prepare: Callable[[], object]) -> None:
        """What a process is to do when there is nothing left to begin while others still work."""
        self._afterwards = prepare

    def stop(self, at_once: bool) -> None:
        """Ends the processes: when they are done with what they do, or in the middle of it."""
        if self._pool is None:
            return
        self._pool.shutdown(wait=not at_once, cancel_futures=True)
        if at_once:
            import multiprocessing

            for child in set(multiprocessing.active_children()) - self._others:
                child.terminate()
        self._pool = None

    def as_finished(
        self, work: Callable[[Item], Result], items: Sequence[Item], running: Running = lambda at: None
    ) -> Iterator[tuple[int, Result | Exception]]:
        """Yields the position of each item with its result, or with what was raised, as it finishes.

        Args:
            work: of a module's top level, as its name is what workers are told.
            items: what to work on, started in this order.
            running: told of what is worked on, whenever that changes.
        """
        if self._jobs <= 1 or (len(items) <= 1 and not self.started):
            for at, item in enumerate(items):
                running([at])
                found = _tried(work, item)
                gc.collect(0)  # a command seldom looks for cycles, and a simulation's are megabytes
                yield at, found
            return
        from concurrent.futures import as_completed

        left = OrderedDict(self._submit(work, items))
        for future in as_completed([*left]):
            found = self._outcome(future)
            yield left.pop(future), found
            first = islice(left.items(), 2 * self._jobs)  # begun in this order, so nobody beyond them works
            running([at for other, at in first if other.running()][: self._jobs])

    def as_written(
        self, work: Callable[[Written], Result], items: Sequence[Written], running: Running = lambda at: None
    ) -> Iterator[tuple[int, Result | Exception]]:
        """Yields as `as_finished` does; an item's folder is in its place by then, wherever it was made."""
        return self.as_finished(work, items, running)

    def in_order(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yields the result of each item in the order of `items`; raises what the first to fail raised."""
        if self._jobs <= 1 or (len(items) <= 1 and not self.started):
            yield from map(work, items)
            return
        for future in self._submit(work, items):
            found = self._outcome(future)
            if isinstance(found, Exception):
                raise found
            yield found

    def _submit(self, work: Callable[[Item], Result], items: Sequence[Item]) -> dict[Future[Result], int]:
        """Hands everything to the pool; what a broken pool no longer takes is lost like the rest."""
        from concurrent.futures import BrokenExecutor, Future

        if self._pool is None:
            self._pool = self._begun(work)
        futures: dict[Future[Result], int] = {}
        for at, item in enumerate(items):
            try:
                future = self._pool.submit(work, item)
            except BrokenExecutor as error:
                future = Future()
                future.set_exception(error)
            futures[future] = at
        if self._afterwards is not None:
            prepare, self._afterwards = self._afterwards, None
            with suppress(BrokenExecutor):
                for _ in range(self._jobs):
                    self._pool.submit(prepare)
        return futures

    def _begun(self, work: Callable[[Item], Result]) -> ProcessPoolExecutor:
        """Returns processes to work in; what they are made of is imported where somebody asks for them."""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        self._others = self._others or set(multiprocessing.active_children())
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["__main__", str(work.__module__)])
        return ProcessPoolExecutor(self._jobs, context, _begin, (from_python(),))

    def _outcome(self, future: Future[Result]) -> Result | Exception:
        """Returns what a future brought, an error as a value; a broken pool makes way for a new one."""
        from concurrent.futures import BrokenExecutor

        raised = future.exception()
        if isinstance(raised, BrokenExecutor):
            self._pool = None
            return WorkerLost()
        return raised if isinstance(raised, Exception) else future.result()


def _tried(work: Callable[[Item], Result], item: Item) -> Result | Exception:
    try:
        return work(item)
    except Exception as error:
        return error


def _begin(own: Sequence[Address]) -> None:
    """Makes a worker ready.

    Ctrl-C and the end of a terminal reach workers too, but the calling process ends them: nothing
    half-written gets its name. A worker whose caller was killed ends as well. What was registered from Python
    is registered here too; plugins come with the experiments that name them.
    """
    import multiprocessing

    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    caller = multiprocessing.parent_process()
    if caller is not None:
        threading.Thread(target=_end_with, args=(caller.sentinel,), daemon=True).start()
    for address in own:
        address.register()


def _end_with(sentinel: int) -> None:
    """Ends this process, in the middle of what it does, when the one behind `sentinel` ends."""
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)
