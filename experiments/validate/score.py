"""Errors of predictions, gathered: overall, by load, by group, as ratios to the plain server."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from specfleet.experiments.validate.points import METRICS, MeasuredPoint
from specfleet.experiments.validate.runs import Scored

F64 = npt.NDArray[np.float64]

LOW_LOAD = 64
"""Largest concurrency of the lower of the two bands."""

NOTICEABLE_PCT = 3.0
"""Loss against the plain server, percent, from which its sign is scored."""

TRANSIENT_METRICS = ("ttft_mean_ms", "ttft_median_ms", "ttft_p99_ms", "output_throughput")
"""What a run that is only a start and an end says nothing about."""

K_BANDS = ((0, 0, "0"), (1, 2, "1-2"), (3, 5, "3-5"), (6, 10**9, "6+"))
LOAD_BANDS = ((1, 8, "1-8"), (9, 64, "16-64"), (65, 10**9, ">64"))


class Errors(TypedDict):
    """Absolute errors of one metric, percent of the measurement (steps for `ttft_steps`)."""

    n: int
    median_abs_pct: float
    mean_abs_pct: float
    p90_abs_pct: float
    worst_abs_pct: float
    bias_pct: float
    """Mean with its sign: above 0 where too much is predicted."""


Block = dict[str, Errors]


class Ratio(TypedDict):
    """Errors of a ratio to the plain server, of the figure itself in the same rows, and whether slow-downs
    are seen as such."""

    n: int
    mean_abs_pct: float
    worst_abs_pct: float
    itself_mean_abs_pct: float
    itself_worst_abs_pct: float
    slowdowns: int
    slowdowns_right: int


def band(value: int | None, bands: Sequence[tuple[int, int, str]], otherwise: str) -> str:
    """Returns the name of the band that holds a value."""
    if value is None:
        return otherwise
    return next((name for low, high, name in bands if low <= value <= high), otherwise)


def block(scored: Iterable[Scored], transient: bool = False) -> Block:
    """Returns the errors by metric.

    Args:
        scored: predictions.
        transient: gather what of them is a transient, instead of leaving it out.
    """
    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for one in scored:
        for metric, error in one.errors().items():
            apart = one.point.transient and metric in TRANSIENT_METRICS
            if apart == transient:
                found[metric].append(error)
    return {metric: _errors(values) for metric, values in found.items() if values}


def _errors(values: Sequence[float]) -> Errors:
    off = np.abs(values)
    return Errors(
        n=len(values),
        median_abs_pct=float(np.median(off)),
        mean_abs_pct=float(np.mean(off)),
        p90_abs_pct=float(np.percentile(off, 90)),
        worst_abs_pct=float(np.max(off)),
        bias_pct=float(np.mean(values)),
    )


def by_load(scored: Sequence[Scored], high: bool) -> list[Scored]:
    """Returns the predictions at, or above, `LOW_LOAD`; open loops belong to neither band."""
    return [s for s in scored if s.point.concurrency is not None and (s.point.concurrency > LOW_LOAD) == high]


def model_group(point: MeasuredPoint) -> dict[str, str]:
    """Returns model x GPU x method x K band x concurrency band."""
    tp = point.placement.tensor_parallel_size
    return {
        "model": point.placement.model.name,
        "gpu": f"{tp} x {point.placement.accelerator.name}" if tp > 1 else point.placement.accelerator.name,
        "engine": point.placement.profile.name,
        "method": point.method,
        "k": band(point.k, K_BANDS, "0"),
        "concurrency": band(point.concurrency, LOAD_BANDS, "open loop"),
    }


def campaign_group(point: MeasuredPoint) -> dict[str, str]:
    """Returns campaign x method x data set x (c <= 64 or above); served points all loads in one."""
    bands = ((1, LOW_LOAD, f"<={LOW_LOAD}"), (LOW_LOAD + 1, 10**9, f">{LOW_LOAD}"))
    load = band(point.concurrency, bands, "open loop")
    return {
        "campaign": point.campaign,
        "method": point.method,
        "dataset": point.dataset,
        "concurrency": "" if point.closed_form else load,
    }


def server_group(point: MeasuredPoint) -> dict[str, str]:
    """Returns model x GPUs x engine x method, whatever the load."""
    named = model_group(point)
    return {key: named[key] for key in ("model", "gpu", "engine", "method")}


def groups(
    scored: Sequence[Scored], key: Callable[[MeasuredPoint], dict[str, str]]
) -> list[dict[str, object]]:
    """Returns the errors of each group, in the order in which groups first appear."""
    members: dict[Hashable, list[Scored]] = {}
    for one in scored:
        members.setdefault(tuple(key(one.point).items()), []).append(one)
    out: list[dict[str, object]] = []
    for mine in members.values():
        errors: Mapping[str, object] = block(mine)
        out.append({"group": key(mine[0].point), **errors})
    return out


def ratios(scored: Sequence[Scored]) -> dict[str, Ratio]:
    """Returns throughput and P99 TPOT against the plain row of the campaign, data set and concurrency.

    A slow-down is a measured throughput more than 3 % below the plain server's, or a P99 TPOT more than
    3 % above; it is right if the predicted ratio lies on the same side of 1. Rows without a plain row have
    no ratio.
    """
    plain: dict[Hashable, Scored] = {}
    for one in scored:
        if not one.point.k:
            plain.setdefault(_server(one.point), one)
    out = {}
    for metric, better in (("output_throughput", 1.0), ("tpot_p99_ms", -1.0)):
        pairs, itself = [], []
        for one in scored:
            base = plain.get(_server(one.point)) if one.point.k else None
            if base is None or metric not in one.predicted or metric not in base.predicted:
                continue
            if one.point.transient and metric in TRANSIENT_METRICS:
                continue
            measured = one.point.measured[metric] / base.point.measured[metric]
            pairs.append((measured, one.predicted[metric] / base.predicted[metric]))
            itself.append(abs(one.errors()[metric]))
        if pairs:
            out[metric] = _ratio(np.array(pairs), np.array(itself), better)
    return out


def _server(point: MeasuredPoint) -> tuple[object, ...]:
    place = point.placement
    return (point.campaign, point.dataset, point.concurrency, place.model.name, place.tensor_parallel_size)


def _ratio(pairs: F64, itself: F64, better: float) -> Ratio:
    measured, predicted = pairs[:, 0], pairs[:, 1]
    errors = 100.0 * np.abs(predicted / measured - 1.0)
    slower = better * (measured - 1.0) < -NOTICEABLE_PCT / 100.0
    right = slower & (better * (predicted - 1.0) < 0.0)
    return Ratio(
        n=len(measured),
        mean_abs_pct=float(errors.mean()),
        worst_abs_pct=float(errors.max()),
        itself_mean_abs_pct=float(itself.mean()),
        itself_worst_abs_pct=float(itself.max()),
        slowdowns=int(slower.sum()),
        slowdowns_right=int(right.sum()),
    )
