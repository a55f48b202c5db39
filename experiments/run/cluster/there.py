"""What a worker does: work read from a parcel, one piece at a time, and the answer sent back as bytes."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from specfleet.experiments.point.plugins import forget_plugins
from specfleet.experiments.run.cluster.alike import Likeness, likeness
from specfleet.experiments.run.cluster.parcels import Luggage, answered, unpacked
from specfleet.experiments.run.files import WHOLE
from specfleet.experiments.schema.faults import UserError
from specfleet.experiments.schema.registry import Address

_ALONE = threading.Lock()
"""Held while there is work: what a user registers, and what is read, belongs to the whole process."""
_last_run: list[str] = []
"""The run whose work was the last here."""


@dataclass(frozen=True)
class Order:
    """Work for somebody else.

    Attributes:
        run: names the command that asks; what others registered is forgotten.
        expected: of a worker.
        own: what was registered from Python, to be imported there.
    """

    run: str
    expected: Likeness
    own: tuple[Address, ...] = ()


@dataclass(frozen=True)
class Delivery:
    """What came of it.

    Attributes:
        found: the result, or what was raised; the worker's address where it is `unlike`.
        files: of the folder that was made, by name; None where none was to be made.
        unlike: in what this worker differs from what was expected; then nothing was done.
    """

    found: Any = None
    files: Mapping[str, bytes] | None = None
    unlike: str = ""


def do(order: Order, parcel: bytes, writes: bool, *luggage: Luggage) -> bytes:
    """Does what a parcel says.

    Args:
        order: on whose behalf.
        parcel: a function of a module's top level, and its argument.
        writes: whether the argument is `Writing`.
        luggage: files that the parcel names, in its order.

    Returns:
        A `Delivery`. What the work itself raises is a value: doing it again would end alike.

    Raises:
        OSError, MemoryError: of this machine; another try, or another machine, may do better.
    """
    if unlike := order.expected.unlike(likeness()):
        return answered(Delivery(_here(), unlike=unlike), {})
    with _ALONE, _registered(order):
        copies = [each.unpack(_place()) for each in luggage]
        work, item = unpacked(parcel, tuple(map(str, copies)))
        if writes:
            with TemporaryDirectory(prefix="specfleet-") as here:
                answer = _made(work, item.placed(Path(here)))
        else:
            answer = Delivery(_tried(work, item))
        return answered(answer, _written(luggage, copies))


def introduced() -> Likeness:
    """What this worker is like."""
    return likeness()


def as_it_is(luggage: Luggage) -> Luggage:
    """A file, as a task of its own: Dask hands it to who needs it, and does it again where it is lost."""
    return luggage


def _here() -> str:
    from distributed import get_worker

    return str(get_worker().address)


def _made(work: Callable[[Any], object], item: Any) -> Delivery:
    """Does work that may make a folder; returns its files, but for the one that says that all are there."""
    found = _tried(work, item)
    if isinstance(found, Exception):
        return Delivery(found)
    if not item.done:
        return Delivery(found)
    files = (path for path in sorted(item.path.iterdir()) if path.name != WHOLE)
    return Delivery(found, {path.name: path.read_bytes() for path in files})


def _tried(work: Callable[[Any], object], item: object) -> object:
    try:
        return work(item)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        return _sendable(error)


def _sendable(error: Exception) -> Exception:
    """Returns an error that can be read anywhere: itself, or one with its words."""
    ours = type(error).__module__.partition(".")[0] in ("specfleet", "builtins", "pydantic_core")
    try:
        if ours and type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:
        pass
    return (
        UserError(str(error))
        if isinstance(error, UserError)
        else RuntimeError(f"{type(error).__name__}: {error}")
    )


@contextmanager
def _registered(order: Order) -> Iterator[None]:
    """What the user registered from Python; what was registered for others is forgotten."""
    if _last_run != [order.run]:
        forget_plugins()
        _last_run[:] = [order.run]
    for address in order.own:
        try:
            address.register()
        except (ImportError, AttributeError) as error:
            raise RuntimeError(f"{address.kind} {address.name} cannot be imported here: {error}") from None
    yield


@cache
def _place() -> Path:
    """The folder of copies, which goes with the worker."""
    from distributed import get_worker

    return Path(mkdtemp(prefix="specfleet-", dir=get_worker().local_directory))


def _written(luggage: Sequence[Luggage], copies: Sequence[Path]) -> dict[str, str]:
    """Path of a copy, or of its folder, -> the same as the user wrote it."""
    found = {
        str(copy.parent): str(Path(each.given).parent) for each, copy in zip(luggage, copies, strict=True)
    }
    return found | {str(copy): each.given for each, copy in zip(luggage, copies, strict=True)}
