"""Workload presets: named traffic with its lengths, where they come from and under which licence.

Each is a file `catalog/NAME.yaml` shipped with the package; the file name is the preset's name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from specfleet.workloads.build import WorkloadSpec
from specfleet.workloads.laws import length_law, refuse_unknown
from specfleet.workloads.lengths import LengthDistribution
from specfleet.workloads.rates import RateCurve, schedule

CATALOG = Path(__file__).parent / "catalog"
_TEXT = ("description", "source", "licence")
_REQUIRED = (*_TEXT, "input", "output", "rank_correlation", "max_tokens")
_OPTIONAL = ("request_rate", "burstiness", "num_prompts", "minutes")


@dataclass(frozen=True)
class Minutes:
    """How recorded traffic went from minute to minute.

    Attributes:
        requests: of each whole minute.
        burstiness: gamma shape of the gaps within a minute, at its rate.
    """

    requests: tuple[int, ...]
    burstiness: float

    def curve(self) -> RateCurve:
        """Returns the rate by minute, again and again."""
        return schedule([count / MINUTE_S for count in self.requests], MINUTE_S)


MINUTE_S = 60.0


class PresetError(ValueError):
    """No preset of that name; the message has the closest names."""


@dataclass(frozen=True)
class Preset:
    """Lengths of one kind of traffic, in tokens of its source's tokenizer.

    `max_tokens` is the cap a request states (outputs below it end by a stop token); `rank_correlation` is
    Spearman's, between prompt and output. What the source tells beyond lengths, else None: `request_rate` in
    requests/s and `burstiness` (gamma shape of the gaps) of the recorded traffic, `num_prompts`, the size of
    the data set, `minutes`, how its arrivals went. `source` and `licence` say where the numbers come from and
    what to credit.
    """

    name: str
    description: str
    source: str
    licence: str
    input: LengthDistribution
    output: LengthDistribution
    rank_correlation: float
    max_tokens: int
    request_rate: float | None = None
    burstiness: float | None = None
    num_prompts: int | None = None
    minutes: Minutes | None = None

    def workload(self, num_prompts: int) -> WorkloadSpec:
        """The preset as a workload of `num_prompts` requests, all offered at once.

        Lengths and cap only; set arrivals, warm-ups and the rest with `dataclasses.replace`.
        """
        return WorkloadSpec(
            num_prompts=num_prompts,
            input=self.input,
            output=self.output,
            rank_correlation=self.rank_correlation,
            max_tokens=self.max_tokens,
        )


def preset_names() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


@cache
def preset(name: str) -> Preset:
    """The preset called `name`; raises `PresetError` with the closest names if there is none."""
    names = preset_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3) or names
        raise PresetError(f"no workload preset {name!r}; closest: {', '.join(close)}")
    path = CATALOG / f"{name}.yaml"
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return preset_from(name, yaml.load(path.read_text(encoding="utf-8"), loader))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def preset_from(name: str, described: Mapping[str, object]) -> Preset:
    """A preset from the mapping of a catalog file; ValueError for missing, unknown or malformed keys."""
    refuse_unknown(described, (*_REQUIRED, *_OPTIONAL), "workload preset")
    missing = [key for key in _REQUIRED if key not in described]
    if missing:
        raise ValueError(f"a workload preset needs {', '.join(missing)}")
    rank_correlation = described["rank_correlation"]
    if isinstance(rank_correlation, bool) or not isinstance(rank_correlation, (int, float)):
        raise ValueError(f"rank_correlation must be a number, got {rank_correlation!r}")
    return Preset(
        name=name,
        description=" ".join(str(described["description"]).split()),
        source=" ".join(str(described["source"]).split()),
        licence=" ".join(str(described["licence"]).split()),
        input=length_law(described["input"]),
        output=length_law(described["output"]),
        rank_correlation=float(rank_correlation),
        max_tokens=_count(described, "max_tokens"),
        request_rate=_optional(described, "request_rate"),
        burstiness=_optional(described, "burstiness"),
        num_prompts=_count(described, "num_prompts") if "num_prompts" in described else None,
        minutes=_minutes(described["minutes"]) if "minutes" in described else None,
    )


def _minutes(described: object) -> Minutes:
    """The arrivals by minute of a catalog file; ValueError for malformed ones."""
    if not isinstance(described, Mapping):
        raise ValueError("minutes must be a mapping of requests and burstiness")
    refuse_unknown(described, ("requests", "burstiness"), "minutes")
    counts = described.get("requests")
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("minutes.requests must be a list of whole numbers")
    return Minutes(tuple(counts), _positive(described, "burstiness"))


def _optional(described: Mapping[str, object], key: str) -> float | None:
    """A positive number, or None where the key is absent."""
    return _positive(described, key) if key in described else None


def _positive(described: Mapping[str, object], key: str) -> float:
    """`described[key]` as a positive number, else ValueError."""
    value = described[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{key} must be a positive number, got {value!r}")
    return float(value)


def _count(described: Mapping[str, object], key: str) -> int:
    """`described[key]` as a positive whole number, else ValueError."""
    value = _positive(described, key)
    if value != int(value):
        raise ValueError(f"{key} must be a whole number, got {value}")
    return int(value)
