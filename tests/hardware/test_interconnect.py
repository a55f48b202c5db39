"""All-reduce laws."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from specfleet.hardware.constants import constant_sets, kernel_constants
from specfleet.hardware.interconnect import NO_P2P, all_reduce_law, all_reduce_s


def test_a_megabyte_is_a_million_bytes_over_two_gpus() -> None:
    seconds = all_reduce_s(np.array([1e6]), all_reduce_law("h100_sxm", 2, True))
    assert seconds[0] == pytest.approx((4.13 + 0.1 + 4.36) * 1e-6)


def test_small_messages_take_one_shot() -> None:
    seconds = all_reduce_s(np.array([16_384.0]), all_reduce_law("h100_sxm", 4, True))
    assert seconds[0] == pytest.approx((4.54 + 11.67 * 0.016384) * 1e-6)


def test_without_peer_to_peer_a_message_costs_an_order_more() -> None:
    message = np.array([64 * 8192 * 2.0])
    slow, fast = all_reduce_s(message, NO_P2P), all_reduce_s(message, all_reduce_law("h100_sxm", 2, True))
    assert slow[0] == pytest.approx(18.4e-6 + 46.7e-6 * 1.048576)
    assert slow[0] > 6 * fast[0]
    assert all_reduce_law("h100_sxm", 2, False) == NO_P2P


def test_a_ring_without_peer_to_peer_sends_more_over_each_port_the_more_gpus_it_has() -> None:
    """2 (n - 1) / n of the message: 1 among two GPUs, 1.5 among four, 1.75 among eight."""
    megabyte = np.array([1e6])
    for gpus, latency, sent in ((2, 1.0, 1.0), (4, 1.6, 1.5), (8, 4.0, 1.75)):
        seconds = all_reduce_s(megabyte, all_reduce_law("h100_sxm", gpus, False))
        assert seconds[0] == pytest.approx(latency * 18.4e-6 + sent * 46.7e-6)


def test_an_unmeasured_gpu_count_is_refused() -> None:
    with pytest.raises(ValueError, match=r"among 3 GPUs of h100_sxm; measured: 2, 4, 8"):
        all_reduce_law("h100_sxm", 3, True)


def test_unknown_constants_name_the_known_ones() -> None:
    with pytest.raises(ValueError, match="known: h100_sxm"):
        kernel_constants("h99")


@pytest.mark.parametrize("name", constant_sets())
def test_every_constant_set_loads(name: str) -> None:
    constants = kernel_constants(name)
    assert "bfloat16" in constants.gemm and ("bfloat16", "cold") in constants.decode
    assert set(constants.all_reduce) >= {2, 4}


@pytest.mark.parametrize(("gpus", "bar"), [(2, 0.04), (4, 0.03), (8, 0.03)])
def test_the_law_is_within_its_published_error_of_the_measurements(
    shared: Path, gpus: int, bar: float
) -> None:
    with (shared / "hardware/allreduce_us.csv").open() as file:
        rows = [
            row for row in csv.DictReader(file) if row["system"] == "h100_sxm" and row["impl"] == "vllm_graph"
        ]
    points = [(float(row["bytes"]), float(row["us"]) * 1e-6) for row in rows if int(row["gpus"]) == gpus]
    size, measured = (np.array(column) for column in zip(*[p for p in points if p[0] < 7e7], strict=True))
    error = all_reduce_s(size, all_reduce_law("h100_sxm", gpus, True)) / measured - 1
    assert np.abs(error).mean() < bar
