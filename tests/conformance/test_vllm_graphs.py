"""CUDA graphs of simulated engines against the lists that vLLM 0.33.0 resolves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specfleet.hardware import catalog
from specfleet.hardware.placement import Placement

GIVEN = ("cudagraph-capture-sizes", "cudagraph_capture_sizes", "max-cudagraph-capture-size")


def placed(line: str, resolved: dict[str, Any], drafts: int) -> Placement:
    """An engine with the limits and drafts of a line; only gpt-oss has graphs of its own."""
    return Placement.of(
        catalog.model("gpt-oss-20b" if "gpt-oss" in line else "llama-3.1-8b"),
        catalog.accelerator("h100"),
        catalog.engine_profile("vllm-0.33"),
        drafter=catalog.drafter("ngram") if drafts else None,
        num_speculative_tokens=drafts,
        max_num_seqs=resolved["max_num_seqs"],
        max_num_batched_tokens=resolved["max_num_batched_tokens"],
    )


def test_every_engine_captures_the_sizes_that_its_real_line_resolves_to(shared: Path) -> None:
    cases = json.loads((shared / "golden" / "vllm_cli" / "serve_lines.json").read_text())["cases"]
    seen, wrong = 0, {}
    for case in cases:
        resolved = case.get("resolved")
        if resolved is None or resolved["cudagraph_mode"] == "NONE" or any(g in case["line"] for g in GIVEN):
            continue
        drafts = (case.get("speculative") or {}).get("num_speculative_tokens", 0)
        real = tuple(resolved["cudagraph_capture_sizes"])
        mine = placed(case["line"], resolved, drafts).capture_sizes
        seen += 1
        if mine != real:
            wrong[case["id"]] = sorted({*mine} ^ {*real})
    assert wrong == {} and seen >= 20
