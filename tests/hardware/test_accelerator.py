"""GPU records and what may be overridden."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specfleet.hardware import catalog

H100 = catalog.accelerator("h100-sxm")


def test_an_override_changes_one_field_and_nothing_else() -> None:
    slow = H100.override(hbm_bytes_per_s=2.4e12)
    assert slow.hbm_bytes_per_s == 2.4e12
    assert replace(slow, hbm_bytes_per_s=H100.hbm_bytes_per_s) == H100


def test_measured_properties_cannot_be_overridden() -> None:
    with pytest.raises(ValueError, match="'sms' cannot be overridden"):
        H100.override(sms=78)
    with pytest.raises(ValueError, match="did you mean 'hbm_bytes_per_s'"):
        H100.override(hbm_bytes_per_second=1e12)


def test_rates_and_sizes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="hbm_bytes is 0"):
        H100.override(hbm_bytes=0)
    with pytest.raises(ValueError, match="lacks bfloat16"):
        replace(H100, flops_per_s={"fp8": 1e15})
    with pytest.raises(ValueError, match=r"flops_per_s.fp8 is -1"):
        replace(H100, flops_per_s={"bfloat16": 1e15, "fp8": -1.0})


@pytest.mark.parametrize("name", catalog.names("accelerators"))
def test_every_number_has_a_source(name: str) -> None:
    gpu = catalog.accelerator(name)
    wanted = {"hbm_bytes", "hbm_bytes_per_s", "flops_per_s", "sms", "p2p", "constants", "l2_bytes"}
    assert wanted <= set(gpu.source)
    assert (gpu.price_per_hour_usd is None) == (gpu.price_date is None)


def test_the_three_h100_differ_as_their_datasheets_say() -> None:
    wide, pcie = catalog.accelerator("h100-94gb"), catalog.accelerator("h100-pcie")
    assert H100.hbm_bytes / 2**30 == pytest.approx(79.19, abs=0.01)
    assert wide.hbm_bytes / 2**30 == pytest.approx(93.10, abs=0.01)
    assert H100.hbm_bytes_per_s > wide.hbm_bytes_per_s > pcie.hbm_bytes_per_s
    assert (H100.p2p, wide.p2p, pcie.p2p) == (True, True, False)
