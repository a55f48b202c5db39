"""What is said of a drafter that reaches less far than its target, in builds that draft at any length."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.defaults import drafts_at_any_length, longest_of
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.lookups import found


def reach_notices(written: Experiment, points: list[Experiment]) -> Iterator[str]:
    """Says where an engine's longest sequence was lowered, and where a head's own limit changes nothing."""
    said: set[str] = set()
    for point in points:
        for notice in _of_a_point(written, point):
            if notice not in said:
                said.add(notice)
                yield notice


def _of_a_point(written: Experiment, point: Experiment) -> Iterator[str]:
    serve, speculative = point.serve, point.serve.speculative_config
    if speculative is None or not drafts_at_any_length(serve.engine):
        return
    model = found(lambda: lookups.model(serve.model))
    asked = written.serve.max_model_len or (longest_of(model, written.serve.engine) if model else None)
    if asked and serve.max_model_len and serve.max_model_len < asked and speculative.max_model_len:
        yield (
            f"serve.max_model_len is lowered from {asked} to {serve.max_model_len}, as far as the drafter "
            "reaches: vLLM lowers it, and refuses longer requests"
        )
    given = written.serve.speculative_config
    if given is not None and given.max_model_len and speculative.max_model_len is None:
        yield (
            "serve.speculative_config.max_model_len changes nothing: this build drafts with the head at any "
            "length, and vLLM itself refuses a value above the head's own positions; leave it out"
        )
