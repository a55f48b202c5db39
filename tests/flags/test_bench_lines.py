"""What a benchmark's line says of traffic: data sets, ramps, limits, and loops around it as axes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.experiments.flags.bench import sglang_bench, vllm_bench
from specfleet.experiments.load.config import load
from specfleet.experiments.load.from_line import translate
from specfleet.experiments.schema.faults import InputFaults
from specfleet.workloads import profiles

SERVER = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"


def sent(line: str) -> dict[str, Any]:
    """The experiment of a server and this benchmark, which must load."""
    data = translate(f"{SERVER}\n{line}", gpu="h100-sxm").data
    load(data)
    return data


def test_repeated_prefixes_are_groups_that_share_one() -> None:
    line = "vllm bench serve --dataset-name prefix_repetition --prefix-repetition-prefix-len 512"
    line += " --prefix-repetition-suffix-len 128 --prefix-repetition-num-prefixes 5"
    workload = sent(f"{line} --prefix-repetition-output-len 64 --num-prompts 40")["workload"]
    assert workload["prefix"] == {"tokens": 512, "groups": 5}
    assert (workload["input_len"], workload["output_len"], workload["num_prompts"]) == (640, 64, 40)
    line = "python -m sglang.bench_serving --dataset-name generated-shared-prefix --gsp-num-groups 8"
    line += (
        " --gsp-prompts-per-group 16 --gsp-system-prompt-len 2048 --gsp-question-len 128 --gsp-output-len 256"
    )
    workload = sent(line)["workload"]
    assert workload["prefix"] == {"tokens": 2048, "groups": 8}
    assert (workload["input_len"], workload["output_len"], workload["num_prompts"]) == (2176, 256, 128)


def test_a_data_set_whose_lengths_are_known_is_its_preset() -> None:
    line = "vllm bench serve --dataset-name hf --dataset-path philschmid/mt-bench --num-prompts 80"
    this = translate(f"{SERVER}\n{line}", gpu="h100-sxm")
    assert this.data["workload"]["preset"] == "mt-bench"
    assert not any("are not in the line" in note for note in this.notes)


def test_answers_of_a_stated_length_leave_the_preset_its_prompts() -> None:
    workload = sent("vllm bench serve --dataset-name sharegpt --sharegpt-output-len 300")["workload"]
    assert workload["output_len"] == 300
    chat = profiles.preset("chat-sharegpt").input
    assert workload["input"]["quantiles"][-1] == [100.0, chat.maximum]


def test_goodput_limits_are_the_slo() -> None:
    line = "vllm bench serve --random-input-len 100 --goodput ttft:500 tpot:30.5 e2el:9000 --request-rate 2"
    assert sent(line)["slo"] == {"ttft_ms": 500.0, "tpot_ms": 30.5, "e2el_ms": 9000.0}
    for wrong in ("itl:3", "ttft:x", "ttft", "ttft:0"):
        with pytest.raises(InputFaults, match="--goodput"):
            sent(f"vllm bench serve --goodput {wrong}")


@given(
    st.sampled_from(["linear", "exponential"]), st.integers(1, 900), st.integers(1, 50), st.integers(1, 50)
)
def test_a_ramp_sends_every_request_and_grows_from_one_rate_to_the_other(
    how: str, prompts: int, begin: int, end: int
) -> None:
    words = ["--random-input-len", "9", "--num-prompts", str(prompts), "--ramp-up-strategy", how]
    words += ["--ramp-up-start-rps", str(begin), "--ramp-up-end-rps", str(end)]
    phases = vllm_bench(words, {}).workload["phases"]
    assert sum(phase["num_prompts"] for phase in phases) == prompts
    rates = [phase["request_rate"] for phase in phases]
    assert rates == sorted(rates, reverse=end < begin)
    assert all(min(begin, end) <= rate <= max(begin, end) for rate in rates)
    if prompts >= 20 and how == "linear":
        assert sum(p["num_prompts"] * p["request_rate"] for p in phases) / prompts == pytest.approx(
            (begin + end) / 2, abs=1e-3
        )


def test_a_ramp_without_its_rates_is_refused() -> None:
    with pytest.raises(InputFaults, match="--ramp-up-start-rps"):
        sent("vllm bench serve --ramp-up-strategy linear")


LOOP = """
CONC=(1 8 32)
for c in "${CONC[@]}"; do
  NUM=$(( c * 10 ))
  for r in 1 2.5
  do
    vllm bench serve --dataset-name random --random-input-len 1000 --random-output-len 200 \\
      --max-concurrency ${c} --num-prompts $NUM --request-rate $r
  done
done
"""


def test_loops_around_a_benchmark_are_axes() -> None:
    data = sent(LOOP)
    assert data["sweep"]["axes"] == {
        "workload.max_concurrency": [1, 8, 32],
        "workload.request_rate": [1, 2.5],
    }
    assert data["workload"]["num_prompts"] == {"per_concurrency": 10}
    one = "vllm bench serve --random-input-len 9 --max-concurrency=$c --num-prompts $((20*$c))"
    data = sent(f"for c in 1 4; do {one}; done")
    assert data["sweep"]["axes"] == {"workload.max_concurrency": [1, 4]}
    assert data["workload"]["num_prompts"] == {"per_concurrency": 20}


def test_axes_of_loops_stand_beside_those_of_drafts() -> None:
    drafts = " --spec-method ngram --spec-tokens 3"
    data = translate(f"{SERVER}{drafts}\n{LOOP}", gpu="h100-sxm").data
    assert list(data["sweep"]["axes"]) == [
        "workload.max_concurrency",
        "workload.request_rate",
        "serve.speculative_config.num_speculative_tokens",
    ]
    load(data)


def test_a_number_that_no_loop_gives_is_asked_for() -> None:
    for words in (["--max-concurrency", "$c"], ["--num-prompts", "$((c*10))"], ["--request-rate=${r}"]):
        with pytest.raises(InputFaults, match="the text does not set it"):
            sent("vllm bench serve " + " ".join(words))
    assert sglang_bench(["--base-url", "$URL"], {}).workload["num_prompts"] == 1000
