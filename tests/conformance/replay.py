"""Replays recorded decisions of the real vLLM and SGLang schedulers through ours and counts the differences.

    python tests/conformance/replay.py PATH... [--strict] [--crowd listed|calendar|both]

PATH is a trace file or a folder of them. Each step of each file is compared over the fields that
a scheduler fed with the inputs alone can reproduce; `state_end` and the order fields are counted
on a line of their own and decide the exit status only with `--strict`. Who decodes is listed one by
one (`sim/scheduler.py`), or added up in the calendar of the fast path, which does not take every file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import calendar_replay
import sglang_calendar
import sglang_replay
from calendar_engine import NotTaken
from records import Differences, Step, Trace, differences

from specfleet.sim.config import EngineConfig, SpeculativeConfig
from specfleet.sim.scheduler import Scheduler
from specfleet.sim.sequence import Batch, Sequence


def engine_config(trace: dict[str, Any]) -> EngineConfig:
    """Builds our configuration from a trace's `config` block (vLLM's field names)."""
    config = trace["config"]
    speculative = None
    if config["spec_method"]:
        speculative = SpeculativeConfig(config["spec_method"], config["num_speculative_tokens"])
    same = [
        *("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "block_size", "max_model_len"),
        *("enable_prefix_caching", "enable_chunked_prefill", "long_prefill_token_threshold"),
        *("long_prefill_token_threshold_adaptive", "policy", "watermark", "async_scheduling"),
        "scheduler_reserve_full_isl",
    ]
    values = {name: config[name] for name in same} | trace.get("switches", {})
    return EngineConfig(**values, speculative=speculative)


@dataclass
class Script:
    """The scripted answers of one request's model runner."""

    accept: list[int]
    drafts: list[int]
    verifications: int = 0
    samplings: int = 0

    def sample(self, drafts: int, void: bool) -> int:
        """Returns the tokens a sampling row yields: 1 + scripted accepted drafts."""
        if not drafts or void:
            return 1
        accepted = min(self.accept[self.verifications % len(self.accept)], drafts)
        self.verifications += 1
        return 1 + accepted

    def propose(self) -> int:
        """Returns the drafts proposed after a sampling step."""
        count = self.drafts[self.samplings % len(self.drafts)]
        self.samplings += 1
        return count


