"""What a tool measured, under the keys and in the units of `vllm bench serve --save-result`.

Tools give one name to different things. A reader puts a figure under a key only if it is the same thing:
TPOT is (latency - TTFT) / (output tokens - 1) of a request, ITL is the pause between two chunks of a stream.
What is something else is left out, and said where that surprises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specfleet.experiments.tools.file import Unreadable
from specfleet.experiments.tools.impossible import RATES, bench_faults, number

_LABEL = 80
"""Characters of a label that are kept."""


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """One measured run of a real server.

    Attributes:
        name: of its file, with the place in it where it holds several.
        numbers: figures and settings that are one number each, under the keys of `vllm bench serve`; beside
            them `kv_pool_tokens` of a log.
        label: given to the run, or empty.
        request_rate: requests/s as text, "inf" where all are offered at once, "" where it is not stated.
        per_position_acceptance_rates: P(first i drafts accepted); empty where they are not counted.
        input_lens, output_lens: tokens of every request; empty where they are not listed.
        drafts: K; 0 is a server that says it does not draft, None where the result does not say.
        counted: whether it holds speculation counters.
        served: what it says of the server: `tp`, `ep`, `dp`, `pp`, `disagg`, `model`.
        notes: what to know of the reading, said wherever the result is used.
    """

    name: str
    numbers: Mapping[str, float]
    label: str = ""
    request_rate: str = ""
    per_position_acceptance_rates: tuple[float, ...] = ()
    input_lens: tuple[float, ...] = ()
    output_lens: tuple[float, ...] = ()
    drafts: int | None = None
    counted: bool = False
    served: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def completed(self) -> float | None:
        """Requests that were answered, None where it is not stated."""
        return self.numbers.get("completed")

    @property
    def max_concurrency(self) -> int | None:
        """The client's cap, None without one or where it is not stated."""
        return round(self.numbers["max_concurrency"]) if self.numbers.get("max_concurrency") else None

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens a round, the target's own included; None where it is not counted."""
        return self.numbers.get("spec_decode_acceptance_length")

    def mean(self, side: str) -> float | None:
        """Returns mean tokens a request of "input" or "output"; None where it is not stated."""
        total, completed = self.numbers.get(f"total_{side}_tokens"), self.completed
        if total is not None and completed:
            return total / completed
        return self.numbers.get(f"mean_{side}_tokens")


def result(
    name: str,
    values: Mapping[str, object],
    theirs: Mapping[str, str] | None = None,
    *,
    line: int = 0,
    label: object = None,
    request_rate: object = None,
    drafts: int | None = None,
    served: Mapping[str, object] | None = None,
    notes: Sequence[str] = (),
) -> ToolResult:
    """Returns a result of values under vLLM's keys, once nothing in it is impossible.

    Args:
        name: of the result.
        values: as the tool wrote them, scaled to vLLM's units; null is left out.
        theirs: the tool's own name of a key, for messages.
        line: where the result stands in its file.
        label, request_rate, drafts, served, notes: as in `ToolResult`.

    Raises:
        Unreadable: for the first value that nothing measures.
    """
    found = {key: value for key, value in values.items() if value is not None}
    if request_rate is not None:
        found["request_rate"] = request_rate
    for key, said in bench_faults(found):
        raise Unreadable(f"{said}; correct the result or leave it out", (theirs or {}).get(key, key), line)
    numbers = {key: value for key, entry in found.items() if (value := number(entry)) is not None}
    rates, inputs, outputs = (_list(found.get(key)) for key in (RATES, "input_lens", "output_lens"))
    counted = any(key in found for key in (RATES, "spec_decode_acceptance_length", "spec_decode_num_drafts"))
    if drafts is None:
        drafts = len(rates) or _drafts(numbers)
    rate = number(request_rate)
    return ToolResult(
        name=name,
        numbers={key: value for key, value in numbers.items() if math.isfinite(value)},
        label=_plain(label)[:_LABEL],
        request_rate="" if rate is None else "inf" if math.isinf(rate) else repr(rate),
        per_position_acceptance_rates=rates,
        input_lens=inputs,
        output_lens=outputs,
        drafts=drafts,
        counted=counted,
        served={key: value for key, value in (served or {}).items() if value is not None},
        notes=tuple(notes),
    )


def _drafts(numbers: Mapping[str, float]) -> int | None:
    """Returns K from the counters: 0 where no round was ever drafted for; None where they do not say."""
    rounds, drafted = numbers.get("spec_decode_num_drafts"), numbers.get("spec_decode_draft_tokens")
    if rounds == 0:
        return 0
    return round(drafted / rounds) if rounds and drafted else None


def _list(value: object) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, list) else ()


def _plain(value: object) -> str:
    """Returns a text on one line that any terminal can print."""
    text = value if isinstance(value, str) else ""
    return " ".join(text.encode("utf-8", "replace").decode().split())


def part(document: object, *path: str) -> object:
    """Returns what stands at a path of nested objects, None where it does not go so deep."""
    for key in path:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def found_key(document: object, *names: str) -> object:
    """Returns the first plain value under one of the names, at any depth, the shallowest first."""
    level = [document]
    while level:
        for entry in level:
            if isinstance(entry, Mapping):
                for name in names:
                    value = entry.get(name)
                    if value is not None and not isinstance(value, Mapping | list):
                        return value
        level = [child for entry in level if isinstance(entry, Mapping) for child in entry.values()]
    return None


def scaled(value: object, factor: float) -> object:
    """Returns a number times a factor; what is no number, as it is, for its fault to be named."""
    found = number(value)
    return value if found is None else found * factor
