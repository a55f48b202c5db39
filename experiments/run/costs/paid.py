"""What is paid for where the number of replicas follows the load, and what it did."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from specfleet.experiments.point.built import Built
from specfleet.experiments.run.analysis import StepTotals
from specfleet.experiments.run.costs.ratio import FIRST, STARTING_TTFT
from specfleet.sim.fleet.scaling import ScalingLog
from specfleet.sim.recorder import FINISHED
from specfleet.sim.scenario import RunResult

REPLICAS = ("mean_replicas", "peak_replicas", "scale_outs", "gpu_hours")


def paid_share(built: Built, steps: Mapping[str, StepTotals], scaling: ScalingLog | None) -> float:
    """Returns the share of all replicas' time, from the first step to the last one, that is paid for."""
    if scaling is None:
        return 1.0
    from_s = min(totals.from_s for totals in steps.values())
    to_s = max(totals.to_s for totals in steps.values())
    whole_s = built.scenario.deployment.replicas * (to_s - from_s)
    return scaling.paid_s(from_s, to_s) / whole_s if whole_s > 0.0 else 1.0


def scaling_of(result: RunResult, built: Built, steps: Mapping[str, StepTotals]) -> dict[str, float | None]:
    """Returns how many replicas were paid for, on average and at most, in how many decisions some were added
    and when first, hours of GPUs, and the P99 TTFT of requests that were sent while replicas were starting;
    from the first step to the last one. Nothing where their number does not follow the load."""
    scaling = result.scaling
    if scaling is None:
        return {}
    seconds = max(totals.to_s for totals in steps.values()) - min(totals.from_s for totals in steps.values())
    replicas = built.scenario.deployment.replicas
    mean = replicas * paid_share(built, steps, scaling)
    ordered_s = scaling.stays["ordered_s"]
    later = ordered_s[ordered_s > 0.0]
    figures = mean, scaling.peak(), scaling.scale_outs, mean * built.gpus / replicas * seconds / 3600.0
    found: dict[str, float | None] = dict(zip(REPLICAS, map(float, figures), strict=True))
    return found | {
        FIRST: float(later.min()) if len(later) else None,
        STARTING_TTFT: _while_starting(result, scaling),
    }


def _while_starting(result: RunResult, scaling: ScalingLog) -> float | None:
    """Returns the P99 TTFT of requests that were sent while replicas were starting, ms; None of none."""
    rows, requests = scaling.changes, result.requests
    at = np.searchsorted(rows["time_s"], requests["sent_s"], side="right") - 1
    asked = (requests["counted"] == 1) & (requests["status"] == FINISHED) & (rows["starting"][at] > 0)
    ttft_s = (requests["first_chunk_s"] - requests["sent_s"])[asked]
    return 1e3 * float(np.percentile(ttft_s, 99.0)) if len(ttft_s) else None
