"""Every size, rate and time has a limit, and what several decide together has one too."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.experiments.load.config import load
from specfleet.experiments.load.starter import json_schema
from specfleet.experiments.schema.blocks.base import MOST_DRAFTS, RATES_PER_S
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.schema.structure import MOST_EXPLAINED
from specfleet.hardware import catalog

HEAD = "serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm"
DRAFTER = "model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens"
ACCEPTANCE = "acceptance: {conditional_acceptance: 0.7, concentration: 18}\n"

UNLIMITED = {
    "workload.request_rate": ".inf is a value; the schema checks what is finite",
    "workload.phases.request_rate": ".inf is a value; the schema checks what is finite",
    "acceptance.concentration": ".inf is a value, and a large one is all alike",
    "acceptance.concentration_range": ".inf is a value, and a large one is all alike",
    "workload.trace.window": "seconds of a trace, compared and nothing else",
    **{
        f"claim.expect.{key}": "a figure, compared and nothing else"
        for key in ("between", "measured", "at_least", "at_most", "not_reproduced")
    },
    "acceptance.context_multiplier": "places of a table, looked up and nothing else",
    "acceptance.temperature_multiplier": "places of a table, looked up and nothing else",
    "acceptance.turn_multiplier": "places of a table, looked up and nothing else",
}
UNMODELLED = ("suffix_decoding_", "dspark_", "xpress_", "fly_")
"""Fields of which only the default is taken."""


def faults(folder: Path, text: str) -> list[str]:
    """The faults of a text, without the file's name."""
    path = folder / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputFaults) as caught:
        load(path)
    return [str(fault).removeprefix(f"{path}:") for fault in caught.value.faults]


def text(serve: str = "", workload: str = "input_len: 100, output_len: 10", rest: str = "") -> str:
    """A short experiment."""
    return f"{HEAD}{', ' if serve else ''}{serve}}}\nworkload: {{{workload}}}\n{rest}"


