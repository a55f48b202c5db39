"""`specfleet measure`: plan, time budget, and constants that come out as the GPU they were timed on."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fake_torch import FakeGpu, fake_torch

from specfleet import hardware
from specfleet.experiments.measure.command import measure, measure_command
from specfleet.experiments.measure.points import Device, DoesNotRun, Grid, KernelCall, make_plan, time_points
from specfleet.hardware import catalog, fitting
from specfleet.hardware.constants import DecodeConstants, GemmConstants, kernel_constants
from specfleet.hardware.fitting import AttentionTimes, GemmTimes
from specfleet.hardware.interconnect import all_reduce_s
from specfleet.hardware.kernels import Rates

MODEL = catalog.model("llama-3.1-8b-instruct")
H100 = Device("NVIDIA H100 80GB HBM3", 132, 50 * 2**20, 85_029_615_042, 1, False)
OTHER = H100._replace(name="Accelerator X", sms=100)
TRUE = kernel_constants("h100_sxm")
GEMM = GemmConstants(4.4e-6, 0.80, 0.70, 3.2, 0.3, 0.0)
DECODE = DecodeConstants(floor_s=9.0e-6, sequence_head_s=20.0e-9, bandwidth_share=0.85)
C_Q = 0.12
SMALL = Grid(
    rows=(8, 32, 160, 1024, 8192),
    contexts=(512, 1024, 4096),
    batches=(1, 8, 64, 128),
    message_bytes=tuple(2**power for power in range(13, 27, 2)),
)


class LawfulGpu:
    """A GPU that takes exactly as long as the laws say; every call costs a second of its clock."""

    software, attention, quantises = "laws", "a law", False

    def __init__(self, device: Device, refuses: str = "") -> None:
        self.device = device
        self.refuses = refuses
        self.clock_s = 0.0
        self.asked: list[KernelCall] = []

    def clock(self) -> float:
        return self.clock_s

    def seconds(self, points: Sequence[KernelCall]) -> list[float]:
        self.clock_s += 1.0
        self.asked.extend(points)
        if points[0].law == self.refuses:
            raise DoesNotRun("it has no such kernel")
        return [self._one(point) for point in points]

    def _one(self, p: KernelCall) -> float:
        if p.law.startswith("launch"):
            return 1.5e-6
        if p.law == "copy":
            return 2 * p.message_bytes / (0.9 * 3.35e12)
        one = np.ones(1)
        if p.law == "gemm":
            fp8 = p.dtype == "fp8"
            rates = Rates(3.35e12, 1979e12 if fp8 else 989e12, 132)
            sizes = GemmTimes(one * p.rows, one * p.columns, one * p.depth, one, 1 if fp8 else 2)
            return float(fitting.gemm_s(sizes, GEMM, rates)[0])
        if p.law == "all_reduce":
            return float(all_reduce_s(one * p.message_bytes, TRUE.all_reduce[p.gpus])[0])
        heads = (one * p.heads, one * p.kv_heads, one * p.head_dim)
        times = AttentionTimes(one * p.batch, one * p.context, one * p.query, *heads, one)
        if p.law == "prefill":
            return float(fitting.prefill_s(times, TRUE.prefill, Rates(3.35e12, 989e12, 132))[0])
        return float(fitting.decode_s(times, DECODE, 3.35e12, C_Q)[0])


def measured(machine: LawfulGpu, out: Path, **changes: Any) -> tuple[str, dict[str, Any]]:
    """Summary and the single entry of the constants."""
    options: dict[str, Any] = {"dtype": "bfloat16", "seconds": 1e6, "grid": SMALL, "tp": 1, "gpu": None}
    options |= changes
    text = measure(
        machine, changes.get("model", MODEL), out, options["tp"], options["dtype"], options["seconds"],
        gpu=options["gpu"], grid=options["grid"], clock=machine.clock,
    )  # fmt: skip
    document = json.loads((out / "constants.json").read_text())
    (entry,) = (value for key, value in document.items() if not key.startswith("_"))
    return text, entry


def test_the_constants_of_the_gpu_come_back(tmp_path: Path) -> None:
    text, entry = measured(LawfulGpu(H100), tmp_path)
    full = entry["gemm_bfloat16"]["full"]
    assert full["t0_us"] == pytest.approx(4.4, rel=0.02)
    assert full["eff_bw"] == pytest.approx(0.80, rel=0.02)
    assert full["eff_flops"] == pytest.approx(0.70, rel=0.02)
    decode = entry["attn_decode"]["bfloat16"]
    assert decode["t0_us"] == pytest.approx(9.0, rel=0.02)
    assert decode["per_b_kv_ns"] == pytest.approx(20.0, rel=0.02)
    assert decode["cold"]["eff_bw"] == pytest.approx(0.85, rel=0.02)
    assert decode["c_q"] == pytest.approx(C_Q, rel=0.02)
    assert entry["attn_prefill"]["eff_max"] == pytest.approx(TRUE.prefill.peak_share, rel=0.02)
    assert entry["launch_graph_us"] == 1.5
    assert entry["copy_bytes_per_s"] == pytest.approx(0.9 * 3.35e12, rel=1e-4)
    assert max(fit["mape_pct"] for fit in entry["fit"].values()) < 0.5
    assert "serve:\n  gpu: {base: h100-sxm, constants: " in text
    assert (tmp_path / "summary.txt").read_text().strip() == text


def test_the_entry_has_every_key_of_a_shipped_one(tmp_path: Path) -> None:
    _, entry = measured(LawfulGpu(H100), tmp_path)
    path = Path(hardware.__file__).parent / "measured" / "constants.json"
    shipped = json.loads(path.read_text())["h100_sxm"]

    def missing(have: dict[str, Any], want: dict[str, Any], place: str = "") -> list[str]:
        lacks = []
        for key, value in want.items():
            if key in ("simple", "m_residual"):
                continue
            if key not in have:
                lacks.append(f"{place}{key}")
            elif isinstance(value, dict):
                lacks += missing(have[key], value, f"{place}{key}.")
        return lacks

    assert missing(entry, shipped) == []


def test_laws_that_were_not_timed_are_the_shipped_ones_and_named(tmp_path: Path) -> None:
    text, entry = measured(LawfulGpu(H100, refuses="prefill"), tmp_path)
    assert entry["attn_prefill"]["t0_us"] == pytest.approx(1e6 * TRUE.prefill.floor_s)
    assert "note: attn_prefill is that of h100_sxm" in text
    assert "note: gemm_fp8 is that of h100_sxm" in text
    assert "13 prefill points did not run: it has no such kernel" in text
    assert "attn_prefill" not in entry["fit"]


def test_the_shipped_constants_are_scored_on_the_same_rows(tmp_path: Path) -> None:
    """This GPU's attention floor is lower and its GEMMs are slower than the shipped constants say."""
    text, _ = measured(LawfulGpu(H100), tmp_path)
    line = next(line for line in text.splitlines() if line.startswith("gemm_bfloat16 "))
    assert "%" in line.split("    ")[-1] and line.endswith("%") and ", -" in line


