"""Recorded conversations find in an unbounded cache what their hashes say, counted without the engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sim_toys import ENGINE, ToyCost, World

from specfleet.sim.simulation import simulate
from specfleet.workloads.traces.formats import read_trace

TRACES = "traces/mooncake-fast25"
RECORDED, SIZE = 512, 16
"""Tokens of a block in the file, and in the engine."""
FIRST = 400
"""Rows that are simulated."""


def reused(lines: list[str]) -> tuple[int, int]:
    """Prompt tokens that were there before, and all of them, from the file's own ids: blocks found from the
    first on, in whole blocks of the engine, and one token less than the prompt at most."""
    seen: set[int] = set()
    found = total = 0
    for row in map(json.loads, lines):
        length, known = row["input_length"], 0
        for block in row["hash_ids"]:
            if block not in seen:
                break
            known += RECORDED
        found += min(known, length - 1) // SIZE * SIZE
        total += length
        seen.update(row["hash_ids"])
    return found, total


@pytest.mark.parametrize(
    ("name", "share"),
    [("conversation_trace.head1159.jsonl", 0.230), ("synthetic_trace.head673.jsonl", 0.116)],
)
def test_an_unbounded_cache_finds_what_the_hashes_of_the_excerpt_say(
    shared: Path, name: str, share: float
) -> None:
    """The excerpts begin with an empty cache; over the whole traces it is 37 and 65 %."""
    path = shared / TRACES / name
    lines = path.read_text().splitlines()
    found, total = reused(lines)
    assert found / total == pytest.approx(share, abs=0.001)
    found, total = reused(lines[:FIRST])
    table = read_trace(path, limit=FIRST).requests
    longest = int((table.prompt_tokens + table.max_tokens).max())
    engine = replace(
        ENGINE,
        enable_prefix_caching=True,
        num_gpu_blocks=total // SIZE + 2 * longest,
        max_model_len=longest,
        max_num_batched_tokens=longest,
    )
    apart = replace(table, arrival_s=np.arange(0.0, 10.0 * len(table), 10.0, dtype=np.float64))
    world = World([1], [1], engine=engine, cost=ToyCost(1e-4))
    result = simulate(world.scenario({}), apart, 0)
    assert result.stepped_share == 0.0
    assert int(table.prompt_tokens.sum()) == total
    assert int(result.requests["cached_tokens"].sum()) == found > 0
