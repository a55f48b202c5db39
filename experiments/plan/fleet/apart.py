"""Prompts on GPUs of their own, tried around a plan's winner: splits of no more replicas than it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from specfleet.experiments.load.rules.conflicts import conflicts
from specfleet.experiments.plan.asking import Question, Reply
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.fleet.fleets import FleetPart, TriedFleet, of_whole
from specfleet.experiments.plan.search import CENT, Entry, Search
from specfleet.experiments.plan.seen import TrialFigures, of_limit
from specfleet.experiments.point.bounds import MeanLengths, bound, prompts_bound
from specfleet.experiments.point.build import requests
from specfleet.experiments.schema.blocks.deployment import Deployment, KvTransfer, ReplicaPool
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.plan import Plan
from specfleet.experiments.words.table import Column, table_text
from specfleet.sim.disaggregation.config import DECODE, PREFILL
from specfleet.sim.statistics.stopping import RunLengths

SAID = {"met": "meets the SLO", "missed": "fails", "not settled": "not settled"}
NEAREST = 3
"""Splits of as many replicas that are simulated: those nearest to what prompts and answers need."""
MOST = 8_000
"""Requests that a split is simulated with at most; one that is not settled by then is none."""
DOWNWARDS = 4
"""Replicas fewer than the plan's that are tried, at most."""


@dataclass(frozen=True)
class Needs:
    """What prompts and answers need at least, by closed form.

    Attributes:
        prefill, decode: replicas of each role, fractions kept; infinite where no number does.
    """

    prefill: float
    decode: float

    @property
    def fewest(self) -> int:
        """Replicas of both roles at least."""
        return max(ceil(self.prefill), 1) + max(ceil(self.decode), 1)

    def splits(self, replicas: int) -> list[tuple[int, int]]:
        """Returns the splits of so many replicas that may do, the nearest to the needs first."""
        first, other = max(ceil(self.prefill), 1), max(ceil(self.decode), 1)
        wanted = replicas * self.prefill / (self.prefill + self.decode)
        every = [(x, replicas - x) for x in range(first, replicas - other + 1)]
        return sorted(every, key=lambda split: abs(split[0] - wanted))[:NEAREST]


@dataclass(frozen=True)
class TriedSplits:
    """Splits of one engine, KV handed over in one way.

    Attributes:
        candidate: its engine. transfer: how KV is handed over.
        tried: a fleet a split that was simulated; of as many replicas the best first.
        best: the cheapest of them that is sure to meet the SLO; None where none is.
        refusal: why nothing was simulated; "" where something was.
    """

    candidate: Candidate
    transfer: KvTransfer
    tried: tuple[TriedFleet, ...] = ()
    best: TriedFleet | None = None
    refusal: str = ""

    @property
    def said(self) -> str:
        """Names engine and way."""
        return f"{self.candidate.id}, {way_said(self.transfer)}"


def way_said(transfer: KvTransfer) -> str:
    """Names a way to hand KV over by what it says."""
    given = transfer.model_dump(exclude_defaults=True)
    return "KV " + (", ".join(f"{key} {value}" for key, value in given.items()) or transfer.overlap)


def apart(config: Experiment, split: tuple[int, int], transfer: KvTransfer, router: str) -> Experiment:
    """Returns an engine in so many replicas that compute prompts and so many that decode."""
    bare: dict[str, object] = {} if transfer.drafter_kv == "moved" else {"speculative_config": None}
    pools = {
        PREFILL: ReplicaPool(role="prefill", replicas=split[0], serve=bare),
        DECODE: ReplicaPool(role="decode", replicas=split[1]),
    }
    deployment = Deployment(pools=pools, router=router, kv_transfer=transfer)
    return config.model_copy(update={"deployment": deployment})


def parted(search: Search, candidate: Candidate, split: tuple[int, int]) -> tuple[FleetPart, ...]:
    """Returns a split as parts of a fleet."""
    each = zip((PREFILL, DECODE), split, strict=True)
    return tuple(FleetPart(role, (), search.traffic.rate, candidate, n) for role, n in each)


def engines_apart(every: Sequence[Candidate], winner: Candidate, rival: Candidate | None) -> list[Candidate]:
    """Returns the winner and, of the same GPUs, the rival that drafts where it does not, or the other way."""
    alike = [one for one in every if not one.refusal and one.kind == winner.kind]
    if rival is not None and rival.kind == winner.kind:
        return [winner, rival]
    other = next((one for one in alike if bool(one.k) != bool(winner.k)), None)
    return [winner] if other is None else [winner, other]