def test_every_row_is_written_with_what_the_law_says(tmp_path: Path) -> None:
    gpu = LawfulGpu(H100)
    measured(gpu, tmp_path)
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(gpu.asked)
    assert [row["law"] for row in rows] == [point.law for point in gpu.asked]
    fitted = [row for row in rows if row["fitted_us"]]
    assert len(fitted) == len(rows) - 3
    assert max(abs(float(row["error_pct"])) for row in fitted) < 2.0


def test_an_fp8_product_alone_gets_the_shipped_quantise_pass_and_says_so(tmp_path: Path) -> None:
    text, entry = measured(LawfulGpu(H100), tmp_path, dtype="fp8")
    added = 1e6 * (TRUE.gemm["fp8"].floor_s - TRUE.gemm["bfloat16"].floor_s)
    assert entry["gemm_fp8"]["full"]["t0_us"] == pytest.approx(4.4 + added, rel=0.02)
    assert entry["gemm_fp8"]["full"]["quant_passes"] == TRUE.gemm["fp8"].quantise_passes
    assert "the FP8 product was timed alone" in text
    assert set(entry["gemm_fp8"]["m_residual"]) == {str(m) for m in (*SMALL.few_rows, *SMALL.rows)}


def test_without_peer_access_the_measured_nccl_prices_a_step(tmp_path: Path) -> None:
    text, entry = measured(LawfulGpu(H100._replace(gpus=2)), tmp_path, tp=2)
    assert list(entry["allreduce"]) == ["nccl"] and list(entry["allreduce"]["nccl"]) == ["2"]
    assert "p2p: false}" in text


def test_with_peer_access_the_engines_own_all_reduce_is_kept(tmp_path: Path) -> None:
    text, entry = measured(LawfulGpu(H100._replace(gpus=4, peers=True)), tmp_path, tp=4)
    assert "vllm_graph" in entry["allreduce"]
    alpha = entry["allreduce"]["nccl"]["4"]["alpha_us"]
    assert alpha == pytest.approx(1e6 * TRUE.all_reduce[4].alpha_s, rel=0.02)
    assert "NCCL was timed" in text


def test_a_fit_that_misses_its_own_rows_is_called_unreliable(tmp_path: Path) -> None:
    class Busy(LawfulGpu):
        """Something else runs on it every other second."""

        def _one(self, p: KernelCall) -> float:
            return super()._one(p) * (1.0 if int(self.clock_s) % 2 else 3.0)

    calm, _ = measured(LawfulGpu(H100), tmp_path)
    busy, _ = measured(Busy(H100), tmp_path)
    assert "do not rely on these constants" in busy and "do not rely" not in calm


def test_a_gpu_that_the_catalogue_lacks_is_described_in_full(tmp_path: Path) -> None:
    text, entry = measured(LawfulGpu(OTHER), tmp_path)
    assert entry["bw"] == pytest.approx(0.9 * 3.35e12, rel=1e-6)
    assert entry["sms"] == 100 and 0.3 * 989e12 < entry["bfloat16"] < 989e12
    gpu = yaml.safe_load(text[text.index("serve:") :])["serve"]["gpu"]
    assert gpu["sms"] == 100 and gpu["name"] == "accelerator-x" and gpu["p2p"] is False
    assert Path(gpu.pop("constants")) == tmp_path / "constants.json"
    assert catalog.accelerator({**gpu, "constants": "h100_sxm"}).flops_per_s["fp8"] > 0


