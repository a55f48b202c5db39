"""What of a prediction is backed by measurement, and what is not: printed with every run."""

from __future__ import annotations

from specfleet.experiments.point.build import placement
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.acceptance import processes
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.registry import OWN
from specfleet.hardware.constants import measured_file
from specfleet.sim.config import ON_HOST

MEASURED_CONTEXT_TOKENS = 600
"""Longest contexts in the served measurements with speculation that the model was held against."""


def backing(config: Experiment, mean_prompt_tokens: float) -> list[str]:
    """Returns one sentence for what is backed and one for each thing that is not.

    Args:
        config: one point of the experiment.
        mean_prompt_tokens: of its requests.
    """
    serve = config.serve
    said = [
        f"Backed by measurement: kernel times ({_tables(serve)}), scheduler decisions (recorded vLLM 0.33.0 "
        "steps), and served step times of BF16 32B and 70B models on H100 with EAGLE-3 and draft models up "
        f"to {MEASURED_CONTEXT_TOKENS} tokens of context."
    ]
    missing = list(_unmeasured(serve))
    if mean_prompt_tokens > MEASURED_CONTEXT_TOKENS:
        missing.append(
            f"long contexts with speculation (mean prompt here {mean_prompt_tokens:.0f} tokens; acceptance "
            "falls beyond a drafter's training length and is taken as stated)"
        )
    if (beyond := _beyond_the_drafter(config, mean_prompt_tokens)) is not None:
        missing.append(beyond)
    if config.acceptance is not None:
        missing.append("the acceptance itself: it is an input, measure it on your own traffic")
    said += [f"Not backed: {text}." for text in missing]
    if serve.cost_model == "roofline":
        said.append("cost_model roofline is a datasheet bound; served steps take about twice as long.")
    return said


def _beyond_the_drafter(config: Experiment, mean_prompt_tokens: float) -> str | None:
    """Prompts beyond the positions that a drafter was published for."""
    speculative = config.serve.speculative_config
    if speculative is None or speculative.model is None or speculative.max_model_len is not None:
        return None
    own = lookups.drafter(speculative.model).max_model_len
    if not own or mean_prompt_tokens <= own:
        return None
    stated = [process.context_multiplier for process in processes(config.acceptance).values()]
    if all(stated):
        return f"acceptance beyond the drafter's {own} positions: as context_multiplier states it"
    return (
        f"acceptance beyond the drafter's {own} positions: it falls there, and is taken here as below them; "
        f"acceptance.context_multiplier, for example [[{own}, 1.0], [{8 * own}, 0.5]], gives the other end"
    )


def _tables(serve: Serve) -> str:
    """Whose kernel times."""
    name = lookups.accelerator(serve.gpu).constants
    return "your own GPU's" if measured_file(name) else f"{name.partition('_')[0].upper()} tables"


def _unmeasured(serve: Serve) -> list[str]:
    found = list(placement(serve).constants.notes)
    if ("cost_model", serve.cost_model) in OWN:
        found.append(f"the step prices: {OWN['cost_model', serve.cost_model]} is your own")
    gpu = lookups.accelerator(serve.gpu)
    if serve.speculative_config is not None and not gpu.constants.startswith("h100"):
        found.append(f"served runs with speculation on {gpu.name} (those measured are on H100)")
    model = lookups.model(serve.model)
    if model.num_experts:
        found.append(
            "mixture-of-experts steps (served ones were up to twice as slow as predicted; how drafts share "
            "experts is assumed)"
        )
    if serve.quantization == "fp8" and serve.speculative_config is not None:
        found.append("FP8 weights with speculation (FP8 kernels are measured, no served run is)")
    if serve.kv_cache_dtype == "fp8":
        found.append("an FP8 KV cache")
    if serve.tensor_parallel_size > 1:
        found.append(
            "tensor parallelism over NVLink (all-reduce kernels are measured, served runs with "
            "speculation are not)"
        )
    if serve.speculative_config is not None and serve.speculative_config.method in ON_HOST:
        found.append("drafting by look-up (the time of the matcher is not priced)")
    if serve.draft_tree is not None:
        found.append(
            "trees of drafts (vLLM V1 drafts chains; acceptance beyond the first candidate and 40 us to move "
            "KV are assumed)"
        )
    if serve.engine == "vllm-0.33":
        found.append("host time and memory of vLLM 0.33 itself (constants of a January 2026 build)")
    return found
