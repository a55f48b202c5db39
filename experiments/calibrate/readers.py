"""What an engine reports about its drafts, read into an `acceptance:` block.

Three forms of vLLM's: the log line `SpecDecoding metrics: ...`, the Prometheus counters
`vllm:spec_decode_*`, and the speculation metrics of single requests
(`--per-request-spec-decode-metrics`). The first two pool all requests; only the third shows how much
requests differ.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specfleet.sim.speculation.fit import concentration, successes_and_failures

_NUMBERS = r"((?:nan|[\d.]+)(?:,\s*(?:nan|[\d.]+))*)"
_LOG_LINE = re.compile(
    r"SpecDecoding metrics:.*?Accepted: (\d+) tokens, Drafted: (\d+) tokens, "
    rf"Per-position acceptance[ ]rate: {_NUMBERS}"
)
_COUNTER = re.compile(r"^vllm:spec_decode_num_(drafts|accepted_tokens_per_pos)(?:_total)?(?:\{(.*)\})? (\S+)")
_POSITION = re.compile(r'position="(\d+)"')

LEAST_REQUESTS = 20
"""Fewer requests do not say how much requests differ."""


@dataclass(frozen=True)
class Measured:
    """An acceptance process as an engine reported it.

    Args:
        source: which report, and how much it holds.
        by_position: P(first i drafts accepted), pooled over rounds.
        rounds: verifications behind it.
        concentration: spread between requests; None where the report does not show it.
    """

    source: str
    by_position: tuple[float, ...]
    rounds: float
    concentration: float | None = None

    def block(self) -> dict[str, object]:
        """Returns the `acceptance:` block; a spread that was not measured is left out."""
        found: dict[str, object] = {"source": self.source, "by_position": list(self.by_position)}
        if self.concentration is not None:
            alike = math.isinf(self.concentration)
            found["concentration"] = self.concentration if alike else round(self.concentration, 1)
        return found


def from_log(text: str) -> Measured:
    """Returns the acceptance of a server log, each line weighted by its rounds.

    Raises:
        ValueError: if the log has no such line with drafts in it, or lines of different K.
    """
    accepted: list[float] = []
    rounds = 0.0
    lines = 0
    for _, drafted, numbers in _LOG_LINE.findall(text):
        rates = [float(number) for number in numbers.split(",")]
        if not int(drafted) or any(math.isnan(rate) for rate in rates):
            continue
        if accepted and len(rates) != len(accepted):
            raise ValueError(
                f"lines of {len(accepted)} and of {len(rates)} drafts a round; keep those of one K"
            )
        here = int(drafted) / len(rates)
        accepted = [
            total + rate * here for total, rate in zip(accepted or [0.0] * len(rates), rates, strict=True)
        ]
        rounds += here
        lines += 1
    if not lines:
        raise ValueError("the log has no line 'SpecDecoding metrics: ...' with drafted tokens")
    return _pooled(f"vLLM log, {lines} lines, {rounds:,.0f} rounds", accepted, rounds)


def from_prometheus(text: str, before: str = "") -> Measured:
    """Returns the acceptance of a scrape of `/metrics`, all engines and models of it together.

    Args:
        text: the scrape at the end.
        before: a scrape at the start, taken off; without one the counters count from the server's start.

    Raises:
        ValueError: if a counter is missing or nothing was drafted in between.
    """
    end, start = _counters(text), _counters(before)
    since = {name: end[name] - start.get(name, 0.0) for name in end}
    positions = sorted(name for name in since if name >= 0)
    rounds = since.get(_DRAFTS, 0.0)
    if not positions or not rounds > 0.0:
        raise ValueError(
            "no drafts counted: the scrape needs vllm:spec_decode_num_drafts and "
            "vllm:spec_decode_num_accepted_tokens_per_pos, above those of the scrape before"
        )
    return _pooled(f"vLLM counters, {rounds:,.0f} rounds", [since[i] for i in positions], rounds)


_DRAFTS = -1


def _counters(text: str) -> dict[int, float]:
    """Returns accepted tokens by position from 0, and the rounds under -1, summed over labels."""
    found: dict[int, float] = {}
    for line in text.splitlines():
        counter = _COUNTER.match(line)
        if counter is None:
            continue
        name, labels, value = counter.groups()
        position = _POSITION.search(labels or "")
        key = int(position[1]) if position else _DRAFTS
        if (name == "drafts") == (key == _DRAFTS):
            found[key] = found.get(key, 0.0) + float(value)
    return found


def from_requests(text: str) -> Measured:
    """Returns the acceptance of per-request speculation metrics, with the spread between requests.

    Args:
        text: a JSON document or JSON lines; the metrics (`acceptance_histogram`, or `per_step_accepted`
            with `per_step_drafted`) may lie at any depth, as in a saved response.

    Raises:
        ValueError: if no request reports its rounds, or requests were drafted for with different K.
    """
    requests = [counted for document in _documents(text) for counted in _requests(document)]
    requests = [(accepted, stopped, rounds) for accepted, stopped, rounds in requests if rounds]
    if not requests:
        raise ValueError("no request reports acceptance_histogram or per_step_accepted with a round in it")
    depths = {len(accepted) for accepted, _, _ in requests}
    if len(depths) > 1:
        raise ValueError(f"requests of different num_spec_tokens {sorted(depths)}; keep those of one K")
    accepted, stopped = (np.array([request[i] for request in requests]) for i in (0, 1))
    rounds = sum(request[2] for request in requests)
    measured = _pooled(
        f"vLLM requests, {len(requests):,} with {rounds:,} rounds", accepted.sum(axis=0), rounds
    )
    if len(requests) < LEAST_REQUESTS:
        return measured
    spread = concentration(measured.by_position, accepted, stopped)
    return Measured(measured.source, measured.by_position, measured.rounds, spread)


def _pooled(source: str, accepted: Sequence[float], rounds: float) -> Measured:
    """Returns accepted counts by position over rounds; rounding never makes a later one rise."""
    rates = np.minimum.accumulate(np.minimum(np.asarray(accepted, dtype=np.float64) / rounds, 1.0))
    return Measured(source, tuple(round(float(rate), 4) for rate in rates), rounds)


def _documents(text: str) -> Iterator[object]:
    """Yields the whole text as one JSON document, or its lines."""
    try:
        yield json.loads(text)
        return
    except json.JSONDecodeError:
        pass
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is no JSON: {error.msg}") from None


def _requests(document: object) -> Iterator[tuple[list[int], list[int], int]]:
    """Yields (accepted by position, stopped by position, rounds) of each request in a document."""
    if isinstance(document, list):
        for part in document:
            yield from _requests(part)
    elif isinstance(document, Mapping):
        if document.get("per_step_accepted") and document.get("per_step_drafted"):
            yield _by_step(document)
        elif document.get("acceptance_histogram"):
            histogram = [int(count) for count in document["acceptance_histogram"]]
            yield (*successes_and_failures(histogram), sum(histogram))
        else:
            for part in document.values():
                yield from _requests(part)


def _by_step(metrics: Mapping[str, object]) -> tuple[list[int], list[int], int]:
    """Returns the counts of a detailed report: a draft that was not made is no rejection."""
    accepted, drafted = (np.asarray(metrics[f"per_step_{what}"]) for what in ("accepted", "drafted"))
    deepest = metrics.get("num_spec_tokens")
    places = range(1, (deepest if isinstance(deepest, int) and deepest else int(drafted.max())) + 1)
    return (
        [int(np.sum(accepted >= i)) for i in places],
        [int(np.sum((accepted == i - 1) & (drafted >= i))) for i in places],
        int(np.sum(drafted > 0)),
    )
