"""A pasted script: variables that it sets, all that is wrong with its line, flags of SGLang, paths."""

from __future__ import annotations

import argparse
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.experiments.flags import sglang
from specfleet.experiments.flags.sglang_table import listed
from specfleet.experiments.flags.words import commands
from specfleet.experiments.load.config import Loaded, load
from specfleet.experiments.load.from_line import translate
from specfleet.experiments.point.build import placement
from specfleet.experiments.schema.faults import InputFaults

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
LAUNCH = f"python -m sglang.launch_server --model-path {MODEL}"

SCRIPT = r"""
# don't mind the quote
MODEL="${MODEL:-Qwen/Qwen3-8B}"; export LONGEST=${2:-6144}
DRAFT=z-lab/Qwen3-8B-DFlash
ARGS=(
  --served-model-name teacher
  --max-model-len "${LONGEST}"   # beyond it doesn't fit
  --port 8001
)
ARGS+=(--max-num-seqs 128)
if [ "$BIG" = 1 ]; then
  TP=4
fi
[ -n "$QUANT" ] && ARGS+=(--quantization "$QUANT")
exec vllm serve "$MODEL" "${ARGS[@]}" \
  --speculative-config '{"method": "dflash", "model": "'$DRAFT'", "num_speculative_tokens": 3}'
"""


def words(text: str) -> list[str]:
    return list(commands(text)[0].words)


def refusals(line: str) -> list[str]:
    with pytest.raises(InputFaults) as caught:
        translate(line)
    return [str(fault) for fault in caught.value.faults]


def test_variables_and_arrays_that_a_script_sets_are_put_in() -> None:
    found = words(SCRIPT)
    assert found[1:7] == [
        "Qwen/Qwen3-8B",
        "--served-model-name",
        "teacher",
        "--max-model-len",
        "6144",
        "--port",
    ]
    assert found[8:10] == ["--max-num-seqs", "128"]
    assert '"z-lab/Qwen3-8B-DFlash"' in found[-1]
    assert "--quantization" not in found


@given(st.text("ab1 -#{}[]\"':,=*?", max_size=12))
def test_a_variable_brings_what_a_shell_would_bring(value: str) -> None:
    """Within double quotes: one word, with its quotes and blanks."""
    text = f'X={shlex.quote(value)}\nvllm serve m --served-model-name "$X" --port 9'
    assert words(text) == ["serve", "m", "--served-model-name", value, "--port", "9"]


def test_single_quotes_keep_a_variable_from_being_put_in() -> None:
    assert words("X=1\nvllm serve m --port '$X'")[-1] == "$X"


SHREDS = (
    *(
        "vllm serve ",
        "python -m sglang.launch_server ",
        "trtllm-serve ",
        "vllm bench serve ",
        MODEL + " ",
        "$X ",
    ),
    *(
        "--model ",
        "--model-path ",
        "--port ",
        "-tp ",
        "--max-num-seqs=",
        "--speculative-config ",
        "--random-input-len ",
    ),
    *(
        "'",
        '"',
        "\\",
        "\n",
        "#",
        " ",
        "=",
        "{",
        "}",
        "(",
        ")",
        "$(",
        "$((",
        "))",
        "${",
        "3 ",
        "-1 ",
        "k",
        ";",
        "|",
    ),
    *(
        "X=",
        "X=(",
        "X+=(",
        "for c in 1 2; do ",
        "done",
        "if a; then ",
        "fi",
        '{"method": "ngram"}',
        "--goodput ttft:",
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(SHREDS), max_size=14).map("".join))
def test_no_text_ends_in_anything_but_a_sentence(text: str) -> None:
    try:
        translate(text)
    except InputFaults as faults:
        assert str(faults)


def test_what_is_set_in_a_branch_is_not_known() -> None:
    said = refusals(f"if a; then\nTP=4\nfi\nvllm serve {MODEL} -tp $TP")
    assert said == ["command line: -tp: $TP: the text does not set it; write its value"]


def test_a_variable_that_changes_no_prediction_is_left_out_and_said() -> None:
    this = translate(f'vllm serve {MODEL} --port $PORT "$@"')
    assert any("--port $PORT is left out" in note for note in this.notes)
    assert any("goes on with $@" in note for note in this.notes)
    assert refusals("vllm serve $MODEL --port 1") == [
        "command line: model: $MODEL: the text does not set it; write its value"
    ]


@pytest.mark.parametrize(
    "line",
    [
        f"vllm serve {MODEL} --swap-space 16 --nonsense 3 --max-num-seqs many --enable-lora",
        f"{LAUNCH} --foo 2 --tp two --disable-cuda-graph --port",
        f"trtllm-serve {MODEL} --foo 1 --bar --max_batch_size x --pp_size 2",
    ],
)
def test_everything_that_is_wrong_with_a_line_is_said_at_once(line: str) -> None:
    assert len(refusals(line)) == 4


def test_what_is_refused_is_said_beside_a_model_of_which_nothing_is_known() -> None:
    for line in (
        "vllm serve nobody/x --enforce-eager",
        "python -m sglang.launch_server --model nobody/x --enable-lora",
    ):
        said = refusals(line)
        assert len(said) == 2
        assert any("hf download nobody/x" in one for one in said)
    assert "copy it to a folder here" in refusals("vllm serve /models/nothing-7b")[0]


