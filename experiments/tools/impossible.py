"""What no benchmark measures: negative or endless times, more accepted than drafted, figures that are none.

A result with such a value is refused by name. Requests that failed are possible, and named wherever the
others are scored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

RATES = "spec_decode_per_position_acceptance_rates"
LISTS = (RATES, "input_lens", "output_lens")
"""Keys of `vllm bench serve` that hold a number for each position, or for each request."""

_NUMBERS = (
    *("completed", "failed", "num_prompts", "duration", "max_concurrency", "burstiness"),
    *("total_input_tokens", "total_output_tokens", "output_throughput", "request_throughput"),
    *("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens"),
    *("spec_decode_acceptance_length", "mean_input_tokens", "mean_output_tokens", "kv_pool_tokens"),
)
"""Keys that hold one number; so do those that end in `_ms`."""

_SHOWN = 40
"""Characters of a value in a message."""


def number(value: object) -> float | None:
    """Returns a JSON value as a number, also where it is written as text; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def bench_faults(result: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yields (key, what is wrong) for every value that no run of `vllm bench serve` prints."""
    for key, value in result.items():
        if value is None:
            continue
        if key in _NUMBERS or key.endswith("_ms"):
            yield from ((key, f"is {said}") for said in _not_measured(value))
        elif key in LISTS:
            yield from _list_faults(key, value)
    rate = result.get("request_rate")
    if rate is not None and not (number(rate) or 0.0) > 0.0:
        yield "request_rate", f"is {_shown(rate)}, no rate above 0"
    completed = number(result.get("completed"))
    for key in ("total_input_tokens", "total_output_tokens"):
        total = number(result.get(key))
        if total is not None and completed is not None and total < completed:
            yield key, f"is {total:g}, less than a token for each of {completed:g} requests"
    accepted, drafted = (number(result.get(f"spec_decode_{what}_tokens")) for what in ("accepted", "draft"))
    if accepted is not None and drafted is not None and accepted > drafted:
        yield "spec_decode_accepted_tokens", f"is {accepted:g}, more than the {drafted:g} drafted"
    if result.get("completed") is not None and completed == 0.0:
        yield "completed", "is 0: no request was completed; nothing to compare"
    length, rates = number(result.get("spec_decode_acceptance_length")), result.get(RATES)
    most = 1 + len(rates) if isinstance(rates, list) and rates else math.inf
    if length is not None and not 1.0 <= length <= most + 0.005:
        yield "spec_decode_acceptance_length", f"is {length:g}, not from 1 to {most:g} tokens a round"


def _list_faults(key: str, value: object) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with a list of numbers: its first bad entry, and how many there are."""
    if not isinstance(value, list):
        yield key, f"is {_shown(value)}, no list"
        return
    bad = [(place, said) for place, entry in enumerate(value) for said in _not_measured(entry)]
    if key == RATES and not bad:
        rates = [(place, number(entry) or 0.0) for place, entry in enumerate(value)]
        bad = [(place, f"{rate:g}, more than 1") for place, rate in rates if rate > 1.0]
    if bad:
        place, said = bad[0]
        more = f", and {len(bad) - 1} more entries like it" if len(bad) > 1 else ""
        yield key, f"at place {place} is {said}{more}"


def _not_measured(value: object) -> Iterator[str]:
    """Yields what a value is if it is no finite number of at least 0."""
    found = number(value)
    if found is None:
        yield f"{_shown(value)}, no number"
    elif not math.isfinite(found) or found < 0.0:
        yield f"{found:g}, which nothing measures"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
