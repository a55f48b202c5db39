"""An experiment is complete and free of faults, or every fault is named with its line and what to do."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from experiment_texts import EAGLE3, SERVE, experiment_text, load_text, messages, speculative
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specfleet.experiments.load.config import load, load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.schema.blocks.acceptance import SEEN_CONCENTRATIONS, Process
from specfleet.experiments.schema.faults import Fault, InputFaults
from specfleet.experiments.schema.lookups import acceptance_profile, acceptance_profile_names
from specfleet.experiments.schema.overrides import Override
from specfleet.experiments.schema.yamlfile import Value, read_yaml

BAD_INPUT = Path(__file__).parent / "bad_input"
DEMO = Path(__file__).parents[2] / "experiments" / "presets" / "demo.yaml"


def test_the_example_of_the_design_loads_as_printed_but_with_as_many_requests_as_settle_it(
    shared: Path, tmp_path: Path
) -> None:
    printed = (shared / "DESIGN.md").read_text().split("```yaml\n")[1].split("```")[0]
    many = ("replications:", "num_prompts:")
    demo, design = (
        [line for line in text.splitlines() if not line.strip().startswith(many)]
        for text in (DEMO.read_text(), printed)
    )
    spelled_out = ', "max_model_len": 16384'  # vLLM 0.33 drafts at any length, and refuses it
    assert demo == [line.replace(spelled_out, "") for line in design]
    assert load_text(tmp_path, printed).serve.max_model_len == 16384
    assert load(DEMO).notices == ()


def test_every_fault_of_a_file_is_named_at_once_in_the_order_of_its_lines() -> None:
    path = BAD_INPUT / "many.yaml"
    with pytest.raises(InputFaults) as caught:
        load_experiment(path, ["serve.block_size=0", "foo"])
    golden = (BAD_INPUT / "many.expected.txt").read_text()
    assert caught.value.render().replace(f"{path}:", "many.yaml:") + "\n" == golden


@pytest.mark.parametrize("overrides", [[], ["serve.engine=vllm-2026-01"], ["sweep={}", "report={}"]])
def test_the_resolved_file_loads_to_an_equal_experiment(tmp_path: Path, overrides: list[str]) -> None:
    experiment = load_experiment(DEMO, overrides)
    text = resolved(experiment)
    again = load_text(tmp_path, text)
    assert again == experiment
    assert resolved(again) == text


def test_every_point_resolves_to_a_file_that_loads_to_it(tmp_path: Path) -> None:
    for point in expand(load_experiment(DEMO))[:4]:
        again = load_text(tmp_path, resolved(point.config))
        assert [p.config for p in expand(again)] == [point.config]


def test_every_default_is_written_to_the_resolved_file(tmp_path: Path) -> None:
    data = yaml.safe_load(resolved(load_text(tmp_path, experiment_text())))
    for key in (
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
    ):
        assert data["serve"][key] > 0
    assert data["serve"]["async_scheduling"] is True
    assert data["client"] == {
        "send_ms": 8,
        "receive_ms": 2.5,
        "turn_ms": 1.5,
        "send_serial_ms": 0.5,
        "chunk_ms": 0.02,
    }
    assert (data["name"], data["workload"]["num_prompts"]) == ("x", 1000)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
def test_words_that_look_like_numbers_survive_the_resolved_file(tmp_path: Path, word: str) -> None:
    experiment = load_text(tmp_path, speculative(EAGLE3 + ", method: eagle3"))
    assert isinstance(experiment.acceptance, Process)
    stated = experiment.acceptance.model_copy(update={"source": word})
    stated_experiment = experiment.model_copy(update={"acceptance": stated})
    assert load_text(tmp_path, resolved(stated_experiment)) == stated_experiment


@pytest.mark.parametrize("word", ["on", "1e-3", "12:30", "0o17", "1_000", ".inf", "null", "~", "= x", "- a"])
def test_awkward_words_survive_the_resolved_file(tmp_path: Path, word: str) -> None:
    text = speculative(
        EAGLE3, f'acceptance: {{conditional_acceptance: 0.5, concentration: 1, source: "{word}"}}'
    )
    experiment = load_text(tmp_path, text)
    assert load_text(tmp_path, resolved(experiment)) == experiment


def test_the_speculative_config_may_be_the_json_of_the_command_line(tmp_path: Path) -> None:
    fields = {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}
    as_text = load_text(tmp_path, speculative("X").replace("{X}", f"'{json.dumps(fields)}'"))
    as_mapping = load_text(tmp_path, speculative(f"method: eagle3, {EAGLE3}"))
    assert as_text == as_mapping
    bad = messages(tmp_path, speculative("X").replace("{X}", "'{\"method\": }'"))
    assert bad == ["1: serve.speculative_config: not JSON: Expecting value at character 12"]


def test_the_method_is_inferred_as_vllm_does_where_the_catalogue_agrees(tmp_path: Path) -> None:
    for model, method in (
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3"),
        ("meta-llama/Llama-3.2-1B-Instruct", "draft_model"),
        ("ngram", "ngram"),
    ):
        experiment = load_text(tmp_path, speculative(f"model: {model}, num_speculative_tokens: 3"))
        assert experiment.serve.speculative_config is not None
        assert experiment.serve.speculative_config.method == method
    unsafe = messages(tmp_path, speculative("model: me/my-head, num_speculative_tokens: 3"))
    assert any("method cannot be inferred safely from me/my-head; add method" in line for line in unsafe)


def test_no_client_takes_no_time(tmp_path: Path) -> None:
    client = load_text(tmp_path, experiment_text(rest="client: none")).client
    assert set(client.model_dump().values()) == {0.0}


def test_a_mapping_of_traffic_classes_needs_one_for_the_traffic_there_is(tmp_path: Path) -> None:
    rest = "acceptance:\n  code: {by_position: [0.8, 0.6, 0.5], concentration: 18}"
    said = messages(tmp_path, speculative(EAGLE3, rest))
    assert len(said) == 1 and "no process for the traffic class default" in said[0]


def test_acceptance_may_differ_by_traffic_class(tmp_path: Path) -> None:
    rest = """acceptance:
  code: {by_position: [0.8, 0.6, 0.5], concentration: 18}
  default: {conditional_acceptance: 0.6, concentration: .inf, low_atom: {weight: .06, low: .1, high: .4}}"""
    found = load_text(tmp_path, speculative(EAGLE3, rest)).acceptance
    assert isinstance(found, dict)
    assert list(found) == ["code", "default"]
    assert math.isinf(found["default"].concentration)
    wrong = rest.replace("by_position", "by_positon")
    assert "2: acceptance.code.by_positon: unknown key; did you mean by_position?" in [
        line.replace("4:", "2:", 1) for line in messages(tmp_path, speculative(EAGLE3, wrong))
    ]


@pytest.mark.parametrize("name", acceptance_profile_names())
def test_an_acceptance_profile_is_written_out_with_its_source_and_spread(tmp_path: Path, name: str) -> None:
    drafter = "method: ngram, num_speculative_tokens: 3" if name.startswith("ngram") else EAGLE3
    found = load_text(tmp_path, speculative(drafter, f"acceptance: {{profile: {name}}}")).acceptance
    assert isinstance(found, Process)
    assert found.by_position == acceptance_profile(name).by_position
    assert found.source.startswith(f"profile {name}: ")
    measured = acceptance_profile(name).model_fields_set
    assert "concentration" in measured or acceptance_profile(name).concentration_range == SEEN_CONCENTRATIONS


def test_what_was_assumed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    cases = {
        speculative(EAGLE3, "acceptance: {conditional_acceptance: 0.7}"): "concentration is not given",
        speculative(
            EAGLE3, "acceptance: {conditional_acceptance: 0.7, concentration: .inf}"
        ): "all requests alike",
        speculative("method: ngram, num_speculative_tokens: 3"): "every step is assumed to find a match",
        speculative(f"{EAGLE3}, revision: main"): "revision has no effect",
        speculative(
            f"{EAGLE3}, rejection_sample_method: synthetic, synthetic_acceptance_length: 2.5", rest=""
        ): "no spread between requests",
    }
    for text, notice in cases.items():
        path.write_text(text)
        assert notice in " ".join(load(path).notices)


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,480,10\n"
    )
    workload = load_text(tmp_path, experiment_text(workload="trace: rows.csv")).workload
    assert (workload.trace, workload.trace_format) == (str((tmp_path / "rows.csv").resolve()), "azure")
    assert workload.request_rate is None
    (fault,) = messages(tmp_path, experiment_text(workload="trace: no.csv"))
    assert fault.startswith("2: workload.trace: there is no file ")


def test_a_bad_value_of_an_axis_is_reported_once_whatever_the_other_axes(tmp_path: Path) -> None:
    rest = """sweep:
  axes:
    workload.max_concurrency: [1, 2, 3]
    serve.max_num_batched_tokens: [8192,
                                   16]"""
    found = messages(tmp_path, experiment_text(f"{SERVE}, max_num_seqs: 64", rest=rest))
    assert found == [
        "7: sweep.axes.serve.max_num_batched_tokens: value 16: 16 tokens in a step are fewer than "
        "max_num_seqs, 64; raise it to at least 64"
    ]


def test_a_swept_key_need_not_be_sound_in_the_base(tmp_path: Path) -> None:
    text = experiment_text(workload="output_len: 1", rest="sweep: {axes: {workload.input_len: [10, 20]}}")
    assert [p.config.workload.input_len for p in expand(load_text(tmp_path, text))] == [10, 20]


def test_an_override_is_read_as_the_file_is_and_blamed_on_the_command_line(tmp_path: Path) -> None:
    text = experiment_text()
    assert load_text(tmp_path, text, "workload.request_rate=2.5e1").workload.request_rate == 25
    assert load_text(tmp_path, text, "serve.gpu={base: h100-sxm, p2p: false}").serve.gpu != "h100-sxm"
    assert load_text(tmp_path, text, "sweep.axes.workload.max_concurrency=[1, 2]").sweep.axes
    with pytest.raises(InputFaults) as caught:
        load_text(tmp_path, text, "workload.burstiness=no", "serve.gpu=[", "nonsense")
    assert [(fault.file, fault.line, fault.key) for fault in caught.value.faults] == [
        ("command line", 0, "serve.gpu"),
        ("command line", 0, "nonsense"),
        ("command line", 0, "workload.burstiness"),
    ]


@pytest.mark.parametrize(
    ("key", "value", "written"),
    [
        ("serve.max_num_seqs", 64, "64"),
        ("workload.request_rate", math.inf, ".inf"),
        ("serve.gpu", {"base": "h100-sxm", "p2p": False}, "{base: h100-sxm, p2p: false}"),
        ("sweep.axes.workload.max_concurrency", (1, 8), "[1, 8]"),
        ("report", {}, "{}"),
        ("serve.max_num_seqs", "many", "many"),
        ("serve.max_num_sequences", 64, "64"),
        ("sweep.axes.workload.max_concurrency", (1, -8), "[1, -8]"),
    ],
)
def test_an_override_given_as_a_value_does_what_its_text_does(
    tmp_path: Path, key: str, value: Value, written: str
) -> None:
    (tmp_path / "x.yaml").write_text(experiment_text())

    def outcome(override: Override) -> str:
        try:
            return resolved(load_experiment(tmp_path / "x.yaml", [override]))
        except InputFaults as faults:
            return faults.render()

    assert outcome((key, value)) == outcome(f"{key}={written}")


def test_faults_are_rendered_with_place_key_and_message() -> None:
    faults = InputFaults(
        [Fault("b", 9, "k", "m"), Fault("command line", 0, "k", "m"), Fault("b", 2, "", "m")]
    )
    assert faults.render() == "b:2: m\nb:9: k: m\ncommand line: k: m"


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 10**6), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = sorted(
    {".".join(map(str, path)) for path in read_yaml(DEMO).marks if path and isinstance(path[-1], str)}
)


@given(st.dictionaries(st.sampled_from(KEYS), JUNK, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_no_input_ends_in_a_traceback(changes: dict[str, object]) -> None:
    try:
        load(DEMO, [f"{key}={json.dumps(value).replace('NaN', '.nan')}" for key, value in changes.items()])
    except InputFaults as error:
        assert all(fault.message for fault in error.faults)
