"""Command lines among other text, their spellings, and what the engine makes of them. Own cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.experiments.flags.facts import Configs
from specfleet.experiments.flags.faults import LineFault
from specfleet.experiments.flags.parser import parse
from specfleet.experiments.flags.resolve import EngineSettings, resolve
from specfleet.experiments.flags.table import flags
from specfleet.experiments.flags.values import size
from specfleet.experiments.flags.words import commands

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 8192,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}


def words(text: str) -> list[str]:
    return list(commands(text)[0].words)


def value(line: str, name: str) -> Any:
    return parse(words(line)).values[name]


def kind(line: str) -> str:
    with pytest.raises(LineFault) as caught:
        parse(words(line))
    return caught.value.kind


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Configs of a target, heads and a draft model."""
    heads: dict[str, dict[str, Any]] = {
        "me/target": SMALL,
        "me/plain-eagle3": {
            **SMALL,
            "architectures": ["LlamaForCausalLMEagle3"],
            "max_position_embeddings": 1024,
        },
        "me/yarn-eagle3": {
            **SMALL,
            "max_position_embeddings": 1024,
            "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
        },
        "me/short": {**SMALL, "max_position_embeddings": 512},
        "me/mtp": {**SMALL, "model_type": "deepseek_v3", "num_nextn_predict_layers": 2},
    }
    for name, config in heads.items():
        (tmp_path / f"{name.replace('/', '--')}.json").write_text(json.dumps(config))
    return tmp_path


def engine(folder: Path, line: str) -> EngineSettings:
    return resolve(parse(words(line)), (256, 2048), Configs([folder], cache=False))


def spec(folder: Path, **fields: Any) -> EngineSettings:
    return engine(folder, f"vllm serve me/target --speculative-config '{json.dumps(fields)}'")


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m -tp 2",
        "$ vllm serve m \\\n   -tp 2",
        "export A=1\nCUDA_VISIBLE_DEVICES=0,1 VLLM_USE_V1=1 vllm serve m -tp 2  # two GPUs",
        "nohup /opt/venv/bin/vllm serve m -tp 2 > log.txt 2>&1 &",
        "cd /x && vllm serve m -tp 2 && echo done",
        "python3 -m vllm.entrypoints.openai.api_server --model m -tp 2",
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.33.0 --model m -tp 2",
        "docker run --ipc=host vllm/vllm-openai vllm serve m -tp 2",
        "uv run vllm serve m --tensor_parallel_size=2",
        'command: ["vllm", "serve", "m"]\nargs: ["-tp", "2"]',
        "services:\n  a:\n    image: vllm/vllm-openai:latest\n    command: --model m -tp 2\n",
        'containers:\n- command: ["/bin/sh", "-c"]\n  args: ["vllm serve m -tp 2"]\n',
    ],
)
def test_a_line_is_found_in_what_surrounds_it(text: str) -> None:
    parsed = parse(words(text))
    assert parsed.model == "m"
    assert parsed.values["tensor_parallel_size"] == 2


def test_variables_before_a_command_are_kept() -> None:
    assert commands("A=1 B='x y' vllm serve m")[0].environment == {"A": "1", "B": "x y"}


def test_a_quote_may_run_over_lines() -> None:
    text = 'vllm serve m --speculative-config \'{\n  "method": "ngram",\n  "num_speculative_tokens": 4\n}\''
    assert value(text, "speculative_config") == {"method": "ngram", "num_speculative_tokens": 4}


@pytest.mark.parametrize("text", ["", "echo hello", "vllm chat", "pip install vllm"])
def test_a_text_without_a_server_says_so(text: str) -> None:
    with pytest.raises(LineFault) as caught:
        commands(text)
    assert caught.value.kind == "no_command"


def test_an_open_quote_is_named() -> None:
    with pytest.raises(LineFault) as caught:
        commands("vllm serve m --speculative-config '{")
    assert caught.value.kind == "open_quote"


@given(st.integers(1, 9999), st.sampled_from("kKmMgGtT"))
def test_a_suffix_multiplies_by_a_power_of_1000_or_1024(n: int, suffix: str) -> None:
    power = "kmgt".index(suffix.lower()) + 1
    assert size(f"{n}{suffix}") == n * (1000 if suffix.islower() else 1024) ** power


@given(st.sampled_from(sorted(flags())))
def test_a_switch_has_an_on_and_its_off_spellings_say_the_opposite(name: str) -> None:
    flag = flags()[name]
    if flag.kind == "switch":
        assert value(f"vllm serve m {flag.option}", name) is True
        assert all(value(f"vllm serve m {off}", name) is False for off in flag.off)


