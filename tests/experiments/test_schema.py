"""An experiment is complete and free of faults, or every fault is named with its line and what to do."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specfleet.experiments.load.config import load, load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.schema.blocks.acceptance import SEEN_CONCENTRATIONS, Process
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import Fault, InputFaults
from specfleet.experiments.schema.lookups import acceptance_profile, acceptance_profile_names
from specfleet.experiments.schema.overrides import Override
from specfleet.experiments.schema.yamlfile import Value, read_yaml

BAD_INPUT = Path(__file__).parent / "bad_input"
DEMO = Path(__file__).parents[2] / "experiments" / "presets" / "demo.yaml"
SERVE = "model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm"
EAGLE3 = "model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3"


def experiment_text(
    serve: str = SERVE, workload: str = "input_len: 100, output_len: 10", rest: str = ""
) -> str:
    """A short experiment file."""
    return f"serve: {{{serve}}}\nworkload: {{{workload}}}\n{rest}\n"


def speculative(
    fields: str, rest: str = "acceptance: {conditional_acceptance: 0.7, concentration: 18}"
) -> str:
    """A short experiment file with a drafter."""
    return experiment_text(f"{SERVE}, speculative_config: {{{fields}}}", rest=rest)


def load_text(folder: Path, text: str, *overrides: str) -> Experiment:
    """The experiment that a text describes."""
    path = folder / "x.yaml"
    path.write_text(text)
    return load_experiment(path, overrides)


def messages(folder: Path, text: str, *overrides: str) -> list[str]:
    """The faults of a text, without the file's name."""
    with pytest.raises(InputFaults) as caught:
        load_text(folder, text, *overrides)
    return [str(fault).removeprefix(f"{folder / 'x.yaml'}:") for fault in caught.value.faults]


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


