"""A Dask cluster reached, or started on this machine; what keeps it from working said in a sentence."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any

from specfleet.experiments.run.cluster import LOCAL
from specfleet.experiments.run.cluster.alike import likeness
from specfleet.experiments.run.cluster.there import introduced
from specfleet.experiments.run.processes import WorkersGone
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

REACH_S = 5.0
"""A scheduler that does not answer within this time is not there."""
WAIT_S = 300.0
"""Without any worker nobody waits longer than this."""
SAY_EVERY_S = 30.0
PACKAGES = ("distributed", "numpy", "simpy", "pydantic")
"""What must be alike before work can be sent at all."""


def fault(message: str) -> InputFaults:
    """What is wrong with `--cluster` as it was given."""
    return InputFaults([Fault(COMMAND_LINE, 0, "--cluster", message)])


def refuse_without_dask() -> None:
    """Raises InputFaults where the extra is not installed."""
    if find_spec("distributed") is None:
        raise fault("needs Dask, which is not installed; pip install 'specfleet[cluster]'")


def started(workers: int) -> LocalCluster:
    """Returns a scheduler with so many workers on this machine, a process each; they end with this one."""
    from distributed import LocalCluster

    _quieten()
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        memory_limit=0,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Whoever asks the command to end while a cluster starts is heard afterwards, when it can be ended.

    Ctrl-C and the end of a terminal reach workers, too, but the command ends them: a thread that starts
    meanwhile hears of neither, nor do the processes that it starts at any time.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing.resource_tracker import ensure_running

    deaf_to = {signal.SIGINT, signal.SIGHUP}
    with ExitStack() as afterwards:
        for asked in (*deaf_to, signal.SIGTERM):
            afterwards.enter_context(_put_off(asked))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, deaf_to)
        try:
            ensure_running()  # else it starts with the first process, and its starter hears of Ctrl-C again
            signal.pthread_sigmask(signal.SIG_BLOCK, deaf_to)
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _put_off(asked: signal.Signals) -> Iterator[None]:
    """Calls the handler of a signal that comes meanwhile at the end; without one the process ends at once.

    To block it would not do: any thread of the process may be told of a signal, and the first one answers.
    """
    handler = signal.getsignal(asked)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(asked, lambda number, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(asked, handler)
        if came:
            handler(asked, came[0])


def reached(address: str) -> Client:
    """Returns a client of the scheduler at an address.

    Raises:
        InputFaults: it is no address.
        WorkersGone: nobody answers there, or somebody else than a scheduler.
    """
    from distributed import Client

    _quieten()
    with ThreadPoolExecutor(1) as apart:  # whoever calls may have an event loop of their own
        apart.submit(asyncio.run, _answers(address)).result()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Client(address, timeout=REACH_S, set_as_default=False, name="specfleet")


async def _answers(address: str) -> None:
    """Asks whether a scheduler is there."""
    from distributed.comm import connect, parse_host_port, resolve_address
    from distributed.security import Security

    try:
        parse_host_port(address.rpartition("://")[2])
        resolve_address(address)
        asked = Security().get_connection_args("client")
        comm = await connect(address, timeout=REACH_S, **asked)
    except OSError as error:
        if "://" not in address and isinstance(error, OSError) and error.errno == -2:
            raise _no_address(address, error) from None
        raise WorkersGone(f"{address}: no scheduler answers there within {REACH_S:g} s; {START}") from None
    except (ValueError, TypeError) as error:
        raise _no_address(address, error) from None
    except (MemoryError, Exception) as error:
        said = f"what answers there is no Dask scheduler ({type(error).__name__})"
        raise WorkersGone(f"{address}: {said}; check the address") from None
    await comm.close()


START = "start one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`"


def _no_address(address: str, error: Exception) -> InputFaults:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return fault(
        f"{address!r} is no address of a scheduler ({said}); use {LOCAL}, or HOST:PORT, tcp://HOST:PORT"
    )


def wait_for_workers(client: Client, address: str, say: Callable[[str], None]) -> None:
    """Waits until somebody can work, and says so where that takes a while.

    Raises:
        WorkersGone: nobody came within `WAIT_S`.
    """
    began, said = time.monotonic(), 0.0
    while not client.nthreads():
        now = time.monotonic()
        if now - began > WAIT_S:
            raise WorkersGone(f"{address}: no worker came within {WAIT_S:g} s; {START}")
        if not said or now - said > SAY_EVERY_S:
            said = now
            say(f"{address} has no workers yet; waiting {WAIT_S - (now - began):.0f} s more for one")
        time.sleep(0.1)


def check_alike(client: Client, address: str) -> tuple[str, ...]:
    """Checks that every worker would find what is found here; returns what to note.

    Raises:
        InputFaults: one has another Python, other libraries, another Specfleet or none, in a sentence.
    """
    versions = client.get_versions(packages=list(PACKAGES))
    here = _packages(versions["client"])
    for worker, found in versions["workers"].items():
        _refuse_unlike(worker, here, _packages(found))
    mine = likeness()
    notes: dict[str, None] = {}
    for worker, found in client.run(introduced, on_error="return").items():
        if isinstance(found, BaseException):
            raise fault(
                f"worker {worker} of {address} cannot import this Specfleet "
                f"({type(found).__name__}: {found}); install the same release there"
            )
        if unlike := mine.unlike(found):
            raise refused(worker, unlike)
        if found.simd != mine.simd:
            notes[_other_processor(worker)] = None
    return tuple(notes)[:1]


def refused(worker: str, unlike: str) -> InputFaults:
    """A worker that is not like this process."""
    return fault(f"worker {worker} has {unlike}; install the same there, so that the bytes are the same")


def _refuse_unlike(worker: str, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    unlike = [f"{name} {there[name]}, here {said}" for name, said in here.items() if there[name] != said]
    if unlike:
        raise refused(worker, "; ".join(unlike))


def _packages(found: Mapping[str, Any]) -> dict[str, str]:
    """Versions that matter of what Dask says of a process."""
    packages = found["packages"]
    python = str(packages["python"]).replace(", ", ".").split(".final")[0]
    return {"Python": python, **{name: packages.get(name) or "that is not there" for name in PACKAGES}}


def _other_processor(worker: str) -> str:
    return (
        f"worker {worker} computes with other instructions than this processor: times may differ in the last "
        "digits from those of --jobs (docs/scale.md)"
    )


def _quieten() -> None:
    """Dask's own log says with tracebacks what is said here in sentences."""
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Sending large graph")
