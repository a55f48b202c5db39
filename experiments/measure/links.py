"""All-reduce among the GPUs of one server: one process a GPU, torch.distributed, NCCL (gloo on the CPU)."""

from __future__ import annotations

import importlib
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING

from specfleet.experiments.measure.points import DoesNotRun
from specfleet.experiments.measure.timer import CpuTimer, CudaTimer, Timer, first_line

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from multiprocessing.queues import Queue

    Answer = tuple[list[float], str]

_MOST_S = 90.0
_REPLAYS = 15
_CALLS = 10


def all_reduce_seconds(place: str, gpus: int, sizes: Sequence[int], most_s: float = _MOST_S) -> list[float]:
    """Seconds of one all-reduce by message size in bytes, as rank 0 sees it, BF16, graph-captured on GPUs.

    Raises DoesNotRun when a process fails, or when they have not answered after `most_s` seconds (links that
    hang); the processes are ended.
    """
    context = multiprocessing.get_context("spawn")
    answers: Queue[Answer] = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        ranks = [
            context.Process(
                target=_rank, args=(place, rank, gpus, meeting, list(sizes), answers), daemon=True
            )
            for rank in range(gpus)
        ]
        for process in ranks:
            process.start()
        seconds, reason = _answer(answers, ranks, most_s)
        _end(ranks, patient=not reason)
    if reason:
        raise DoesNotRun(f"all-reduce among {gpus}: {reason}")
    return seconds


def _answer(answers: Queue[Answer], ranks: Sequence[BaseProcess], most_s: float) -> Answer:
    """The first answer; a reason when a process died without one or time is up."""
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        dead = any(process.exitcode for process in ranks)
        try:
            return answers.get(timeout=0.5)
        except Empty:
            if dead:
                return [], "a process ended without an answer"
    return [], f"no answer in {most_s:.0f} s"


def _end(ranks: Sequence[BaseProcess], patient: bool) -> None:
    for process in ranks:
        process.join(timeout=10.0 if patient else 0.1)
        if process.is_alive():
            process.kill()
            process.join()


def _rank(place: str, rank: int, gpus: int, meeting: str, sizes: list[int], answers: Queue[Answer]) -> None:
    """One GPU's process. Rank 0 answers with the times; any rank answers with what went wrong."""
    try:
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
        timer: Timer = CpuTimer(_REPLAYS)
        if place == "cuda":
            torch.cuda.set_device(rank)
            timer = CudaTimer(torch, replays=_REPLAYS)
        distributed.init_process_group(
            "nccl" if place == "cuda" else "gloo", init_method=meeting, rank=rank, world_size=gpus
        )
        times = []
        for size in sizes:
            message = torch.zeros(size // 2, dtype=torch.bfloat16, device=place)
            distributed.barrier()
            times.append(timer.seconds([lambda message=message: distributed.all_reduce(message)] * _CALLS))  # type: ignore[misc]
        distributed.barrier()
        if rank == 0:
            answers.put((times, ""))
        distributed.destroy_process_group()
    except (ImportError, RuntimeError, ValueError, DoesNotRun) as error:
        answers.put(([], first_line(error)))
