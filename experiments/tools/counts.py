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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from specfleet.sim.speculation.fit import concentration, successes_and_failures

_NUMBERS = r"((?:nan|[\d.]+)(?:,\s*(?:nan|[\d.]+))*)"
_LOG_LINE = re.compile(
    r"SpecDecoding metrics:.*?Accepted: (\d+) tokens, Drafted: (\d+) tokens, "
    rf"Per-position acceptance[ ]rate: {_NUMBERS}"
)
_COUNTER = re.compile(r"^vllm:spec_decode_num_(drafts|accepted_tokens_per_pos)(?:_total)?(?:\{(.*)\})? (\S+)")
_POSITION = re.compile(r'position="(\d+)"')

Counted: TypeAlias = tuple[list[int], list[int], int]
"""Of one request: rounds that accept draft i, rounds that stop just before it, and all its rounds."""

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
        left_out: (why, how many) of lines or requests that say what cannot be.
        acceptance_length, measured_at_k: tokens a round and K, where positions are not counted.
    """

    source: str
    by_position: tuple[float, ...]
    rounds: float
    concentration: float | None = None
    left_out: tuple[tuple[str, int], ...] = ()
    acceptance_length: float | None = None
    measured_at_k: int | None = None

    def block(self) -> dict[str, object]:
        """Returns the `acceptance:` block; a spread that was not measured is left out."""
        found: dict[str, object] = {"source": self.source}
        if self.by_position:
            found["by_position"] = list(self.by_position)
        else:
            found["acceptance_length"] = round(self.acceptance_length or 1.0, 4)
            if self.measured_at_k is not None:
                found["measured_at_k"] = self.measured_at_k
        if self.concentration is not None:
            alike = math.isinf(self.concentration)
            found["concentration"] = self.concentration if alike else round(self.concentration, 1)
        return found


def from_log(text: str) -> Measured:
    """Returns the acceptance of a server log, each line weighted by its rounds.

    Lines with more accepted than drafted, or rates above 1, are left out and counted.

    Raises:
        ValueError: if the log has no such line with drafts in it, or lines of different K.
    """
    accepted: list[float] = []
    rounds = 0.0
    lines = impossible = 0
    for kept, drafted, numbers in _LOG_LINE.findall(text):
        rates = [float(number) for number in numbers.split(",")]
        if not int(drafted) or any(math.isnan(rate) for rate in rates):
            continue
        if int(kept) > int(drafted) or max(rates) > 1.0 or len(drafted) > _DIGITS:
            impossible += 1
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
        others = f"; {impossible} say that more was accepted than drafted" if impossible else ""
        raise ValueError(f"the log has no line 'SpecDecoding metrics: ...' with drafted tokens{others}")
    return _pooled(
        f"vLLM log, {lines} lines, {rounds:,.0f} rounds",
        accepted,
        rounds,
        _counted({"lines with more accepted than drafted": impossible}),
    )


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
    for position in positions:
        if not 0.0 <= since[position] <= max(rounds, 0.0):
            raise ValueError(
                f"{since[position]:,.0f} drafts accepted at position {position} in {rounds:,.0f} rounds "
                "cannot be; do both scrapes come from one start of the server?"
            )
    if not positions or not rounds > 0.0:
        raise ValueError(
            "no drafts counted: the scrape needs vllm:spec_decode_num_drafts and "
            "vllm:spec_decode_num_accepted_tokens_per_pos, above those of the scrape before"
        )
    return _pooled(f"vLLM counters, {rounds:,.0f} rounds", [since[i] for i in positions], rounds)


_DRAFTS = -1
_MOST_DRAFTS = 1000
"""Drafts of a round; more is a slip of the pen that would cost memory."""
_DIGITS = 15
"""Of a count; a longer number is none."""


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
            found[key] = found.get(key, 0.0) + _counter_value(name, value)
    if found and max(found) > _MOST_DRAFTS:
        raise ValueError(f"position {max(found)} is beyond the {_MOST_DRAFTS} drafts that a round can have")
    return found


def _counter_value(name: str, text: str) -> float:
    """Returns the value of a counter; ValueError for what no counter shows."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise ValueError(f"the counter vllm:spec_decode_num_{name} is {text[:40]}, which nothing counts")
    return value