def numbers(schema: Mapping[str, Any], path: str, whole: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Every number that a schema speaks of: its dotted key, and whether it has an upper limit."""
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    if schema.get("type") in ("integer", "number"):
        yield path, bool({"maximum", "exclusiveMaximum"} & schema.keys())
    for key, child in schema.get("properties", {}).items():
        yield from numbers(child, f"{path}.{key}".lstrip("."), whole)
    for group in ("anyOf", "oneOf", "prefixItems"):
        for child in schema.get(group, ()):
            yield from numbers(child, path, whole)
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from numbers(schema[inner], path, whole)


def test_every_number_of_the_schema_has_an_upper_limit() -> None:
    whole = json_schema()
    found = list(numbers(whole, "", whole))
    assert len(found) > 150
    for path, limited in found:
        key = path.removeprefix("plan.candidates.drafting.")
        inside = key.removeprefix("workload.mix.")
        key = inside if inside.startswith("acceptance.") else key.replace("workload.mix.", "workload.")
        of_lengths = key.endswith(".quantiles")  # percentiles, which must run from 0 to 100
        excused = of_lengths or key in UNLIMITED or key.rpartition(".")[2].startswith(UNMODELLED)
        assert limited or excused, path


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            text(f"speculative_config: {{{DRAFTER}: 3000000000000}}", rest=ACCEPTANCE),
            f"1: serve.speculative_config.num_speculative_tokens: must be at most {MOST_DRAFTS}",
        ),
        (
            text(f"max_model_len: 200, speculative_config: {{{DRAFTER}: 200}}", rest=ACCEPTANCE),
            "1: serve.speculative_config.num_speculative_tokens: 200 drafts a round leave no room in "
            "serve.max_model_len, 200",
        ),
        (
            text(
                "max_num_seqs: 100000, max_num_batched_tokens: 100000, "
                f"speculative_config: {{{DRAFTER}: 400}}",
                rest=ACCEPTANCE,
            ),
            "1: serve.max_num_seqs: 100000 sequences with 400 drafts each",
        ),
        (
            text(workload="input_len: 9, output_len: 9, num_prompts: 3, request_rate: 1e-12"),
            "2: workload.request_rate: must be at least 1e-06",
        ),
        (
            text(workload="input_len: 9, output_len: 9, request_rate: 2e6"),
            f"2: workload.request_rate: must be at most {RATES_PER_S[1]:g}, or .inf",
        ),
        (
            text(workload="input_len: 9, output_len: 9, num_prompts: 100000, request_rate: 1e-3"),
            "2: workload.request_rate: 100000 requests take 1e+08 s to arrive",
        ),
        (
            text(workload="input_len: 9, output_len: 9, phases: [{num_prompts: 99, request_rate: 1e-6}]"),
            "2: workload.phases: 99 requests take 9.9e+07 s to arrive",
        ),
        (text(rest="client: {send_ms: 1.0e+12}"), "3: client.send_ms: must be at most 3.6e+06"),
        (text(rest="client: {turn_ms: 1.0e+300}"), "3: client.turn_ms: must be at most 3.6e+06"),
        (
            text(
                workload="input_len: 9, output_len: 9, num_prompts: 90000, max_concurrency: 1",
                rest="client: {turn_ms: 3.0e+6}",
            ),
            "3: client: 90000 requests keep the client itself busy for 2.7e+08 s",
        ),
        (
            text(workload="input_len: 9, output_len: 9, num_prompts: 20000000"),
            "2: workload.num_prompts: 20000000 requests, and at most 10000000 can be kept one by one",
        ),
        (text("memory: {device_gib: 1.0e+308}"), "1: serve.memory.device_gib: must be at most 1e+06"),
        (
            text(
                f"draft_tree: {{shape: [30, 30]}}, speculative_config: {{{DRAFTER}: null}}", rest=ACCEPTANCE
            ),
            "1: serve.draft_tree: 930 nodes; use at most 512",
        ),
        (
            text("block_size: 1, kv_cache_memory_bytes: 1099511627776000"),
            "KV blocks on a GPU, and at most 10000000 can be simulated",
        ),
        (
            text(rest="replications: 9999\nsweep: {axes: {serve.block_size: [16, 32, 48, 64, 80, 96, 112, "
                 "128, 144, 160, 176]}}"),
            "3: replications: of 11 points are 109989 simulations; use at most 100000",
        ),
        (text(rest="sweep: {axes: {serve.draft_tree.optimal: [1000000000000000000000000000000]}}"),
         "value 1000000000000000000000000000000: must be at most 512"),
        (text().replace("3.1-8B", "3.3-70B"), "1: serve.gpu: meta-llama/Llama-3.3-70B-Instruct does not fit"),
    ],
)  # fmt: skip
def test_what_is_too_large_is_refused_with_its_line_and_the_limit(
    tmp_path: Path, written: str, said: str
) -> None:
    assert any(said in fault for fault in faults(tmp_path, written)), faults(tmp_path, written)


def test_the_limits_of_what_several_keys_decide_are_not_crossed_by_what_just_fits(tmp_path: Path) -> None:
    fitting = [
        text(f"max_model_len: 200, speculative_config: {{{DRAFTER}: 199}}", rest=ACCEPTANCE),
        text(workload="input_len: 9, output_len: 9, num_prompts: 10000, request_rate: 1e-3"),
        text(workload="input_len: 9, output_len: 9, num_prompts: 10000000"),
        text(workload="input_len: 9, output_len: 9, request_rate: .inf, num_prompts: 3"),
        text(f"draft_tree: {{shape: [16, 31]}}, speculative_config: {{{DRAFTER}: null}}", rest=ACCEPTANCE),
    ]
    for one in fitting:
        path = tmp_path / "x.yaml"
        path.write_text(one)
        load(path)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5))
def test_an_absurd_size_of_an_inline_record_is_named(power: int) -> None:
    size = 10 ** (9 + 6 * power)
    with pytest.raises(catalog.CatalogError, match="num_layers"):
        catalog.model({"base": "meta-llama/Llama-3.1-8B-Instruct", "num_layers": size})
    with pytest.raises(catalog.CatalogError, match="hbm_bytes"):
        catalog.accelerator({"base": "h100-sxm", "hbm_bytes": size * 10**12})


@pytest.mark.parametrize("n", [10, 4000])
def test_a_file_of_thousands_of_faults_is_validated_as_often_as_one_of_ten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    validations, searches = [], []
    validate, matches = Experiment.model_validate, difflib.get_close_matches

    def validated(data: object) -> Experiment:
        validations.append(data)
        return validate(data)

    def searched(word: str, *arguments: Any, **named: Any) -> list[str]:
        searches.append(word)
        return matches(word, *arguments, **named)

    monkeypatch.setattr(Experiment, "model_validate", validated)
    monkeypatch.setattr(difflib, "get_close_matches", searched)
    keys = "".join(f"kind_{i}: {i}\n" for i in range(n))
    assert len(faults(tmp_path, text(rest=keys))) == n
    assert len(validations) < 10
    assert len(searches) <= 3 * MOST_EXPLAINED
