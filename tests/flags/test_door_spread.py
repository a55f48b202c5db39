"""A server's line says how a model is spread over GPUs, ranks and replicas, in vLLM's words and SGLang's."""

from __future__ import annotations

import pytest
from server_lines import MODEL

from specfleet.experiments.load.config import load
from specfleet.experiments.load.from_line import translate
from specfleet.experiments.point.build import placement
from specfleet.experiments.point.built import build
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults


def test_dense_data_parallelism_is_replicas_and_ranks_of_a_mixture_share_experts() -> None:
    this = translate(f"vllm serve {MODEL} -dp 3 --enable-expert-parallel", gpu="h100-sxm")
    dense = load(this.data).experiment
    assert (dense.deployment.replicas, dense.serve.data_parallel_size) == (3, 1)
    assert not dense.serve.enable_expert_parallel
    this = translate("vllm serve openai/gpt-oss-120b -dp 2 -tp 2 -ep", gpu="h100-sxm")
    mixture = load(this.data).experiment
    assert (mixture.deployment.replicas, mixture.deployment.router) == (1, "least_outstanding")
    place = placement(mixture.serve)
    assert (place.data_parallel_size, place.expert_parallel_size, place.expert_split(2)) == (2, 4, (1, 4))
    built = build(mixture)
    assert built.gpus == 4
    assert (built.scenario.deployment.replicas, built.scenario.deployment.lockstep) == (2, 2)


@pytest.mark.parametrize(
    ("flags", "tp", "dp", "ep", "replicas"),
    [
        ("--tp 8 --ep 8", 8, 1, 8, 1),
        ("--tp 8 --dp 8 --enable-dp-attention", 1, 8, 1, 1),
        ("--tp-size 8 --dp-size 2 --enable-dp-attention --ep-size 4", 4, 2, 4, 1),
        ("--tp 8 --dp 2", 8, 1, 1, 2),
    ],
)
def test_sglang_s_ways_to_spread_a_mixture(flags: str, tp: int, dp: int, ep: int, replicas: int) -> None:
    line = f"python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 {flags}"
    found = load(translate(line, gpu="h200").data).experiment
    place = placement(found.serve)
    assert (place.tensor_parallel_size, place.data_parallel_size, place.expert_parallel_size) == (tp, dp, ep)
    assert found.deployment.replicas == replicas


def test_dp_attention_of_a_dense_model_is_refused_and_not_taken_for_replicas() -> None:
    line = f"python -m sglang.launch_server --model-path {MODEL} --tp 4 --dp 2"
    assert load(translate(line, gpu="h100-sxm").data).experiment.deployment.replicas == 2
    with pytest.raises(InputFaults, match="--enable-dp-attention: of a model without experts keeps"):
        translate(f"{line} --enable-dp-attention", gpu="h100-sxm")


def test_sglang_s_ways_in_a_file_are_those_of_its_line() -> None:
    def read(**serve: object) -> object:
        given = {"engine": "sglang", "model": "deepseek-ai/DeepSeek-V3", "gpu": "h200", **serve}
        workload = {"input_len": 10, "output_len": 5, "num_prompts": 4, "max_concurrency": 2}
        return load({"name": "x", "serve": given, "workload": workload}).experiment.serve

    serve = read(tp_size=8, dp_size=8, enable_dp_attention=True, ep_size=8)
    assert (serve.tensor_parallel_size, serve.data_parallel_size) == (1, 8)  # type: ignore[attr-defined]
    assert serve.expert_parallel_size == 8  # type: ignore[attr-defined]
    with pytest.raises(InputFaults, match=r"give deployment\.replicas"):
        read(tp_size=8, dp_size=2)
    with pytest.raises(InputFaults, match="must divide tp_size"):
        read(tp_size=4, dp_size=3, enable_dp_attention=True)


SHARED = {"tp": 8, "dp": 8, "enable_dp_attention": True, "speculative_algorithm": "EAGLE"}
"""DeepSeek-V3 as its recipe starts it: ranks that share experts, the model's own layers draft."""


def dp_attention(**more: object) -> Experiment:
    """The experiment of a file in SGLang's names."""
    serve = {"engine": "sglang", "model": "deepseek-ai/DeepSeek-V3", "gpu": "h200", **SHARED, **more}
    workload = {"input_len": 10, "output_len": 5, "num_prompts": 4, "max_concurrency": 2}
    acceptance = {"conditional_acceptance": 0.7, "concentration": 18}
    return load({"name": "x", "serve": serve, "workload": workload, "acceptance": acceptance}).experiment