def test_a_named_gpu_gives_the_rates(tmp_path: Path) -> None:
    text, entry = measured(LawfulGpu(OTHER), tmp_path, gpu="h100-sxm")
    assert entry["bw"] == 3.35e12 and "base: h100-sxm" in text


def test_time_is_kept_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    gpu = LawfulGpu(H100)
    text, entry = measured(gpu, tmp_path, seconds=70.0)
    assert gpu.clock_s <= 61.0
    assert "left out for lack of time" in text
    assert "c_q" in entry["attn_decode"]["bfloat16"], "the term no table has comes early"
    assert "gemm_bfloat16" in entry["fit"]


def test_the_most_valuable_points_come_first_and_none_twice() -> None:
    plan = make_plan(MODEL, 1, "fp8", H100)
    points = [point for group in plan for point in group]
    assert len(points) == len(set(points))
    laws = [point.law for point in points]
    assert laws[:4] == ["launch_graph", "launch_eager", "copy", "gemm"]
    shapes = {(p.columns, p.depth) for p in points[:80] if p.law == "gemm"}
    assert shapes == {(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336), (128_256, 4096)}
    assert {p.query for p in points if p.law == "decode"} == set(range(1, 9))
    assert max(p.query for p in points[:120]) == 8
    assert {p.dtype for p in points if p.columns == 128_256} == {"bfloat16"}


def test_kv_that_the_memory_cannot_hold_is_not_planned() -> None:
    small = H100._replace(memory_bytes=6 * 2**30)
    points = [p for group in make_plan(MODEL, 1, "bfloat16", small) for p in group if p.law == "decode"]
    assert points
    assert max(4 * p.batch * p.context * p.kv_heads * p.head_dim for p in points) <= 2 * 2**30


def test_all_reduces_are_planned_for_the_gpus_there_are() -> None:
    plan = make_plan(catalog.model("llama-3.1-70b-instruct"), 4, "bfloat16", H100._replace(gpus=4))
    assert {p.gpus for group in plan for p in group if p.law == "all_reduce"} == {2, 4}
    assert not any(p.law == "all_reduce" for group in make_plan(MODEL, 1, "bfloat16", H100) for p in group)


def test_a_point_that_does_not_run_does_not_stop_the_others() -> None:
    gpu = LawfulGpu(H100, refuses="decode")
    timed = time_points(gpu, make_plan(MODEL, 1, "bfloat16", H100, SMALL), math.inf, gpu.clock)
    assert timed.failed and not timed.left
    assert {reason for _, reason in timed.failed} == {"it has no such kernel"}
    assert {row.point.law for row in timed.rows} >= {"gemm", "prefill", "copy"}


def test_what_has_no_law_is_said_and_not_timed(tmp_path: Path) -> None:
    text, entry = measured(LawfulGpu(H100), tmp_path, model=catalog.model("deepseek-v3"), tp=8)
    assert "multi-head latent attention is not timed" in text
    assert "routed experts are not timed" in text
    assert entry["attn_decode"]["bfloat16"]["t0_us"] == pytest.approx(
        1e6 * TRUE.decode["bfloat16", "all"].floor_s
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "no-such-model"}, "unknown model"),
        ({"tensor_parallel_size": 7}, "--tensor-parallel-size 7 does not divide"),
        ({"dtype": "int4"}, "--dtype is 'int4'"),
        ({"minutes": 0.0}, "--minutes is 0.0"),
        ({"gpu": "h900"}, "unknown accelerator"),
    ],
)
def test_wrong_input_is_said_in_the_users_words(
    options: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = measure_command(**{"model": "llama-3.1-8b-instruct", "out": tmp_path / "out", **options})
    printed = capsys.readouterr()
    assert status == 2 and words in printed.err and printed.out == ""
    assert not (tmp_path / "out").exists()


def test_without_a_gpu_one_sentence_and_status_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for torch, words in ((None, "PyTorch"), (fake_torch(FakeGpu(), available=False), "no CUDA GPU")):
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert measure_command("llama-3.1-8b-instruct", tmp_path / "out") == 2
        printed = capsys.readouterr().err
        assert words in printed and printed.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_command_writes_rows_constants_and_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the stand-in for a GPU, which has room for everything and a second to do it in."""
    torch = fake_torch(FakeGpu())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**36, 2**37))
    for name, module in {"torch": torch, "vllm": None, "flash_attn": None}.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert measure_command("llama-3.1-8b-instruct", tmp_path / "out", minutes=1 / 30) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("NVIDIA H100 80GB HBM3: 132 SMs, 1 MiB L2, h100-sxm in the catalogue")
    assert "engines run FlashAttention" in printed.out
    assert printed.err.startswith("0 of ")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"rows.csv", "constants.json", "summary.txt"}