@dataclass
class Replay:
    """Our scheduler in the engine loop of the recording.

    Args:
        trace: a parsed trace; only its inputs are used.
    """

    trace: dict[str, Any]
    in_flight: deque[tuple[int, Batch]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.config = engine_config(self.trace)
        self.scheduler = Scheduler(self.config)
        k = self.config.num_speculative_tokens
        self.scripts = {
            r["id"]: Script(r.get("accept") or [0], r.get("drafts") or [k]) for r in self.trace["requests"]
        }
        self.pending = deque(sorted(self.trace["requests"], key=lambda r: (r["arrival_step"], r["id"])))
        self.unreported_ends = False
        self.batches = 0
        self.places: dict[int, dict[int, int]] = {}

    def steps(self) -> Iterator[Step]:
        """Yields our record of each step until all requests have finished."""
        asynchronous = self.config.async_scheduling
        step = 0
        while self.pending or len(self.scheduler) or self.in_flight:
            arrived = self._arrivals(step)
            yield {"step": step, "arrived": arrived} | (self._turn() if asynchronous else self._step())
            step += 1

    def _arrivals(self, step: int) -> list[int]:
        arrived = []
        while self.pending and self.pending[0]["arrival_step"] <= step:
            request = self.pending.popleft()
            self.scheduler.add(
                Sequence(
                    request["id"],
                    request["prompt_len"],
                    request["output_len"],
                    stop_at=request.get("stop_at") or 1 << 62,
                    priority=request["priority"],
                    segments=tuple((stream, count) for stream, count in request["prompt"]),
                    output_stream=request.get("output_stream", f"{request['id']}/out"),
                )
            )
            arrived.append(request["id"])
        return arrived

    def _step(self) -> Step:
        """One synchronous step: schedule, run, update, hand the drafts over."""
        batch, record = self._schedule()
        record |= self._process(batch)
        if self.config.speculative:
            drafts = [
                self.scripts[s.id].propose() if samples and not batch.skips_drafts else 0
                for s, samples in zip(batch.sequences, batch.samples, strict=True)
            ]
            self.scheduler.propose(batch, drafts)
        return record | self._end()

    def _turn(self) -> Step:
        """One turn of the asynchronous loop: schedule while there is work, then process the older batch."""
        record: Step = {"batch": None, "processed_batch": None, "rows": [], "finished": []}
        if len(self.scheduler) or self.unreported_ends:
            self.unreported_ends = False
            batch, scheduled = self._schedule()
            rows = zip(batch.sequences, batch.num_tokens, batch.num_drafts, strict=True)
            record |= scheduled | {"batch": self.batches, "sched_rows": [[s.id, n, d] for s, n, d in rows]}
            self.in_flight.append((self.batches, batch))
            self.batches += 1
            if batch.total_tokens and len(self.in_flight) < 2:
                return record | self._end()
        if self.in_flight:
            number, batch = self.in_flight.popleft()
            record |= {"processed_batch": number} | self._process(batch)
        return record | self._end()

    def _schedule(self) -> tuple[Batch, Step]:
        scheduler = self.scheduler
        batch = scheduler.schedule()
        self.places[id(batch)] = {s.id: place for place, s in enumerate(batch.sequences)}
        scheduler.check()
        return batch, {
            "new": [s.id for s in batch.new],
            "resumed": [s.id for s in batch.resumed],
            "cached": [[s.id, tokens] for s, tokens in batch.cached],
            "preempted": [s.id for s in batch.preempted],
            "padded": [s.id for s in batch.padded],
            "tokens": batch.total_tokens,
            "free_after_schedule": scheduler.kv.free_blocks,
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "running_order": [s.id for s in scheduler.running],
            "waiting_order": [s.id for s in scheduler.waiting],
        }

    def _process(self, batch: Batch) -> Step:
        sampled = [
            self.scripts[s.id].sample(d, s.id in batch.void) if samples else 0
            for s, d, samples in zip(batch.sequences, batch.num_drafts, batch.samples, strict=True)
        ]
        outcome = self.scheduler.commit(batch, sampled)
        self.unreported_ends |= bool(outcome.finished)
        each = zip(batch.sequences, batch.num_tokens, batch.num_drafts, sampled, outcome.kept, strict=True)
        place = self.places.pop(id(batch))  # rows in vain of those who were columns stand behind the others
        rows = sorted(each, key=lambda row: place[row[0].id])
        return {
            "rows": [[s.id, n, d, new, kept] for s, n, d, new, kept in rows],
            "finished": [s.id for s in outcome.finished],
        }

    def _end(self) -> Step:
        present = sorted([*self.scheduler.running, *self.scheduler.waiting], key=lambda s: s.id)
        return {
            "free_end": self.scheduler.kv.free_blocks,
            "state_end": [
                [s.id, s.state, s.num_computed_tokens, s.num_tokens, s.num_blocks] for s in present
            ],
        }


def compare(trace: Trace) -> Differences:
    """Replays one trace through the scheduler, which lists who decodes."""
    if sglang_replay.is_sglang(trace):
        return sglang_replay.compare(trace)
    return differences(trace, Replay(trace).steps())


def trace_files(paths: list[Path]) -> list[Path]:
    """Returns the trace files among files and folders, in order."""
    return [file for path in paths for file in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]


def show(file: Path, found: Differences) -> None:
    """Prints the first few mismatches of a file."""
    for line in found.lines[:5]:
        print(f"{file.name}: {line}")


def by_field(found: Differences) -> str:
    """Returns the mismatches by field."""
    return "by field: " + ", ".join(f"{name} {count}" for name, count in found.wrong.most_common())


def replay_listed(files: list[Path]) -> Differences:
    """Replays files through the scheduler and prints what it found."""
    found = Differences()
    for file in files:
        one = compare(json.loads(file.read_text()))
        show(file, one)
        found.add(one)
    print(f"files {len(files)}, steps {found.steps}, mismatches {found.decisive}")
    print(f"state and order fields: mismatches {found.detail}")
    if found.wrong:
        print(by_field(found))
    return found


def replay_calendar(files: list[Path]) -> Differences:
    """Replays files through the calendar and prints what it found, and what it did not take."""
    found, taken, stepped, left_out = Differences(), 0, 0, list[str]()
    for file in files:
        trace = json.loads(file.read_text())
        try:
            if sglang_replay.is_sglang(trace):
                same, why = sglang_calendar.compare(trace)
                if why:
                    left_out.append(f"taken for {same.steps} steps: {file.name}: {why}")
                show(file, same)
                found.add(same)
                taken += 1
                continue
            one = calendar_replay.compare(trace, engine_config(trace))
        except NotTaken as reason:
            left_out.append(f"not taken: {file.name}: {reason}")
            continue
        if one.obstacle is not None:
            left_out.append(f"taken for {one.found.steps} steps: {file.name}: {one.obstacle}")
        show(file, one.found)
        found.add(one.found)
        taken += 1
        stepped += one.stepped
    print(f"calendar: files {taken}, steps {found.steps} ({stepped} stepped), mismatches {found.decisive}")
    print(f"calendar: state and order fields: mismatches {found.detail}")
    if found.wrong:
        print(f"calendar: {by_field(found)}")
    for line in left_out:
        print(f"calendar: {line}")
    return found


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0 all equal, 1 a difference, 2 bad input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--strict", action="store_true", help="state and order fields decide too")
    parser.add_argument("--crowd", choices=("listed", "calendar", "both"), default="both", help="who decodes")
    args = parser.parse_args(argv)
    files = trace_files(args.paths)
    if not files or any(not file.is_file() for file in files):
        print("no trace files at " + ", ".join(map(str, args.paths)), file=sys.stderr)
        return 2
    found = Differences()
    if args.crowd != "calendar":
        found.add(replay_listed(files))
    if args.crowd != "listed":
        found.add(replay_calendar(files))
    return 1 if found.decisive or (args.strict and found.detail) else 0


if __name__ == "__main__":
    raise SystemExit(main())