def from_requests(text: str) -> Measured:
    """Returns the acceptance of per-request speculation metrics, with the spread between requests.

    Args:
        text: a JSON document or JSON lines; the metrics (`acceptance_histogram`, or `per_step_accepted`
            with `per_step_drafted`) may lie at any depth, as in a saved response.

    Raises:
        ValueError: if no request reports its rounds, or requests were drafted for with different K.
    """
    found = [counted for document in _documents(text) for counted in _requests(document)]
    impossible = Counter(counted for counted in found if isinstance(counted, str))
    requests = [counted for counted in found if not isinstance(counted, str) and counted[2]]
    if not requests:
        others = "".join(f"; {n} requests: {reason}" for reason, n in impossible.items())
        raise ValueError(
            f"no request reports acceptance_histogram or per_step_accepted with a round in it{others}"
        )
    depths = {len(accepted) for accepted, _, _ in requests}
    if len(depths) > 1:
        raise ValueError(f"requests of different num_spec_tokens {sorted(depths)}; keep those of one K")
    accepted, stopped = (np.array([request[i] for request in requests]) for i in (0, 1))
    rounds = sum(request[2] for request in requests)
    measured = _pooled(
        f"vLLM requests, {len(requests):,} with {rounds:,} rounds",
        accepted.sum(axis=0).tolist(),
        rounds,
        _counted(impossible),
    )
    if len(requests) < LEAST_REQUESTS:
        return measured
    spread = concentration(measured.by_position, accepted, stopped)
    return replace(measured, concentration=spread)


def _pooled(
    source: str, accepted: Sequence[float], rounds: float, left_out: tuple[tuple[str, int], ...] = ()
) -> Measured:
    """Returns accepted counts by position over rounds; rounding never makes a later one rise."""
    rates = np.minimum.accumulate(np.minimum(np.asarray(accepted, dtype=np.float64) / rounds, 1.0))
    by_position = tuple(round(float(rate), 4) for rate in rates)
    return Measured(source, by_position, rounds, left_out=left_out)


def _counted(reasons: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Returns the reasons that occurred, with their numbers."""
    return tuple((reason, n) for reason, n in sorted(reasons.items()) if n)


def _documents(text: str) -> Iterator[object]:
    """Yields the whole text as one JSON document, or its lines."""
    try:
        yield json.loads(text)
        return
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError:
        pass
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except RecursionError:
                raise ValueError(f"line {number} is nested too deeply") from None
            except ValueError as error:
                said = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                raise ValueError(f"line {number} is no JSON: {said}") from None


def _requests(document: object) -> Iterator[Counted | str]:
    """Yields the counts of each request in a document, or why they cannot be."""
    if isinstance(document, list):
        for part in document:
            yield from _requests(part)
    elif isinstance(document, Mapping):
        try:
            if document.get("per_step_accepted") and document.get("per_step_drafted"):
                yield _by_step(document)
            elif document.get("acceptance_histogram"):
                histogram = _whole_numbers(document["acceptance_histogram"], "acceptance_histogram")
                yield (*successes_and_failures(histogram), sum(histogram))
            else:
                for part in document.values():
                    yield from _requests(part)
        except ValueError as error:
            yield str(error)


def _by_step(metrics: Mapping[str, object]) -> Counted:
    """Returns the counts of a detailed report: a draft that was not made is no rejection."""
    accepted, drafted = (
        np.asarray(_whole_numbers(metrics[f"per_step_{what}"], f"per_step_{what}"))
        for what in ("accepted", "drafted")
    )
    if len(accepted) != len(drafted):
        raise ValueError("per_step_accepted and per_step_drafted are not of one length")
    if (accepted > drafted).any():
        raise ValueError("more accepted than drafted in a step")
    deepest = metrics.get("num_spec_tokens")
    most = _whole_numbers([deepest], "num_spec_tokens")[0] if deepest else int(drafted.max())
    if not 0 < most <= _MOST_DRAFTS:
        raise ValueError(f"num_spec_tokens is not from 1 to {_MOST_DRAFTS}")
    places = range(1, most + 1)
    return (
        [int(np.sum(accepted >= i)) for i in places],
        [int(np.sum((accepted == i - 1) & (drafted >= i))) for i in places],
        int(np.sum(drafted > 0)),
    )


def _whole_numbers(values: object, key: str) -> list[int]:
    """Returns a list of counts; ValueError if one is no whole number from 0 up."""
    if isinstance(values, list):
        found = [
            int(v) for v in values if isinstance(v, int | float) and 0 <= v < 10**_DIGITS and v == int(v)
        ]
        if len(found) == len(values):
            return found
    raise ValueError(f"{key} is no list of whole numbers from 0 up")
