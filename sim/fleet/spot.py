"""Replicas on spot instances: when they are taken, and after what notice. Pure: no clock, no engine."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from specfleet.sim.speculation.luck import TAKEN_AWAY, bits64, key

AWS_NOTICE_S, GOOGLE_NOTICE_S, AZURE_NOTICE_S = 120.0, 30.0, 30.0
"""Notice before an instance is taken: "two minutes" (docs.aws.amazon.com/AWSEC2/latest/UserGuide/
spot-instance-termination-notices.html); 30 s (cloud.google.com/compute/docs/instances/spot, "preemption
process"); "minimum 30 seconds" (learn.microsoft.com/azure/virtual-machines/spot-vms)."""


@dataclass(frozen=True, slots=True)
class TakenAt:
    """Instances that are taken at a time that is known.

    Args:
        at_s: when the notice comes.
        replicas: how many, of those that are there the first by number.
        unavailable_s: so long no other instance is to be had.
    """

    at_s: float
    replicas: int = 1
    unavailable_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SpotConfig:
    """Replicas on spot instances.

    Args:
        on_demand: the first so many replicas are not.
        mtti_s: mean seconds from when an instance is there to its notice, exponentially distributed; None:
            only those of `at` are taken.
        at: those that are known beforehand.
        notice_s: from the notice, when the router learns of it, until the instance is taken.
        unavailable_s: after a notice that is not known beforehand, so long no other instance is to be had.
        provision_s: from an order until an instance is there.
        most, backoff_s, keep_partial: of what is not done by then, as in `FailuresConfig`.
    """

    on_demand: int = 0
    mtti_s: float | None = None
    at: tuple[TakenAt, ...] = ()
    notice_s: float = 0.0
    unavailable_s: float = 0.0
    provision_s: float = 0.0
    most: int = 1
    backoff_s: float = 0.025
    keep_partial: bool = False


def kept_s(config: SpotConfig, seed: int, replica: int, stay: int) -> float:
    """Returns how long an instance is kept before its notice: a hash of seed, replica and how often that
    number was ordered before, so that nothing else moves it."""
    assert config.mtti_s is not None
    uniform = (int(bits64(key(seed, replica, TAKEN_AWAY), stay, 1)[0]) + 1) / 2.0**64
    return -config.mtti_s * log(uniform)
