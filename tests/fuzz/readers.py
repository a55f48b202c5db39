"""Sound files of every kind that a user hands over, and what reads each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specfleet.experiments.calibrate.acceptance import read_report
from specfleet.experiments.point.acceptance_traces import read_traces
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.validate.bench import read_bench
from specfleet.experiments.validate.validation import PUBLISHED, read_points
from specfleet.hardware import constants
from specfleet.workloads.traces.azure import read_azure
from specfleet.workloads.traces.formats import read_trace
from specfleet.workloads.traces.report import TraceError

REPORT = (InputFaults,)
"""What the commands turn into a sentence; a ValueError is turned into one by the rules of the schema."""

SERVER = """\
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  speculative_config: {model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
workload: {preset: mt-bench}
acceptance: {conditional_acceptance: 0.7, concentration: 18}
"""
LOG = (
    "INFO SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput: 1.00 tokens/s, Drafted "
    "throughput: 2.00 tokens/s, Accepted: 150 tokens, Drafted: 300 tokens, Per-position acceptance{0}rate: "
    "0.700, 0.500, 0.300, Avg Draft acceptance{0}rate: 50.0%\n"
).format(" ")
SCRAPE = """\
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 500.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 300.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 200.0
"""
BENCH = {
    **{"date": "20260101", "label": None, "completed": 100, "failed": 0, "max_concurrency": 8},
    **{"request_rate": "inf", "burstiness": 1.0, "duration": 30.0, "total_input_tokens": 8000},
    **{"total_output_tokens": 20000, "output_throughput": 660.0, "mean_tpot_ms": 9.0, "p99_tpot_ms": 14.0},
    **{"mean_ttft_ms": 50.0, "median_ttft_ms": 40.0, "p99_ttft_ms": 90.0, "mean_itl_ms": 20.0},
    **{"median_itl_ms": 19.0, "input_lens": [70, 80, 90], "output_lens": [190, 200, 210]},
    **{
        "spec_decode_num_drafts": 8000,
        "spec_decode_draft_tokens": 24000,
        "spec_decode_accepted_tokens": 12000,
    },
    **{"spec_decode_acceptance_length": 2.5, "spec_decode_per_position_acceptance_rates": [0.7, 0.5, 0.3]},
}
CONFIG = {
    **{"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_attention_heads": 32},
    **{"num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936},
    **{"max_position_embeddings": 40960, "intermediate_size": 6144, "moe_intermediate_size": 768},
    **{"num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": []},
    **{"sliding_window": None, "quantization_config": {"quant_method": "fp8"}, "layer_types": None},
}
REQUESTS = [
    {"metrics": {"speculative_decoding": {"acceptance_histogram": [3, 2, 1, 4]}}},
    {"per_step_accepted": [2, 0, 1, 3], "per_step_drafted": [3, 3, 2, 3], "num_spec_tokens": 3},
]
CONSTANTS = {
    "_note": "written by specfleet measure",
    "mine": json.loads((Path(constants.__file__).parent / "measured" / "constants.json").read_text())["l40s"],
}
ENGINE = "base: vllm-0.33\nname: mine\nkernel_time_scale: 1.02\nhost_async_s: 1.2e-3\nhost_sync_s: 2.0e-3\n"


@dataclass(frozen=True)
class Reader:
    """A kind of file.

    Args:
        suffix: of its name.
        sound: what one holds.
        read: reads one.
        expected: how it refuses.
    """

    suffix: str
    sound: bytes
    read: Callable[[Path], object]
    expected: tuple[type[Exception], ...]


def _constants(path: Path) -> object:
    constants.kernel_constants.cache_clear()
    return constants.kernel_constants(str(path))


TRACES: dict[str, tuple[str, str, dict[str, object]]] = {
    "mooncake": (
        ".jsonl",
        '{"timestamp": 27482, "input_length": 700, "output_length": 52, "hash_ids": [46, 47]}\n' * 9,
        {},
    ),
    "burstgpt": (
        ".csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        + "5,GPT-4,472,18,490,API log\n" * 9,
        {},
    ),
    "vllm-bench": (
        ".json",
        json.dumps(
            {"input_lens": [9, 8], "output_lens": [3, 4], "start_times": [1.5, 2.25], "errors": ["", ""]}
        ),
        {},
    ),
    "columns": (
        ".csv",
        "when,in,out\n" + "1700000000.5,10,20\n" * 9,
        {
            "columns": {"arrival_s": "when", "input_tokens": "in", "output_tokens": "out"},
            "time_unit": "s",
        },
    ),
}
"""Recorded traffic by format: ending, a sound file, and what its reader has to be told."""


def _trace(form: str, suffix: str, sound: str, asked: dict[str, object]) -> Reader:
    return Reader(suffix, sound.encode(), lambda path: read_trace(path, form, **asked), (TraceError,))


def readers(folder: Path) -> dict[str, Reader]:
    """Every kind of file by name; what goes with one is written into the folder."""
    server = folder / "server.yaml"
    server.write_text(SERVER)
    trace = b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"".join(
        b"2023-11-16 18:17:%02d.9799600,%d,%d\n" % (i % 60, 100 + i, 10 + i) for i in range(40)
    )
    table = b"\n".join(PUBLISHED.read_bytes().split(b"\n")[:3])
    replay = b'[3, 0, null, 2]\n{"accepted": [1, 2, 3]}\n'
    report = partial(Reader, read=read_report, expected=REPORT)
    refused = (ValueError,)
    return {
        "trace": Reader(".csv", trace, read_azure, (TraceError,)),
        **{f"trace {form}": _trace(form, *given) for form, given in TRACES.items()},
        "replay": Reader(".jsonl", replay, lambda path: read_traces(str(path)), refused),
        "replay cells": Reader(".csv", b"3,0,,2\n1,2,3\n", lambda path: read_traces(str(path)), refused),
        "config.json": Reader(
            ".json",
            json.dumps(CONFIG, indent=1).encode(),
            lambda path: lookups.model({"hf_config": str(path)}),
            refused,
        ),
        "constants": Reader(".json", json.dumps(CONSTANTS, indent=1).encode(), _constants, refused),
        "engine": Reader(".yaml", ENGINE.encode(), lambda path: lookups.engine(str(path)), refused),
        "log": report(suffix=".txt", sound=LOG.encode() * 3),
        "scrape": report(suffix=".txt", sound=SCRAPE.encode()),
        "requests": report(suffix=".json", sound=json.dumps(REQUESTS, indent=1).encode()),
        "bench": Reader(
            ".json", json.dumps(BENCH, indent=1).encode(), lambda path: read_bench(path, server), REPORT
        ),
        "table": Reader(".csv", table, lambda path: read_points([path], None, False), REPORT),
    }
