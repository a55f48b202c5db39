"""What a plan prints of other traffic, routers, pools, and a day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specfleet.experiments.plan.fleet.day import DayFleet, DayPlan
from specfleet.experiments.plan.fleet.fleets import Fleets, TriedFleet
from specfleet.experiments.plan.fleet.scaled import AtTraffic
from specfleet.experiments.plan.seen import of_limit
from specfleet.experiments.words.table import Column, table_text
from specfleet.experiments.words.values import rounded

NAMED = 3
"""Of those that may be cheaper, named at most."""
TRAFFIC = (
    Column("traffic"),
    Column("requests/s"),
    Column("cheapest", left=True),
    Column("$/h", "{:.2f}"),
    Column("of the limit", left=True),
    Column("against the plan", left=True),
)


def traffic_lines(found: Sequence[AtTraffic], most: int | None) -> Iterator[str]:
    """Yields the table of other traffic; nothing where nobody asked for it.

    Args:
        found: the plan at 1 among them.
        most: requests of the longest simulation behind it; None: as the file says.
    """
    if len(found) < 2:
        return
    how = "" if most is None else f", simulations of up to {most:,} requests"
    yield f"At other traffic (every engine with the K it did best with here{how}, not confirmed again):"
    yield table_text(TRAFFIC, [_row(each) for each in found], indent=2)
    for each in found:
        if each.cheaper:
            listed = [f"{replicas} x ({name})" for name, replicas in each.cheaper[:NAMED]]
            more = len(each.cheaper) - len(listed)
            named = "; ".join([*listed, *([f"and {more} more"] if more else [])])
            yield f"  at {each.factor:g} x it is not settled whether something cheaper would do: {named}"


def _row(at: AtTraffic) -> list[object]:
    first = [f"{at.factor:g} x", rounded(at.rate)]
    if at.candidate is None:
        return [*first, "nothing that the plan may buy meets the SLO", None, "", ""]
    against = "the plan" if at.factor == 1.0 else "; ".join(at.changes) or "the same engine"
    return [*first, f"{at.replicas} x ({at.candidate.id})", at.cost, of_limit(at), against]


ROUTERS = (
    Column("router", left=True),
    Column("replicas"),
    Column("$/h", "{:.2f}"),
    Column("of the limit", left=True),
    Column("", left=True),
)
POOLS = (
    Column("pools", left=True),
    Column("cheapest", left=True),
    Column("$/h", "{:.2f}"),
    Column("together", left=True),
)
SAID = {"met": "meets the SLO", "missed": "fails", "not settled": "not settled"}


def fleet_lines(fleets: Fleets, spare: int) -> Iterator[str]:
    """Yields what routers and pools give; nothing where the plan lists none."""
    if fleets.routers:
        yield "The whole deployment behind each router, on the same requests:"
        rows = []
        for fleet in fleets.routers:
            (part,) = fleet.parts
            assert fleet.judged is not None
            said = SAID[fleet.judged.verdict]
            if fleet.router in fleets.even:
                said += ", not told apart from the best"
            rows.append([fleet.router, part.replicas + spare, fleet.cost, of_limit(fleet.judged), said])
        yield table_text(ROUTERS, rows, indent=2)
    if fleets.pools:
        yield "Pools by traffic class, each with the cheapest engine for its requests:"
        yield table_text(POOLS, [_pooled(name, fleet, spare) for name, fleet in fleets.pools], indent=2)


def _pooled(name: str, fleet: TriedFleet, spare: int) -> list[object]:
    if fleet.judged is None:
        return [name, fleet.named(spare) or "none", fleet.cost or None, fleet.refusal]
    said = f"{SAID[fleet.judged.verdict]}, {of_limit(fleet.judged)}"
    return [name, fleet.named(spare), fleet.cost, said]


def chosen_sentence(fleets: Fleets, cost: float, own: str, spare: int) -> str:
    """Returns what to buy in place of equal replicas behind the plan's own router; "" where that is it.

    Args:
        fleets: what was tried.
        cost: dollars an hour of the plan's equal replicas.
        own: router of the plan.
        spare: replicas bought beyond those needed, of each pool.
    """
    chosen = fleets.chosen
    if chosen is None:
        return ""
    less = 1.0 - chosen.cost / cost
    saved = f", {100 * less:.3g} % less" if less > 0.0005 else ", with more room to the SLO"
    if chosen.transfer is not None:
        return (
            f"Cheaper with prompts on GPUs of their own: {chosen.named(spare)}, ${chosen.cost:.2f}/h{saved}."
        )
    if len(chosen.parts) > 1:
        return f"Cheaper in pools: {chosen.named(spare)}, ${chosen.cost:.2f}/h{saved}."
    (part,) = chosen.parts
    many = part.replicas + spare
    return f"Behind {chosen.router} in place of {own}: {many} replicas, ${chosen.cost:.2f}/h{saved}."


OVER_A_DAY = (
    Column("replicas", left=True),
    Column("from"),
    Column("to"),
    Column("GPU-hours", "{:,.1f}"),
    Column("$ a day", "{:,.2f}"),
    Column("against fixed", left=True),
    Column("over the day", left=True),
    Column("worst hour", left=True),
)


def day_lines(day: DayPlan | None) -> Iterator[str]:
    """Yields what fleets cost over a day, and the fleet by the hour; nothing where none follows the load."""
    if day is None:
        return
    fixed = day.fleets[0]
    mean, top = sum(day.rates) / len(day.rates), max(day.rates)
    seeds = "" if day.seeds < 2 else f" on {day.seeds} seeds each, the worse counts"
    steeper = f", climbs {day.faster:g} times as steep" if day.faster > 1.0 else ""
    many = f"{day.requests:,} requests simulated{seeds}{steeper}" if day.requests else "not simulated"
    yield f"A day of {rounded(mean)} requests/s on average and {rounded(top)} in the busiest hour, {many}:"
    yield table_text(OVER_A_DAY, [_over(fleet, fixed) for fleet in day.fleets], indent=2)
    yield from (f"  {fleet.name}: not simulated: {fleet.refusal}" for fleet in day.fleets if fleet.refusal)
    yield "By the hour:"
    shown = [fleet for fleet in day.fleets[1:] if fleet.replicas]
    columns = [Column("hour"), Column("requests/s")]
    columns += [Column(fleet.name, "{:.1f}") for fleet in shown]
    seen = [fleet for fleet in shown if fleet.by_hour]
    columns += [Column(f"of the limit: {fleet.name}", "{:.2f}") for fleet in seen]
    rows: list[list[object]] = []
    for hour, rate in enumerate(day.rates):
        row: list[object] = [f"{hour:02d}", rounded(rate), *(fleet.replicas[hour] for fleet in shown)]
        rows.append([*row, *(fleet.by_hour[hour] for fleet in seen)])
    yield table_text(tuple(columns), rows, indent=2)


def _over(fleet: DayFleet, fixed: DayFleet) -> list[object]:
    if not fleet.replicas:
        return [fleet.name, "", "", None, None, "", "not simulated", ""]
    against = "" if fleet is fixed else f"{fleet.usd / fixed.usd:.2f} x"
    known = bool(fleet.by_hour)
    bare = "meets the SLO at its peak" if fleet is fixed else "by the largest rate of a replica"
    said = f"{SAID[fleet.verdict]}, {of_limit(fleet)}" if known else bare
    worst = f"{max(fleet.by_hour):.2f}" if known else ""
    ends = (f"{min(fleet.replicas):.1f}", f"{max(fleet.replicas):.1f}")
    return [fleet.name, *ends, fleet.gpu_hours, fleet.usd, against, said, worst]


def day_sentence(day: DayPlan | None) -> str:
    """Returns what replicas that follow the load save over the day; "" without a day."""
    if day is None:
        return ""
    chosen, fixed = day.chosen, day.fleets[0]
    if chosen is None:
        than = f"for less than the ${fixed.usd:,.2f} of a fixed fleet"
        return f"Over the day no way to follow the load that is listed is sure to meet the SLO {than}."
    saved = 100 * (1.0 - chosen.usd / fixed.usd)
    return (
        f"Over the day replicas that follow the load ({chosen.name}) cost ${chosen.usd:,.2f} and meet the "
        f"SLO; fixed ones cost ${fixed.usd:,.2f}, so {saved:.0f} % is saved."
    )
