"""Rules about sessions: what they exclude, laws of pauses, and whether a context fits the engine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.workload import length_conflicts, output_maximum, prompt_maximum
from specfleet.experiments.point.mixes import each_class
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.lengths import Lengths
from specfleet.experiments.schema.blocks.sessions import ContextCut, Pause, Sessions
from specfleet.experiments.schema.blocks.workload import Workload

EXCLUDED = {
    "trace": "a trace has its own requests",
    "phases": "phases are stretches of single requests",
    "prefix": "sessions have system_prompt, with pools in place of groups",
}
"""Keys of `workload` that do not go with sessions, and why."""


def session_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Everything wrong with the sessions of a filled point, and those of its classes."""
    for block, workload in each_class(config.workload).values():
        if workload.think_time_s is not None:
            yield from pause_conflicts(workload.think_time_s, f"{block}.think_time_s")
        if workload.sessions is not None:
            yield from _of(config, workload, workload.sessions, block)
    if config.workload.sessions is not None and not config.workload.has_sessions:
        message = "every class of the mix has sessions: none, so nobody has these; remove them"
        yield Conflict.at(message, "workload.sessions", "workload.mix")


def _of(config: Experiment, workload: Workload, sessions: Sessions, where: str) -> Iterator[Conflict]:
    """Everything wrong with the sessions of a workload, or of a class of it, that stands under `where`."""
    for key, why in EXCLUDED.items():
        if getattr(workload, key) is not None:
            message = f"{key} does not go with sessions: {why}; remove one of them"
            yield Conflict.at(message, f"{where}.{key}", f"workload.{key}", f"{where}.sessions")
    block = f"{where}.sessions"
    for key, lengths in _lengths(sessions):
        yield from length_conflicts(lengths, f"{block}.{key}")
    for key, pause in _pauses(sessions):
        yield from pause_conflicts(pause, f"{block}.{key}")
    if isinstance(sessions.context, ContextCut):
        yield from _cut(sessions.context, sessions, block)
    yield from _too_long(config.serve.max_model_len, workload, sessions, block)


def session_notices(points: list[Experiment]) -> Iterator[str]:
    """Says where nobody thinks, and where turns compute what was computed for their session before."""
    thinking = [point.workload for point in points if point.workload.thinks]
    if thinking and all(load.max_concurrency is None for load in thinking):
        yield "workload.think_time_s has no effect: without max_concurrency no user waits for an answer"
    mine = [point for point in points if point.workload.has_sessions]
    if mine and not any(point.serve.enable_prefix_caching for point in mine):
        yield (
            "workload.sessions: serve.enable_prefix_caching is off, so every turn computes its whole context "
            "anew"
        )


def _lengths(sessions: Sessions) -> Iterator[tuple[str, Lengths]]:
    """Laws of whole numbers, by key."""
    yield "turns", sessions.turns
    if sessions.first_input is not None:
        yield "first_input", sessions.first_input
    if sessions.tool is not None:
        yield "tool.result", sessions.tool.result
        if sessions.tool.call is not None:
            yield "tool.call", sessions.tool.call


def _pauses(sessions: Sessions) -> Iterator[tuple[str, Pause]]:
    """Laws of seconds, by key."""
    yield "think_time_s", sessions.think_time_s
    if sessions.tool is not None:
        yield "tool.pause_s", sessions.tool.pause_s


