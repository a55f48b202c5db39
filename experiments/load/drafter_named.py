"""The drafter that a command line names, as a file names it, and what its drafts are taken to achieve."""

from __future__ import annotations

from typing import Any

from specfleet.experiments.flags.facts import Config, Configs
from specfleet.experiments.flags.faults import LineFault
from specfleet.experiments.load.rules.acceptance import same_model
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.lookups import found

ASSUMED_POSITIONS = (0.70, 0.50, 0.36, 0.27, 0.20)
"""P(first i drafts all accepted) where nothing is said: the starter's; the last ratio goes on beyond."""

_CHAT = ("mt-bench", "sharegpt")
_LOOKED_UP = "ngram-llama-3.1-8b-chat"
"""The profile of drafts that are looked up in the text, where none is of the model."""


def drafter_block(
    named: str | None, method: str, target: str | dict[str, Any], configs: Configs
) -> tuple[Any, list[str]]:
    """The `model:` of a speculative config, and what is to be said of it.

    Args:
        named: the drafter; None where the target's own layers draft, or nothing does.
        method: of drafting, as the `serve:` block has it.
        target: the model served, as a file names it.
        configs: where configs of models are found.

    Raises:
        LineFault: a draft model of which nothing is known.
    """
    if named is None:
        return ({f"{method}_for": target} if method in ("mtp", "dspark") else None), []
    known = found(lambda: lookups.drafter(named))
    if known is not None and known.method == method:
        return named, []
    config = configs.find(named)
    if method == "draft_model":
        if config is None or config.path is None:
            message = (
                f"{named} is in no catalogue and its config.json not on this machine; get it "
                f"(hf download {named} config.json) and name its folder with --models"
            )
            raise LineFault("unknown_model", "model", message)
        return {"hf_config": str(config.path)}, []
    made = {f"{method}_for": target, "name": named, **_said(config)}
    return made, [f"{named} is in no catalogue: it is priced as the usual {method} head for this target"]


def _said(config: Config | None) -> dict[str, Any]:
    """What a head's config says beyond the usual shape."""
    if config is None:
        return {}
    found_ = {}
    if (positions := config.positions()) is not None:
        found_["max_model_len"] = positions
    vocabulary = config.values.get("draft_vocab_size")
    if isinstance(vocabulary, int):
        found_["draft_vocab_size"] = vocabulary
    return found_


def acceptance_for(method: str, model: str | dict[str, Any], k: int) -> tuple[dict[str, Any], str]:
    """The `acceptance:` of a line that cannot state it, and how it was come by.

    Of the shipped profiles of the model and method, in whatever format its weights are, those that reach K
    drafts come first, then chat traffic; beyond its positions the run predicts (`point.beyond`). Look-up in
    the text hangs on the traffic more than on the model: without one of this model the n-gram of another is
    taken, for `suffix` too, for nothing measured is nearer.
    """
    profiles = {name: lookups.acceptance_profile(name) for name in lookups.acceptance_profile_names()}
    there = sorted(
        (len(read.by_position or range(k)) < k, where.dataset not in _CHAT, name)
        for name, read in profiles.items()
        if (where := read.measured_on) is not None and where.method == method and where.model
        if same_model(where.model, model)
    )
    if there or method in ("ngram", "suffix"):
        name = there[0][2] if there else _LOOKED_UP
        measured = len(profiles[name].by_position or range(k))
        further = f", predicted beyond K = {measured}" if measured < k else ""
        return {"profile": name}, f"that of profile {name}{further}"
    assumed = {"by_position": list(ASSUMED_POSITIONS[:k]), "concentration": 18}
    return assumed | {"source": "an assumption; replace it with what your server prints"}, "assumed"
