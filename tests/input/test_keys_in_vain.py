"""A key that changes nothing is a fault at its line, unless it changes something at another point of the
grid; faults inside lists are said at their lines, all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.load.config import load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.schema.faults import InputFaults

HEAD = """\
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_model_len: 4096}
workload: {input_len: 300, output_len: 80, request_rate: 30, num_prompts: 20WORKLOAD}
"""
CLIENTS = ", patience: {timeout_s: 2, backoff_s: 3}"
GATE = "deployment: {replicas: 2, gateway: {max_outstanding: 8, MORE}}\n"
FAILING = "deployment: {replicas: 2, failures: {mtbf_s: 9, repair_s: 1, MORE}}\n"
SPOT = "deployment: {replicas: 2, spot: {price_factor: 0.5, notice_s: 1, provision_s: 1, mtti_s: 9, MORE}}\n"
APART = "deployment: {pools: {p: {role: prefill}, d: {role: decode}}, kv_transfer: {MORE}}\n"
ROUTED = "deployment: {replicas: 2, router: {MORE}}\n"


def faults(tmp_path: Path, text: str, *changes: str) -> list[str]:
    """What is wrong with a file, without its path."""
    path = tmp_path / "file.yaml"
    path.write_text(text)
    try:
        load_experiment(path, changes)
    except InputFaults as error:
        return str(error).replace(f"{path}:", "").splitlines()
    return []


VAIN = [
    (HEAD, CLIENTS, "workload.patience.backoff_s", "workload.patience.retries=[0, 2]"),
    (
        HEAD,
        ", patience: {timeout_s: 2, ttft_timeout_s: 3}",
        "workload.patience.ttft_timeout_s",
        "workload.patience.timeout_s=[2, 4]",
    ),
    (
        HEAD,
        ", patience: {timeout_s: 2}, mix: {a: {share: 0.5, patience: {timeout_s: 1}}, "
        "b: {share: 0.5, patience: {timeout_s: 1}}}",
        "workload.patience",
        "workload.mix.a.patience=[{timeout_s: 1}, null]",
    ),
    (
        HEAD + GATE,
        "queue: 3, backoff_ms: 3",
        "deployment.gateway.backoff_ms",
        "deployment.gateway.retries=[0, 2]",
    ),
    (HEAD + GATE, "retries: 3", "deployment.gateway.retries", "deployment.gateway.queue=[null, 2]"),
    (
        HEAD + GATE,
        "max_outstanding: null, admit_ttft_ms: 500, queue: 3",
        "deployment.gateway.queue",
        "deployment.gateway.max_outstanding=[null, 3]",
    ),
    (
        HEAD + FAILING,
        "detect_s: 1, retry: {most: 0, backoff_s: 3}",
        "deployment.failures.retry.backoff_s",
        "deployment.failures.retry.most=[0, 1]",
    ),
    (
        HEAD + FAILING,
        "detect_s: 1, retry: {most: 0, keep_partial: true}",
        "deployment.failures.retry.keep_partial",
        "deployment.failures.retry.most=[0, 1]",
    ),
    (
        HEAD + FAILING,
        "kind: slow, factor: 2, detect_s: 9",
        "deployment.failures.detect_s",
        "deployment.failures.kind=[slow, hangs]",
    ),
    (
        HEAD + FAILING,
        "kind: slow, factor: 2, retry: {most: 3}",
        "deployment.failures.retry",
        "",
    ),
    (
        HEAD + FAILING,
        "detect_s: 9, factor: 2",
        "deployment.failures.factor",
        "deployment.failures.kind=[hangs, slow]",
    ),
    (
        HEAD + SPOT,
        "retry: {most: 0, backoff_s: 3}",
        "deployment.spot.retry.backoff_s",
        "deployment.spot.retry.most=[0, 1]",
    ),
    (
        HEAD + APART,
        "overlap: chunks, proxy_ms: 3",
        "deployment.kv_transfer.proxy_ms",
        "deployment.kv_transfer.overlap=[chunks, after]",
    ),
    (HEAD + APART, "first_rounds: 3", "deployment.kv_transfer.first_rounds", ""),
    (
        HEAD + ROUTED,
        "then: random, refresh_ms: 9",
        "deployment.router.refresh_ms",
        "deployment.router.then=[random, least_outstanding]",
    ),
]


@pytest.mark.parametrize(
    ("text", "more", "key", "axis"), VAIN, ids=[f"{key}-{n}" for n, (_, _, key, _) in enumerate(VAIN)]
)
def test_a_key_that_changes_nothing_is_a_fault_at_its_line_unless_another_point_needs_it(
    tmp_path: Path, text: str, more: str, key: str, axis: str
) -> None:
    line = 3 if "MORE" in text else 2
    whole = text.replace("MORE", more).replace("max_outstanding: 8, max_outstanding", "max_outstanding")
    whole = whole.replace("WORKLOAD", more if line == 2 else "")
    said = faults(tmp_path, whole)
    assert len(said) == 1 and said[0].startswith(f"{line}: {key}: "), said
    if axis:
        assert faults(tmp_path, whole, f"sweep.axes.{axis}") == []
        name, _, values = axis.partition("=")
        first = values.strip("[]").partition(", ")[0]
        (again,) = faults(tmp_path, whole, f"sweep.axes.{name}=[{first}]")
        assert f" {key}: " in f" {again}", "an axis with one value is as if it were written"


def test_a_swept_value_that_says_nothing_at_any_point_is_a_fault_of_that_value(tmp_path: Path) -> None:
    text = HEAD.replace("WORKLOAD", "")
    blocks = "[null, {timeout_s: 2, backoff_s: 3}, {timeout_s: 3, backoff_s: 3, retries: 1}]"
    (said,) = faults(tmp_path, text, f"sweep.axes.workload.patience={blocks}")
    assert "sweep.axes.workload.patience: value" in said and "nothing is sent again" in said


def test_beside_a_key_in_vain_a_point_too_large_for_its_gpu_is_said_too(tmp_path: Path) -> None:
    text = (
        HEAD.replace("WORKLOAD", CLIENTS)
        .replace("max_model_len: 4096", "max_num_seqs: 4")
        .replace("Llama-3.1-8B", "Llama-3.1-70B")
    )
    said = faults(tmp_path, text)
    (memory, vain) = [one for one in said if one[0].isdigit()]
    assert "does not fit" in memory and "backoff_s" in vain


@pytest.mark.parametrize(
    "block",
    [
        "deployment: {replicas: 2, gateway: {max_outstanding: 4}}",
        "deployment: {replicas: 2, failures: {mtbf_s: 9, repair_s: 1, detect_s: 1, retry: {most: 0}}}",
        "deployment: {replicas: 2, failures: {mtbf_s: 9, repair_s: 1, kind: slow, factor: 2}}",
    ],
)
def test_with_every_default_written_out_a_file_is_read_again(tmp_path: Path, block: str) -> None:
    path, again = tmp_path / "file.yaml", tmp_path / "resolved.yaml"
    path.write_text(HEAD.replace("WORKLOAD", "") + block)
    experiment = load_experiment(path)
    again.write_text(resolved(experiment))
    assert expand(load_experiment(again))[0].config == expand(experiment)[0].config


def test_faults_inside_lists_stand_at_their_lines_and_all_of_them(tmp_path: Path) -> None:
    text = (
        HEAD.replace("WORKLOAD", "")
        + """\
deployment:
  replicas: 2
  slow:
    - {share: 0.5, factor: 2}
    - factor: 2
    - {replicas: [7], factor: 2}
  failures:
    detect_s: 1
    at:
      - {replica: 0, at_s: 1, for_s: 1}
      - {replica: 9, at_s: 1, for_s: 1}
report:
  y:
    - p99_ttft_ms
    - p99_tftt_ms
claim:
  statement: x
  source: ours
  expect:
    - {figure: output_throughput, at_least: 1}
    - {figure: nothing, where: {a: 1, b: 2}}
"""
    )
    said = faults(tmp_path, text)
    assert [one.partition(": ")[0] for one in said] == ["7", "8", "13", "17", "23", "23", "23", "23"], said
    assert said[3].endswith("p99_tftt_ms is no metric; did you mean p99_ttft_ms?")
    assert "nothing is no metric; use a column of summary.csv" in said[4]
