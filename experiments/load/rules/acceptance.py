"""Rules about an acceptance process: by itself, and against the drafter it describes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.point.acceptance_specs import written_out
from specfleet.experiments.point.beyond import Beyond, beyond
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.acceptance import QUANTITIES, Process, processes
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import SpeculativeConfig
from specfleet.sim.config import ON_HOST

_BLOCK = "serve.speculative_config"

_LOOK_UP_KEYS = ("proposal_probability", "proposal_persistence", "hot_cold")
"""Keys that belong to method ngram."""

_EXACT = (
    "concentration_range",
    "low_atom",
    "burst",
    "hot_cold",
    "context_multiplier",
    "context_knee",
    "temperature_multiplier",
    "turn_multiplier",
    "overlap",
    "proposal_probability",
    "proposal_persistence",
)
"""Keys that have no place beside `replay`."""

_TWICE = (
    ("context_multiplier", "context_knee"),
    ("temperature_multiplier", "overlap"),
    ("hot_cold", "burst"),
    ("hot_cold", "proposal_probability"),
    ("hot_cold", "proposal_persistence"),
)
"""Pairs of which a process has one at most."""


def process_conflicts(
    process: Process, speculative: SpeculativeConfig | None, block: str, needed: int = 0
) -> Iterator[Conflict]:
    """Everything wrong with one process, and with it for this drafter, which drafts `needed` deep.

    What is wrong with one of the user's own, `rules.own` says.
    """
    if process.process is not None:
        return
    yield from _process(process, block)
    yield from _shapes(process, block)
    if speculative is not None:
        yield from _process_and_drafter(process, speculative, block, needed)
        yield from _rule_of_drafts(process, speculative, block)


ASKED = "; state it, or measure it (specfleet calibrate)"
"""How a notice of a spread that is not given ends."""


def acceptance_notices(process: Process, block: str, ngram: bool, hot: bool) -> Iterator[str]:
    """What is assumed about one process.

    Args:
        process: with its profile written out or not.
        block: its key.
        ngram: drafts are looked up.
        hot: some request samples at a temperature above 0.
    """
    if process.replay is None and process.process is None:
        if process.all_alike:
            yield f"{block}.concentration is .inf, all requests alike: means are right, P99 is too good"
        elif written_out(process).spread_unknown:
            yield (
                f"{block}.concentration is not given: figures are for {process.concentration:g}, the spread "
                "of a 70B EAGLE-3 drafter on code edits, and P99 is a band from there to all requests alike"
                f"{ASKED}"
            )
        found = process.proposal_probability is not None or process.hot_cold is not None
        if ngram and not found and process.profile is None:
            yield f"{block}.proposal_probability is not given; every step is assumed to find a match"
        if hot and process.temperature_multiplier is None and process.overlap is None:
            yield f"{block} is taken as measured at the requests' own temperature; if not, add overlap: {{}}"


def elsewhere(process: Process, config: Experiment, block: str) -> Iterator[str]:
    """Says where an acceptance was measured on another model, method or data set than a point runs.

    Args:
        process: with its profile written out or not.
        config: the point.
        block: the key of the process.
    """
    yield from prediction_said(process, config, block)
    there, speculative = written_out(process).measured_on, config.serve.speculative_config
    if there is None or speculative is None:
        return
    named = config.serve.model if isinstance(config.serve.model, str) else str(config.serve.model.get("name"))
    pairs = [
        (there.model, named, same_model(there.model, config.serve.model)),
        (there.method, speculative.method, there.method == speculative.method),
        (there.dataset, preset := _preset(process, config), _same_data(there.dataset, preset)),
    ]
    others = [(was, now) for was, now, alike in pairs if was is not None and now is not None and not alike]
    if others:
        profile = process.source.partition(":")[0] if process.source.startswith("profile ") else ""
        was, now = (" with ".join(each) for each in zip(*others, strict=True))
        yield (
            f"{block}{f' ({profile})' if profile else ''} was measured on {was}; this file runs {now}, which "
            "may accept more or less"
        )


def prediction_said(process: Process, config: Experiment, block: str) -> Iterator[str]:
    """Says where a point runs a K that its acceptance was not measured at."""
    found = predicted(process, config)
    if found is None:
        return
    length, where = found.length, "beyond" if found.k > found.measured_at_k else "below"
    if not same_data_set(process, config):
        where = f"for another data set and {where}"
    yield (
        f"{block} is predicted {where} K = {found.measured_at_k}: at K = {found.k} {length.value:.2f} tokens "
        f"a round, 90 % interval {length.low:.2f} to {length.high:.2f} (the law of {found.depth.family.name})"
    )


def predicted(process: Process, config: Experiment) -> Beyond | None:
    """Returns the acceptance of a point whose K it was not measured at; None where it was.

    The interval is wider where it was measured on another data set than the point's.
    """
    speculative = config.serve.speculative_config
    if speculative is None or config.serve.draft_tree is not None:
        return None
    found = beyond(process, speculative.num_speculative_tokens or 0, speculative.method)
    if found is None or same_data_set(process, config):
        return found
    return replace(found, depth=found.depth.elsewhere())


def same_data_set(process: Process, config: Experiment) -> bool:
    """Whether a point runs the data set that its acceptance was measured on, as far as both are named."""
    there = written_out(process).measured_on
    return there is None or _same_data(there.dataset, _preset(process, config))


def _preset(process: Process, config: Experiment) -> str | None:
    """The preset that the requests of a process have their lengths from; None: none, or several."""
    workload, found = config.workload, processes(config.acceptance)
    names = {name for name, one in found.items() if one is process}
    if not workload.classes:
        return workload.preset
    served = [name for name in workload.classes if (name if name in found else "") in names]
    presets = {workload.of_class(name).preset for name in served}
    return presets.pop() if len(presets) == 1 else None


def same_model(measured: str | None, served: str | dict[str, object]) -> bool:
    """Whether two names are of one model, however its weights are stored."""
    if measured is None:
        return True
    one, other = (lookups.found(lambda n=n: lookups.model(n)) for n in (measured, served))  # type: ignore[misc]
    if one is None or other is None:
        return str(served).lower().rpartition("/")[2].startswith(_family(measured))
    return _family(one.hf_id) == _family(other.hf_id)


def _family(name: str) -> str:
    """A model's name without the format of its weights."""
    bare = name.lower().rpartition("/")[2]
    return re.sub(r"[-_.](fp8|bf16|awq|gptq|int4|int8|nvfp4|mxfp4|w8a8|dynamic|static)\b.*", "", bare)


