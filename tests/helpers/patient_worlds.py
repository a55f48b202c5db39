"""Clients with little patience, for random worlds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from sim_toys import World

from specfleet.sim.fleet.patience import PatienceConfig
from specfleet.workloads.pauses import ExponentialPause, FixedPause

WAITS = (
    st.none()
    | st.builds(FixedPause, st.sampled_from([0.0, 0.004, 0.02, 0.05, 0.1, 0.2, 1.0]))
    | st.builds(ExponentialPause, st.sampled_from([0.03, 0.1, 0.4]))
)
PATIENT = st.builds(
    PatienceConfig,
    ttft_timeout_s=WAITS,
    timeout_s=WAITS,
    retries=st.sampled_from([0, 0, 1, 3]),
    backoff_s=st.sampled_from([0.0, 0.01, 0.1]),
).filter(lambda config: config.ttft_timeout_s or config.timeout_s)


def impatient(world: World, patience: PatienceConfig) -> World:
    """The same with clients that give up."""
    return replace(world, load=replace(world.load, patience={"": patience}))
