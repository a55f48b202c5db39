"""How often nominal 95 % intervals hold the truth, by method: `python tests/fidelity/coverage.py`.

    python tests/fidelity/coverage.py [--trials 400] [--only intervals served pairs limits stopping startup]

Processes with truths in closed form (M/M/1 and M/D/1 waits, AR(1), heavy tails), and a plain engine in a
closed and an open loop whose truth comes from a run 100 times as long. Each row says how often the mean's
and P99's interval held the truth, how often it was said to be trusted, and how wide it was. Beside the
method that the product uses stand those that were rejected: the start-up cut by MSER-5, a fixed number of
batches, values taken to be independent. Takes some twenty minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from queues import PROCESSES, Process, Served, Waits, mm1_mean, mm1_percentile, queue_flow, serve

from specfleet.sim.statistics.batches import batch_sums
from specfleet.sim.statistics.figures import Ranked, mean, mean_estimate, percentile, percentile_estimate
from specfleet.sim.statistics.interval import Interval
from specfleet.sim.statistics.limits import limit_kept
from specfleet.sim.statistics.pairs import quotient
from specfleet.sim.statistics.series import F64
from specfleet.sim.statistics.startup import start, startup
from specfleet.sim.statistics.stopping import Precision, RunLengths, growing, replicated, settle, settle_side
from specfleet.sim.statistics.student import student_t
from specfleet.sim.statistics.verdict import verdict

Both = tuple[Interval, Interval]
"""Intervals of the mean and of P99."""


@dataclass
class Held:
    """What one row of a table counts: intervals of the mean and of P99."""

    mean: float
    p99: float
    seen: list[Both] = field(default_factory=list)

    def row(self) -> str:
        """Returns: share that held the truth, share trusted, median half-width, for both."""
        parts = []
        for index, truth in enumerate((self.mean, self.p99)):
            mine = [both[index] for both in self.seen]
            held = np.mean([each.holds(truth) for each in mine])
            trusted = np.mean([each.enough for each in mine])
            width = np.median([each.relative for each in mine])
            parts.append(f"{held:8.1%}{trusted:8.0%}{'none' if width == inf else f'{width:.1%}':>8}")
        return " |".join(parts)


HEAD = f"{'held':>8}{'trusted':>8}{'+-':>8} |{'held':>8}{'trusted':>8}{'+-':>8}"


def mser5(column: F64) -> int:
    """Returns the rows that MSER-5 (White 1997) leaves out, at most half."""
    means = batch_sums(column, len(column) // 5) / 5.0
    d = (means - means.mean())[::-1]
    left = np.arange(1, len(d) + 1)
    spread = (np.cumsum(d * d) - np.cumsum(d) ** 2 / left) / left**2
    return 5 * int(np.argmin(spread[::-1][: len(means) // 2 + 1]))


def _plain(value: float, half: float, count: int) -> Interval:
    return Interval(value, value - half, value + half, 0.95, count, count, count)


def ours(runs: Sequence[F64]) -> Both:
    """The product's: cut at the crossing, batches by the data."""
    kept = [run[round(start(run) * len(run)) :] for run in runs]
    return mean(kept), percentile(kept, 99.0)


def after_mser(runs: Sequence[F64]) -> Both:
    """The product's intervals, the start-up cut by MSER-5."""
    kept = [run[mser5(run) :] for run in runs]
    return mean(kept), percentile(kept, 99.0)


def fixed_batches(runs: Sequence[F64]) -> Both:
    """64 batches and Student's t; P99 from the P99 of each batch."""
    k = 64 // len(runs)
    pieces = [piece for run in runs for piece in np.array_split(run, k)]
    found = []
    for values in (
        np.array([piece.mean() for piece in pieces]),
        np.array([np.percentile(piece, 99.0) for piece in pieces]),
    ):
        half = student_t(0.95, len(values) - 1) * values.std(ddof=1) / sqrt(len(values))
        found.append(_plain(float(values.mean()), half, len(values)))
    return found[0], found[1]


def independent(runs: Sequence[F64]) -> Both:
    """All values taken to be independent."""
    values = np.sort(np.concatenate(runs))
    n = len(values)
    half = 1.96 * values.std(ddof=1) / sqrt(n)
    reach = 1.96 * sqrt(0.99 * 0.01 * n)
    low, high = values[int(0.99 * n - reach)], values[min(int(0.99 * n + reach), n - 1)]
    value = float(np.percentile(values, 99.0))
    return _plain(float(values.mean()), half, n), Interval(value, float(low), float(high), 0.95, n, n, n)


METHODS: dict[str, Callable[[Sequence[F64]], Both]] = {
    "crossing, ours": ours,
    "MSER-5, ours": after_mser,
    "64 batches": fixed_batches,
    "independent": independent,
}
SHAPES = ((1, 10_000), (1, 40_000), (1, 160_000), (5, 10_000), (20, 10_000))
"""Runs and values in each."""
REJECTED = {(1, 40_000), (5, 10_000)}
"""Shapes at which the other methods are shown too."""


