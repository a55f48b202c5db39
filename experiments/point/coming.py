"""Replicas of a pool that come and go: with the load, and on spot instances; and the limits of requests."""

from __future__ import annotations

import dataclasses
from math import inf

from specfleet.experiments.point.build import placement
from specfleet.experiments.point.loading import load_s
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.plan import Slo
from specfleet.experiments.schema.blocks.scaling import Autoscale, Retry, Spot
from specfleet.sim import config as sim_config
from specfleet.sim.fleet.scaling import ATTAINMENT, FIXED, TTFT, AutoscaleConfig
from specfleet.sim.fleet.spot import SpotConfig, TakenAt


def start_s(config: Experiment) -> tuple[float, float]:
    """Returns the seconds from an order until the GPUs are there, and from then until the engine serves.

    Args:
        config: of a pool whose replicas come and go.
    """
    asked: Autoscale | Spot | None = config.deployment.autoscale or config.deployment.spot
    assert asked is not None and asked.provision_s is not None, "the rules ask for it"
    loads_s = load_s(placement(config.serve)) if asked.load_s is None else asked.load_s
    return asked.provision_s, loads_s


def autoscale_config(config: Experiment) -> AutoscaleConfig | None:
    """Returns how many replicas of a pool there are, if they come and go: with the load, or, of those on spot
    instances alone, always as many as there were."""
    deployment = config.deployment
    asked, spot = deployment.autoscale, deployment.spot
    spare = 0
    if spot is not None and spot.notice_s:
        spare = max((deployment.replicas if asked is None else asked.max) - spot.on_demand, 0)
    if asked is None and spot is None:
        return None
    if asked is None:
        n = deployment.replicas
        return AutoscaleConfig(FIXED, 1.0, n, n, n, sum(start_s(config)), inf, spare=spare)
    met: tuple[tuple[float, float, float], ...] = ()
    if asked.metric == ATTAINMENT:
        slo = limits(config)
        assert slo is not None, "the rules ask for limits"
        each = [slo.of_class(number) for number in range(len(slo.by_class))] or [slo]
        latencies = [(one.ttft_s, one.tpot_s, one.e2el_s) for one in each]
        met = tuple((_or_inf(ttft), _or_inf(tpot), _or_inf(e2el)) for ttft, tpot, e2el in latencies)
    return AutoscaleConfig(
        asked.metric,
        asked.target / (1e3 if asked.metric == TTFT else 1.0),
        asked.min,
        asked.max,
        asked.min if asked.start is None else asked.start,
        sum(start_s(config)),
        asked.every_s,
        asked.window_s,
        asked.tolerance,
        asked.up_most,
        asked.down_after_s,
        met,
        spare,
    )


def spot_config(config: Experiment, retry: Retry) -> SpotConfig | None:
    """Returns which replicas of a pool are on spot instances; `retry` is of one that does not say it."""
    asked = config.deployment.spot
    if asked is None:
        return None
    at = tuple(
        TakenAt(
            one.at_s, one.replicas, asked.unavailable_s if one.unavailable_s is None else one.unavailable_s
        )
        for one in asked.at
    )
    rule = asked.retry or retry
    return SpotConfig(
        asked.on_demand,
        asked.mtti_s,
        at,
        asked.notice_s,
        asked.unavailable_s,
        start_s(config)[0],
        rule.most,
        rule.backoff_s,
        rule.keep_partial,
    )


def _or_inf(limit: float | None) -> float:
    return inf if limit is None else limit


def limits(config: Experiment) -> sim_config.Slo | None:
    """Returns the limits of a request, those of traffic classes among them; None without any."""
    by_class = [
        _limits(each.slo) if each.slo is not None else None for each in config.workload.classes.values()
    ]
    if any(each is not None for each in by_class):
        return dataclasses.replace(_limits(config.slo), by_class=tuple(by_class))
    return None if config.slo is None else _limits(config.slo)


def _limits(asked: Slo | None) -> sim_config.Slo:
    if asked is None:
        return sim_config.Slo()
    found = [seconds(asked.request_limits_ms.get(name)) for name in ("ttft", "tpot", "e2el")]
    return sim_config.Slo(found[0], found[1], found[2], asked.attainment)


def seconds(milliseconds: float | None) -> float | None:
    """Returns milliseconds as seconds."""
    return None if milliseconds is None else milliseconds / 1e3
