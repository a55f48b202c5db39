"""The bill by class: a point again, on the same requests and luck, without the drafts of one class."""

from __future__ import annotations

from specfleet.experiments.point.build import drafts_by_class
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.policy import DraftPolicy


def switched_off(config: Experiment) -> dict[str, Experiment]:
    """Returns, of a point whose bill is asked for, the point without the drafts of each class that drafts.

    The drafter stays loaded, and nobody else's drafts change. Empty where no bill is asked for.
    """
    if not config.run.bill:
        return {}
    drafts = drafts_by_class(config)
    return {name: _without(config, drafts, name) for name, k in drafts.items() if k}


def _without(config: Experiment, drafts: dict[str, int], name: str) -> Experiment:
    policy = DraftPolicy.model_validate({"by_class": {**drafts, name: 0}})
    return config.model_copy(update={"serve": config.serve.model_copy(update={"draft_policy": policy})})