def splits_of(
    search: Search, plan: Plan, engines: Sequence[Candidate], winner: Entry, router: str
) -> tuple[TriedSplits, ...]:
    """Tries every way to hand KV over with every engine, in no more replicas than the winner has."""
    ways = plan.candidates.disaggregated
    return tuple(_tried(search, engine, way, winner, router) for way in ways for engine in engines)


def needs(candidate: Candidate, lengths: MeanLengths, rate: float) -> Needs:
    """Returns what prompts and answers need at least at so many requests/s."""
    first = prompts_bound(candidate.config, lengths)
    bare = replace(lengths, prompt=1.0, long_prompt=1.0)
    other = bound(candidate.config, bare).rate
    return Needs(rate / first if first else float("inf"), rate / other if other else float("inf"))


def _tried(search: Search, candidate: Candidate, way: KvTransfer, winner: Entry, router: str) -> TriedSplits:
    """Splits of the winner's replicas, then of fewer as long as one of them meets the SLO."""
    assert winner.high is not None
    nothing = TriedSplits(candidate, way)
    most, rate = winner.high, search.traffic.rate
    if most < 2:
        return replace(nothing, refusal="one replica cannot be parted")
    found = next(iter(conflicts(apart(candidate.config, (1, 1), way, router))), None)
    if found is not None:
        return replace(nothing, refusal=found.message.splitlines()[0])
    table = requests(candidate.config, search.seeds[0])
    need = needs(candidate, MeanLengths.of(table), rate)
    if need.fewest > most:
        least = "no number of replicas does" if need.fewest == float("inf") else f"{need.fewest} are needed"
        return replace(nothing, refusal=f"of {most} replicas no split can do: {least} at least")
    tried: list[TriedFleet] = []
    able: list[TriedFleet] = []
    for n in range(most, max(need.fewest, most - DOWNWARDS) - 1, -1):
        here = _asked(search, candidate, need.splits(n), way, router)
        here.sort(key=lambda fleet: (not fleet.met, 0.0 if fleet.judged is None else fleet.judged.ratio))
        tried += here
        able[:0] = [fleet for fleet in here if fleet.met]
        if not here or not here[0].met:
            break
    best = next((fleet for fleet in able if _again(search, fleet, way)), None)
    return replace(nothing, tried=tuple(tried), best=best)


