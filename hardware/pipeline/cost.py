"""The price of a step whose layers run on several GPUs in turn."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.kernels import Array
from specfleet.hardware.pipeline.links import send_s
from specfleet.hardware.pipeline.stages import layers_by_stage
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import TERMS, KernelCost, StepShape


class PipelineCost:
    """Sum of kernels, stage by stage, and what lies between them (`cost_model: kernels`).

    `seconds` and `terms` are those of a step alone in the pipeline: all stages one after another, and the
    sends between them as communication. Host time is spent once, before the first stage; LM head and drafter
    are on the last.

    Args:
        placement: the whole engine, with two stages or more.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.stages = tuple(KernelCost(stage) for stage in placement.stages)
        counts = layers_by_stage(placement.model.num_layers, len(self.stages))
        before = np.cumsum(counts)[:-1].tolist()
        rows = np.arange(placement.largest_step + 1, dtype=np.float64)
        scale = placement.profile.kernel_time_scale
        self._sends = [scale * send_s(placement, stage, layers, rows) for stage, layers in enumerate(before)]
        self._sends_s = [send.tolist() for send in self._sends]

    def stage_seconds(self, shape: StepShape) -> tuple[list[float], list[float]]:
        """Seconds of a step on each stage, and of the sends between them."""
        run = self.padded_tokens(shape)
        return [stage.seconds(shape) for stage in self.stages], [send[run] for send in self._sends_s]

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step: `terms` for a single shape, and their sum."""
        columns = {name: np.array([value], dtype=np.int64) for name, value in shape._asdict().items()}
        terms, total = self.terms(columns), 0.0
        for name in TERMS:
            total += float(terms[name][0])
        return total

    def padded_tokens(self, shape: StepShape) -> int:
        """Tokens that every stage runs for a step, padding included."""
        return self.stages[0].padded_tokens(shape)

    def terms(self, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, Array]:
        """Seconds by term, a row a step, all stages together."""
        each = [stage.terms(columns) for stage in self.stages]
        found = {name: np.asarray(sum(terms[name] for terms in each)) for name in TERMS}
        run = self.stages[0].padded_column(columns)
        for send in self._sends:
            found["communication"] = found["communication"] + send[run]
        return found

    def drafter_s(self, shape: StepShape) -> float:
        """Seconds that the drafter adds to one step."""
        return self.stages[-1].drafter_s(shape)

    def summary(self) -> str:
        """The stages, and what one decode step of one sequence takes on each, in milliseconds."""
        place, k = self.placement, self.placement.num_speculative_tokens
        one = StepShape(1 + k, 1, 0, 1 + k, k, 1024, 1024, 0, k)
        stages, sends = self.stage_seconds(one)
        parts = " + ".join(f"{1e3 * seconds:.2f}" for seconds in stages)
        drafter = place.drafter.name if place.drafter else "none"
        return (
            f"kernels: {place.model.name} on {place.pipeline_parallel_size} stages of "
            f"{place.tensor_parallel_size} x {place.accelerator.name}, drafter {drafter}, {k} draft tokens\n"
            f"one sequence at 1,024 tokens: {1e3 * self.seconds(one):.2f} ms "
            f"(stages {parts}, sends {1e3 * sum(sends):.3f})"
            + "".join(f"\nnote: {note}" for note in place.notes)
        )


class SlowestStage:
    """Prices what a full pipeline takes a batch: one leaves it whenever the slowest stage has run one.

    Args:
        pipeline: the price of a step through all stages.
    """

    def __init__(self, pipeline: PipelineCost) -> None:
        self.pipeline = pipeline

    def seconds(self, shape: StepShape) -> float:
        """Seconds from one batch to the next, alike."""
        return max(self.pipeline.stage_seconds(shape)[0])

    def terms(self, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, Array]:
        """The same for many steps: the terms of whatever stage is slowest there."""
        each = [stage.terms(columns) for stage in self.pipeline.stages]
        slowest = np.argmax([np.sum(list(terms.values()), axis=0) for terms in each], axis=0)
        return {name: np.choose(slowest, [terms[name] for terms in each]) for name in TERMS}

    def summary(self) -> str:
        """As that of the pipeline."""
        return self.pipeline.summary()


def kernel_cost(placement: Placement) -> KernelCost | PipelineCost:
    """Prices of an engine by measured kernels, whether its layers lie on one stage or on several."""
    return KernelCost(placement) if placement.pipeline_parallel_size == 1 else PipelineCost(placement)