def intervals(trials: int) -> Iterator[str]:
    """One long run and replications, by process and method."""
    yield f"{'process':<11}{'runs':>5}{'values':>8}  {'method':<16}{HEAD}"
    for process in PROCESSES:
        for runs, n in SHAPES:
            chosen = METHODS if (runs, n) in REJECTED else {"crossing, ours": ours}
            rows = {name: Held(process.mean, process.p99) for name in chosen}
            rng = np.random.default_rng([runs, n])
            for _ in range(trials):
                seen = [process.start(rng)(n) for _ in range(runs)]
                for name, method in chosen.items():
                    rows[name].seen.append(method(seen))
            for name, held in rows.items():
                yield f"{process.name:<11}{runs:>5}{n:>8}  {name:<16}{held.row()}"


LOOPS: dict[str, tuple[int | None, float]] = {"closed, 24 users": (24, 0.0), "open, 15 per s": (None, 15.0)}


def kept(served: Served) -> tuple[F64, F64]:
    """Returns TTFT and TPOT without start-up and drain."""
    found = startup({"ttft": served.ttft_s, "tpot": served.tpot_s}, served.flow)
    return found.kept(served.ttft_s), found.kept(served.tpot_s)


def served(trials: int) -> Iterator[str]:
    """A simulated engine, whose truth comes from a run 100 times as long."""
    yield f"{'loop':<18}{'runs':>5}{'requests':>9}  {'metric':<6}{HEAD}"
    for loop, (users, rate) in LOOPS.items():
        truth = kept(serve(1_000_000, 1_000_000, users, rate))
        rows = {
            (runs, index): Held(float(t.mean()), float(np.percentile(t, 99.0)))
            for runs in (1, 5)
            for index, t in enumerate(truth)
        }
        for trial in range(trials):
            every = [kept(serve(trial, 10_000, users, rate))]
            every += [kept(serve(5 * trial + i + 10_000, 2_000, users, rate)) for i in range(5)]
            for (runs, index), held in rows.items():
                data = [each[index] for each in (every[:1] if runs == 1 else every[1:])]
                held.seen.append((mean(data), percentile(data, 99.0)))
        for (runs, index), held in rows.items():
            yield f"{loop:<18}{runs:>5}{10_000:>9}  {('TTFT', 'TPOT')[index]:<6}{held.row()}"


def pairs(trials: int) -> Iterator[str]:
    """Ratios on common random numbers: services that take 5 % less, and a token that costs 20 % more."""
    yield f"{'pair':<28}{HEAD}   narrower than apart"
    for load, n in ((0.7, 40_000), (0.9, 400_000)):
        truth = (
            mm1_mean(load, 0.95) / mm1_mean(load),
            *(mm1_percentile(load, 99.0, 0.95) / mm1_percentile(load, 99.0),),
        )
        held, apart = Held(*truth), []
        for trial in range(trials):
            a, b = (Waits(np.random.default_rng([trial, n]), load, faster=f)(n) for f in (1.0, 0.95))
            other = Waits(np.random.default_rng([trial, n, 1]), load, faster=0.95)(n)
            held.seen.append(_ratios(a, b))
            apart.append(_ratios(a, other))
        yield f"{f'M/M/1 {load}, n = {n}':<28}{held.row()}   {_narrower(held.seen, apart)}"
    yield from _loops_paired(trials)


def _loops_paired(trials: int) -> Iterator[str]:
    """TPOT of a simulated engine at two prices of a token."""
    for loop, (users, rate) in LOOPS.items():
        long = [kept(serve(1_000_000, 1_000_000, users, rate, token_s=t))[1] for t in (1e-4, 1.2e-4)]
        means, tails = ([float(f(x)) for x in long] for f in (np.mean, _p99))
        held, apart = Held(means[1] / means[0], tails[1] / tails[0]), []
        for trial in range(trials):
            a, b = (serve(trial, 10_000, users, rate, token_s=t) for t in (1e-4, 1.2e-4))
            other = serve(trial + 10_000, 10_000, users, rate, token_s=1.2e-4)
            held.seen.append(_ratios(*_same_rows(a, b)))
            apart.append(_ratios(*_same_rows(a, other)))
        yield f"{loop + ', TPOT':<28}{held.row()}   {_narrower(held.seen, apart)}"


def _p99(values: F64) -> float:
    return float(np.percentile(values, 99.0))


def _same_rows(a: Served, b: Served) -> tuple[F64, F64]:
    """Returns the TPOT of the requests that count in both runs."""
    found = [startup({"tpot": each.tpot_s}, each.flow) for each in (a, b)]
    first, last = max(f.first for f in found), min(f.last for f in found)
    return a.tpot_s[first:last], b.tpot_s[first:last]


def _ratios(a: F64, b: F64) -> Both:
    return (
        quotient(mean_estimate(a), mean_estimate(b)),
        quotient(percentile_estimate(a, 99.0), percentile_estimate(b, 99.0)),
    )


def _narrower(together: list[Both], apart: list[Both]) -> str:
    """Returns by what factor the median interval is narrower, of the mean and of P99."""
    factors = [
        np.median([x[i].half_width for x in apart]) / np.median([x[i].half_width for x in together])
        for i in (0, 1)
    ]
    return f"{factors[0]:.1f}x, {factors[1]:.1f}x"


