"""What a file says of pools with roles: done, told, or refused at its line."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_pool_files import faults, written

from specfleet.experiments.figures.apart import apart
from specfleet.experiments.figures.data import Shown
from specfleet.experiments.load.config import load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.built import build
from specfleet.experiments.run.apart import NOISE, SETTLED, compared_apart
from specfleet.experiments.run.check import check
from specfleet.experiments.run.runner import simulate_into
from specfleet.experiments.words.check import check_text
from specfleet.experiments.words.costs.handover import apart_said, handover_said
from specfleet.sim.disaggregation.config import HandoverConfig
from specfleet.sim.speculation.policy import PolicySpec

FILE = """\
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 4096
  speculative_config:
    {model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, method: eagle3, num_speculative_tokens: 3}
acceptance: {conditional_acceptance: 0.7}
deployment:
  pools:
    first: {role: prefill, replicas: 2}
    other: {role: decode, replicas: 1}
workload: {input_len: 2000, output_len: 40, request_rate: 20, num_prompts: 25}
"""
KV_BYTES = 2 * 8 * 128 * 2
"""Of a token and a layer: keys and values of 8 heads of 128, in 2 bytes."""


def with_kv(text: str, drafts: bool = True) -> str:
    """The file with `kv_transfer`; without a drafter in the pool that computes prompts."""
    found = FILE.replace("workload:", f"  kv_transfer: {{{text}}}\nworkload:")
    return (
        found if drafts else found.replace("replicas: 2}", "replicas: 2, serve: {speculative_config: null}}")
    )


def simulated(folder: Path, text: str, every_turn: bool = False) -> dict[str, Any]:
    """The figures of the file's point."""
    (point,) = expand(load_experiment(written(folder, text)))
    simulate_into(folder / "point", point.config, 1, every_turn)
    found = json.loads((folder / "point" / "engine.json").read_text())
    return {**json.loads((folder / "point" / "bench.json").read_text()), **found}


def test_a_run_says_where_a_ttft_went_and_whose_the_tokens_are(tmp_path: Path) -> None:
    found = simulated(tmp_path, FILE, every_turn=True)
    parts = [value for name, value in found.items() if name.startswith("ttft_")]
    assert sum(parts) == pytest.approx(found["mean_ttft_ms"]) and len(parts) == 7
    blocks = 125
    assert found["kv_gb"] * 1e9 == blocks * 16 * 33 * KV_BYTES
    first, other = found["pools"]
    assert (first["pool"], first["requests"], first["output_tokens"]) == ("first", 25, 0)
    assert (other["pool"], other["requests"], other["output_tokens"]) == ("other", 25, 1000)
    assert found["energy_j_per_output_token"] > 0 and found["tpot_split"]["p50"]["draft_ms"] > 0
    assert found["stepped"]["because"] == "replicas that hand KV over"
    assert 0.0 < found["stepped"]["share"] < 0.5
    header, *_ = (tmp_path / "point" / "requests.csv").read_text().splitlines()
    assert {"prefilled_ms", "handed_ms", "opened_ms", "moved_ms", "kv_bytes"} <= set(header.split(","))
    (said,) = handover_said([found], [])
    assert "again" not in said
    (lost,) = handover_said([{**found, "kv_given_up": 3}], [])
    assert "3 requests computed the prompt again" in lost and "fewer max_num_seqs" in lost
    assert said.startswith(f"A first token: of {found['mean_ttft_ms']:,.0f} ms TTFT ")
    assert "0.270 GB a request, links" in said


def test_check_says_how_kv_goes_and_what_is_assumed(tmp_path: Path) -> None:
    said = " ".join(check_text(check(written(tmp_path, FILE), [])).split())
    assert "KV from first to other: when a prompt is computed; then least_outstanding; the drafter's" in said
    assert "2,048 tokens are 0.277 GB: 6.2 ms alone on a link of 45 GB/s" in said
    assert "(assumed: the proxy and the set-up)" in said
    assert "will be stepped" not in said
    looks = " ".join(check_text(check(written(tmp_path, with_kv("router: least_kv")), [])).split())
    assert "will be stepped, 2 to 25 times as long: the router least_kv looks into engines" in looks
    text = with_kv("overlap: layers, setup_ms: 0, gb_per_s: 150, router: random")
    said = " ".join(check_text(check(written(tmp_path, text), [])).split())
    assert "layer by layer, while later ones are computed; then random" in said
    assert "1.8 ms alone on a link of 150 GB/s, after 0 ms of set-up Memory" in said


def test_every_key_reaches_the_simulator(tmp_path: Path) -> None:
    text = with_kv(
        "overlap: after, gb_per_s: 2.5, setup_ms: 3, proxy_ms: 4, router: random, drafter_kv: moved"
    )
    experiment = load_experiment(written(tmp_path, text))
    scenario = build(expand(experiment)[0].config).scenario
    bytes_each = 16 * 33 * KV_BYTES
    assert scenario.deployment.handover == HandoverConfig("after", "random", 0.004, 0.003, bytes_each, 0, 32)
    assert [(pool.role, pool.bytes_per_s) for pool in scenario.pools] == [
        ("prefill", 2.5e9),
        ("decode", 2.5e9),
    ]
    again = tmp_path / "again.yaml"
    again.write_text(resolved(experiment))
    assert resolved(load_experiment(again)) == resolved(experiment)


