"""The worlds in which both ways of simulating are compared do use the fast path: else little is compared."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sim_toys import World
from timeline_worlds import requests, sharing, worlds

from specfleet.sim.errors import Stall
from specfleet.sim.simulation import simulate

COUNT = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
EVERY = ("open", "balanced", "closed", "capped")
DRAWN = {
    "open": worlds(("open", "open", "sparse")),
    "closed": worlds(("closed", "capped")),
    "fleet": worlds(EVERY, replicas=3),
    "short of blocks": worlds(("open", "closed", "balanced"), 2, tight=True),
    "short of budget": worlds(EVERY, 2, crowded=True),
    "prompts that begin alike": sharing(),
}
"""As the comparing tests draw them."""


@pytest.mark.parametrize("kind", DRAWN)
def test_most_iterations_of_at_least_half_the_worlds_come_from_the_fast_path(kind: str) -> None:
    fast: list[bool] = []

    @COUNT
    @given(DRAWN[kind], st.integers(0, 2**32))
    def count(world: World, seed: int) -> None:
        try:
            ran = simulate(world.scenario(world.classes or {}), requests(world), seed)
        except Stall:
            return
        if len(ran.iterations["end_s"]):
            fast.append(ran.stepped_share < 0.5)

    count()
    assert len(fast) >= 60
    assert 2 * sum(fast) >= len(fast), f"{sum(fast)} of {len(fast)}"