@given(st.sampled_from(sorted(listed())))
def test_every_flag_of_sglang_is_either_without_effect_or_refused_with_a_reason(name: str) -> None:
    flag = listed()[name]
    line = [*LAUNCH.split()[3:], f"--{name}", *(() if flag.values == "0" else ("77",))]
    found = sglang.read(line)
    if flag.harmless:
        assert found.refused == {}
        assert found.notes == [f"without effect on the prediction: {name}"]
    else:
        assert flag.why
        assert found.refused == {f"--{name}": f"is not simulated: {flag.why}"}
    for same in flag.same:
        assert sglang.read([*LAUNCH.split()[3:], f"--{name}", same]).refused == {}


def test_no_flag_of_sglang_is_named_twice() -> None:
    assert isinstance(sglang._parser(), argparse.ArgumentParser)  # argparse refuses a second one
    assert not any(option.lstrip("-") in listed() for option in sglang._KEYS)


def test_the_attention_kernels_that_sglang_would_choose_itself_are_taken() -> None:
    assert (
        "attention_backend"
        not in load(translate(f"{LAUNCH} --attention-backend fa3").data).experiment.serve.model_dump()
    )
    assert refusals(f"{LAUNCH} --attention-backend flashinfer")
    tree = "--speculative-algorithm EAGLE3 --speculative-draft-model-path x/y --speculative-num-steps 3"
    tree += " --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
    assert translate(f"{LAUNCH} --attention-backend flashinfer {tree}")
    assert translate(f"{LAUNCH} --attention-backend flashinfer", gpu="l40s")
    with pytest.raises(InputFaults):
        translate(f"{LAUNCH} --attention-backend fa3", gpu="b200")
    assert translate(f"vllm serve {MODEL} --attention-backend FLASH_ATTN")
    assert refusals(f"vllm serve {MODEL} --attention-backend FLASHINFER")


def graphs(flags: str) -> tuple[int, ...]:
    return placement(load(translate(f"{LAUNCH} {flags}").data).experiment.serve).capture_sizes


def test_the_decode_graphs_that_a_line_asks_for_are_those_that_batches_are_padded_to() -> None:
    assert graphs("--cuda-graph-max-bs 20 --max-running-requests 64") == (1, 2, 4, 8, 12, 16, 20)
    assert graphs("--cuda-graph-bs 3 1 9 --max-running-requests 64") == (1, 3, 9)
    assert graphs("--cuda-graph-max-bs 1100 --max-running-requests 4096")[-4:] == (1024, 1056, 1088, 1100)
    own = graphs("--max-running-requests 64")
    assert own == graphs("--cuda-graph-max-bs 256 --max-running-requests 64")


def test_fewer_decode_graphs_leave_more_memory_for_kv_and_batches_beyond_them_are_said() -> None:
    def loaded(flags: str) -> Loaded:
        return load(translate(f"{LAUNCH} {flags}", gpu="l40s").data)

    few, own = loaded("--cuda-graph-max-bs 4"), loaded("")
    assert few.experiment.serve.model_dump()["sglang"]["cuda_graph_max_bs"] == 4
    share = [one.experiment.serve.gpu_memory_utilization or 0 for one in (few, own)]
    assert share[0] > share[1] > 0
    assert any("more than 4 sequences have no decode graph" in notice for notice in few.notices)
    assert not any("no decode graph" in notice for notice in own.notices)


def test_vllm_s_graph_sizes_are_refused_under_sglang() -> None:
    data = translate(LAUNCH).data
    data["serve"]["cudagraph_capture_sizes"] = [1, 2]
    with pytest.raises(InputFaults, match=r"use sglang\.cuda_graph_bs"):
        load(data)


def test_a_path_of_a_model_that_is_not_here_is_the_model_of_its_name() -> None:
    this = translate(
        'vllm serve /models/Qwen3-32B --speculative-config \'{"method": "eagle3", "model": '
        '"/models/Qwen3-32B_eagle3", "num_speculative_tokens": 3}\''
    )
    assert this.data["serve"]["model"] == "Qwen/Qwen3-32B"
    assert this.data["serve"]["speculative_config"]["model"] == "AngelSlim/Qwen3-32B_eagle3"
    assert sum("by its name" in note for note in this.notes) == 2
    cached = "/root/.cache/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/0e9e"
    assert translate(f"python -m sglang.launch_server --model-path={cached}").data["serve"]["model"] == MODEL


def test_adaptive_steps_are_a_policy_and_blocks_of_parallel_drafters_their_tokens() -> None:
    line = f"{LAUNCH} --speculative-algorithm EAGLE3 --speculative-draft-model-path x/y"
    serve = translate(
        f"{line} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-adaptive"
    ).data["serve"]
    assert serve["draft_policy"] == {"adaptive_tiers": {"tiers": [1, 3, 7]}}
    assert serve["speculative_config"]["num_speculative_tokens"] == 7
    block = f"{LAUNCH} --speculative-algorithm DFLASH --speculative-draft-model-path x/y"
    block += " --speculative-dflash-block-size 8"
    assert translate(block).data["serve"]["speculative_config"]["num_speculative_tokens"] == 7
