"""What may stand beside the replicas of a cluster, as the cluster sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from specfleet.sim.clients import Answer
from specfleet.sim.replica import Server


@runtime_checkable
class Abortable(Protocol):
    """A server that lets single requests go."""

    number: int
    """Of its replica."""

    def first_token(self, row: int) -> tuple[float, int] | None:
        """When the first token of a request inside left, and its rank in its step; None: it has none yet."""
        ...

    def abort(self, row: int, again: bool) -> None:
        """Nobody waits for a request inside any more; `again`: it will be sent once more."""
        ...


@runtime_checkable
class AbortableServers(Protocol):
    """What replicas run from which requests may be taken back."""

    @property
    def servers(self) -> Sequence[Server]:
        """As `Servers`."""
        ...

    def withdrawn(self, row: int, reason: str) -> None:
        """Notes that a request was given up which a replica had lost, and which is at none."""
        ...

    def begins_anew(self, row: int) -> None:
        """Notes that a request that ended too late is sent once more."""
        ...

    def goes_again(self, row: int) -> None:
        """Notes that a request which is sent once more is nowhere until it comes."""
        ...


@runtime_checkable
class FallibleServers(Protocol):
    """What replicas run that may fail."""

    def refused(self, row: int, replica: int, now: float) -> None:
        """Notes that a request came to a replica that was dead."""
        ...

    def taken_back(self, row: int) -> None:
        """Notes that a request is at no replica any more."""
        ...

    def lost(self, row: int, now: float, reason: str) -> None:
        """A request that a replica lost ends."""
        ...

    def turned_away(self, row: int) -> bool:
        """Notes that a request ends at the gateway; returns whether a replica has lost it before."""
        ...


class Gatekeeper(Protocol):
    """What may stand before the router (`sim.fleet.gateway`)."""

    def arrive(self, row: int, now: float) -> None:
        """Takes a request that may be served: sends it on, holds it, or turns it away."""
        ...

    def answered(self, answer: Answer) -> None:
        """Learns of an end."""
        ...

    def taken_back(self, row: int, now: float) -> None:
        """Learns that a replica has lost a request."""
        ...

    def given_up(self, row: int) -> None:
        """Learns that a request at a replica was given up, which has not let it go yet."""
        ...

    def freed(self, now: float) -> None:
        """Learns that a replica has let such a request go."""
        ...

    def withdraw(self, row: int, now: float, why: str | None) -> bool:
        """Lets a request go that is not at a replica, which ends here, or comes again (None); False if it is
        not here either."""
        ...


class Scaler(Protocol):
    """What may decide which replicas are up (`sim.fleet.scalers`)."""

    def arrived(self, row: int, now: float) -> None:
        """Learns of a request that has reached the cluster, perhaps not for the first time."""
        ...

    def sent(self, row: int, replica: int, now: float) -> None:
        """Learns of one that goes to a replica."""
        ...

    def taken_back(self, row: int, replica: int, now: float) -> None:
        """Learns of one that a replica has lost, or could not take."""
        ...

    def refused(self, row: int, now: float) -> None:
        """Learns of one that has ended before it reached a replica."""
        ...

    def answered(self, answer: Answer, replica: int) -> None:
        """Learns of an end at a replica."""
        ...

    def given_up(self, row: int, now: float, again: bool) -> None:
        """Learns that a client has given a request up; `again`: it will come once more."""
        ...

    def freed(self, replica: int, now: float) -> None:
        """Learns that a replica has let such a request go."""
        ...