def _same_data(measured: str | None, preset: str | None) -> bool:
    """Whether a workload preset is of the data set of a measurement."""
    return measured is None or preset is None or measured.replace("-", "") in preset.replace("-", "")


def positions(survival: tuple[float, ...], k: int, key: str) -> Iterator[Conflict]:
    """P(first i drafts all accepted) never rises with i, and has an entry for each of K drafts."""
    if any(later > earlier for earlier, later in pairwise(survival)):
        yield Conflict.at(
            "rises from one position to the next; the entries are P(first i drafts all accepted), so they "
            "never increase",
            key,
        )
    if len(survival) < k:
        message = f"has {len(survival)} entries and {k} drafts are made; add the missing positions"
        yield Conflict.at(message, key, f"{_BLOCK}.num_speculative_tokens")


def _process(process: Process, block: str) -> Iterator[Conflict]:
    """One process by itself."""
    given = [key for key in QUANTITIES if getattr(process, key) is not None]
    if not given:
        yield Conflict.at(f"says nothing; give exactly one of {', '.join(QUANTITIES)}", block)
    elif len(given) > 1:
        message = f"{' and '.join(given)} say the same thing twice; keep exactly one"
        yield Conflict.at(message, *(f"{block}.{key}" for key in reversed(given)))
    elif process.profile is not None:
        try:
            lookups.acceptance_profile(process.profile)
        except ValueError as error:
            yield Conflict.at(str(error), f"{block}.profile")
    length, at_k = process.acceptance_length, process.measured_at_k
    if length is not None and at_k is not None and length > at_k + 1:
        message = f"{length:g} tokens a round are more than {at_k} drafts and one; use at most {at_k + 1}"
        yield Conflict.at(message, f"{block}.acceptance_length", f"{block}.measured_at_k")
    if process.by_position is not None and at_k not in (None, len(process.by_position)):
        positions_ = len(process.by_position)
        message = f"is {at_k}, and by_position has {positions_} entries; give as many, or leave it out"
        yield Conflict.at(message, f"{block}.measured_at_k", f"{block}.by_position")
    if process.by_position is not None and process.decay != 1:
        message = "by_position already gives every position; remove decay"
        yield Conflict.at(message, f"{block}.decay", f"{block}.by_position")
    atom = process.low_atom
    if atom is not None and atom.low > atom.high:
        message = f"low, {atom.low:g}, is above high, {atom.high:g}; swap them"
        yield Conflict.at(message, f"{block}.low_atom.low", f"{block}.low_atom.high")
    yield from _range_of_spread(process, block)
    yield from _nodes(process, block)


