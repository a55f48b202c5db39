"""One job, Specfleet's whole process beside another simulator's, alternated on one pinned core.

    python tests/perf/peers.py                                        # our side alone
    python tests/perf/peers.py --inference-lab PATH/inference-lab     # beside that peer, as peer/*.toml say
    python tests/perf/peers.py --peer none="COMMAND" --peer fixed="COMMAND"

The job: Llama 3.3 70B on 4 x H100, 10,000 requests of 1,000 prompt and 250 output tokens, at a rate near its
limit; without speculation (`none`), with four drafts (`fixed`) and with the goodput policy (`goodput`).
A peer is given by its whole command line for a job; for inference-lab 0.10 the same jobs lie beside this file
in its own words (`peer/`: a model file a job, one workload), so its binary is enough. Each round runs every
side once, in turn, so that a busy machine slows all alike: trust the ratios. CPU is user and system time of
the process and of those that it waited for.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
PLAIN = """
name: job
serve:
  {model: llama-3.3-70b-instruct, gpu: h100-sxm, tensor_parallel_size: 4, max_model_len: 8192,
   max_num_seqs: 256, max_num_batched_tokens: 8192, enable_prefix_caching: false%s}
client: none
workload: {input_len: 1000, output_len: 250, num_prompts: %d, request_rate: %g}
"""
DRAFTS = """, speculative_config: {method: eagle3, num_speculative_tokens: %d,
   model: {eagle3_for: llama-3.3-70b-instruct, max_model_len: 8192}}%s"""
ACCEPTANCE = "acceptance: {conditional_acceptance: 0.7, concentration: .inf}\n"
JOBS = {"none": (0, 9.15, ""), "fixed": (4, 8.75, ""), "goodput": (7, 9.4, ", draft_policy: {goodput: {}}")}
"""Job -> drafts a round, requests/s and what else stands under `serve`."""

PEER_FILES = Path(__file__).with_name("peer")
SIDES = {"run --no-plots": ["--no-plots"], "run": []}


def experiment(job: str, requests: int) -> str:
    """Returns the YAML of a job."""
    k, rate, policy = JOBS[job]
    if not k:
        return PLAIN % ("", requests, rate)
    return PLAIN % (DRAFTS % (k, policy), requests, rate) + ACCEPTANCE


def inference_lab(binary: str, job: str) -> str:
    """Returns the command line with which inference-lab 0.10 runs a job."""
    files = ["-c", str(PEER_FILES / f"{job}.toml"), "-w", str(PEER_FILES / "workload.toml")]
    return shlex.join([binary, *files, "-q", "--no-color"])


def measured(command: list[str], core: int) -> tuple[float, float]:
    """Runs a command on one core; returns its CPU and its wall time, seconds."""
    began = time.perf_counter()
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
    os.sched_setaffinity(process.pid, {core})
    said = process.stderr.read() if process.stderr else b""
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{shlex.join(command)} ended with {status}: {said.decode(errors='replace')[-500:]}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began


def main() -> None:
    """Measures what was asked for and prints a row a job and side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", default=[], metavar="JOB=COMMAND", help="may be repeated")
    parser.add_argument("--inference-lab", metavar="BINARY", help="of inference-lab 0.10; for all jobs")
    parser.add_argument("--job", action="append", choices=list(JOBS), help="default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--requests", type=int, default=10_000, help="of our side; the peer's command has its own"
    )
    given = parser.parse_args()
    peers = {job: inference_lab(given.inference_lab, job) for job in JOBS if given.inference_lab}
    peers |= dict(each.split("=", 1) for each in given.peer)
    if unknown := sorted(peers.keys() - JOBS.keys()):
        parser.error(f"--peer names no job: {', '.join(unknown)}; there are {', '.join(JOBS)}")
    core = min(os.sched_getaffinity(0))
    print(f"core {core}, {given.rounds} rounds; seconds: minimum/median; ratio to the peer: median of pairs")
    for job in given.job or JOBS:
        with tempfile.TemporaryDirectory() as place:
            _one_job(Path(place), job, peers.get(job), core, given.rounds, given.requests)


def _one_job(place: Path, job: str, peer: str | None, core: int, rounds: int, requests: int) -> None:
    file = place / "job.yaml"
    file.write_text(experiment(job, requests))
    start = [sys.executable, "-m", "specfleet", "run", str(file), "-q", "--jobs", "1"]
    commands = {side: [*start, *more] for side, more in SIDES.items()}
    if peer:
        commands["peer"] = shlex.split(peer)
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in commands}
    for number in range(rounds):
        for side, command in commands.items():
            out = [] if side == "peer" else ["--out", str(place / f"{side.replace(' ', '')}-{number}")]
            times[side].append(measured([*command, *out], core))
    for side, found in times.items():
        cpu, wall = zip(*found, strict=True)
        spent = (
            f"{what} {min(each):6.2f}/{median(each):6.2f}" for what, each in (("CPU", cpu), ("wall", wall))
        )
        row = f"{job:8} {side:15} {'  '.join(spent)}"
        if peer and side != "peer":
            pairs = zip(found, times["peer"], strict=True)
            ratios = [(ours[0] / theirs[0], ours[1] / theirs[1]) for ours, theirs in pairs]
            row += "  of the peer's CPU {:.2f}, wall {:.2f}".format(
                *(median(each) for each in zip(*ratios, strict=True))
            )
        print(row, flush=True)


if __name__ == "__main__":
    main()
