"""What a run costs in joules and dollars."""

from __future__ import annotations

from collections.abc import Mapping

from specfleet.experiments.point.built import Built
from specfleet.experiments.run.analysis import StepTotals
from specfleet.experiments.run.costs.paid import Paid
from specfleet.experiments.run.costs.ratio import ENERGY
from specfleet.hardware.power.draw import KIND_OF, KINDS, Energy, energy_j

RANGE = ("energy_low_j_per_output_token", ENERGY, "energy_high_j_per_output_token")
GPU_MS = "gpu_ms_per_output_token"
COST = "cost_usd_per_million_output_tokens"


def energy_of(
    built: Built, steps: Mapping[str, StepTotals], paid: Paid | None = None, wasted: int = 0
) -> dict[str, float]:
    """Returns joules an output token with their range, mean watts a GPU, where GPU time went, and dollars.

    Of all GPUs from the first step to the last one, warm-ups included; of a replica that is ordered and let
    go, while it is paid for. Joules are left out where a GPU's board power is not known, dollars where its
    price is not.

    Args:
        built: the point.
        steps: of each pool, by name.
        paid: what is paid for; None: all replicas all the time.
        wasted: tokens that were thrown away, with replicas that were lost; nobody's output.
    """
    paid = paid or Paid.of(built, steps)
    tokens = sum(totals.tokens for totals in steps.values()) - wasted
    if not paid.seconds > 0.0 or not tokens:
        return {}
    all_s = paid.gpu_s
    found = {GPU_MS: 1e3 * all_s / tokens}
    dollars = paid.dollars()
    if dollars is not None:
        found[COST] = 1e6 * dollars / tokens
    used, by_kind = Energy(0.0, 0.0, 0.0), dict.fromkeys(KINDS, 0.0)
    for one in paid.pools:
        pool = one.pool
        busy = {term: pool.busy_gpus * s for term, s in steps[pool.name].busy_s.items()}
        for term, gpu_seconds in busy.items():
            by_kind[KIND_OF[term]] += gpu_seconds
        if pool.tdp_w is None:
            return found
        used += energy_j(pool.tdp_w, one.gpu_s, busy)
    found |= dict(zip(RANGE, (used.low / tokens, used.middle / tokens, used.high / tokens), strict=True))
    found["mean_gpu_w"] = used.middle / all_s
    return found | {f"gpu_{kind}_share": by_kind[kind] / all_s for kind in KINDS}