def _range_of_spread(process: Process, block: str) -> Iterator[Conflict]:
    """From wide to narrow, with the spread of the figures inside."""
    if process.concentration_range is None:
        return
    widest, narrowest = process.concentration_range
    key = f"{block}.concentration_range"
    if widest >= narrowest:
        yield Conflict.at(
            f"must rise from the widest spread to the narrowest; {widest:g} is not below {narrowest:g}", key
        )
    elif "concentration" in process.model_fields_set and not widest <= process.concentration <= narrowest:
        message = f"does not hold concentration, {process.concentration:g}; widen it, or leave one out"
        yield Conflict.at(message, key, f"{block}.concentration")


def _nodes(process: Process, block: str) -> Iterator[Conflict]:
    """What is given at nodes rises from 0 up, multipliers are positive."""
    for key, what in (
        ("context_multiplier", "tokens"),
        ("temperature_multiplier", "temperature"),
        ("turn_multiplier", "turn"),
    ):
        nodes = getattr(process, key)
        if nodes is None:
            continue
        places = [node[0] for node in nodes]
        rising = all(later > earlier for earlier, later in pairwise(places))
        if not nodes or not rising or places[0] < 0 or any(multiplier <= 0 for _, multiplier in nodes):
            message = f"must be [{what}, multiplier] pairs, {what} rising from 0 or more, multipliers above 0"
            yield Conflict.at(message, f"{block}.{key}")


def _shapes(process: Process, block: str) -> Iterator[Conflict]:
    """Keys that say the same thing twice, or need another."""
    if process.replay is not None:
        correlated = ("length_rank_correlation",) if process.length_rank_correlation else ()
        beside = [key for key in _EXACT if getattr(process, key) is not None]
        for key in (*beside, *correlated):
            yield Conflict.at("replay is exact and leaves no room for it; remove it", f"{block}.{key}")
        return
    if process.replay_counts != "drafts":
        yield Conflict.at("belongs to replay; remove it", f"{block}.replay_counts")
    for one, other in _TWICE:
        if getattr(process, one) is not None and getattr(process, other) is not None:
            message = f"{one} and {other} say the same thing twice; keep one"
            yield Conflict.at(message, f"{block}.{other}", f"{block}.{one}")
    hot_cold = process.hot_cold
    if hot_cold is not None and hot_cold.enter > hot_cold.stay:
        message = (
            f"enter, {hot_cold.enter:g}, is above stay, {hot_cold.stay:g}: runs that repel runs; swap them"
        )
        yield Conflict.at(message, f"{block}.hot_cold.enter", f"{block}.hot_cold.stay")
    lowering = ("context_knee", "context_multiplier", "turn_multiplier")
    given = [key for key in lowering if getattr(process, key)]
    if hot_cold is not None and given:
        message = "a look-up has no training length; remove it"
        key = given[0]
        yield Conflict.at(message, f"{block}.{key}", f"{block}.hot_cold")


def _rule_of_drafts(process: Process, speculative: SpeculativeConfig, block: str) -> Iterator[Conflict]:
    """How drafts are chosen must be what the logit model assumes."""
    if process.overlap is None:
        return
    rule = "sampled" if speculative.draft_sample_method == "probabilistic" else "argmax"
    if process.overlap.rule != rule:
        yield Conflict.at(
            f"{process.overlap.rule} does not go with draft_sample_method "
            f"{speculative.draft_sample_method}; use {rule}",
            f"{block}.overlap.rule",
            f"{_BLOCK}.draft_sample_method",
        )


def _process_and_drafter(
    process: Process, speculative: SpeculativeConfig, block: str, needed: int
) -> Iterator[Conflict]:
    """One process against the drafter it describes."""
    if process.by_position is not None:
        yield from positions(process.by_position, needed, f"{block}.by_position")
    if process.proposal_persistence is not None and process.proposal_probability is None:
        message = "needs proposal_probability; add it"
        yield Conflict.at(message, f"{block}.proposal_persistence", f"{block}.proposal_probability")
    for key in _LOOK_UP_KEYS:
        if getattr(process, key) is not None and speculative.method not in (None, *ON_HOST):
            message = f"belongs to ngram and suffix; {speculative.method} proposes in every round, remove it"
            yield Conflict.at(message, f"{block}.{key}", f"{_BLOCK}.method")