def test_flags_with_underscores_in_a_file_are_read_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("max_num_seqs: 3\nblock-size: 32\nasync-scheduling: false\nlora: {}\n")
    with pytest.raises(LineFault):
        parse(words("vllm serve m --config a.yml"), tmp_path)
    (tmp_path / "a.yml").write_text("max_num_seqs: 3\nblock-size: 32\nenable-prefix-caching: false\n")
    parsed = parse(words("vllm serve m --config a.yml --max-num-seqs 9"), tmp_path)
    assert (parsed.values["max_num_seqs"], parsed.values["block_size"]) == (9, 32)
    assert parsed.values["enable_prefix_caching"] is None
    assert any("false is read past" in warning for warning in parsed.warnings)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm serve m --config=a.yaml", "read past"),
        ("vllm serve m --max-model-len 64k", "65536"),
        ('vllm serve m -sc \'{"method": "ngram"}\' -sc.num_speculative_tokens 3', "replace the whole"),
    ],
)
def test_a_trap_is_said_aloud(line: str, said: str) -> None:
    assert any(said in warning for warning in parse(words(line)).warnings)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("vllm serve m --block-size big", "wrong_type"),
        ("vllm serve m --scheduling-policy lifo", "not_a_choice"),
        ("vllm serve m --no-such-flag", "unknown_flag"),
        ("vllm serve m --port", "missing_value"),
        ("vllm serve m --compilation-config '{\"cudagraph_sizes\": [1]}'", "unknown_key"),
        ("vllm serve m --compilation-config '[1]'", "bad_json"),
    ],
)
def test_what_the_engine_refuses_has_a_kind(line: str, wanted: str) -> None:
    assert kind(line) == wanted


def test_a_plain_head_drafts_at_any_length_and_a_scaled_one_lowers_the_server(folder: Path) -> None:
    plain = spec(folder, method="eagle3", model="me/plain-eagle3", num_speculative_tokens=3)
    yarn = spec(folder, method="eagle3", model="me/yarn-eagle3", num_speculative_tokens=3)
    short = spec(folder, model="me/short", num_speculative_tokens=3)
    assert (plain.max_model_len, yarn.max_model_len, short.max_model_len) == (8192, 1024, 512)
    assert plain.speculation is not None and plain.speculation.skips_beyond is None


def test_drafts_are_a_multiple_of_the_mtp_layers(folder: Path) -> None:
    found = spec(folder, model="me/mtp", method="glm4_moe_mtp", num_speculative_tokens=4)
    assert found.speculation is not None and found.speculation.method == "mtp"
    with pytest.raises(LineFault) as caught:
        spec(folder, model="me/mtp", method="mtp", num_speculative_tokens=3)
    assert caught.value.kind == "not_divisible"


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 0}, "out_of_range"),
        ({"method": "medusa", "num_speculative_tokens": 3}, "unknown_method"),
        ({"method": "ngram", "num_speculative_tokens": 2.5}, "wrong_type"),
        ({"method": "ngram", "num_speculative_tokens": 2, "k": 1}, "unknown_key"),
        (
            {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "num_speculative_tokens_per_batch_size": [[2, 4, 1]],
            },
            "schedule",
        ),
        (
            {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "num_speculative_tokens_per_batch_size": [[1, 4, 1], [4, 9, 0]],
            },
            "schedule",
        ),
        ({"method": "mtp", "num_speculative_tokens": 1}, "no_mtp"),
    ],
)
def test_a_speculative_config_that_is_refused_has_a_kind(
    folder: Path, fields: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(LineFault) as caught:
        spec(folder, **fields)
    assert caught.value.kind == wanted


@given(st.integers(1, 12), st.floats(1, 13))
def test_synthetic_rates_add_up_to_the_length(k: int, length: float) -> None:
    from specfleet.experiments.flags.speculative import _synthetic

    fields = {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": None,
        "synthetic_acceptance_length": length,
    }
    if length > k + 1:
        with pytest.raises(LineFault):
            _synthetic(fields, k)
        return
    rates = _synthetic(fields, k)
    assert len(rates) == k
    assert 1 + sum(rates) == pytest.approx(length)


def test_a_model_of_which_nothing_is_known_says_how_to_get_its_config(folder: Path) -> None:
    with pytest.raises(LineFault, match=r"hf download .* config\.json"):
        engine(folder, "vllm serve nobody/nothing")


def test_throughput_mode_doubles_what_is_left_out(folder: Path) -> None:
    found = engine(folder, "vllm serve me/target --performance-mode throughput --max-num-seqs 7")
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (7, 4096)
