"""`--cluster`: the work of `--jobs` done by the workers of a Dask cluster.

A window of tasks is with the cluster at a time, so neither the scheduler nor this process holds more of a
large study. Progress, and work done again where a worker was lost, are Dask's: futures, `as_completed`,
`retries`. Folders are made by workers in their own scratch space and put in place here.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specfleet.experiments.run.cluster import LOCAL, connect, there
from specfleet.experiments.run.cluster.alike import likeness
from specfleet.experiments.run.cluster.parcels import Luggage, Sender, answer_in
from specfleet.experiments.run.files import write_folder
from specfleet.experiments.run.processes import (
    Item,
    Result,
    Running,
    WorkerLost,
    Workers,
    WorkersGone,
    Written,
)
from specfleet.experiments.schema.registry import from_python

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster, as_completed

AHEAD = 8
"""Tasks that are with the cluster for each worker of it."""
RETRIES = 2
"""Times that Dask tries again what a worker's machine, such as a full disk, kept from being done."""
LOOK_EVERY_S = 1.0
"""How often the cluster is asked who is at work."""


class ClusterWorkers(Workers):
    """The workers of a Dask cluster; entering the `with` connects, leaving it lets them go.

    Args:
        address: of a scheduler, or `local`: one with workers of its own, here, that end with this process.
        jobs: workers of `local`.
        say: told of what the user has to know.

    Raises:
        InputFaults: Dask is not installed, it is no address, or workers are not like this process.
        WorkersGone: nobody answers, or there is nobody to work.
    """

    def __init__(self, address: str, jobs: int, say: Callable[[str], None]) -> None:
        super().__init__(jobs)
        connect.refuse_without_dask()
        self._address, self._say = address, say
        self._local: LocalCluster | None = None
        self._client: Client | None = None
        self._sender = Sender()
        self._files: dict[str, Future] = {}
        self._known = 0
        self._looked = 0.0

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.stop(at_once=True)
            raise
        return self

    def _begin(self) -> None:
        if self._address == LOCAL:
            with connect.interrupts_wait():
                self._local = connect.started(self._jobs)
            self._address = self._local.scheduler_address
        self._client = client = connect.reached(self._address)
        connect.wait_for_workers(client, self._address, self._say)
        for note in connect.check_alike(client, self._address):
            self._say(f"note: {note}")
        self._known = len(client.nthreads())
        self._order = there.Order(uuid.uuid4().hex, likeness(), tuple(from_python()))
        if self._local is None:
            self._say(f"{self._address}: {self._known} workers")

    @property
    def jobs(self) -> int:
        """Workers of the cluster, as it was looked at last."""
        return max(self._known, 1)

    def at_most(self, jobs: int) -> None:
        """They are there already."""

    def afterwards(self, prepare: Callable[[], object]) -> None:
        """Figures are drawn here, where the results are."""

    def stop(self, at_once: bool) -> None:
        """Lets the cluster go; workers of `local` end, in the middle of what they do where `at_once`."""
        client, local = self._client, self._local
        self._client = self._local = None
        self._files = {}
        if local is not None and at_once:
            _kill(local)
        with suppress(Exception):
            if client is not None:
                client.close(timeout=2)
        with suppress(Exception):
            if local is not None:
                local.close(timeout=5)

    def as_finished(
        self, work: Callable[[Item], Result], items: Sequence[Item], running: Running = lambda at: None
    ) -> Iterator[tuple[int, Result | Exception]]:
        """As those of processes do.

        Raises:
            WorkersGone: the scheduler, or all workers for too long.
        """
        for at, answer in self._answers(work, list(range(len(items))), items, running, False):
            yield at, answer if isinstance(answer, Exception) else answer.found

    def as_written(
        self, work: Callable[[Written], Result], items: Sequence[Written], running: Running = lambda at: None
    ) -> Iterator[tuple[int, Result | Exception]]:
        """As those of processes do. What is done already is read here."""
        left = [at for at, item in enumerate(items) if not item.done]
        for at in [at for at, item in enumerate(items) if item.done]:
            yield at, work(items[at])
        for at, answer in self._answers(work, left, items, running, True):
            yield at, answer if isinstance(answer, Exception) else _placed(items[at].path, answer)

    def in_order(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """As those of processes do."""
        found: dict[int, Result | Exception] = {}
        after = iter(range(len(items)))
        wanted = next(after, None)
        for at, one in self.as_finished(work, items):
            found[at] = one
            while wanted in found:
                result = found.pop(wanted)
                if isinstance(result, Exception):
                    raise result
                yield result
                wanted = next(after, None)

    def _answers(
        self,
        work: Callable[[Any], object],
        left: Sequence[int],
        items: Sequence[Any],
        running: Running,
        writes: bool,
    ) -> Iterator[tuple[int, there.Delivery | Exception]]:
        """Yields what came of each of the items that are left, as it comes.

        Whoever was with workers that died is suspected by Dask, guilty or not; these are tried once more, one
        by one.
        """
        suspected: list[int] = []
        for at, answer in self._side_by_side(work, left, items, running, writes):
            if isinstance(answer, WorkerLost):
                suspected.append(at)
            else:
                yield at, answer
        for at in suspected:
            yield from self._side_by_side(work, [at], items, running, writes)

    def _side_by_side(
        self,
        work: Callable[[Any], object],
        left: Sequence[int],
        items: Sequence[Any],
        running: Running,
        writes: bool,
    ) -> Iterator[tuple[int, there.Delivery | Exception]]:
        """Yields what came of each of some items, a window of them with the cluster."""
        from distributed import as_completed

        assert self._client is not None
        done = as_completed(with_results=True, raise_errors=False, loop=self._client.loop)
        at_work: dict[str, tuple[int, Future]] = {}
        waiting = list(reversed(left))
        while waiting or at_work:
            while waiting and len(at_work) < AHEAD * max(self._known, 1):
                at = waiting.pop()
                future = self._submitted((work, items[at]), writes)
                at_work[future.key] = at, future
                done.add(future)
            self._wait(done, at_work, running)
            for future, result in done.next_batch(block=False):
                at, _ = at_work.pop(future.key)
                yield at, self._answer(future, result)

    def _submitted(self, content: object, writes: bool) -> Future:
        """Hands work to the cluster, the files that it names before it, each once."""
        assert self._client is not None
        parcel, luggage = self._sender.packed(content)
        key = f"simulate-{uuid.uuid4().hex}"
        with self._gone_in_words():
            files = [self._file(each) for each in luggage]
            return self._client.submit(
                there.do, self._order, parcel, writes, *files, key=key, retries=RETRIES, pure=False
            )

    def _file(self, luggage: Luggage) -> Future:
        """Hands a file to the cluster, whose workers pass it on."""
        assert self._client is not None
        digest = luggage.digest
        if digest not in self._files:
            key = f"specfleet-file-{digest}"
            self._files[digest] = self._client.submit(there.as_it_is, luggage, key=key, pure=False)
        return self._files[digest]

    def _wait(self, done: as_completed, at_work: dict[str, tuple[int, Future]], running: Running) -> None:
        """Waits until something is done; looks now and then who is at work."""
        while not done.has_ready():
            if time.monotonic() - self._looked > LOOK_EVERY_S:
                self._look(at_work, running)
                self._looked = time.monotonic()
            time.sleep(0.002)

    def _look(self, at_work: dict[str, tuple[int, Future]], running: Running) -> None:
        """Asks the scheduler who works on what; says who was lost, and waits where nobody is left."""
        assert self._client is not None
        with self._gone_in_words():
            if self._client.status != "running":
                raise ConnectionError(self._client.status)
            working = self._client.processing()
        if len(working) < self._known:
            self._say(
                f"note: {self._known - len(working)} of {self._known} workers are gone; others do their work"
            )
        self._known = len(working)
        if not working:
            with self._gone_in_words():
                connect.wait_for_workers(self._client, self._address, self._say)
        keys = {key for mine in working.values() for key in mine} & at_work.keys()
        running(sorted(at_work[key][0] for key in keys)[: self._known])

    def _answer(self, future: Future, result: Any) -> there.Delivery | Exception:
        """Returns what a task brought, or why it brought nothing: an error as a value."""
        if future.status == "finished":
            answer: there.Delivery = answer_in(result)
            if answer.unlike:
                raise WorkersGone(str(connect.refused(answer.found, answer.unlike)))
            return answer
        if future.status != "error":
            raise self._gone("the scheduler went away")
        error = result[1]
        if type(error).__name__ == "KilledWorker":
            died = error.allowed_failures + 1
            return WorkerLost(f"{died} workers in turn died over it, perhaps because memory ran out")
        if isinstance(error, OSError | MemoryError):
            return error
        raise self._gone(f"a worker cannot do the work: {type(error).__name__}: {error}")

    @contextmanager
    def _gone_in_words(self) -> Iterator[None]:
        """Says in a sentence that the scheduler does not answer."""
        try:
            yield
        except WorkersGone:
            raise
        except Exception as error:
            raise self._gone(f"the scheduler does not answer ({type(error).__name__})") from None

    def _gone(self, said: str) -> WorkersGone:
        return WorkersGone(f"{self._address}: {said}")


def _placed(path: Path, answer: there.Delivery) -> Any:
    """Writes the folder that a worker made, if it did; returns what it found, or why it cannot be written."""
    if answer.files is None:
        return answer.found
    files = {name: partial(Path.write_bytes, data=content) for name, content in answer.files.items()}
    try:
        write_folder(path, files)
    except OSError as error:
        return error
    return answer.found


def _kill(local: LocalCluster) -> None:
    """Ends the workers in the middle of what they do; nobody starts them again."""
    for nanny in local.workers.values():
        nanny.auto_restart = False
        if nanny.pid:
            with suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)