SLO = "slo: {attainment: 0.9}"
AXES = "sweep: {axes: {serve.speculative_config.num_speculative_tokens: [1, 3]}}"
CONFLICTS = [
    (
        experiment_text(f"{SERVE}, max_num_seqs: 64, max_num_batched_tokens: 32"),
        "fewer than max_num_seqs, 64",
    ),
    (
        experiment_text(
            f"{SERVE}, enable_chunked_prefill: false, max_num_batched_tokens: 2048, max_model_len: 4096"
        ),
        "without chunked prefill a prompt of max_model_len, 4096 tokens, must fit",
    ),
    (experiment_text(f"{SERVE}, tensor_parallel_size: 3"), "cannot share the 32 attention heads"),
    (experiment_text(f"{SERVE}, max_model_len: 10000000"), "is beyond the 131072 positions"),
    (experiment_text(f"{SERVE}, pipeline_parallel_size: 33"), "has 32 layers; use at most 32 stages"),
    (
        experiment_text(f"{SERVE}, pipeline_parallel_size: 2, engine: sglang"),
        "stages are simulated under vLLM's scheduler alone",
    ),
    (
        experiment_text(f"{SERVE}, pipeline_parallel_size: 2, cost_model: roofline"),
        "stages are priced by kernels, not by roofline",
    ),
    (
        experiment_text(
            "model: qwen3-30b-a3b, gpu: h100-sxm, pipeline_parallel_size: 2, data_parallel_size: 2"
        ),
        "ranks that share the experts of each stage are not simulated",
    ),
    (
        experiment_text(f"{SERVE}, pipeline_parallel_size: 2, memory: {{weights_gib: 15}}"),
        "is a figure of one stage, and each has its own",
    ),
    (
        experiment_text(
            f"{SERVE}, pipeline_parallel_size: 2, engine: vllm-0.15, speculative_config: {{{EAGLE3}}}"
        ),
        "builds before vllm-0.33 would cut the drafter into stages",
    ),
    (
        experiment_text(
            f"{SERVE}, pipeline_parallel_size: 2, async_scheduling: false, speculative_config: {{{EAGLE3}}}"
        ),
        "drafts with stages are simulated under asynchronous scheduling alone",
    ),
    (experiment_text(SERVE.replace("h100-sxm", "h100-sxn")), "did you mean 'h100-sxm'"),
    (experiment_text(f"{SERVE}, engine: vllm-0.34"), "vllm-0.33"),
    (experiment_text(workload="preset: azure-conv-2032"), "closest: azure-conv-2023"),
    (experiment_text(workload="input_len: 10"), "has no output lengths; add output_len or output"),
    (experiment_text(workload="preset: mt-bench, input_len: 10"), "keep exactly one source"),
    (experiment_text(workload="num_prompts: 10"), "has no lengths"),
    (
        experiment_text(f"{SERVE}, max_model_len: 1000", "input_len: 1000, output_len: 1"),
        "leave no room in serve.max_model_len, 1000",
    ),
    (
        experiment_text(
            f"{SERVE}, max_model_len: 1000",
            "input: {uniform: {low: 1, high: 900}}, output: {quantiles: [[0, 1], [100, 101]]}",
        ),
        "prompts of up to 900 tokens and outputs of up to 101 exceed",
    ),
    (
        experiment_text(workload="input: {uniform: {low: 9, high: 1}}, output_len: 1"),
        "low, 9, is above high, 1",
    ),
    (
        experiment_text(workload="input: {fixed: 1, uniform: {low: 1, high: 2}}, output_len: 1"),
        "exactly one of",
    ),
    (experiment_text(workload="input_len: 1, output_len: 1, speed: 2"), "means something only for a trace"),
    (
        experiment_text(workload="input_len: 1, output_len: 1, num_prompts: {per_concurrency: 2}"),
        "needs workload.max_concurrency",
    ),
    (experiment_text(rest=SLO), "has no limit; give p99_ttft_ms"),
    (experiment_text(rest="replications: 0"), "must be at least 1, not 0"),
    (experiment_text(rest="seed:"), "must be a whole number, not nothing"),
    (speculative(EAGLE3, ""), "3 drafts a round and no acceptance: block"),
    (
        speculative("method: lookahead, num_speculative_tokens: 3"),
        "use one of eagle3, eagle, mtp, dflash, dspark, draft_model, medusa, ngram, suffix",
    ),
    (speculative("method: eagle3, num_speculative_tokens: 3"), "method eagle3 needs a drafter"),
    (speculative(f"method: draft_model, {EAGLE3}"), "is a drafter for method eagle3, not draft_model"),
    (speculative("method: ngram"), "num_speculative_tokens is required"),
    (speculative(f"{EAGLE3}, prompt_lookup_max: 4"), "belongs to method ngram"),
    (speculative(f"{EAGLE3}, tensor_parallel_size: 1"), "did you mean draft_tensor_parallel_size?"),
    (speculative(f"{EAGLE3}, draft_tensor_parallel_size: 2"), "neither 1 nor the target's"),
    (speculative(f"{EAGLE3}, enable_adaptive_verification: true"), "belongs to method dspark"),
    (
        speculative(
            f"{EAGLE3}, enable_adaptive_verification: true, "
            "num_speculative_tokens_per_batch_size: [[1, 4, 1]]"
        ),
        "choose drafts in one place",
    ),
    (
        experiment_text(
            f"{SERVE}, max_num_seqs: 256, max_num_batched_tokens: 512, "
            f"speculative_config: {{{EAGLE3}, enable_adaptive_verification: true}}"
        ),
        "256 requests with 3 drafts each are more tokens than a step has, 512",
    ),
    (
        experiment_text(
            f"{SERVE}, pipeline_parallel_size: 2, "
            f"speculative_config: {{{EAGLE3}, enable_adaptive_verification: true}}"
        ),
        "vLLM refuses it with stages",
    ),
    (speculative(f"{EAGLE3}, num_speculative_tokens_per_batch_size: [[2, 4, 1]]"), "start at 1"),
    (speculative(f"{EAGLE3}, num_speculative_tokens_per_batch_size: [[1, 4, 1], [4, 9, 0]]"), "overlap"),
    (speculative(f"{EAGLE3}, rejection_sample_method: block"), "block verification is not modelled yet"),
    (speculative(f"{EAGLE3}, rejection_sample_method: synthetic"), "remove one of the two"),
    (speculative(f"{EAGLE3}, synthetic_acceptance_length: 2"), "needs rejection_sample_method: synthetic"),
    (speculative(EAGLE3, "acceptance: {}"), "give exactly one of by_position"),
    (speculative(EAGLE3, "acceptance: {profile: eagle-chat}"), "no acceptance profile 'eagle-chat'"),
    (
        speculative(EAGLE3, "acceptance: {by_position: [0.5, 0.5, 0.5], acceptance_length: 2}"),
        "by_position and acceptance_length say the same thing twice",
    ),
    (speculative(EAGLE3, "acceptance: {by_position: [0.5, 0.6, 0.4]}"), "never increase"),
    (speculative(EAGLE3, "acceptance: {by_position: [0.5, 0.4], measured_at_k: 3}"), "has 2 entries"),
    (speculative(EAGLE3, "acceptance: {by_position: [1.2]}"), "must be at most 1, not 1.2"),
    (speculative(EAGLE3, "acceptance: {acceptance_length: 5}"), "more than 3 drafts and one; use at most 4"),
    (
        speculative(EAGLE3, f"acceptance: {{acceptance_length: 2}}\n{AXES}"),
        "1, 3 are swept; add measured_at_k",
    ),
    (speculative(EAGLE3, "acceptance: {conditional_acceptance: .nan}"), "finite number"),
    (
        speculative(EAGLE3, "acceptance: {conditional_acceptance: 0.5, context_multiplier: [[0, 1], [9]]}"),
        "acceptance.context_multiplier[1][1]: is required; add it",
    ),
    (
        speculative(
            EAGLE3, "acceptance: {conditional_acceptance: 0.5, context_multiplier: [[9, 1], [0, 1]]}"
        ),
        "tokens rising from 0 or more",
    ),
    (experiment_text(rest="sweep: {axes: {max_concurrency: [1]}}"), "did you mean workload.max_concurrency?"),
    (experiment_text(rest="sweep: {axes: {workload.max_concurrency: []}}"), "at least 1 entries"),
    (
        experiment_text(rest="sweep: {axes: {workload.max_concurrency: 4}}"),
        "must be a list, not 4; write [4]",
    ),
    (experiment_text(rest="sweep: {axes: {workload.max_concurrency: [4, 4]}}"), "has 4 twice"),
    (experiment_text(rest="sweep: {axes: {seed: [1, 2]}}"), "is the same for all points"),
    (experiment_text(rest="report: {baseline: {serve.gpu: a}}"), "nothing is swept"),
    (experiment_text(rest="report: {y: p99_tpot}"), "did you mean p99_tpot_ms?"),
]


@pytest.mark.parametrize(("text", "message"), CONFLICTS, ids=[message for _, message in CONFLICTS])
def test_what_cannot_be_simulated_is_refused_with_a_reason(tmp_path: Path, text: str, message: str) -> None:
    assert any(message in line for line in messages(tmp_path, text))


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
