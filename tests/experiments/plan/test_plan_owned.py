"""What is best done with GPUs that are there: most room, the largest rate; and what may be said of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from plan_toys import SMALL

from specfleet.experiments.plan.again import drawn_again
from specfleet.experiments.plan.command import plan_command
from specfleet.experiments.plan.seen import Allowed, TrialFigures, roomier
from specfleet.experiments.schema.faults import UserError
from specfleet.experiments.words.width import fitting

OWNED = (
    SMALL.partition("plan:")[0].replace("replications: 2\n", "").replace("60", "10").replace("3000", "1500")
    + """
plan:
  candidates:
    drafting:
      - speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}
        num_speculative_tokens: [3]
  gpus_available: {h100-sxm: 2}
"""
)


def run(level: float, spread: float = 1.0, alike: int = 50, seed: int = 0) -> list[TrialFigures]:
    """A run whose TPOT stays alike for so many requests, too short to bound its P99."""
    steps = np.random.default_rng(seed).standard_normal(4_000 // alike)
    limits = {"p99_ttft_ms": Allowed(0.99, "ttft", 2_000.0), "p99_tpot_ms": Allowed(0.99, "tpot", 60.0)}
    series = {"ttft": np.full(4_000, 100.0), "tpot": level + spread * np.repeat(steps, alike)}
    return [TrialFigures({}, series, limits)]


def test_room_is_told_apart_though_p99_is_not_bounded() -> None:
    assert roomier(run(9.0, 0.3), run(16.0, 0.6))
    assert not roomier(run(16.0, 0.6), run(9.0, 0.3))


def test_room_that_differs_by_less_than_chance_is_not_told_apart() -> None:
    assert not roomier(run(9.0, 1.0), run(9.3, 1.0, seed=1))


def test_a_small_difference_on_the_same_requests_is_told_apart_where_p99_is_bounded() -> None:
    assert roomier(run(9.0, alike=1), run(9.3, alike=1))


def planned(
    objective: str, folder: Path, capsys: pytest.CaptureFixture[str], more: Sequence[str] = ()
) -> tuple[dict[str, object], str]:
    """plan.json, and what is printed."""
    file = folder / "owned.yaml"
    file.write_text(OWNED)
    overrides = (f"plan.objective={objective}", *more)
    with fitting():
        assert plan_command(file, overrides, 1, folder / "out", plots=False, quiet=True) == 0
    return json.loads((folder / "out" / "plan.json").read_text()), capsys.readouterr().out


def test_the_largest_rate_lies_where_the_slo_is_crossed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    found, text = planned("throughput", tmp_path, capsys)
    assert found["objective"] == "throughput"
    rate = found["capacity"]["request_rate"]  # type: ignore[index]
    assert text.startswith("Largest rate at the SLO on what you own") or "differ by less than" in text
    assert f"{2 * rate:.1f} requests/s: 2 replicas of 1 x h100-sxm" in text
    assert "N + 1: no GPU that the plan allows is left" in text
    assert found["deployment"]["n_plus_1"] is None  # type: ignore[index]
    assert rate > 8 * 5.0, "beyond eight times the planned load, where a plan by cost stops looking"


def test_more_room_than_all_else_on_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found, text = planned("headroom", tmp_path, capsys)
    assert found["settled"] and found["deployment"]["method"] == "eagle3"  # type: ignore[index]
    assert text.startswith("Most room to the SLO on what you own, at 10 requests/s: 2 replicas")
    assert "Those with most room:" in text
    lines = text.splitlines()
    assert max(map(len, lines[:-1])) <= 80, "all but the path of the folder"


def test_the_figures_of_a_plan_are_drawn_again_from_its_folder_and_from_nothing_less(tmp_path: Path) -> None:
    file, out = tmp_path / "owned.yaml", tmp_path / "out"
    file.write_text(OWNED)
    fewer = ("plan.objective=headroom", "workload.num_prompts=200")
    assert plan_command(file, fewer, 1, out, quiet=True) == 0
    file.unlink()
    drawn = {path.name: path.read_bytes() for path in (out / "plots").iterdir()}
    for path in (out / "plots").iterdir():
        path.unlink()
    assert {path.name: path.read_bytes() for path in drawn_again(out)} == drawn
    next(iter((out / "simulations").iterdir())).unlink()
    with pytest.raises(UserError, match="lacks a simulation of the plan"):
        drawn_again(out)
