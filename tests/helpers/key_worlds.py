"""What stands around the keys of the schema where each is tried, and where the difference is seen.

In the figures of a run; in the resolved file alone (words, names, what is drawn); in a refusal (fields that
are not modelled); in the refusal of the rest without it (needed); or nowhere, as it is the only value.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

BASE = """\
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 1024
  max_num_seqs: 8
  speculative_config:
    {model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, method: eagle3, num_speculative_tokens: 3}
acceptance: {conditional_acceptance: 0.7, concentration: 18}
workload:
  input: {uniform: {low: 40, high: 90}}
  output: {uniform: {low: 8, high: 24}}
  num_prompts: 24
  max_concurrency: 6
"""

Around = Mapping[str, Any]
NOTHING: Around = MappingProxyType({})
FIGURES, RESOLVED, REFUSED, NEEDED, ONLY = "figures", "resolved", "refused", "needed", "only"


class Case(NamedTuple):
    """A key's value, what else is set, and where the difference is seen."""

    value: Any
    around: Around = NOTHING
    seen: str = FIGURES


SC, WL, AC, DP = "serve.speculative_config", "workload", "acceptance", "serve.draft_policy"
PLAIN: Around = {SC: None, AC: None}
MIXTURE: Around = {"serve.model": "Qwen/Qwen3-30B-A3B"}
OPEN: Around = {f"{WL}.max_concurrency": None, f"{WL}.request_rate": 300.0}
SCHEDULE: Around = {**OPEN, f"{WL}.arrivals": {"schedule": {"every_s": 0.05, "requests_per_s": [1.0, 9.0]}}}
DIURNAL: Around = {**OPEN, f"{WL}.arrivals": {"diurnal": {"peak_to_trough": 3.0, "period_s": 0.1}}}
RAMP: Around = {
    **OPEN,
    f"{WL}.arrivals": {"ramp": {"from_per_s": 10.0, "to_per_s": 300.0, "over_s": 0.1}},
}
SPIKE: Around = {**OPEN, f"{WL}.arrivals": {"spike": {"at_s": 0.02, "for_s": 0.03, "factor": 4.0}}}
BUSY: Around = {f"{WL}.num_prompts": 60, f"{WL}.max_concurrency": 30, "serve.max_num_seqs": 4}
NGRAM: Around = {SC: {"method": "ngram", "num_speculative_tokens": 3}}
TIGHT: Around = {"serve.num_gpu_blocks_override": 34, "serve.max_model_len": 256}
SGLANG: Around = {
    "serve.engine": "sglang",
    "serve.num_gpu_blocks_override": 520,
    "serve.max_model_len": 256,
    f"{WL}.num_prompts": 60,
    f"{WL}.max_concurrency": 30,
}
SCALED: Around = {
    f"{WL}.max_concurrency": None,
    f"{WL}.request_rate": 200.0,
    f"{WL}.num_prompts": 260,
    f"{WL}.arrivals": {"spike": {"at_s": 0.1, "for_s": 0.2, "factor": 3.0}},
    "deployment.autoscale": {
        **{"metric": "concurrency", "target": 12.0, "min": 1, "max": 7, "start": 2, "every_s": 0.05},
        **{"window_s": 0.05, "tolerance": 0.1, "provision_s": 0.05, "load_s": 0.05, "down_after_s": 0.1},
        "up_most": 2,
    },
}
SCALING: Around = {
    **{"metric": "ttft", "target": 30.0, "max": 4, "start": 1, "every_s": 0.03, "window_s": 0.3},
    **{"tolerance": 5.0, "provision_s": 0.2, "load_s": 0.2, "up_most": 1, "down_after_s": 0.5},
}
HOT: Around = {f"{WL}.temperature": 1.2}
LONG: Around = {f"{WL}.output": {"fixed": 60}}
SYNTHETIC: Around = {AC: None, f"{SC}.rejection_sample_method": "synthetic"}
LATENT: Around = {AC: {"conditional_acceptance": 0.6, "concentration": 18, "overlap": {}}, **HOT}
COLD: Around = {
    **NGRAM,
    AC: {
        "conditional_acceptance": 0.5,
        "concentration": 18,
        "hot_cold": {"stay": 0.8, "enter": 0.3, "accept_hot": 0.8},
    },
}
TREE: Around = {f"{SC}.num_speculative_tokens": None}
SHORT: Around = {"input_len": 60, "output_len": 9}
MIX: Around = {f"{WL}.mix": {"a": {"share": 0.5}, "b": {"share": 0.5, **SHORT}}}
OF_TRACE: Around = {f"{WL}.mix": {"a": {"share": 0.5, "trace": "rows.csv"}, "b": 0.5}}
PHASES: Around = {
    f"{WL}.num_prompts": None,
    f"{WL}.max_concurrency": None,
    f"{WL}.phases": [{"num_prompts": 12, "request_rate": 100.0}, {"num_prompts": 12, "request_rate": 200.0}],
}
SLO: Around = {"slo": {"ttft_ms": 20.0, "tpot_ms": 6.0, "e2el_ms": 100.0}}
CLAIM = {
    "statement": "s",
    "source": "w",
    "expect": [{"figure": "output_throughput", "where": {f"{WL}.max_concurrency": 2}, "between": [0.0, 9e9]}],
}
ASKED = {"figure": "output_throughput", "where": {f"{WL}.max_concurrency": 2}}
MEASURED = {**CLAIM, "expect": [{**ASKED, "measured": 100.0}]}
ASKED_FOR = {**CLAIM, "expect": [{**ASKED}]}
SWEPT: Around = {"sweep": {"axes": {f"{WL}.max_concurrency": [2, 4]}}}
PLAN: Around = {
    f"{WL}.max_concurrency": None,
    f"{WL}.request_rate": 5.0,
    "slo": {"p99_ttft_ms": 500.0},
    "plan": {"candidates": {"gpu": ["h100-sxm", "h200-sxm"]}},
}
ON_A_DAY: Around = {**PLAN, f"{WL}.request_rate": None, "plan": {"day": {"preset": "azure-conv-2024"}}}
LISTED: Around = {
    **PLAN,
    "plan.candidates.drafting": [
        {
            "speculative_config": {
                "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
                "num_speculative_tokens": 3,
            }
        }
    ],
}
TRACE: Around = {
    f"{WL}.input": None,
    f"{WL}.output": None,
    f"{WL}.trace": "rows.csv",
    f"{WL}.num_prompts": None,
}

TR = f"{WL}.trace"
MAPPED: Around = {
    **{key: value for key, value in TRACE.items() if key != TR},
    f"{TR}.file": "rows.csv",
    f"{TR}.columns.arrival_s": "TIMESTAMP",
    f"{TR}.columns.input_tokens": "ContextTokens",
    f"{TR}.columns.output_tokens": "GeneratedTokens",
    f"{TR}.time_unit": "iso",
}
UNTIMED: Around = {
    **{key: value for key, value in MAPPED.items() if not key.endswith("arrival_s")},
    f"{WL}.request_rate": 5.0,
    f"{WL}.max_concurrency": None,
}
OF_USERS: Around = {**MAPPED, f"{TR}.columns.session": "User"}
WAITING: Around = {**OF_USERS, f"{TR}.turns": "after_answer"}


def unmodelled(value: Any) -> Case:
    """A field whose value would change the prediction and is refused by name."""
    return Case(value, seen=REFUSED)