def pause_conflicts(pause: Pause, block: str) -> Iterator[Conflict]:
    """A law of pauses is exactly one, with its ends the right way round."""
    laws = [law for law in Pause.model_fields if getattr(pause, law) is not None]
    if len(laws) != 1:
        names = ", ".join(Pause.model_fields)
        yield Conflict.at(f"must be exactly one of {names}, not {' and '.join(laws) or 'nothing'}", block)
    uniform, lognormal, quantiles = pause.uniform, pause.lognormal, pause.quantiles
    if uniform is not None and uniform.low > uniform.high:
        message = f"low, {uniform.low:g}, is above high, {uniform.high:g}; swap them"
        yield Conflict.at(message, f"{block}.uniform.low", f"{block}.uniform.high")
    if lognormal is not None and lognormal.median > lognormal.max:
        message = f"median, {lognormal.median:g}, is above max, {lognormal.max:g}; raise max"
        yield Conflict.at(message, f"{block}.lognormal.median", f"{block}.lognormal.max")
    if quantiles is not None:
        percentiles = [percentile for percentile, _ in quantiles]
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(quantiles))
        if percentiles[0] != 0 or percentiles[-1] != 100 or not rising:
            message = "must be [percentile, seconds] pairs from percentile 0 to 100, both rising"
            yield Conflict.at(message, f"{block}.quantiles")


def _cut(context: ContextCut, sessions: Sessions, block: str) -> Iterator[Conflict]:
    """A cut leaves something, and less than there was."""
    if (context.trim is None) == (context.compact is None):
        yield Conflict.at("must be exactly one of trim, compact", f"{block}.context")
        return
    key = "trim" if context.trim is not None else "compact"
    cut = context.trim or context.compact
    assert cut is not None
    system = sessions.system_prompt.tokens if sessions.system_prompt else 0
    least = system + cut.to_tokens if key == "compact" else cut.to_tokens
    at = f"{block}.context.{key}.to_tokens"
    if least >= cut.above_tokens:
        behind = " behind the system prompt" if key == "compact" and system else ""
        message = (
            f"{cut.to_tokens}{behind} is not below above_tokens, {cut.above_tokens}: nothing is cut; lower it"
        )
        yield Conflict.at(message, at, f"{block}.context.{key}.above_tokens")
    elif key == "trim" and cut.to_tokens <= system:
        message = f"{cut.to_tokens} leaves nothing beside the system prompt of {system} tokens; raise it"
        yield Conflict.at(message, at, f"{block}.system_prompt.tokens")


def _too_long(longest: int | None, workload: Workload, sessions: Sessions, block: str) -> Iterator[Conflict]:
    """The first turn fits the model's positions; later ones too, or the session ends before them."""
    new, _ = prompt_maximum(workload)
    output, _ = output_maximum(workload)
    turns = sessions.turns.maximum
    if longest is None or new is None or output is None or turns is None:
        return
    first = new
    if sessions.first_input is not None:
        first = sessions.first_input.maximum or new
    if sessions.tool is not None:
        new = max(new, sessions.tool.result.maximum or 0)
        output = max(output, (sessions.tool.call.maximum or 0) if sessions.tool.call else 0)
    system = sessions.system_prompt.tokens if sessions.system_prompt else 0
    if system + first + output > longest:
        yield Conflict.at(
            f"the first turn, {system + first} tokens and an output of up to {output}, exceeds "
            f"serve.max_model_len, {longest}; shorten it or raise it to {system + first + output}",
            block,
            "serve.max_model_len",
        )
        return
    most = _longest_turn(sessions, system, first, new, output, turns)
    if most > longest and sessions.on_full == "error":
        yield Conflict.at(
            f"a session of up to {turns} turns may reach {most} tokens, more than serve.max_model_len, "
            f"{longest}; say what happens then (on_full: end, or a cut context), or raise it to {most}",
            block,
            "serve.max_model_len",
        )


def _longest_turn(sessions: Sessions, system: int, first: int, new: int, output: int, turns: int) -> int:
    """Most tokens of a turn, prompt and output together."""
    if not isinstance(sessions.context, ContextCut):
        return system + first + (turns - 1) * new + turns * output
    trim, compact = sessions.context.trim, sessions.context.compact
    if compact is not None:
        summary = compact.above_tokens + output + compact.to_tokens
        return max(summary, system + compact.to_tokens + new + output)
    if trim is None:
        return 0  # that neither is given is said elsewhere
    return max(trim.above_tokens, system + max(first, new)) + output
