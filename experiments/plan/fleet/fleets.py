"""Fleets around a plan's winner: other routers before the same engines, and pools by traffic class."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specfleet.experiments.plan.asking import Question, Reply
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.search import CENT, MOST_REPLICAS, Entry, Search
from specfleet.experiments.plan.seen import Judged, TrialFigures, roomier
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.point.bounds import Bound, MeanLengths, bound
from specfleet.experiments.point.build import requests
from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.blocks.deployment import Deployment, KvTransfer, ReplicaPool, Routing
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.plan import Plan
from specfleet.experiments.schema.blocks.workload import TrafficClass
from specfleet.sim.statistics.stopping import RunLengths

LEAST_EACH = 200
"""Fewest requests for each replica of a whole deployment."""
DOWNWARDS = 4
"""Replicas fewer than the plan's that a router is tried with, at most."""


@dataclass(frozen=True)
class FleetPart:
    """Equal replicas of a fleet.

    Attributes:
        name: of the pool; "" where there is one.
        classes: of the traffic that it serves; empty: all.
        rate: requests/s that come to it.
        candidate: its engine, on all of the traffic.
        replicas: needed.
    """

    name: str
    classes: tuple[str, ...]
    rate: float
    candidate: Candidate
    replicas: int


@dataclass(frozen=True)
class TriedFleet:
    """A deployment that was simulated as a whole.

    Attributes:
        router: behind which it stands.
        parts: what it is made of; none where nothing can be bought.
        cost: dollars an hour, spares included.
        judged: of the whole; None where it was not simulated.
        runs: of the whole, a run a seed.
        refusal: why there is no such fleet; "" where there is.
        transfer: how KV is handed over, where its parts are roles; None where each part does both.
    """

    router: str
    parts: tuple[FleetPart, ...]
    cost: float = 0.0
    judged: Judged | None = None
    runs: Sequence[TrialFigures] = ()
    refusal: str = ""
    transfer: KvTransfer | None = None

    @property
    def met(self) -> bool:
        """Whether it is settled that it meets the SLO."""
        return self.judged is not None and self.judged.verdict == "met"

    @property
    def gpus(self) -> int:
        """GPUs of the replicas needed."""
        return sum(part.replicas * part.candidate.gpus for part in self.parts)

    def named(self, spare: int) -> str:
        """Names what is bought: `3 x (1 x h100-sxm bf16, plain)`, pools by name."""
        said = [f"{part.replicas + spare} x ({part.candidate.id})" for part in self.parts]
        names = [part.name for part in self.parts]
        return " + ".join(f"{name}: {what}" if name else what for name, what in zip(names, said, strict=True))


