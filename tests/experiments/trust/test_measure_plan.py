"""`specfleet measure --plan`: what no table settles, what it takes, how answers reach the constants."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_torch import FakeGpu, fake_torch

from specfleet.experiments.measure import command
from specfleet.experiments.measure.command import measure_command
from specfleet.experiments.measure.points import KernelCall
from specfleet.experiments.measure.tensors import copies
from specfleet.experiments.measure.timer import replayed_s, replays_of
from specfleet.experiments.measure.unsettled import Topic, expected, planned_device, unsettled
from specfleet.hardware import catalog
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost, StepShape

MODEL, LARGE = catalog.model("llama-3.1-8b-instruct"), catalog.model("llama-3.3-70b-instruct")
H100 = catalog.accelerator("h100-sxm")


def topics(tp: int = 1, gpu: str = "h100-sxm", model: Any = MODEL) -> list[Topic]:
    accelerator = catalog.accelerator(gpu)
    device = planned_device(accelerator, tp)
    return unsettled(model, tp, "fp8" in accelerator.flops_per_s, device)


def points(topic: Topic) -> list[KernelCall]:
    return [point for group in topic.groups for point in group]


def test_the_five_questions_are_planned_each_point_once() -> None:
    base, between, verify, drafts, links, long = topics(tp=4, model=LARGE)
    assert [p.law for p in points(base)][:3] == ["launch_graph", "launch_eager", "copy"]
    assert {p.dtype for p in points(between)} == {"fp8"}
    rows = {p.rows for p in points(between)}
    assert rows and all(256 < m < 512 for m in rows), "256 and 512 are in the base"
    assert {257, 320, 511} <= rows
    assert {p.query for p in points(verify)} == set(range(1, 9))
    verified = {p.rows for p in points(drafts)} | {p.rows for p in points(base)} | rows
    assert {4, 32 * 5, 64 * 6, 96 * 4} <= verified and max(p.rows for p in points(drafts)) <= 512
    assert {p.law for p in points(links)} == {"all_reduce"} and {p.gpus for p in points(links)} == {4}
    assert min(p.context for p in points(long)) >= 32_768
    every = [p for topic in topics(tp=4, model=LARGE) for p in points(topic)]
    assert len(every) == len(set(every))


def test_what_cannot_be_asked_says_why() -> None:
    _, between, _, _, links, _ = topics(gpu="a100-80gb")
    assert not between.groups and "no FP8" in between.why_not
    assert not links.groups and "--tensor-parallel-size" in links.why_not
    assert "latent" in topics(tp=8, model=catalog.model("deepseek-v3"))[2].why_not


@pytest.mark.parametrize(
    ("model", "tp", "gpu"), [(MODEL, 1, "h100-sxm"), (LARGE, 4, "h200"), (MODEL, 1, "l40s")]
)
def test_the_whole_plan_takes_at_most_ten_minutes(model: Any, tp: int, gpu: str) -> None:
    accelerator = catalog.accelerator(gpu)
    taken = [
        expected(topic, model, tp, accelerator, accelerator.l2_bytes) for topic in topics(tp, gpu, model)
    ]
    assert 20.0 < sum(group.wall_s for groups in taken for group in groups) < 600.0


def test_a_kernel_is_expected_to_take_what_a_step_is_priced_with() -> None:
    """The GEMMs of all layers are nearly all of a step of that many rows."""
    place = Placement.of(MODEL, H100, catalog.engine_profile("vllm-0.33"), quantization="fp8")
    one = KernelCost(place).terms({name: _one(value) for name, value in _step(257)._asdict().items()})
    several = expected(topics()[1], MODEL, 1, H100, H100.l2_bytes)
    gemms = sum(g.kernel_s[0] for g in several if g.points[0].rows == 257) * MODEL.num_layers
    step = float(sum(one[name][0] for name in ("weights", "compute", "launch")))
    assert 0.7 * step < gemms < step


def _one(value: int) -> Any:
    return np.array([value])


def _step(rows: int) -> StepShape:
    return StepShape(rows, 0, 0, 0, 0, 0, 0, 0, 0)


def test_short_kernels_are_replayed_more_often_and_operands_leave_the_cache() -> None:
    assert replays_of(1e-6) == 40 and replays_of(1.0) == 7 and replays_of(1e-3) == 20
    assert replayed_s(8, 1e-3) == pytest.approx(8e-3 + 9 * 8e-3)
    assert copies(1, 50 * 2**20) == 512 and copies(10**9, 50 * 2**20) == 1 and copies(2**26, 2**26) == 4


def test_without_a_gpu_the_plan_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert measure_command("llama-3.1-8b-instruct", tmp_path, minutes=10.0, plan=True) == 0
    printed = capsys.readouterr().out
    assert "on h100-sxm, tensor parallel 1: what only a GPU can settle" in printed
    assert printed.rstrip().endswith("on the machine with the GPU") and "s are expected, of 600" in printed
    with (tmp_path / "plan.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(points(topic)) for topic in topics())
    assert all(float(row["expected_us"]) > 0 and float(row["timing_s"]) > 0 for row in rows)
    assert not (tmp_path / "constants.json").exists()
    assert measure_command("llama-3.1-8b-instruct", tmp_path, minutes=0.5, plan=True) == 0
    assert "what comes last is left out (--minutes)" in capsys.readouterr().out


def test_on_a_gpu_the_plan_is_timed_and_its_answers_are_constants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the stand-in for a GPU, with time for half of it: rows, and constants for an experiment."""
    torch, reading = fake_torch(FakeGpu()), itertools.count()
    ticking = functools.partial(command.measure, clock=lambda: next(reading) * 0.005)
    monkeypatch.setattr(command, "measure", ticking)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**36, 2**37))
    for name, module in {"torch": torch, "vllm": None, "flash_attn": None}.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert measure_command("llama-3.1-8b-instruct", tmp_path, minutes=1 / 20, plan=True) == 0
    printed = capsys.readouterr().out
    assert (
        printed.startswith("meta-llama/Llama-3.1-8B-Instruct on h100-sxm") and "In an experiment:" in printed
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "plan.csv",
        "rows.csv",
        "constants.json",
        "summary.txt",
    }
    with (tmp_path / "rows.csv").open(newline="") as file:
        timed = [int(row["rows"]) for row in csv.DictReader(file) if row["dtype"] == "fp8"]
    document = json.loads((tmp_path / "constants.json").read_text())
    (entry,) = (value for key, value in document.items() if not key.startswith("_"))
    between = {int(m) for m in entry["gemm_fp8"]["m_residual"] if 256 < int(m) < 512}
    assert between == {m for m in timed if 256 < m < 512} and between
