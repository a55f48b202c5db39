"""A small plan that the tests of plans share."""

from __future__ import annotations

from specfleet.experiments.plan.candidates import Candidate, candidates
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.structure import check
from specfleet.experiments.schema.yamlfile import parse

SMALL = """
name: small
replications: 2
serve: {model: llama-3.1-8b-instruct, gpu: h100-sxm, max_model_len: 4096, max_num_seqs: 32}
acceptance: {conditional_acceptance: 0.75}
workload:
  input: {uniform: {low: 200, high: 1000}}
  output: {uniform: {low: 20, high: 100}}
  request_rate: 60
  num_warmups: 20
run: {at_most: 3000}
slo: {p99_ttft_ms: 400, p99_tpot_ms: 25}
plan:
  candidates:
    gpu: [h100-sxm, a100-80gb]
    tensor_parallel_size: [1, 3]
    quantization: [null, fp8]
    drafting:
      - speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}
        num_speculative_tokens: [1, 3]
  gpus_available: {a100-80gb: 12}
  also_at: []
"""


def load_small() -> Experiment:
    """The small plan, without a file."""
    return check(parse(SMALL, "small.yaml").data).experiment


def every(experiment: Experiment) -> tuple[Candidate, ...]:
    """Its candidates."""
    return candidates(experiment, {"model": 0, "gpu": 0, "max_model_len": 0, "max_num_seqs": 0})