def of_whole(lengths: RunLengths | None, replicas: int) -> RunLengths | None:
    """Returns how long simulations of so many replicas may be, in requests a replica."""
    if lengths is None:
        return None
    least = max(lengths.least // replicas, LEAST_EACH)
    return RunLengths(least, max(lengths.most // replicas, least))


def behind(config: Experiment, router: str) -> Experiment:
    """Returns the same engine behind another router."""
    return config.model_copy(update={"deployment": Deployment(router=router)})


def by_router(search: Search, winner: Entry, routers: Sequence[str]) -> list[TriedFleet]:
    """Returns for each router the fewest of the winner's replicas that meet the SLO behind it.

    No more than the plan has are tried, and fewer as long as they meet it on fresh seeds as well, but for the
    plan's own router, of which that is known. All are whole deployments, on the same requests.
    """
    assert winner.high is not None
    found, candidate, own = [], winner.candidate, winner.candidate.config.deployment.routing.then
    floor = min(_fewest(search.traffic, winner.bound), winner.high)
    for router in routers:
        config = behind(candidate.config, router)
        n, best = winner.high, _asked(search, config, winner.high)
        least = winner.high if router == own else max(floor, winner.high - DOWNWARDS)
        while best.judged.verdict == "met" and n > least:
            fewer = _asked(search, config, n - 1)
            if fewer.judged.verdict != "met" or not _again(search, config, n - 1):
                break
            n, best = n - 1, fewer
        part = FleetPart("", (), search.traffic.rate, candidate, n)
        cost = candidate.replica_usd * (n + search.spare)
        found.append(TriedFleet(router, (part,), cost, best.judged, best.runs))
    return found


def _fewest(traffic: Traffic, top: Bound) -> int:
    return max(-int(-traffic.rate // top.rate), 1) if top.rate else MOST_REPLICAS


def _again(search: Search, config: Experiment, replicas: int) -> bool:
    """Whether a deployment meets the SLO on seeds that had no part in its choice."""
    lengths = of_whole(search.lengths, replicas)
    question = Question(search.traffic, config, replicas, search.fresh, lengths, whole=True)
    return search.laboratory.ask([question])[0].judged.verdict == "met"


def _asked(search: Search, config: Experiment, replicas: int) -> Reply:
    lengths = of_whole(search.lengths, replicas)
    question = Question(search.traffic, config, replicas, search.seeds, lengths, whole=True)
    return search.laboratory.ask([question])[0]


def best_router(found: Sequence[TriedFleet]) -> tuple[TriedFleet | None, list[TriedFleet]]:
    """Returns the router with the fewest replicas, then most room, and those not told apart from it.

    Args:
        found: the plan's own router first; it stays where no other is clearly better.
    """
    able = [fleet for fleet in found if fleet.met]
    if not able:
        return None, []
    fewest = min(fleet.cost for fleet in able)
    level = [fleet for fleet in able if fleet.cost < fewest + CENT]
    best = level[0]
    for other in level[1:]:
        if roomier(other.runs, best.runs):
            best = other
    return best, [other for other in level if other is not best and not roomier(best.runs, other.runs)]


# Pools


def of_classes(config: Experiment, classes: Sequence[str]) -> tuple[Experiment, float]:
    """Returns an engine with the requests of some classes alone, and their share of all.

    Of a stream that is thinned at random gaps become more like Poisson's: squared variation
    `share / b + 1 - share`, as of replicas chosen at random.
    """
    mix = shares_of(config)
    share = sum(mix[name] for name in classes)
    kept: dict[str, TrafficClass | float] = {}
    for name in classes:
        said = (config.workload.mix or {})[name]
        mine = mix[name] / share
        kept[name] = said.model_copy(update={"share": mine}) if isinstance(said, TrafficClass) else mine
    shape = 1.0 / (share / config.workload.gap_shape + 1.0 - share)
    workload = config.workload.model_copy(update={"mix": kept, "burstiness": shape, "cv": None})
    acceptance: Process | dict[str, Process] | None = config.acceptance
    if isinstance(acceptance, dict):
        acceptance = {name: acceptance[name] for name in classes if name in acceptance} or None
    return config.model_copy(update={"workload": workload, "acceptance": acceptance}), share


def shares_of(config: Experiment) -> dict[str, float]:
    """Returns the share of each class of a mix that comes in one stream."""
    mix = config.workload.mix or {}
    return {
        name: (each.share or 0.0) if isinstance(each, TrafficClass) else each for name, each in mix.items()
    }


def pooled(
    search: Search,
    plan: Plan,
    sound: Sequence[Candidate],
    partition: Mapping[str, Sequence[str]],
    router: str,
) -> TriedFleet:
    """Searches an engine for the classes of each pool, and simulates them together behind the router.

    Where each pool meets the limits on a percentile of its own requests, all requests together do.

    Args:
        search: of the whole traffic.
        plan: says how many GPUs there are.
        sound: candidates that can be had.
        partition: pool -> its classes.
        router: among the replicas of a pool.
    """
    parts = []
    for name, classes in partition.items():
        part = _part(search, sound, name, tuple(classes))
        if part is None:
            why = f"no candidate is sure to meet the SLO for {', '.join(classes)} (pool {name})"
            return TriedFleet(router, (), refusal=why)
        parts.append(part)
    cost = sum(part.candidate.replica_usd * (part.replicas + search.spare) for part in parts)
    fleet = TriedFleet(router, tuple(parts), cost)
    if short := _too_many(plan, fleet, search.spare):
        return replace(fleet, refusal=short)
    config, replicas = together(fleet), sum(part.replicas for part in parts)
    reply = _asked(search, config, replicas)
    return replace(fleet, judged=reply.judged, runs=reply.runs)


def _part(
    search: Search, sound: Sequence[Candidate], name: str, classes: tuple[str, ...]
) -> FleetPart | None:
    """The cheapest engine for some classes alone."""
    whole = {candidate.id: candidate for candidate in sound}
    alone = []
    share = 1.0
    for candidate in sound:
        config, share = of_classes(candidate.config, classes)
        alone.append(replace(candidate, config=config))
    lengths = MeanLengths.of(requests(alone[0].config, search.seeds[0]))
    at = functools.partial(_bound, lengths)
    bounds = dict(zip([c.id for c in alone], search.laboratory.each(at, alone), strict=True))
    traffic = search.traffic.scaled(share)
    mine = Search(search.laboratory, traffic, search.seeds, search.spare, search.lengths)
    best = mine.run(mine.entries(alone, bounds))
    if best is None or best.high is None:
        return None
    return FleetPart(name, classes, traffic.rate, whole[best.candidate.id], best.high)


def _bound(lengths: MeanLengths, candidate: Candidate) -> Bound:
    return bound(candidate.config, lengths)


def _too_many(plan: Plan, fleet: TriedFleet, spare: int) -> str:
    """Why a plan has not the GPUs of a fleet; "" where it has."""
    used: dict[str, int] = {}
    for part in fleet.parts:
        gpus = (part.replicas + spare) * part.candidate.gpus
        used[part.candidate.gpu] = used.get(part.candidate.gpu, 0) + gpus
    if plan.max_gpus is not None and sum(used.values()) > plan.max_gpus:
        return f"needs {sum(used.values())} GPUs, and the plan allows {plan.max_gpus}"
    for name, gpus in used.items():
        there = plan.gpus_available.get(name)
        if there is not None and gpus > there:
            return f"needs {gpus} x {name}, and there are {there}"
    return ""


def together(fleet: TriedFleet) -> Experiment:
    """Returns the experiment of a fleet of pools, requests sent by class."""
    pools = {
        part.name: ReplicaPool(
            replicas=part.replicas,
            serve=part.candidate.config.serve.model_dump(),
            acceptance=part.candidate.config.acceptance,
        )
        for part in fleet.parts
    }
    by_class = {name: part.name for part in fleet.parts for name in part.classes}
    first = fleet.parts[0].candidate.config
    drafting = next((p.candidate.config for p in fleet.parts if p.candidate.k), first)
    deployment = Deployment(pools=pools, router=Routing(by_class=by_class, then=fleet.router))
    return first.model_copy(update={"deployment": deployment, "acceptance": drafting.acceptance})


@dataclass(frozen=True)
class Fleets:
    """What else than equal replicas behind one router was tried.

    Attributes:
        routers: the plan's own first; empty where none are listed or one replica is enough.
        even: routers not told apart from the best.
        pools: a fleet a partition, with the names of its pools.
        chosen: what is to be bought in place of the plan's equal replicas; None: these.
    """

    routers: tuple[TriedFleet, ...] = ()
    even: tuple[str, ...] = ()
    pools: tuple[tuple[str, TriedFleet], ...] = ()
    chosen: TriedFleet | None = None

    @property
    def router(self) -> str:
        """The best router; "" where that is the plan's own, or pools are chosen."""
        return self.chosen.router if self.chosen is not None and len(self.chosen.parts) == 1 else ""


def fleets_of(search: Search, plan: Plan, every: Sequence[Candidate], winner: Entry) -> Fleets:
    """Tries the routers and pools that a plan lists around its winner."""
    assert winner.high is not None
    listed, own = plan.candidates, winner.candidate.config.deployment.routing.then
    best: TriedFleet | None = None
    routers: list[TriedFleet] = []
    even: list[TriedFleet] = []
    if listed.router and winner.high > 1:
        routers = by_router(search, winner, list(dict.fromkeys([own, *listed.router])))
        best, even = best_router(routers)
    router = own if best is None else best.router
    sound = [candidate for candidate in every if not candidate.refusal]
    pools = [(" | ".join(_said(p)), pooled(search, plan, sound, p, router)) for p in listed.pools]
    base = search.cost(winner, winner.high)
    chosen = best if best is not None and (best.router != own or best.cost < base - CENT) else None
    limit = base if chosen is None else chosen.cost
    for _, fleet in pools:
        if not (fleet.met and fleet.cost < limit - CENT):
            continue
        if _again(search, together(fleet), sum(part.replicas for part in fleet.parts)):
            chosen, limit = fleet, fleet.cost
    return Fleets(tuple(routers), tuple(each.router for each in even), tuple(pools), chosen)


def _said(partition: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, classes in partition.items():
        yield f"{name} = {', '.join(classes)}"


def fleets_as_json(fleets: Fleets, spare: int) -> dict[str, object]:
    """Returns what was tried as plain values."""
    return {
        "routers": [_plain(fleet, spare) for fleet in fleets.routers],
        "routers_not_told_apart": list(fleets.even),
        "pools": [{"partition": name} | _plain(fleet, spare) for name, fleet in fleets.pools],
        "chosen": None if fleets.chosen is None else _plain(fleets.chosen, spare),
    }


def _plain(fleet: TriedFleet, spare: int) -> dict[str, object]:
    found: dict[str, object] = {"router": fleet.router, "per_hour_usd": fleet.cost, "refusal": fleet.refusal}
    found["parts"] = [
        {
            "pool": part.name,
            "classes": list(part.classes),
            "request_rate": part.rate,
            "candidate": part.candidate.id,
            "replicas": part.replicas + spare,
        }
        for part in fleet.parts
    ]
    if fleet.judged is not None:
        found |= {key: getattr(fleet.judged, key) for key in ("verdict", "ratio", "limit")}
    return found
