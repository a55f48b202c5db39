"""Prefill and decode apart against replicas that do both, on as many GPUs: the best split at each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specfleet.experiments.run.results import Row, is_number, number

GOODPUT, THROUGHPUT = "request_goodput", "output_throughput"
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
    """

    setting: Mapping[str, object]
    whole: Row
    best: Row
    split: str
    gpus: int
    measure: str
    ratio: float

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
        ratio = _value(best, measure) / least if least > 0.0 else float("inf")
        setting = {axis: best.get(axis) for axis in others}
        found.append(Apart(setting, whole[0], best, split_of(best, gpus), gpus, measure, ratio))
    return found


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
