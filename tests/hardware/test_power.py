"""A GPU draws idle power when idle, board power at most, and more the more its tensor cores have to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.hardware.catalog import accelerator
from specfleet.hardware.power.draw import IDLE_SHARE, KIND_OF, KINDS, SHARES, energy_j
from specfleet.hardware.stepcost import TERMS

BUSY = st.fixed_dictionaries({term: st.floats(0.0, 100.0) for term in TERMS})


def test_every_term_of_a_step_waits_for_something_and_every_share_is_a_range() -> None:
    assert set(KIND_OF) == set(TERMS)
    assert set(KIND_OF.values()) == set(KINDS) == set(SHARES)
    assert all(0.0 <= share.low <= share.middle <= share.high <= 1.0 for share in SHARES.values())


def test_an_idle_h100_draws_70_watts() -> None:
    found = energy_j(700.0, 10.0, {})
    assert (found.low, found.middle, found.high) == (700.0, 700.0, 700.0)


def test_a_decode_that_reads_memory_alone_draws_what_was_measured_on_an_h200() -> None:
    found = energy_j(700.0, 1.0, {"weights": 0.75, "kv": 0.25})
    assert found.low == pytest.approx(137, rel=0.02)
    assert found.high == pytest.approx(300, rel=0.02)


@given(BUSY, st.floats(0.0, 1000.0))
def test_no_gpu_draws_more_than_board_power_or_less_than_idle(busy: dict[str, float], idle: float) -> None:
    seconds = sum(busy.values()) + idle
    found = energy_j(700.0, seconds, busy)
    assert 700.0 * IDLE_SHARE * seconds <= found.low * (1 + 1e-12)
    assert found.low <= found.middle <= found.high <= 700.0 * seconds * (1 + 1e-12) + 1e-9


@given(BUSY, BUSY)
def test_energies_of_two_stretches_add_up(a: dict[str, float], b: dict[str, float]) -> None:
    seconds = sum(a.values()), sum(b.values())
    both = energy_j(400.0, sum(seconds), {term: a[term] + b[term] for term in TERMS})
    apart = energy_j(400.0, seconds[0], a) + energy_j(400.0, seconds[1], b)
    assert both.middle == pytest.approx(apart.middle, abs=1e-9)
    assert both.scaled(2.0).high == pytest.approx(2.0 * apart.high, abs=1e-9)


@pytest.mark.parametrize(
    "name", ["a100-80gb", "b200", "h100-94gb", "h100-nvl", "h100-pcie", "h100-sxm", "h200", "l40s"]
)
def test_every_shipped_gpu_has_a_board_power_with_its_source(name: str) -> None:
    gpu = accelerator(name)
    assert gpu.tdp_w and 300 <= gpu.tdp_w <= 1000
    assert gpu.source["tdp_w"]