def stopping(trials: int) -> Iterator[str]:
    """Runs that go on until they are settled."""
    yield f"{'process':<11}{'runs':>8}{'asked':>12}{'settled':>9}{'used':>9}  {HEAD}"
    asked = (Precision(mean=0.1, p99=0.1), Precision(mean=0.02, p99=0.05))
    for process in PROCESSES:
        slow = process.name.endswith("/1 0.9")  # millions of values a trial
        for precision in asked[: 1 if slow else 2]:
            for many in (False, True):
                yield _settled_row(process, precision, many, trials // 4 if slow else trials)
    for truth in (1.0, 1.02, 1.04):
        yield _verdict_row(truth, trials)


def _settled_row(process: Process, precision: Precision, many: bool, trials: int) -> str:
    rng = np.random.default_rng(7)
    held, used, settled = Held(process.mean, process.p99), [], 0
    for _ in range(trials):
        run = process.start(rng)
        observe = (
            replicated(lambda n: {"x": process.start(rng)(n)})
            if many
            else growing(lambda n, run=run: {"x": run(n)})  # type: ignore[misc]
        )
        lengths = RunLengths(10_000 if many else 2_000, 4_000_000)
        found = settle(observe, {"x": precision}, lengths)
        held.seen.append((found.intervals["x"]["mean"], found.intervals["x"]["p99"]))
        used.append(found.used)
        settled += found.settled
    asked = f"{precision.mean:.0%}, {precision.p99:.0%}"
    row = f"{process.name:<11}{'several' if many else 'one':>8}{asked:>12}{settled / trials:>9.0%}"
    return f"{row}{int(np.median(used)):>9}  {held.row()}"


def _verdict_row(truth: float, trials: int) -> str:
    """Verdicts on a gain that is known: a queue against itself, its waits times a factor and jitter."""
    answers: dict[str, int] = {}
    used = []
    for trial in range(trials):

        def observe(n: int, trial: int = trial) -> Interval:
            waits = Waits(np.random.default_rng(trial), 0.7)(n)
            jitter = np.random.default_rng([trial, 1]).lognormal(-0.02, 0.2, n)
            return quotient(mean_estimate(waits * jitter), mean_estimate(waits * truth))

        found = settle_side(observe, 1.02, RunLengths(2_000, 100_000))
        said = verdict(found.figure, 0.02)
        answers[said] = answers.get(said, 0) + 1
        used.append(found.used)
    said_of = ", ".join(f"{name} {count / trials:.1%}" for name, count in sorted(answers.items()))
    return f"true gain {truth:.2f}, counts from 1.02: {said_of}; {int(np.median(used))} requests"


def states(trials: int) -> Iterator[str]:
    """What is said of M/M/1 queues below and above their capacity, from empty."""
    yield f"{'load':>5}{'requests':>9}{'stationary':>12}{'still filling':>15}{'saturated':>11}{'cut':>7}"
    for load in (0.5, 0.7, 0.9, 0.95, 1.05, 1.2, 2.0):
        for n in (300, 1_000, 10_000, 100_000):
            rng = np.random.default_rng([n, int(100 * load)])
            counts, cut = {"stationary": 0, "still filling": 0, "saturated": 0}, 0.0
            for _ in range(trials):
                flow, waits = queue_flow(rng, load, n)
                found = startup({"wait": waits}, flow)
                counts[found.state] += 1
                cut += found.first / n
            a, b, c = (count / trials for count in counts.values())
            yield f"{load:>5}{n:>9}{a:>12.1%}{b:>15.1%}{c:>11.1%}{cut / trials:>7.1%}"


def limits(trials: int) -> Iterator[str]:
    """Limits at, below and above the true P99: how often they are said to be met, and missed."""
    factors = (0.8, 0.95, 1.0, 1.05, 1.25)
    yield f"{'process':<11}{'values':>8}" + "".join(f"{f'at {f:g} x P99':>18}" for f in factors)
    for process in PROCESSES:
        for n in (5_000, 20_000, 80_000):
            rng, said = np.random.default_rng(n), {f: [0, 0] for f in factors}
            for _ in range(trials):
                ranked = Ranked(process.start(rng)(n))
                for f in factors:
                    kept = limit_kept(ranked, 99.0, f * process.p99)
                    said[f][0] += kept == "met"
                    said[f][1] += kept == "missed"
            shares = (f"{met / trials:.1%}, {missed / trials:.1%}" for met, missed in said.values())
            yield f"{process.name:<11}{n:>8}" + "".join(f"{share:>18}" for share in shares)


STUDIES = {
    "limits": limits,
    "intervals": intervals,
    "served": served,
    "pairs": pairs,
    "stopping": stopping,
    "startup": states,
}


def main() -> None:
    """Prints the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES))
    options = parser.parse_args()
    for name in options.only:
        print(f"\n{name}, {options.trials} trials", flush=True)
        for line in STUDIES[name](options.trials):
            print(line, flush=True)


if __name__ == "__main__":
    main()
