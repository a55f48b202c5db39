"""Prefill and decode apart against replicas that do both, on as many GPUs: the best split at each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, inf
from typing import NamedTuple

from specfleet.experiments.run.results import Row, is_number, number

GOODPUT, THROUGHPUT = "request_goodput", "output_throughput"
MET = "slo_attainment"
SETTLED, NOISE = "settled", "inside noise"
CLIFF = 0.1
"""A limit runs through latencies where so great a share of requests is on either side of it."""
WHERE = "deployment"
"""Axes of this block tell deployments apart; the others are a setting."""


class Apart(NamedTuple):
    """The best of the points that hand KV over, at one setting, and the one whose replicas do both.

    Attributes:
        setting: values of the axes that are none of the deployment.
        whole, best: the two points.
        split: GPUs of the one role and of the other, as `2+2`.
        gpus: of each of the two.
        measure: what it is the best by.
        ratio: of that, best over whole; inf where the whole has none.
        half_width: of the ratio's 95 % interval over replications; None where there is one.
    """

    setting: Mapping[str, object]
    whole: Row
    best: Row
    split: str
    gpus: int
    measure: str
    ratio: float
    half_width: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the ratio is told from 1: `settled`, `inside noise`; "" of a single replication."""
        if self.ratio == inf:
            return SETTLED
        if self.half_width is None:
            return ""
        return SETTLED if abs(self.ratio - 1.0) > self.half_width else NOISE

    @property
    def on_a_cliff(self) -> bool:
        """Whether limits of the SLO run through the latencies of either, so that a small change of a limit
        changes how many requests are good."""
        shares = [number(row, MET) for row in (self.whole, self.best) if is_number(row.get(MET))]
        return any(CLIFF < share < 1.0 - CLIFF for share in shares)

    def times(self, key: str) -> float | None:
        """Returns a figure of the best over that of the whole; None without one."""
        if not all(is_number(row.get(key)) and number(row, key) > 0.0 for row in (self.best, self.whole)):
            return None
        return number(self.best, key) / number(self.whole, key)


def compared_apart(rows: Sequence[Row], axes: Sequence[str]) -> list[Apart]:
    """Returns a comparison for each setting that has both; by requests within the limits of the SLO a second
    where any point has some, else by output tokens a second."""
    others = [axis for axis in axes if axis.split(".")[0] != WHERE]
    measure = GOODPUT if any(_value(row, GOODPUT) > 0.0 for row in rows) else THROUGHPUT
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(repr([row.get(axis) for axis in others]), []).append(row)
    found = []
    for mine in groups.values():
        whole = [row for row in mine if not hands_over(row)]
        if len(whole) != 1:
            continue
        gpus = gpus_of(whole[0])
        there = [row for row in mine if hands_over(row) and gpus_of(row) == gpus]
        if not there:
            continue
        best, least = max(there, key=lambda row: _value(row, measure)), _value(whole[0], measure)
        ratio = _value(best, measure) / least if least > 0.0 else inf
        setting = {axis: best.get(axis) for axis in others}
        wide = _half_width(whole[0], best, measure, ratio)
        found.append(Apart(setting, whole[0], best, split_of(best, gpus), gpus, measure, ratio, wide))
    return found


def _half_width(whole: Row, best: Row, measure: str, ratio: float) -> float | None:
    """Returns half the 95 % interval of a ratio of two means over the same seeds; None without intervals.

    As if the two were independent: what they share, requests and luck, makes it narrower than that.
    """
    shares = []
    for row in (whole, best):
        value, wide = _value(row, measure), row.get(f"{measure}_ci95")
        if not value or not is_number(wide):
            return None
        shares.append(number(row, f"{measure}_ci95") / value)
    return ratio * hypot(*shares)


def hands_over(row: Row) -> bool:
    """Whether pools of a point have roles."""
    return is_number(row.get("link_out_busy"))


def gpus_of(row: Row) -> int:
    """Returns the GPUs of a point."""
    each = _value(row, "output_throughput_per_gpu")
    return round(_value(row, THROUGHPUT) / each) if each else 0


def split_of(row: Row, gpus: int) -> str:
    """Returns the GPUs of the pool that computes prompts and of the one that decodes, as `2+2`."""
    names = [key.split(":")[1] for key in row if key.startswith("pool:") and key.endswith(":gpu_hours")]
    hours = {name: _value(row, f"pool:{name}:gpu_hours") for name in names}
    whole = sum(hours.values()) or 1.0
    first = sum(hours[name] for name in names if not _value(row, f"pool:{name}:output_tokens"))
    prompts = round(gpus * first / whole)
    return f"{prompts}+{gpus - prompts}"


def _value(row: Row, key: str) -> float:
    return number(row, key) if is_number(row.get(key)) else 0.0
