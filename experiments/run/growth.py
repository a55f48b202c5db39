"""Points that go on until their answer is settled: the same for any number of processes, and resumed.

A point and what it is compared with grow together, seed by seed on the same requests and luck, and so do the
ends of a band. All of a group are simulated at one length, looked at, and simulated anew at a longer one
until every figure is known as well as `run.precision` asks and every ratio is settled, or known within the
least gain that counts; or `run.at_most` requests are reached. Where a simulation lies while its group grows
it is found again after a kill, so a resumed run takes the same lengths.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from pathlib import Path

from specfleet.experiments.load.rules.sizes import longest
from specfleet.experiments.load.sweep import Point, with_ends
from specfleet.experiments.run.band import is_tail
from specfleet.experiments.run.files import WHOLE
from specfleet.experiments.run.judged import Requests
from specfleet.experiments.run.known import loose
from specfleet.experiments.run.processes import Workers
from specfleet.experiments.run.results import Baselines
from specfleet.experiments.run.runner import Started, Task, simulate_into
from specfleet.experiments.run.traffic import Served
from specfleet.sim.statistics.stopping import Looked, RunLengths, going_on

LOOKS = ".looks"
"""Folder, in that of a run, of simulations whose group still grows."""
LEAST, LEAST_PER_USER = 2_000, 20
"""Requests of a first look, and for each user of a closed loop: starting and ending then count for little."""
SETTLED = {"pays", "does not"}
"""Verdicts that a longer run must not turn round."""

Failed = Callable[[Task, BaseException], None]


@dataclass(frozen=True)
class Together:
    """Points that grow together.

    Attributes:
        points: of the sweep.
        plain: the point that each is compared with, by its id.
    """

    points: tuple[Point, ...]
    plain: Mapping[str, Point]

    @property
    def lengths(self) -> RunLengths:
        """How long its simulations may be."""
        most = min(longest(point.config) for point in self.points)
        users = max(point.config.workload.max_concurrency or 0 for point in self.points)
        return RunLengths(least=min(max(LEAST, LEAST_PER_USER * users), most), most=most)


def groups(points: Sequence[Point], baseline: Mapping[str, object] | None) -> list[Together]:
    """Returns the points that go on, those with one baseline together."""
    growing = [point for point in points if point.config.workload.goes_on]
    others = Baselines(growing, baseline)
    found: dict[str, list[Point]] = {}
    plain: dict[str, Point] = {}
    for point in growing:
        other = others.of(point)
        if other is not None and other is not point:
            plain[point.id] = other
        found.setdefault(point.id if other is None else other.id, []).append(point)
    return [
        Together(tuple(mine), {p.id: plain[p.id] for p in mine if p.id in plain}) for mine in found.values()
    ]


@dataclass(frozen=True)
class Sighting:
    """A simulation of so many requests, whose folder is kept until its group is settled.

    Attributes:
        task: what is simulated.
        prompts: so many requests.
        why: what the look before left open.
    """

    task: Task
    prompts: int
    why: str = ""

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.task.folder / LOOKS / f"{self.task.id},n={self.prompts}"

    @property
    def done(self) -> bool:
        """Whether its folder is complete."""
        return (self.path / WHOLE).exists()

    def placed(self, root: Path) -> Sighting:
        """Returns the same in another folder of a run."""
        return replace(self, task=self.task.placed(root))

    @property
    def id(self) -> str:
        """Names it in progress, and says what it is made for."""
        return f"{self.task.id}, {self.prompts:,} requests{f', for {self.why}' if self.why else ''}"

    @property
    def seconds(self) -> float:
        """Roughly how long it takes."""
        return self.task.seconds * self.prompts


def take_look(look: Sighting) -> Served:
    """Simulates unless that was done before; returns the requests as they were written.

    Raises:
        SimulationError, ValueError, OSError: as `run_task` does.
    """
    if not look.done:
        config = look.task.point.config
        workload = config.workload.model_copy(update={"num_prompts": look.prompts})
        config = config.model_copy(update={"workload": workload})
        simulate_into(look.path, config, look.task.seed, look.task.every_turn)
    return Served.read(look.path / "requests.csv")


@dataclass
class _InProgress:
    """A group while it grows."""

    group: Together
    tasks: list[Task]
    lookout: Generator[int, Looked, tuple[bool, int, int]]
    prompts: int
    why: str = ""
    seen: dict[str, Served] = field(default_factory=dict)
    taken: list[Sighting] = field(default_factory=list)

    @property
    def looks(self) -> list[Sighting]:
        """What is to be simulated next."""
        return [Sighting(task, self.prompts, self.why) for task in self.tasks]

    def settle(self) -> None:
        """Puts the folders of the last look in their places, and removes those of the others."""
        for task in self.tasks:
            shutil.rmtree(task.path, ignore_errors=True)
            Sighting(task, self.prompts).path.rename(task.path)
        for look in self.taken:
            shutil.rmtree(look.path, ignore_errors=True)


def grow(
    wanted: Sequence[Together],
    tasks: Sequence[Task],
    workers: Workers,
    least_gain: float,
    started: Started,
    failed: Failed,
) -> Generator[Sighting | int, None, None]:
    """Grows groups side by side; yields each simulation as it ends, and of what is left to run how many more
    it has become.

    Args:
        wanted: the groups that are not there.
        tasks: of all of their points, ends of bands among them, a seed each.
        workers: where they are simulated.
        least_gain: what a ratio must exceed 1 by to count.
        started: told what is running.
        failed: told of a task that could not be run; the others of its group go on.
    """
    active = []
    for group in wanted:
        names = {point.id for point in with_ends(group.points)}
        lookout = going_on(group.lengths)
        mine = [task for task in tasks if task.point.id in names]
        active.append(_InProgress(group, mine, lookout, next(lookout)))
    while active:
        looks = sorted(((look, one) for one in active for look in one.looks), key=lambda p: -p[0].seconds)

        def running(at: Sequence[int], looks: Sequence[tuple[Sighting, _InProgress]] = looks) -> None:
            started("; ".join(looks[i][0].id for i in at))

        for at, found in workers.as_written(take_look, [look for look, _ in looks], running):
            look, one = looks[at]
            one.taken.append(look)
            yield look
            if isinstance(found, Exception):
                failed(look.task, found)
                one.tasks.remove(look.task)
            else:
                one.seen[look.task.id] = found
        for one in list(active):
            if _goes_on(one, least_gain):
                yield len(one.tasks)
            else:
                one.settle()
                active.remove(one)


def _goes_on(one: _InProgress, least_gain: float) -> bool:
    """Looks at a group; whether it has to grow, and then how far."""
    if not one.tasks:
        return False
    served = {(task.point.id, task.seed): one.seen[task.id] for task in one.tasks}
    found = looked(one.group, served, least_gain)
    one.why = found.why
    try:
        one.prompts = one.lookout.send(found)
    except StopIteration:
        return False
    return True


def looked(group: Together, served: Mapping[tuple[str, int], Served], least_gain: float) -> Looked:
    """Returns how many times as long the simulations of a group have to be, what is open most, and verdicts.

    Args:
        group: the group.
        served: the requests of its simulations, by point and seed; what failed is not there.
        least_gain: what a ratio must exceed 1 by to count.
    """
    read = Requests(Path(), served)
    open_: list[tuple[float, str]] = []
    decided: dict[str, object] = {}
    states = {}
    for point in group.points:
        seeds = [seed for name, seed in served if name == point.id]
        if not seeds:
            continue
        states[point.id] = state = read.traffic(point, seeds).get("state")
        if state == "still filling":
            open_.append((1.0, f"still filling at {point.id}"))
        if state != "saturated":
            runs = [served[point.id, seed] for seed in seeds]
            found = loose(runs, point.config.run.precision)
            open_ += [(each.longer, f"{each.said} at {point.id}") for each in found]
    for point in group.points:
        if point.id in group.plain:
            gains = unsettled(read, point, group.plain[point.id], served, least_gain)
            decided |= gains.decided
            open_ += [(gains.longer, gains.why)] if gains.longer else []
    longer, why = max(open_, key=lambda each: each[0], default=(0.0, "the same once more"))
    return Looked(longer, decided=decided, why=why)


def unsettled(
    read: Requests,
    point: Point,
    plain: Point,
    served: Mapping[tuple[str, int], Served],
    least_gain: float,
) -> Looked:
    """Returns how many times as long runs have to be to settle what a point gains, and the verdicts.

    A verdict on P99 is settled too where both ends of the band of spreads are, and do not agree. What is not
    settled need not be known better than within the least gain that counts.

    Args:
        read: the requests of both, of which `traffic` was asked.
        point, plain: the point, and the one that it is compared with.
        served: the requests of their simulations, ends of the band among them.
        least_gain: what a ratio must exceed 1 by to count.
    """
    classes = {f"class:{name}:": 0.0 for name in point.config.workload.mix or {}}
    rows, names = [], []
    for one, other in [(point, plain), *((end, plain.at_end_of(end)) for end in point.ends)]:
        both = [seed for name, seed in served if name == one.id and (other.id, seed) in served]
        rows.append(read.gains(one, other, both, classes, least_gain) if both else {})
        names.append(one.id)
    longer, why = 0.0, ""
    decided: dict[str, object] = {}
    for key in [key for key in rows[0] if key.endswith("_verdict")]:
        name = key.removesuffix("_verdict")
        asked = dict(zip(names, rows, strict=True)) if is_tail(name) else {point.id: rows[0]}
        verdicts = {at: row.get(key) for at, row in asked.items()}
        decided |= {f"{name} at {at}": said for at, said in verdicts.items() if said in SETTLED}
        if "not settled" in verdicts.values() and not set(verdicts.values()) >= SETTLED:
            for at, row in asked.items():
                more = _longer(row, name, least_gain) if row.get(key) == "not settled" else 0.0
                if more > longer:
                    longer, why = more, f"{_said(name)} not settled at {at}"
    return Looked(longer, decided=decided, why=why)


def _said(ratio: str) -> str:
    """A ratio's column in words, such as `P99 TPOT`."""
    words = ratio.removeprefix("speedup_").removeprefix("output_").replace("_", " ")
    return re.sub(r"\b(p\d+|tpot|ttft|itl|e2el)\b", lambda found: found[0].upper(), words)


def _longer(row: Mapping[str, object], name: str, least_gain: float) -> float:
    """Times as long for a ratio to be clear of 1 + `least_gain`, or known within it; 0: it is."""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if not isinstance(low, float) or not isinstance(high, float) or not 0.0 < low <= high < inf:
        return inf
    wide = (high - low) / 2.0
    if wide <= least_gain:
        return 0.0
    enough = max(abs(sqrt(low * high) - 1.0 - least_gain), least_gain)
    return max(1.1 * (wide / enough) ** 2, 1.0) if enough else inf