def test_the_drafters_kv_is_moved_rebuilt_or_done_without_each_at_its_price(tmp_path: Path) -> None:
    moved = simulated(tmp_path, FILE)
    rebuilt = simulated(tmp_path, with_kv("drafter_kv: rebuilt", drafts=False))
    skipped = simulated(tmp_path, with_kv("drafter_kv: skipped, first_rounds: 8", drafts=False))
    assert moved["ttft_prefill_ms"] > rebuilt["ttft_prefill_ms"] == skipped["ttft_prefill_ms"]
    states = 2000 * 3 * 4096 * 2
    assert rebuilt["kv_gb"] * 1e9 == pytest.approx(125 * 16 * 32 * KV_BYTES + states)
    assert skipped["kv_gb"] * 1e9 == pytest.approx(125 * 16 * 32 * KV_BYTES)
    assert rebuilt["ttft_first_step_ms"] > 1.1 * skipped["ttft_first_step_ms"]
    assert skipped["spec_decode_num_drafts"] < 0.9 * moved["spec_decode_num_drafts"]
    assert skipped["mean_tpot_ms"] > moved["mean_tpot_ms"]
    text = with_kv("drafter_kv: skipped, first_rounds: 8", drafts=False)
    config = expand(load_experiment(written(tmp_path, text)))[0].config
    assert build(config).scenario.pools[1].policy == PolicySpec("first_rounds", {"rounds": 8})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("role: decode", "slow: []", "has no role beside pools that have one"),
        ("role: decode", "role: prefill", "first and other have role: prefill; one pool has it"),
        (
            "workload:",
            "  router: {by_class: {default: first}}\nworkload:",
            "every request goes through both; remove it",
        ),
        ("workload:", "  gateway: {max_outstanding: 4}\nworkload:", "a gateway before pools with roles"),
        ("workload:", "  kv_transfer: {overlap: layers, proxy_ms: 1}\nworkload:", "get a request at once"),
        ("workload:", "  kv_transfer: {first_rounds: 1}\nworkload:", "says nothing with drafter_kv: moved"),
        ("workload:", "  kv_transfer: {drafter_kv: rebuilt}\nworkload:", "needs no drafter"),
        ("workload:", "  kv_transfer: {drafter_kv: skipped}\nworkload:", "how many rounds have no drafts"),
        ("workload:", "report: {requests: none}\nworkload:", "figures alone are kept of equal replicas"),
        (
            "replicas: 2}",
            "replicas: 2, serve: {speculative_config: null}}",
            "both pools need the same drafter",
        ),
        ("replicas: 2}", "replicas: 2, serve: {block_size: 32}}", "must be the same in both pools"),
        ("replicas: 2}", "replicas: 2, serve: {data_parallel_size: 2}}", "ranks or stages with a role"),
        ("input_len: 2000", "prefix: {tokens: 100}, input_len: 2000", "enable_prefix_caching: false there"),
        (
            "  max_model_len",
            "  engine: sglang\n  max_model_len",
            "handed over as vLLM does it, not as sglang",
        ),
        ("{role: prefill, replicas: 2}", "{replicas: 2}", "has no role beside pools that have one"),
    ],
)
def test_what_roles_do_not_go_with_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    found = faults(tmp_path, FILE.replace(old, new))
    assert any(said in fault for fault in found), found


def test_kv_is_not_handed_over_between_replicas_without_roles(tmp_path: Path) -> None:
    text = FILE[: FILE.index("  pools:")] + "  kv_transfer: {}\n" + FILE[FILE.index("workload:") :]
    (fault,) = faults(tmp_path, text)
    assert "no pool has a role, so no KV is handed over" in fault


@pytest.mark.parametrize("overlap", ["chunks", "layers"])
def test_with_priorities_nothing_is_sent_ahead(tmp_path: Path, overlap: str) -> None:
    text = with_kv(f"overlap: {overlap}").replace("  max_model", "  scheduling_policy: priority\n  max_model")
    assert all("use fcfs, or overlap: after" in fault for fault in faults(tmp_path, text))


def test_k_0_and_look_up_need_nothing_of_a_drafters_kv(tmp_path: Path) -> None:
    text = with_kv("drafter_kv: skipped, first_rounds: 8", drafts=False)
    none = text.replace("num_speculative_tokens: 3", "num_speculative_tokens: 0")
    assert build(expand(load_experiment(written(tmp_path, none)))[0].config).scenario.pools[1].policy is None
    ngram = text.replace("{model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, method: eagle3,", "{method: ngram,")
    (fault,) = faults(tmp_path, ngram)
    assert "ngram has no KV of its own; remove it" in fault