def test_ranks_of_dp_attention_share_what_an_sglang_server_is_given() -> None:
    automatic = dp_attention()
    assert (automatic.serve.max_num_seqs, automatic.serve.max_num_batched_tokens) == (48 // 8, 8192 // 8)
    given = {"max_running_requests": 256, "chunked_prefill_size": 16_384, "schedule_conservativeness": 1.0}
    with pytest.raises(InputFaults, match=r"does not fit .*\s+usable \(0.672"):  # a chunk's activations
        dp_attention(**given)
    given["mem_fraction_static"] = 0.85
    said = dp_attention(**given)
    assert (said.serve.max_num_seqs, said.serve.max_num_batched_tokens) == (32, 2048)
    settings = build(said).scenario.engine.sglang
    assert settings is not None and settings.schedule_conservativeness == 0.3
    with pytest.raises(InputFaults, match="max_running_requests: 4 leaves nothing for each of 8 ranks"):
        dp_attention(max_running_requests=4)
    flags = "".join(f" --{key.replace('_', '-')} {value}" for key, value in given.items())
    line = f"python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8{flags}"
    this = translate(f"{line} --enable-dp-attention --speculative-algorithm EAGLE", gpu="h200")
    found = load(this.data)
    assert found.experiment.serve == said.serve
    assert found.experiment.deployment.router == "round_robin"
    assert sum("behind a round_robin router" in note for note in found.notices) == 1
    with pytest.raises(InputFaults, match="--max-running-requests: 4 leaves nothing"):
        translate(f"{line} --enable-dp-attention --max-running-requests 4", gpu="h200")


def test_replicas_said_twice_are_refused_and_swept_ranks_have_the_engine_s_router() -> None:
    serve = {"model": MODEL, "gpu": "h100-sxm", "max_model_len": 8192, "data_parallel_size": 3}
    workload = {"input_len": 10, "output_len": 5, "num_prompts": 4, "max_concurrency": 2}
    given = {"name": "x", "serve": serve, "workload": workload}
    assert load({**given, "deployment": {"replicas": 1}}).experiment.deployment.replicas == 3
    with pytest.raises(InputFaults, match=r"as many replicas, 3, and deployment\.replicas says how many"):
        load({**given, "deployment": {"replicas": 2}})
    with pytest.raises(InputFaults, match="keep one"):
        load({**given, "sweep": {"axes": {"deployment.replicas": [1, 2]}}})
    del serve["data_parallel_size"]
    swept = {**given, "serve": {**serve, "model": "openai/gpt-oss-120b"}}
    swept["sweep"] = {"axes": {"serve.data_parallel_size": [1, 2]}}
    assert load(swept).experiment.deployment.router == "least_outstanding"
    assert load({**swept, "deployment": {"router": "random"}}).experiment.deployment.router == "random"


def test_ranks_of_a_dense_model_are_replicas_whatever_holds_one() -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 -pp 2 -dp 3"
    there = load(translate(line, gpu="h100-sxm").data).experiment
    assert (there.serve.data_parallel_size, there.serve.pipeline_parallel_size) == (1, 2)
    assert (there.deployment.replicas, there.deployment.router) == (3, "least_outstanding")


def test_ranks_are_behind_the_router_that_the_file_names() -> None:
    this = translate("vllm serve openai/gpt-oss-120b -dp 2", gpu="h100-sxm")
    data = {**this.data, "deployment": {"router": "random"}}
    (said,) = [note for note in load(data).notices if "data_parallel_size" in note]
    assert said.endswith("behind a random router")


def test_eagle_without_a_drafter_is_the_layers_of_a_model_that_has_some() -> None:
    for algorithm in ("EAGLE", "NEXTN"):
        drafting = dp_attention(speculative_algorithm=algorithm).serve.speculative_config
        assert drafting is not None and (drafting.method, drafting.num_speculative_tokens) == ("mtp", 3)
    line = f"python -m sglang.launch_server --model-path {MODEL} --speculative-algorithm EAGLE"
    with pytest.raises(InputFaults, match="EAGLE needs a drafter"):
        translate(line)
