"""What a study of many small points costs: `scale.py run|parent|tasks|drawing [NUMBER..]`.

`run` simulates so many points with one job, two jobs and `--cluster local`, and prints points a second, CPU
seconds of the command itself and of its workers, memory, and what the folder weighs. `parent` prints CPU
seconds and memory of each stage of the command itself, for several numbers of points; nothing is simulated,
every point is given the files of the same one. `tasks` prints what a task that does nothing costs the command
and a scheduler beside it. `drawing` prints what a share of a large fleet pays for each request of all, to
know its own.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from specfleet.experiments.figures.run import draw_run
from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.page.write import write_report
from specfleet.experiments.point.build import source
from specfleet.experiments.point.built import build
from specfleet.experiments.run.check import check
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.run import Run
from specfleet.experiments.words.run import run_text
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.forgetful.senders import Senders
from specfleet.sim.metrics.summary import Summary
from specfleet.sim.summarise import Forgetful

ROOT = Path(__file__).parents[2]
DRAFTS = "serve.speculative_config.num_speculative_tokens"
FILE = """
name: many
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 4096
  speculative_config: {{model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}}
acceptance: {{by_position: [0.7, 0.5, 0.35], concentration: 18}}
workload: {{input_len: 100, output_len: 20, num_prompts: 20, max_concurrency: 8}}
report: {{requests: {requests}}}
sweep:
  axes:
    serve.max_num_batched_tokens: {budgets}
    serve.max_num_seqs: {seats}
    {drafts}: [0, 3]
"""
FLEET = """
name: day
serve: {{model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_model_len: 4096}}
deployment: {{replicas: 1000, router: random}}
workload:
  {{input_len: 500, output: {{uniform: {{low: 50, high: 350}}}}, request_rate: 115.74,
   num_prompts: {requests}}}
report: {{requests: none}}
"""
MODES = {
    "--jobs 1": ("--jobs", "1"),
    "--jobs 2": ("--jobs", "2"),
    "--cluster local": ("--cluster", "local", "--jobs", "2"),
}
TOLD = """
import json, resource, sys
from specfleet.experiments.cli.main import main
if __name__ == "__main__":
    try:
        main(sys.argv[2:])
    finally:
        mine = resource.getrusage(resource.RUSAGE_SELF)
        status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
        told = [mine.ru_utime + mine.ru_stime, int(status["VmHWM"].split()[0])]
        open(sys.argv[1], "w").write(json.dumps(told))
"""


def experiment(points: int, requests: str = "all") -> str:
    """An experiment of so many points, a multiple of 20, half of them the baseline of the others."""
    budgets, seats = list(range(2048, 2048 + points // 20)), list(range(16, 26))
    return FILE.format(budgets=budgets, seats=seats, requests=requests, drafts=DRAFTS)


def run(points: int) -> None:
    """Prints what runs cost, a row a way."""
    print(f"{points} points of 20 requests; load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    print(f"{'':21}   points   CPU ms a point   command          a point")
    print("way, requests kept    a second  command  workers    MB   bytes  on disk  files")
    for requests in ("all", "none"):
        for name, options in MODES.items():
            with tempfile.TemporaryDirectory() as there:
                _run(Path(there), name, options, points, requests)


def _run(there: Path, name: str, options: tuple[str, ...], points: int, requests: str) -> None:
    (there / "many.yaml").write_text(experiment(points, requests))
    (there / "told.py").write_text(TOLD)
    words = ("run", "many.yaml", "--quiet", "--no-plots", *options, "--out", "out")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "told.py", "told.json", *words]
    subprocess.run(command, cwd=there, check=True, stdout=subprocess.DEVNULL, env=environment)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    mine, memory = json.loads((there / "told.json").read_text())
    every = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    files = [path for path in (there / "out").rglob("*") if path.is_file()]
    size, disk = sum(p.stat().st_size for p in files), sum(512 * p.stat().st_blocks for p in files)
    way = f"{name:16} {requests:4} {points / seconds:9.1f}"
    others = "-" if name == "--jobs 2" else f"{1e3 * (every - mine) / points:.1f}"  # nobody waits for those
    cpu = f"{1e3 * mine / points:8.1f} {others:>8} {memory / 1e3:5.0f}"
    print(way, cpu, f"{size / points:7.0f} {disk / points:8.0f} {len(files) / points:6.1f}", flush=True)


def tasks(count: int) -> None:
    """Prints CPU milliseconds of the command and the scheduler, which is in this process, for each task."""
    from specfleet.experiments.run.cluster.workers import ClusterWorkers

    with ClusterWorkers("local", 2, print) as workers:
        list(workers.in_order(math.factorial, range(50)))
        began = time.process_time()
        list(workers.in_order(math.factorial, [3] * count))
        print(f"{count} tasks: {1e3 * (time.process_time() - began) / count:.1f} ms of CPU each")


def parent(*several: int) -> None:
    """Prints what the command itself does besides, a row a stage, by the number of points."""
    for points in several:
        stage = partial(_stage, points)
        with tempfile.TemporaryDirectory() as there:
            file, out = Path(there) / "many.yaml", Path(there) / "out"
            file.write_text(experiment(points))
            this = Run(file, (), out)
            stage("a file read, checked, spread", partial(Run, file, (), out))
            stage("specfleet check", partial(check, file, ()))
            stage("the folder claimed", partial(this.prepare, resume=False))
            _fill(this)
            stage("rows and summary.csv", this.summary)
            this.release()
            stage("what is printed", partial(run_text, this, this.summary()))
            stage("report.html", partial(write_report, this.folder, None))
            stage("figures", partial(draw_run, this.folder))


def drawing(requests: int) -> None:
    """Prints CPU microseconds a request for drawing all, choosing replicas and keeping those of a share."""
    given = yaml.safe_load(FLEET.format(requests=requests))
    config = load_experiment(given)
    scenario = build(config).scenario
    run = Forgetful.of(scenario, source(config, 0), 0, None)
    plan = CalendarRun(scenario, next(iter(run.source.portions(10))), 0, None)
    senders, share = Senders(plan, Summary(scenario, None, ()), refuses=False), run.shares[0]
    began = time.process_time()
    for table in run.source.portions(run.size):
        columns = senders.send(table)
        chosen = senders.replicas(columns)
        for replica in share:
            mine = np.flatnonzero(chosen == replica)
            {name: column[mine] for name, column in columns.items()}
    each = 1e6 * (time.process_time() - began) / requests
    print(f"{requests} requests, {len(share)} of 1000 replicas: {each:.2f} us each")


def _fill(this: Run) -> None:
    """Simulates one point and gives its files to the others."""
    model, *others = this.tasks
    this.execute([model], 1, Reporter(1, quiet=True))
    for task in others:
        task.path.mkdir()
        for path in model.path.iterdir():
            os.link(path, task.path / path.name)


def _stage(points: int, name: str, does: Callable[[], object]) -> None:
    gc.collect()
    before, began = _resident(), time.process_time()
    does()
    spent, after = time.process_time() - began, _resident()
    each = f"{1e3 * spent / points:6.2f} ms and {(after - before) / 1e3 / points:6.1f} kB a point"
    print(f"{points:6} points  {name:29} {spent:7.2f} s, {each}; {after / 1e6:4.0f} MB", flush=True)


def _resident() -> float:
    return float(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    what, *numbers = sys.argv[1:] or ["run"]
    sizes = [int(number) for number in numbers] or [1000]
    if what == "parent":
        parent(*sizes)
    else:
        {"run": run, "tasks": tasks, "drawing": drawing}[what](sizes[0])
