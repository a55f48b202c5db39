"""Which layers a stage of a pipeline holds, and what the rules about stages are."""

from __future__ import annotations

from dataclasses import replace

from specfleet.hardware.model import ModelSpec

MOST_STAGES = 64


def layers_by_stage(num_layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, as vLLM divides them (`get_pp_indices` of `distributed/utils.py`, 0.33.0).

    What is left over goes to the stages before the last, from the end on: the last has the LM head, and as
    long as it can be spared the first, which has the embedding.
    """
    each, left = divmod(num_layers, stages)
    return tuple(each + (stages - 1 - left <= stage < stages - 1) for stage in range(stages))


def stage_model(model: ModelSpec, stages: int, stage: int) -> ModelSpec:
    """The model of a stage: its layers alone. An image tower goes to the first stage.

    Embedding and LM head are still in the shape: `Placement.vocabulary_matrices` says which a stage holds.
    """
    counts = layers_by_stage(model.num_layers, stages)
    first, count = sum(counts[:stage]), counts[stage]
    return replace(
        model,
        num_layers=count,
        num_dense_layers=min(max(model.num_dense_layers - first, 0), count),
        num_windowed_layers=count if model.num_windowed_layers else 0,
        vision_parameters=0 if stage else model.vision_parameters,
        extra_parameters=0 if stage else model.extra_parameters,
    )


def divisible(model: ModelSpec, stages: int) -> str | None:
    """Why a model's layers cannot be dealt out to stages here, or None."""
    if stages > min(model.num_layers, MOST_STAGES):
        most = min(model.num_layers, MOST_STAGES)
        return f"{model.name} has {model.num_layers} layers; use at most {most} stages"
    if model.stack or 0 < model.num_windowed_layers < model.num_layers:
        return (
            f"layers of {model.name} are of several kinds whose order is not kept, so it is not known which "
            "stage holds what; use tensor parallelism"
        )
    return None
