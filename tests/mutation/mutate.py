"""Plants faults in the product and says which of them the fast tests do not notice.

    python tests/mutation/mutate.py --record 10                 # minutes; goes on where it stopped
    python tests/mutation/mutate.py --mutants 100 --seed 0 --minutes 15
    python tests/mutation/mutate.py --at sim/scheduler.py:95

Which tests run for a mutant is read from a map of which test calls which function, kept in `.mutants`: first
those that noticed other faults of the file and the fastest of each test file, up to one that fails, dies or
takes too long. Each test of the map and each mutant has a forked process of its own; everything is imported
and collected once. Time is CPU time. A test that is still there after a minute and ten times what it was
recorded to take, on the clock, hangs, which counts as noticed. Examples of hypothesis are drawn alike every
time, `--examples` at most. Perf tests and those slower than `SLOW_S` take no part.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

os.environ["MPLBACKEND"] = "Agg"

import forked
import hypothesis
import pytest
from calls import Map, seen
from mutants import ROOT, Mutant, files, mutants_of, mutated, sample
from swap import Functions, on_import

FAST = ("tests/sim", "tests/hardware", "tests/workloads", "tests/laws", "tests/conformance", "tests/input")
FAST_TOO = ("tests/experiments", "tests/flags", "tests/mutation")
NEVER = ("tests/mutation/test_mutate.py",)
NOT_CALLED = "not called by any recorded test"
SLOW_S, BUDGET_S = 8.0, 20.0
"""CPU seconds: the slowest test that takes part, and tests tried on one mutant."""
OVERHEAD_S = 0.01
"""What any test takes at least."""
ELSEWHERE = ROOT / "tests/mutation/elsewhere"
COLLECTING_S = 120.0
"""What importing and collecting may take, of CPU and on the clock."""


def hangs_after_s(seconds: float) -> float:
    """Returns the seconds on the clock after which a test that was recorded to take so many hangs."""
    return max(forked.HANGS_S, forked.HANGS * seconds)


class Collected:
    """Takes pytest's collected tests, and does something else with them than running them."""

    def __init__(self, work: Callable[[list[pytest.Item]], None], examples: int) -> None:
        self._work, self._examples = work, examples

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Fewer examples of every test of hypothesis."""
        for item in items:
            test: Any = getattr(item, "obj", None)
            now = getattr(test, "_hypothesis_internal_use_settings", None)
            if now is not None:
                fewer = min(now.max_examples, self._examples)
                test._hypothesis_internal_use_settings = hypothesis.settings(now, max_examples=fewer)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """The tests stand ready."""
        self._work(session.items)
        return True


def collected(where: list[str], examples: int, work: Callable[[list[pytest.Item]], None]) -> None:
    """Collects tests and hands them over."""
    hypothesis.settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    hypothesis.settings.load_profile("mutants")
    pytest.main(
        ["-qq", "-s", "--no-summary", "-p", "no:cacheprovider", "--worlds=1", *where],
        plugins=[Collected(work, examples)],
    )


def fails(item: pytest.Item) -> bool:
    """Runs one test; whether it fails."""
    from _pytest.runner import runtestprotocol

    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def record(map_: Map, where: list[str], minutes: float, examples: int) -> None:
    """Runs every test once that is new or has changed, and notes what it calls and how long it takes."""
    end_s = forked.cpu_s() + 60.0 * minutes

    def work(items: list[pytest.Item]) -> None:
        left = [item for item in items if not map_.knows(item.nodeid)]
        print(f"{len(items)} tests, {len(left)} of them new or changed", flush=True)
        random.Random(0).shuffle(left)
        for number, item in enumerate(left):
            if forked.cpu_s() > end_s:
                print(f"time is up; {len(left) - number} tests are left")
                break
            map_.add(item.nodeid, forked.told(partial(seen, partial(fails, item)), SLOW_S + 2.0))
            if number % 50 == 49:
                map_.write()
        map_.write()

    collected(where, examples, work)


class Trial:
    """Tries mutants.

    Args:
        map_: which tests call what.
        budget_s: CPU seconds of tests for each.
        examples: of hypothesis.
    """

    def __init__(self, map_: Map, budget_s: float, examples: int) -> None:
        self.map, self.budget_s, self.examples = map_, budget_s, examples
        self.ends: dict[Mutant, str] = {}
        self.kills: Counter[tuple[str, str]] = Counter()

    def tests(self, mutant: Mutant) -> list[tuple[str, float]]:
        """Returns the tests to be run, the likeliest to notice first, with their seconds; one at least."""
        chosen: list[tuple[str, float]] = []
        for name, seconds in likeliest(self.map.tests(mutant.file, mutant.function), mutant.file, self.kills):
            if chosen and sum(s for _, s in chosen) + seconds > self.budget_s:
                break
            chosen.append((name, seconds))
        return chosen

    def run(self, mutants: list[Mutant], end_s: float) -> None:
        """Tries mutants until none is left or time is up: those in functions first."""
        inside = [mutant for mutant in mutants if mutant.function and self._reached(mutant)]
        where = sorted({name.partition("::")[0] for mutant in inside for name, _ in self.tests(mutant)})
        outside = [mutant for mutant in mutants if not mutant.function and self._reached(mutant)]
        share = end_s - (end_s - forked.cpu_s()) * len(outside) / max(len(inside) + len(outside), 1)

        def work(items: list[pytest.Item]) -> None:
            living, by_name = Functions(), {item.nodeid: item for item in items}
            gc.freeze()  # what is collected in a forked process would be copied
            for mutant in inside:
                if forked.cpu_s() > share:
                    return
                self._note(mutant, partial(self._in_place, living, by_name, mutant))

        if inside:
            pid = os.fork()  # what collects has imported the product; the other way must not have
            if not pid:
                collected(where, self.examples, work)
                self.map.results(self.ends)
                os._exit(0)
            os.waitpid(pid, 0)
            self.ends |= self.map.take_results(inside)
        # what a function was made with, such as a default, lives on when its code is exchanged
        for mutant in [*(m for m in inside if self.ends.get(m, "").endswith(forked.NO_LIVING)), *outside]:
            if forked.cpu_s() > end_s:
                return
            self._note(mutant, partial(self._afresh, mutant))

    def _reached(self, mutant: Mutant) -> bool:
        if self.tests(mutant):
            return True
        self.ends[mutant] = NOT_CALLED
        return False

    def _note(self, mutant: Mutant, work: Callable[[], bool]) -> None:
        tests = self.tests(mutant)
        begun = forked.cpu_s()
        end = forked.ends(work, 2.0 * COLLECTING_S + sum(hangs_after_s(seconds) for _, seconds in tests))
        if end == "survived":
            end = f"survived {len(tests)} of {len(self.map.tests(mutant.file, mutant.function))} tests"
        self.ends[mutant] = end
        self.kills[mutant.file, end.partition(" by ")[2]] += end.startswith("killed")
        print(f"{forked.cpu_s() - begun:5.1f} s  {end[:110]:<40}  {mutant}", flush=True)

    def _in_place(self, living: Functions, by_name: dict[str, pytest.Item], mutant: Mutant) -> bool:
        """In a process of its own: whether a test that stands ready notices."""
        tree = mutated((ROOT / mutant.file).read_text(), mutant.number)
        on_import(mutant.file, tree)
        planted_elsewhere(mutant)
        if living.of[mutant.file] and not living.exchange(mutant.file, tree):
            raise forked.UnchangedError
        return self._any_fails(mutant, by_name)

    def _afresh(self, mutant: Mutant) -> bool:
        """In a process of its own that has not imported the product: whether a test notices."""
        on_import(mutant.file, mutated((ROOT / mutant.file).read_text(), mutant.number))
        planted_elsewhere(mutant)
        found: list[bool] = []
        forked.begin("collection", COLLECTING_S, COLLECTING_S)
        where = sorted({name.partition("::")[0] for name, _ in self.tests(mutant)})

        def work(items: list[pytest.Item]) -> None:
            found.append(self._any_fails(mutant, {item.nodeid: item for item in items}))

        collected(where, self.examples, work)
        return not found or found[0]  # no test can even be collected

    def _any_fails(self, mutant: Mutant, by_name: dict[str, pytest.Item]) -> bool:
        for name, seconds in self.tests(mutant):
            if name in by_name:
                forked.begin(name, 5.0 + 10.0 * seconds, hangs_after_s(seconds))
                if fails(by_name[name]):
                    return True
        return False


def planted_elsewhere(mutant: Mutant) -> None:
    """Lets processes that a test starts import the mutant: else its workers are those of the sound product.

    A test that compares what workers write with what this process does would notice any mutant at all.
    """
    os.environ["SPECFLEET_MUTANT"] = f"{mutant.file}:{mutant.number}"
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ELSEWHERE), *([path] if path else [])])


def likeliest(
    tests: list[tuple[str, float]], file: str, kills: Mapping[tuple[str, str], int]
) -> list[tuple[str, float]]:
    """Returns tests in the order in which they are tried.

    By their seconds, times their place among those of their own file: neighbours notice the same. Divided by
    one more than the faults of the same source that they noticed.

    Args:
        tests: with their seconds, the fastest first.
        file: of the source.
        kills: faults noticed, by source and test.
    """
    places: Counter[str] = Counter()
    costs = {}
    for name, seconds in tests:
        places[name.partition("::")[0]] += 1
        costs[name] = (
            (seconds + OVERHEAD_S) * places[name.partition("::")[0]] / (1 + kills.get((file, name), 0))
        )
    return sorted(tests, key=lambda test: (costs[test[0]], test[0]))


def report(ends: dict[Mutant, str], asked: int) -> None:
    """Says how many were noticed, and lists the others."""
    kinds: dict[str, list[Mutant]] = defaultdict(list)
    for mutant, end in ends.items():
        kinds[end.split(" ")[0].rstrip(":")].append(mutant)
    survivors, unseen, killed = sorted(kinds["survived"]), sorted(kinds["not"]), len(kinds["killed"])
    tried = killed + len(survivors)
    print(f"\n{asked} mutants sampled: {len(unseen)} {NOT_CALLED}, {asked - len(ends)} left for lack of time")
    print(
        f"{tried} tried, {killed} killed ({100.0 * killed / max(tried, 1):.1f} %), {len(survivors)} survived"
    )
    print(f"{forked.cpu_s():.0f} CPU seconds")
    for mutant in [*survivors, *unseen]:
        print(f"  {mutant}\n      {ends[mutant]}")


def main(given: list[str] | None = None) -> int:
    """Records, or tries mutants."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--record", type=float, metavar="MINUTES", help="note what tests call, for so long")
    parser.add_argument("--tests", nargs="*", default=[*FAST, *FAST_TOO], help="files or folders to record")
    parser.add_argument("--mutants", type=int, default=0, metavar="N")
    parser.add_argument("--under", default="", metavar="PATH", help="mutants of this folder or file alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=15.0, help="CPU minutes for mutants")
    parser.add_argument(
        "--at", nargs="*", default=[], metavar="FILE:LINE", help="every mutant of these lines"
    )
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="S", help="tests of one mutant")
    parser.add_argument("--examples", type=int, default=20, help="most examples of a hypothesis test")
    args = parser.parse_args(given)
    map_ = Map(ROOT / ".mutants", args.examples, SLOW_S)
    if args.record:
        where = [name for name in args.tests if (ROOT / name.partition("::")[0]).exists()]
        where += [f"--ignore={name}" for name in NEVER]
        forked.alone(lambda: record(map_, where, args.record, args.examples))
        map_ = Map(ROOT / ".mutants", args.examples, SLOW_S)
    chosen = sample(args.mutants, args.seed, args.under) if args.mutants else []
    for place in args.at:
        file, _, line = place.partition(":")
        every = mutants_of((ROOT / file).read_text(), file)
        chosen += [mutant for mutant in every if mutant.line == int(line)]
    assert all(mutant.file in files() for mutant in chosen), "only the product's code is mutated"
    if chosen:
        trial = Trial(map_, args.budget, args.examples)
        trial.run(chosen, forked.cpu_s() + 60.0 * args.minutes)
        report(trial.ends, len(chosen))
        return int(not all(end.startswith("killed") for end in trial.ends.values()))
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), *(str(ROOT / f"tests/{name}") for name in ("helpers", "conformance"))]
    began = time.time()
    status = main()
    print(f"{time.time() - began:.0f} s on the clock")
    sys.exit(status)
