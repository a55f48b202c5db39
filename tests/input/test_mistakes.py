"""A mistake anywhere is answered with file, line and what to do; what nobody foresaw, with one sentence."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specfleet.experiments.cli import main as cli
from specfleet.experiments.cli.net import UNFORESEEN
from specfleet.experiments.load.config import load
from specfleet.experiments.run.cells import cell_text, text_cell
from specfleet.experiments.run.results import Results, write_summary
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.tools.counts import from_log, from_prometheus, from_requests
from specfleet.experiments.validate.bench import read_bench
from specfleet.experiments.validate.command import validate_command
from specfleet.experiments.validate.validation import PUBLISHED, read_points

HEAD = """\
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm}
workload: {input_len: 100, output_len: 10, num_prompts: 20, request_rate: 3}
acceptance: {conditional_acceptance: 0.7, concentration: 18}
"""
PLAN = (
    HEAD
    + """\
slo: {p99_ttft_ms: 500}
plan:
  candidates:
    drafting:
    - speculative_config:
        model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
        KEY
      num_speculative_tokens: [1, 3]
"""
)
SERVER = HEAD + "\n"


def faults(folder: Path, text: str, overrides: Sequence[str] = ()) -> list[str]:
    """The faults of a text, without the file's name."""
    path = folder / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputFaults) as caught:
        load(path, overrides)
    return [str(fault).removeprefix(f"{path}:") for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            PLAN.replace("KEY", "max_model_length: 3"),
            "10: plan.candidates.drafting[0].speculative_config.max_model_length: unknown key; did you mean "
            "max_model_len?",
        ),
        (
            PLAN.replace("KEY", "max_model_len: 30\n      acceptence: 3"),
            "11: plan.candidates.drafting[0].acceptence: unknown key; did you mean acceptance?",
        ),
        (
            PLAN.replace("KEY", "max_model_len: 30\n      acceptance: {code: {by_positon: [1]}}"),
            "11: plan.candidates.drafting[0].acceptance.code.by_positon: unknown key; did you mean "
            "by_position?",
        ),
        (
            HEAD.replace("num_prompts: 20", "phases: [{num_prompts: 3}, {num_prompts: 3, request_rat: 1}]"),
            "2: workload.phases[1].request_rat: unknown key; did you mean request_rate?",
        ),
        (
            HEAD.replace("num_prompts: 20", "phases: [{num_prompts: 3}, {num_prompts: x}]"),
            "2: workload.phases[1].num_prompts: must be a whole number, not 'x'; write plain digits, without "
            "quotes, underscores or units",
        ),
        (
            HEAD.replace("num_prompts: 20", "phases: [{num_prompts: x}]"),
            "2: workload.phases[0].num_prompts: must be a whole number, not 'x'; write plain digits, without "
            "quotes, underscores or units",
        ),
        (
            HEAD + "claim:\n  statement: a\n  source: b\n  expect:\n"
            "  - {figure: output_throughput, between: [1, 2]}\n"
            "  - {figure: output_throughput, betwen: [1, 2], between: [1, 2]}\n",
            "9: claim.expect[1].betwen: unknown key; did you mean between?",
        ),
    ],
)
def test_one_mistake_in_a_list_of_mappings_is_one_fault_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    assert faults(tmp_path, text) == [said]


@pytest.mark.parametrize(
    "rest",
    [
        "sweep: {axes: {deployment.router: [a]}}\ndeployment: {router: b}",
        "sweep: {axes: {client.send_ms: [y]}}\nclient: {send_ms: x}",
        "sweep: {axes: {replays.x: [y]}}\nreplays: 3",
        "sweep: {axes: {acceptance.code.burst.rho: [0.3], acceptance.by_position: [[0.3]]}}",
    ],
)
def test_a_key_and_its_axis_may_both_be_wrong(tmp_path: Path, rest: str) -> None:
    found = faults(tmp_path, HEAD + rest)
    assert found and all(re.match(r"[45]: ", fault) for fault in found), found


def test_an_axis_inside_a_block_that_was_left_out_is_not_taken_for_sound(tmp_path: Path) -> None:
    text = HEAD.replace("num_prompts: 20", "prefix: {tokens: x}")
    (said,) = faults(tmp_path, text + "sweep: {axes: {workload.prefix.groups: [2]}}")
    assert said.startswith("2: workload.prefix.tokens: must be a whole number")


@pytest.mark.parametrize(
    "rest",
    [
        'report: {y: ["a\\nb"]}',
        'report: {x: "a\\nb"}',
        '"a\\nb": 3',
        'sweep: {axes: {"a\\nb": [1]}}',
        'claim: {statement: s, source: s, expect: [{figure: "a\\nb", between: [1, 2]}]}',
    ],
)
def test_a_line_break_in_a_word_does_not_break_the_line_of_its_fault(tmp_path: Path, rest: str) -> None:
    (said,) = faults(tmp_path, HEAD + rest)
    assert "\n" not in said and "a\\nb" in said


