"""Errors of a running simulation. Each says what stood still and what to do about it."""

from __future__ import annotations


class SimulationError(Exception):
    """Base of all errors raised while simulating."""


class Stall(SimulationError):  # noqa: N818 - the domain's word
    """Work is left and nothing will ever happen: a diagnosis instead of a hang."""


class Breach(SimulationError):  # noqa: N818 - reads as what happened
    """A law of `sim.laws` does not hold: what was simulated is wrong, and none of its figures can be used.

    Args:
        law: its name, a key of `laws.LAWS`.
        said: what was found, with figures.
        request: whose; None if no single request is at fault.
        time_s: when, seconds from the start of the run; None: of the run as a whole.
        replica: where; None if that is not known.
    """

    def __init__(
        self,
        law: str,
        said: str,
        request: int | None = None,
        time_s: float | None = None,
        replica: int | None = None,
    ) -> None:
        super().__init__(law, said, request, time_s, replica)
        self.law, self.said = law, said
        self.request, self.time_s, self.replica = request, time_s, replica

    def at(self, time_s: float, replica: int) -> Breach:
        """Returns the same with the time and the place at which it was found."""
        return Breach(self.law, self.said, self.request, time_s, replica)

    def __str__(self) -> str:
        """Names law, request and time in one line."""
        who = "no single request" if self.request is None else f"request {self.request}"
        where = "" if self.replica is None else f" on replica {self.replica}"
        when = "over the whole run" if self.time_s is None else f"at {self.time_s:.6f} s"
        return f"law broken: {self.law}: {self.said} ({who}{where}, {when})"


ASKED_FOR = "stepping was asked for"
"""Why a run is stepped with `engine="step"`."""


class Unsuited(Exception):  # noqa: N818 - not an error: the run is stepped instead
    """The run met something that only `Engine` can do."""