def compared(served: dict[tuple[int, int, str], float]) -> list[dict[str, object]]:
    """Rows of a sweep: (prompt, answer, deployment) -> requests within the limits a second; on four GPUs."""
    rows: list[dict[str, object]] = []
    for (prompt, answer, where), goodput in served.items():
        row: dict[str, object] = {
            "workload.input_len": prompt,
            "workload.output_len": answer,
            "deployment": where,
            "request_goodput": goodput,
            "output_throughput": 400.0,
            "output_throughput_per_gpu": 100.0,
            "mean_ttft_ms": 100.0,
            "p99_tpot_ms": 10.0,
            "cost_usd_per_million_output_tokens": 2.0,
        }
        if where != "both":
            gpus = int(where)
            row |= {"link_out_busy": 0.1, "mean_ttft_ms": 150.0, "p99_tpot_ms": 5.0}
            row |= {"pool:first:gpu_hours": 0.1 * gpus, "pool:first:output_tokens": 0.0}
            row |= {"pool:other:gpu_hours": 0.1 * (4 - gpus), "pool:other:output_tokens": 400.0}
        rows.append(row)
    return rows


SERVED = {
    (256, 64, "both"): 10.0, (256, 64, "1"): 9.0, (256, 64, "3"): 8.0,
    (256, 512, "both"): 10.0, (256, 512, "1"): 9.9, (256, 512, "3"): 8.0,
    (8192, 64, "both"): 2.0, (8192, 64, "1"): 0.0, (8192, 64, "3"): 6.0,
    (8192, 512, "both"): 0.0, (8192, 512, "1"): 1.0, (8192, 512, "3"): 0.0,
}  # fmt: skip
AXES = ("workload.input_len", "workload.output_len", "deployment")


def test_the_best_split_is_held_against_replicas_that_do_both() -> None:
    rows = compared(SERVED)
    found = {tuple(one.setting.values()): (one.ratio, one.split) for one in compared_apart(rows, AXES)}
    assert found == {
        (256, 64): (0.9, "1+3"),
        (256, 512): (pytest.approx(0.99), "1+3"),
        (8192, 64): (3.0, "3+1"),
        (8192, 512): (inf, "1+3"),
    }
    first, least, most = apart_said(rows, AXES)
    assert (
        "requests within the limits of the SLO a second are more at 2, fewer at 1, and within 2% at 1"
        in first
    )
    assert least.startswith(
        "input len = 256, output len = 64: 0.90 times as many on 1+3 GPUs; mean TTFT 100 -> "
    )
    assert "some where there were none on 1+3 GPUs" in most and "P99 TPOT 10.0 -> 5.0 ms" in most


def test_a_ratio_has_its_interval_and_says_whether_it_is_noise_or_on_a_cliff() -> None:
    wide = [
        {**row, "request_goodput_ci95": 0.03 * float(str(row["request_goodput"]))} for row in compared(SERVED)
    ]
    found = {tuple(one.setting.values()): one for one in compared_apart(wide, AXES)}
    assert found[256, 64].half_width == pytest.approx(0.9 * 0.03 * 2**0.5)
    assert [found[each].verdict for each in found] == [SETTLED, NOISE, SETTLED, SETTLED]
    assert found[8192, 512].half_width is None
    first, *_ = apart_said(wide, AXES)
    assert "Of them 1 ratio cannot be told from 1 over the replications." in first
    once = compared(SERVED)
    assert all(one.verdict in ("", SETTLED) and not one.on_a_cliff for one in compared_apart(once, AXES))
    assert "One replication tells no noise" in apart_said(once, AXES)[0]
    steep = [{**row, "slo_attainment": 0.5 if row["deployment"] == "3" else 1.0} for row in once]
    assert [one.on_a_cliff for one in compared_apart(steep, AXES)] == [False, False, True, False]
    assert "At 1 a limit of the SLO runs through the latencies" in apart_said(steep, AXES)[0]


def test_fleets_of_other_sizes_and_points_without_a_partner_are_not_compared() -> None:
    rows = compared(SERVED)
    alone = [row for row in rows if row["deployment"] != "both"]
    assert compared_apart(alone, AXES) == [] and apart_said(alone, AXES) == []
    larger = [
        {**row, "output_throughput_per_gpu": 50.0} if row["deployment"] != "both" else row for row in rows
    ]
    assert compared_apart(larger, AXES) == []


def test_the_map_has_a_cell_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = SimpleNamespace(rows=compared(SERVED), axes=AXES)
    monkeypatch.setattr("specfleet.experiments.figures.apart.read_results", lambda folder: results)
    shown = Shown("m", None, None, (), (), AXES, {}, 1, "", "", {}, folder=tmp_path)
    figure = apart(shown)
    assert figure is not None
    (ax,) = figure.axes
    written_in = [text.get_text() for text in ax.texts]
    assert {"0.90x", "0.99x", "3.00x", "new"} <= set(written_in)
    assert "3+1\nTTFT 1.50x\nP99 TPOT 0.50x\ncost 1.00x" in written_in
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["256", "8192"]
    results.rows = [row for row in results.rows if row["workload.output_len"] == 64]
    assert apart(shown) is None
