"""Constants measured on the user's own GPU, named by `constants:`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specfleet import hardware
from specfleet.hardware import catalog
from specfleet.hardware.catalog import CatalogError
from specfleet.hardware.forward import linear
from specfleet.hardware.placement import DEFAULT_C_Q, Placement

SHIPPED = Path(hardware.__file__).parent / "measured" / "constants.json"


def entry() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SHIPPED.read_text())["h100_sxm"]
    return found


def place(folder: Path, values: dict[str, Any], **gpu: Any) -> Placement:
    path = folder / f"{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps({"_note": "x", "mine": values}))
    return Placement.of(
        catalog.model("llama-3.1-8b"),
        catalog.accelerator({"base": "h100-sxm", "constants": str(path), **gpu}),
        catalog.engine_profile("vllm-0.33"),
    )


def test_a_query_cost_that_was_measured_is_used(tmp_path: Path) -> None:
    values = entry()
    assert place(tmp_path, values).c_q == DEFAULT_C_Q
    values["attn_decode"]["bfloat16"]["c_q"] = 0.11
    assert place(tmp_path, values).c_q == 0.11


def test_what_the_formula_misses_multiplies_the_gemm(tmp_path: Path) -> None:
    values, rows = entry(), np.array([1.0, 64.0])
    values["gemm_bfloat16"]["m_residual"] = {"1": 1.0, "64": 2.0}
    own = linear(place(tmp_path, values), rows, 4096, 4096)
    values["gemm_bfloat16"]["m_residual"] = {"1": 1.0, "64": 1.0}
    plain = linear(place(tmp_path, values), rows, 4096, 4096)
    assert own.stream_s / plain.stream_s == pytest.approx([1.0, 2.0])


def test_the_reader_is_told_whose_kernels_they_are(tmp_path: Path) -> None:
    assert any("your own GPU" in note for note in place(tmp_path, entry()).notes)


def test_shares_of_another_bandwidth_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="was fitted with hbm_bytes_per_s"):
        place(tmp_path, entry(), hbm_bytes_per_s=2.4e12)


def test_a_file_that_is_no_measurement_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no file of `specfleet measure`"):
        place(tmp_path, {"bw": 1.0})
    with pytest.raises(ValueError, match="No such file"):
        Placement.of(
            catalog.model("llama-3.1-8b"),
            catalog.accelerator({"base": "h100-sxm", "constants": str(tmp_path / "none.json")}),
            catalog.engine_profile("vllm-0.33"),
        )
    with pytest.raises(CatalogError, match=r"must be the path of a \.json file"):
        catalog.accelerator({"base": "h100-sxm", "constants": "h200_sxm"})
