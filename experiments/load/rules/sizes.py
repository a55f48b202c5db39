"""Rules about size: what would take more memory, or more simulated time, than any use of it is worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.sweep import MAX_POINTS
from specfleet.experiments.point.build import counted_requests, requests_asked, workload_spec
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.yamlfile import Value

MOST_SECONDS = 1e7
"""Simulated time of one run, seconds: 116 days. Some figures are kept second by second."""

MOST_KEPT = 10_000_000
"""Requests whose own figures are kept in one run."""

MOST_STEPS = 25_000_000
"""Iterations that are kept of one simulation, 2 GB of them: no point that goes on grows beyond."""

MOST_VERIFIED = 10_000_000
"""Tokens that one step could verify, all sequences with all their drafts: prices are tabled up to there."""

_K = "serve.speculative_config.num_speculative_tokens"


def size_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Everything about a filled point that is too large, or too slow."""
    yield from _drafts(config.serve)
    yield from _kept(config)
    yield from _duration(config)


def too_many_runs(experiment: Experiment, axes: Mapping[str, tuple[Value, ...]]) -> Iterator[Conflict]:
    """Points times replications is what has to be run."""
    points = math.prod(map(len, axes.values()))
    runs = points * experiment.replications
    if points <= MAX_POINTS < runs:
        message = f"of {points} points are {runs} simulations; use at most {MAX_POINTS}"
        yield Conflict.at(message, "replications")


def longest(config: Experiment) -> int:
    """Returns the most requests that a point goes on for: what the file allows, and memory and time do."""
    spec, workload = workload_spec(config.workload), config.workload
    steps = MOST_STEPS * (workload.max_concurrency or 1) / max(spec.output.mean, 1.0)
    seconds = MOST_SECONDS * spec.request_rate
    return max(int(min(config.run.at_most, MOST_KEPT, steps, seconds)), 1)


def _drafts(serve: Serve) -> Iterator[Conflict]:
    """Drafts of a round, against the longest sequence and over all sequences."""
    k = serve.speculative_config.num_speculative_tokens if serve.speculative_config else None
    if not k or serve.max_model_len is None or serve.max_num_seqs is None:
        return
    if k >= serve.max_model_len:
        yield Conflict.at(
            f"{k} drafts a round leave no room in serve.max_model_len, {serve.max_model_len}; use fewer",
            _K,
            "serve.max_model_len",
        )
    verified = serve.max_num_seqs * (1 + k)
    if verified > MOST_VERIFIED:
        yield Conflict.at(
            f"{serve.max_num_seqs} sequences with {k} drafts each are {verified} tokens to verify at once; "
            f"at most {MOST_VERIFIED} can be priced, lower one",
            "serve.max_num_seqs",
            _K,
        )


def _requests(config: Experiment) -> int | None:
    """Returns the requests of a synthetic workload, warm-ups included; None where others rules object."""
    workload = config.workload
    named = workload.num_prompts is not None or workload.changes
    if workload.trace is not None or not (named or workload.goes_on):
        return None
    return counted_requests(workload) + requests_asked(workload, workload.num_warmups)


def _kept(config: Experiment) -> Iterator[Conflict]:
    """Requests that are kept one by one must fit in memory."""
    n = _requests(config)
    if n is not None and n > MOST_KEPT and config.report.requests == "all":
        key = "workload.phases" if config.workload.phases is not None else "workload.num_prompts"
        yield Conflict.at(
            f"{n} requests, and at most {MOST_KEPT} can be kept one by one; ask for fewer, or set "
            "report.requests: none",
            key,
            "report.requests",
        )


def _duration(config: Experiment) -> Iterator[Conflict]:
    """A run ends within `MOST_SECONDS`, as far as arrivals and the client decide it."""
    workload, n = config.workload, _requests(config)
    if n is None or workload.replayed:
        return
    if workload.phases is not None:
        rates = [phase.request_rate or workload.request_rate or math.inf for phase in workload.phases]
        arriving_s = sum(phase.num_prompts / rate for phase, rate in zip(workload.phases, rates, strict=True))
        key = "workload.phases"
    else:
        arriving_s, key = n / (workload.request_rate or math.inf), "workload.request_rate"
    if arriving_s > MOST_SECONDS:
        yield Conflict.at(
            f"{n} requests take {arriving_s:.3g} s to arrive, and a run lasts at most {MOST_SECONDS:g} s; "
            "ask for fewer, or raise the rate",
            key,
            "workload.num_prompts",
        )
    client = config.client
    of_one_s = (client.send_ms + client.receive_ms + client.turn_ms) / 1e3
    at_once = workload.max_concurrency or n
    client_s = n * client.send_serial_ms / 1e3 + n / min(at_once, n) * of_one_s
    if client_s > MOST_SECONDS:
        yield Conflict.at(
            f"{n} requests keep the client itself busy for {client_s:.3g} s, and a run lasts at most "
            f"{MOST_SECONDS:g} s; lower its times, or ask for fewer",
            "client",
            "workload.num_prompts",
        )
