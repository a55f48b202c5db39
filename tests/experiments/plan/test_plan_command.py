"""The commands that a plan hands out: nothing that vLLM would refuse."""

from __future__ import annotations

import itertools
import json
import shlex

import pytest
from vllm_command import faults

from specfleet.experiments.load.defaults import filled
from specfleet.experiments.plan.flags import (
    bench_command,
    sglang_command,
    shell,
    speculative_json,
    vllm_command,
)
from specfleet.experiments.schema.blocks.experiment import Experiment

EAGLE = {
    "method": "eagle3",
    "model": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
    "num_speculative_tokens": 3,
}


def config(**serve: object) -> Experiment:
    """A filled point with these keys of `serve`."""
    data = {
        "serve": {
            "model": "meta-llama/Llama-3.3-70B-Instruct",
            "gpu": "h100-sxm",
            "tensor_parallel_size": 4,
            "max_model_len": 16384,
            "max_num_seqs": 256,
            **serve,
        },
        "workload": {"preset": "azure-conv-2023", "request_rate": 5.0},
        "slo": {"p99_ttft_ms": 2000.0, "p99_tpot_ms": 60.0},
        "acceptance": {"conditional_acceptance": 0.7},
    }
    return filled(Experiment.model_validate(data))


@pytest.mark.parametrize(
    "serve",
    [
        {},
        {"quantization": "fp8", "kv_cache_dtype": "fp8", "enable_prefix_caching": False},
        {"speculative_config": EAGLE},
        {"speculative_config": EAGLE | {"draft_tensor_parallel_size": 1}, "tensor_parallel_size": 8},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}},
        {"speculative_config": EAGLE | {"num_speculative_tokens_per_batch_size": ((1, 32, 3), (33, 256, 1))}},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 16384, "scheduling_policy": "priority"},
        {"num_gpu_blocks_override": 20000, "block_size": 32, "long_prefill_token_threshold": 2048},
    ],
)
def test_vllm_accepts_every_command(serve: dict[str, object]) -> None:
    command = shell(vllm_command(config(**serve)))
    assert faults(command) == []


def test_the_speculative_config_survives_the_shell() -> None:
    point = config(speculative_config=EAGLE)
    words = shlex.split(shell(vllm_command(point)).replace("\\\n", " "))
    assert json.loads(words[words.index("--speculative-config") + 1]) == EAGLE


def test_a_schedule_of_k_is_a_field_of_the_speculative_config() -> None:
    point = config(speculative_config=EAGLE)
    assert point.serve.speculative_config is not None
    table = [[1, 22, 5], [23, 256, 3]]
    text = speculative_json(
        point.serve.speculative_config,
        point.serve,
        num_speculative_tokens=5,
        num_speculative_tokens_per_batch_size=table,
    )
    assert faults(f"vllm serve m --tensor-parallel-size 4 --speculative-config '{text}'") == []


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ("--tensor-parallel 4", "unrecognized"),
        ("--max-num-seqs 512 --max-num-batched-tokens 256", "below max_num_seqs"),
        ("--no-enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096", "chunked"),
        ("--gpu-memory-utilization 1.2", "gpu_memory_utilization"),
        ("--dtype int8", "no choice"),
    ],
)
def test_the_validator_refuses_wrong_flags(flags: str, fault: str) -> None:
    assert any(fault in found for found in faults(f"vllm serve m {flags}"))


@pytest.mark.parametrize(
    ("changes", "flags", "fault"),
    [
        ({"model": None}, "", "model is required"),
        ({"num_speculative_tokens": 0}, "", "at least 1"),
        ({"tensor_parallel_size": 4}, "", "no field"),
        ({"draft_tensor_parallel_size": 2}, "--tensor-parallel-size 4", "draft_tensor"),
        ({"method": "suffix", "model": None}, "--async-scheduling", "async"),
        ({"num_speculative_tokens_per_batch_size": [[1, 4, 9]]}, "", "wrong K"),
        ({"num_speculative_tokens_per_batch_size": [[2, 4, 1]]}, "", "does not follow"),
        ({"synthetic_acceptance_length": 4.5}, "", "synthetic_acceptance_length"),
    ],
)
def test_the_validator_refuses_what_vllm_refuses(changes: dict[str, object], flags: str, fault: str) -> None:
    text = json.dumps({key: value for key, value in (EAGLE | changes).items() if value is not None})
    assert any(fault in found for found in faults(f"vllm serve m {flags} --speculative-config '{text}'"))


def test_sglang_counts_the_root_among_its_draft_tokens() -> None:
    words = sglang_command(config(speculative_config=EAGLE))
    assert words is not None
    options = dict(itertools.pairwise(words))
    assert options["--speculative-algorithm"] == "EAGLE3"
    assert options["--speculative-num-steps"] == "3"
    assert options["--speculative-eagle-topk"] == "1"
    assert options["--speculative-num-draft-tokens"] == "4"


def test_the_benchmark_asks_for_the_goodput_of_the_slo() -> None:
    words = bench_command(config(), 5.0, 100, 0)
    place = words.index("--goodput")
    assert words[place + 1 : place + 3] == ["ttft:2000", "tpot:60"]