KEYS = st.sampled_from(["phases", "num_prompts", "traffic_class", "request_rate", "between", "figure", "x"])
VALUES = st.recursive(
    st.none() | st.integers(-3, 10**19) | st.floats() | st.sampled_from(["", "x", "null"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.sampled_from(
    ["workload.phases", "claim.expect", "plan.candidates.drafting", "sweep.axes", "acceptance", "serve.gpu"]
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BLOCKS, VALUES)
def test_whatever_stands_in_a_block_is_loaded_or_refused_in_words(
    tmp_path: Path, block: str, value: object
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(HEAD)
    text = json.dumps(value).replace("Infinity", ".inf").replace("NaN", ".nan")
    try:
        load(path, [f"{block}={text}"])
    except InputFaults as error:
        assert all(fault.message for fault in error.faults)


def test_an_unforeseen_exception_is_one_sentence_with_its_details_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    path = tmp_path / "x.yaml"
    path.write_text(HEAD)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("specfleet.experiments.run.check.check", fails)
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", str(path)])
    said = capsys.readouterr().err
    assert ended.value.code == UNFORESEEN == 70
    assert said.count("\n") == 1 and "ZeroDivisionError: a fault of ours" in said and "report" in said
    (details,) = tmp_path.glob("specfleet-*.txt")
    assert str(details) in said
    assert "Traceback" in details.read_text() and str(path) in details.read_text()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError(), 1, "out of memory"),
        (OSError(28, "No space left on device", "x.csv"), 1, "x.csv: No space left on device"),
        (NotADirectoryError(20, "Not a directory", "x/y"), 1, "x/y: Not a directory"),
    ],
)
def test_what_the_system_refuses_is_no_fault_of_ours(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    said: str,
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("specfleet.experiments.run.check.check", fails)
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", str(tmp_path / "x.yaml")])
    assert (ended.value.code, said in capsys.readouterr().err) == (code, True)


def interrupted() -> Exception:
    """The error that a library makes of an interrupt."""
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise RuntimeError("half done") from interrupt
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        # pydantic 2.12, ended by SIGTERM while it built the validator of an experiment
        (RuntimeError('Error building "definitions" validator:\n  KeyboardInterrupt: '), 130),
        (interrupted(), 130),
        (RuntimeError("Error building a validator"), 70),
    ],
)
def test_an_interrupt_that_a_library_made_an_error_of_is_an_interrupt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("specfleet.experiments.run.check.check", fails)
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", str(tmp_path / "x.yaml")])
    assert ended.value.code == code
    assert ("please report" in capsys.readouterr().err) == (code == 70)


@given(st.text(max_size=8))
def test_no_text_cell_is_a_formula_and_every_one_is_read_back(text: str) -> None:
    assert not text_cell(text).startswith(("=", "+", "-", "@", "\t", "\r"))
    if not text.startswith("'"):
        assert cell_text(text_cell(text)) == text


def test_a_formula_in_an_axis_is_text_in_the_summary_and_itself_when_read(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"point": "p", "serve.gpu": "=HYPERLINK(1)", "x": -1.5}]
    write_summary(tmp_path / "summary.csv", rows)
    with (tmp_path / "summary.csv").open() as file:
        assert list(csv.reader(file))[1] == ["p", "'=HYPERLINK(1)", "-1.5"]
    read = Results(
        tmp_path, {"axes": {"serve.gpu": ["=HYPERLINK(1)"]}}, pd.read_csv(tmp_path / "summary.csv")
    )
    assert read.rows == rows


BENCH: dict[str, object] = {
    **{"completed": 100, "failed": 0, "max_concurrency": 8, "request_rate": "inf"},
    **{"total_input_tokens": 8000, "total_output_tokens": 20000, "mean_tpot_ms": 9.0, "p99_tpot_ms": 14.0},
    **{"spec_decode_acceptance_length": 2.5, "spec_decode_per_position_acceptance_rates": [0.7, 0.5, 0.3]},
    **{"spec_decode_draft_tokens": 24000, "spec_decode_accepted_tokens": 12000},
}
IMPOSSIBLE = [
    ("mean_tpot_ms", -3.0, "mean_tpot_ms: is -3, which nothing measures"),
    ("p99_tpot_ms", float("inf"), "p99_tpot_ms: is inf, which nothing measures"),
    ("p99_tpot_ms", [], "p99_tpot_ms: is [], no number"),
    ("completed", 10**400, "lacks completed"),
    ("completed", [1], "lacks completed"),
    ("failed", -1, "failed: is -1"),
    ("total_output_tokens", 99, "total_output_tokens: is 99, less than a token for each of 100 requests"),
    ("request_rate", 0, "request_rate: is 0, no rate above 0"),
    ("spec_decode_accepted_tokens", 24001, "is 24001, more than the 24000 drafted"),
    ("spec_decode_acceptance_length", 4.5, "is 4.5, not from 1 to 4 tokens a round"),
    ("spec_decode_per_position_acceptance_rates", [0.7, 1.5], "at place 1 is 1.5, more than 1"),
    (
        "spec_decode_per_position_acceptance_rates",
        [-0.7, None],
        "place 0 is -0.7, which nothing measures, and",
    ),
    ("spec_decode_per_position_acceptance_rates", ["20260101", 0.5], "at place 0 is 2.0260"),
    ("input_lens", {"a": 1}, "input_lens: is {'a': 1}, no list"),
]