def _question(search: Search, fleet_config: Experiment, replicas: int, seeds: tuple[int, ...]) -> Question:
    lengths = of_whole(search.lengths, replicas)
    if lengths is not None:
        most = max(min(lengths.most, MOST // replicas), lengths.least)
        lengths = RunLengths(lengths.least, most)
    return Question(search.traffic, fleet_config, replicas, seeds, lengths, whole=True)


def _asked(
    search: Search, candidate: Candidate, splits: Sequence[tuple[int, int]], way: KvTransfer, router: str
) -> list[TriedFleet]:
    """Simulates splits side by side: all of them are asked at once."""
    questions = [
        _question(search, apart(candidate.config, split, way, router), sum(split), search.seeds)
        for split in splits
    ]
    replies: Sequence[Reply] = search.laboratory.ask(questions) if questions else []
    return [
        TriedFleet(
            router,
            parted(search, candidate, split),
            candidate.replica_usd * (sum(split) + 2 * search.spare),
            reply.judged,
            reply.runs,
            transfer=way,
        )
        for split, reply in zip(splits, replies, strict=True)
    ]


def _again(search: Search, fleet: TriedFleet, way: KvTransfer) -> bool:
    """Whether a split meets the SLO on seeds that had no part in its choice."""
    first, other = (part.replicas for part in fleet.parts)
    config = apart(fleet.parts[0].candidate.config, (first, other), way, fleet.router)
    question = _question(search, config, first + other, search.fresh)
    return search.laboratory.ask([question])[0].judged.verdict == "met"


def cheapest_apart(splits: Sequence[TriedSplits]) -> TriedSplits | None:
    """Returns the engine and way whose best split costs least; None where none is sure to meet the SLO."""
    able = [one for one in splits if one.best is not None]
    return min(able, key=lambda one: one.best.cost if one.best else 0.0, default=None)


def why_apart(splits: Sequence[TriedSplits], base: float, runs: Sequence[TrialFigures]) -> Iterator[str]:
    """Yields a sentence why prompts on GPUs of their own win or do not; nothing where none were asked for.

    Args:
        splits: what was tried.
        base: dollars an hour of the plan's equal replicas.
        runs: of them as a whole; empty where that was not simulated.
    """
    if not splits:
        return
    best = cheapest_apart(splits)
    whole = f" ({_latencies(runs)})" if runs else ""
    if best is None or best.best is None:
        tried = [fleet for one in splits for fleet in one.tried]
        if not tried:
            reasons = "; ".join(dict.fromkeys(one.refusal for one in splits))
            yield f"Prompts on GPUs of their own were not simulated: {reasons}."
            return
        near = min(tried, key=lambda fleet: fleet.judged.ratio if fleet.judged else float("inf"))
        assert near.judged is not None
        yield (
            "Prompts on GPUs of their own: no split of as many replicas is sure to meet the SLO; the "
            f"nearest, {split_said(near)}, is at {near.judged.ratio:.2f} of {near.judged.limit} "
            f"({_latencies(near.runs)}), replicas that do both meet it{whole}."
        )
        return
    fleet = best.best
    assert fleet.judged is not None
    how = f"{split_said(fleet)}, ${fleet.cost:.2f}/h, {fleet.judged.ratio:.2f} of {fleet.judged.limit}"
    what = (
        f"cost {100 * (1 - fleet.cost / base):.3g} % less" if fleet.cost < base - CENT else "do not cost less"
    )
    yield (
        f"Prompts on GPUs of their own {what}: {how} ({_latencies(fleet.runs)}), against replicas that do "
        f"both at ${base:.2f}/h{whole}."
    )


def split_said(fleet: TriedFleet) -> str:
    """Names a split: `1 prefill + 3 decode of 1 x h100-sxm bf16, plain`."""
    counts = " + ".join(f"{part.replicas} {part.name}" for part in fleet.parts)
    return f"{counts} of {fleet.parts[0].candidate.id}"


def _latencies(runs: Sequence[TrialFigures]) -> str:
    """P99 of TTFT and TPOT, means over seeds."""
    ttft, tpot = (mean(runs, key) for key in ("p99_ttft_ms", "p99_tpot_ms"))
    return f"P99 TTFT {ttft:,.0f} ms, P99 TPOT {tpot:.1f} ms"


TRIED = (
    Column("split", left=True),
    Column("$/h", "{:.2f}"),
    Column("P99 TTFT ms", "{:,.0f}"),
    Column("P99 TPOT ms", "{:.1f}"),
    Column("of the limit", left=True),
    Column("", left=True),
)


def split_lines(splits: Sequence[TriedSplits]) -> Iterator[str]:
    """Yields what every split gave, by engine and way; nothing where none were asked for."""
    for one in splits:
        if one.refusal:
            yield f"Prompts on GPUs of their own, {one.said}: {one.refusal}."
            continue
        yield f"Prompts on GPUs of their own, {one.said}:"
        rows: list[list[object]] = []
        for fleet in one.tried:
            assert fleet.judged is not None
            counts = " + ".join(f"{part.replicas} {part.name}" for part in fleet.parts)
            latencies = [mean(fleet.runs, key) for key in ("p99_ttft_ms", "p99_tpot_ms")]
            rows.append([counts, fleet.cost, *latencies, of_limit(fleet.judged), SAID[fleet.judged.verdict]])
        yield table_text(TRIED, rows, indent=2)


def mean(runs: Sequence[TrialFigures], key: str) -> float:
    """Returns the mean of a figure over seeds."""
    return sum(run[key] for run in runs) / len(runs)


def splits_as_json(splits: Sequence[TriedSplits], spare: int) -> list[dict[str, object]]:
    """Returns what was tried as plain values."""
    return [
        {
            "candidate": one.candidate.id,
            "kv_transfer": one.transfer.model_dump(mode="json", exclude_none=True),
            "refusal": one.refusal,
            "tried": [_plain(fleet, spare) for fleet in one.tried],
            "best": None if one.best is None else _plain(one.best, spare),
        }
        for one in splits
    ]


def _plain(fleet: TriedFleet, spare: int) -> dict[str, object]:
    assert fleet.judged is not None
    found: dict[str, object] = {part.name: part.replicas + spare for part in fleet.parts}
    found |= {"per_hour_usd": fleet.cost, "verdict": fleet.judged.verdict, "ratio": fleet.judged.ratio}
    found |= {"limit": fleet.judged.limit}
    return found | {key: mean(fleet.runs, key) for key in ("p99_ttft_ms", "p99_tpot_ms")}
