"""The drafter that a command line names, as a file names it: catalogued, by config, or of the usual shape."""

from __future__ import annotations

from typing import Any

from specfleet.experiments.flags.facts import Config, Configs
from specfleet.experiments.flags.faults import LineFault
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.lookups import found


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