@pytest.mark.parametrize(("key", "value", "said"), IMPOSSIBLE)
def test_a_result_that_cannot_have_been_measured_is_refused_by_key(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    result, serve = tmp_path / "r.json", tmp_path / "s.yaml"
    serve.write_text(SERVER)
    result.write_text(json.dumps({**BENCH, key: value}))
    with pytest.raises(InputFaults) as caught:
        read_bench(result, serve)
    assert said in caught.value.render()


def test_requests_that_failed_are_named_where_the_others_are_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, serve = tmp_path / "r.json", tmp_path / "s.yaml"
    serve.write_text(SERVER.replace("gpu: h100-sxm", "gpu: h100-sxm, speculative_config: {model: "
                     "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}"))  # fmt: skip
    result.write_text(json.dumps({**BENCH, "completed": 20, "failed": 3}))
    validate_command([result], serve=serve, seeds=1, jobs=1, quiet=True)
    assert "r.json: 3 of 23 requests failed; its figures are of the others" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "\ufffe", "[" * 100_000, "1" * 5000, "[]", '{"completed": 1'])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    result, serve = tmp_path / "r.json", tmp_path / "s.yaml"
    serve.write_text(SERVER)
    result.write_text(text)
    with pytest.raises(InputFaults):
        read_bench(result, serve)


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("tpot_mean_ms", "-1", "tpot_mean_ms is negative, which nothing measures"),
        ("tpot_mean_ms", "inf", "tpot_mean_ms is above 1e+12, which nothing measures"),
        ("max_num_seqs", "inf", "max_num_seqs is above 1e+12, which nothing measures"),
        ("num_prompts", "nan", "num_prompts is no number"),
    ],
)
def test_a_row_that_cannot_have_been_measured_is_counted_with_its_reason(
    tmp_path: Path, column: str, cell: str, reason: str
) -> None:
    with PUBLISHED.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))[:3]
    rows[1][column] = cell
    path = tmp_path / "x.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    readout = read_points([path], None, False)
    assert dict(readout.skipped) == {reason: 1}
    assert len(readout.points) == 2


LINE = (
    "SpecDecoding metrics: Mean acceptance length: 2.20, Accepted: {} tokens, Drafted: {} tokens, "
    "Per-position acceptance{}rate: {}"
)


def test_lines_with_more_accepted_than_drafted_are_left_out_and_counted() -> None:
    sound, wrong = LINE.format(120, 200, " ", "0.8, 0.4"), LINE.format(300, 200, " ", "0.8, 0.7")
    above = LINE.format(120, 200, " ", "1.8, 0.7")
    found = from_log("\n".join([sound, wrong, above]))
    assert found.by_position == (0.8, 0.4)
    assert found.left_out == (("lines with more accepted than drafted", 2),)
    with pytest.raises(ValueError, match="1 say that more was accepted than drafted"):
        from_log(wrong)


def test_requests_that_cannot_be_are_left_out_and_counted() -> None:
    sound = {"per_step_accepted": [2, 0], "per_step_drafted": [2, 2], "num_spec_tokens": 2}
    wrong = [
        {"per_step_accepted": [3], "per_step_drafted": [2], "num_spec_tokens": 2},
        {"per_step_accepted": [1, 1], "per_step_drafted": [2]},
        {"acceptance_histogram": [1, -2]},
        {"acceptance_histogram": {"a": 1}},
        {"per_step_accepted": [1], "per_step_drafted": [1], "num_spec_tokens": 10**15},
    ]
    found = from_requests(json.dumps([sound, *wrong]))
    assert found.by_position == (0.5, 0.5)
    assert sum(n for _, n in found.left_out) == len(wrong)
    with pytest.raises(ValueError, match="1 requests: more accepted than drafted in a step"):
        from_requests(json.dumps(wrong[:1]))


@pytest.mark.parametrize("value", ["nan", "-3", "inf", "x"])
def test_a_counter_that_nothing_counts_is_named(value: str) -> None:
    with pytest.raises(ValueError, match="num_drafts is"):
        from_prometheus(f"vllm:spec_decode_num_drafts_total{{}} {value}\n")


def test_bytes_that_are_no_utf8_in_a_log_are_read_over(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"\xff\x1b[0m " + LINE.format(120, 200, " ", "0.8, 0.4").encode() + b"\n\xc3")
    with pytest.raises(SystemExit) as ended:
        cli.main(["calibrate", "--acceptance", str(log), "--out", str(tmp_path / "mine.yaml")])
    assert ended.value.code == 0
    assert "- 0.8" in (tmp_path / "mine.acceptance.yaml").read_text()
