"""Which replicas fail when, and what becomes of the requests inside: what a run is told of it."""

from __future__ import annotations

from dataclasses import dataclass

DIES, HANGS, SLOW, TAKEN = "dies", "hangs", "slow", "taken"
"""What a failure is: the process is gone; it makes no progress until it is restarted; steps take longer; a
spot instance is taken away."""


@dataclass(frozen=True, slots=True)
class FailureConfig:
    """One failure that is known beforehand.

    Args:
        replica: its number.
        at_s: when it begins.
        for_s: until the replica is back: from its death, from the time at which it is found to hang, or, of
            one that is slow, from `at_s`; None is never.
        kind: `DIES`, `HANGS` or `SLOW`.
        factor: steps of one that is slow take so many times as long.
    """

    replica: int
    at_s: float
    for_s: float | None = None
    kind: str = DIES
    factor: float = 2.0


@dataclass(frozen=True, slots=True)
class ChanceConfig:
    """Failures of some replicas that are not known beforehand.

    Args:
        mtbf_s: mean seconds of each from its repair to its next failure, exponentially distributed; None:
            none.
        repair_s: what a repair takes.
        kind, factor: as in `FailureConfig`.
    """

    mtbf_s: float | None
    repair_s: float = 0.0
    kind: str = DIES
    factor: float = 2.0


@dataclass(frozen=True, slots=True)
class FailuresConfig:
    """Which replicas fail when, and what becomes of the requests inside.

    Args:
        at: those that are known beforehand.
        mtbf_s, repair_s, kind, factor: of the others, as in `ChanceConfig`.
        of: the same of some replicas, in their place: their numbers, and what holds for them.
        detect_s: until health checks find a failure: so long requests still go to one that is dead, and so
            long one that hangs keeps its requests.
        most: how often a request is sent anew before it fails.
        backoff_s: before the first time; twice as long before each further one, up to ten times.
        keep_partial: output that has been written is kept: it is computed again as part of the prompt.
    """

    at: tuple[FailureConfig, ...] = ()
    mtbf_s: float | None = None
    repair_s: float = 0.0
    kind: str = DIES
    factor: float = 2.0
    detect_s: float = 0.0
    most: int = 1
    backoff_s: float = 0.025
    keep_partial: bool = False
    of: tuple[tuple[tuple[int, ...], ChanceConfig], ...] = ()

    def chance(self, replica: int) -> ChanceConfig:
        """Returns how a replica fails that is not known to beforehand."""
        for members, chance in self.of:
            if replica in members:
                return chance
        return ChanceConfig(self.mtbf_s, self.repair_s, self.kind, self.factor)

    def fails(self, replica: int) -> bool:
        """Returns whether a replica may fail."""
        known = any(failure.replica == replica for failure in self.at)
        return known or self.chance(replica).mtbf_s is not None
