"""Commands and crews on a cluster, and a small experiment for them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specfleet.experiments.cli.main import main
from specfleet.experiments.run.cluster.workers import ClusterWorkers

if TYPE_CHECKING:
    from distributed import LocalCluster

SMALL = """
name: x
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  max_model_len: 4096
  speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3,
    max_model_len: 4096}
acceptance: {by_position: [0.7, 0.5, 0.35], concentration: 18}
workload: {input_len: 300, output_len: 20, max_concurrency: 8, num_prompts: 40}
"""
OPTIONS: dict[str, Any] = {
    "threads_per_worker": 1,
    "memory_limit": 0,
    "dashboard_address": "127.0.0.1:0",
    "silence_logs": logging.CRITICAL,
}


def command(*words: object) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    return int(ended.value.code or 0)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a results folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def hired(cluster: Any, said: list[str] | None = None) -> ClusterWorkers:
    """The workers of a cluster."""
    heard = [] if said is None else said
    return ClusterWorkers(cluster.scheduler_address, 1, heard.append)


def without_workers() -> LocalCluster:
    """A scheduler in this process, without workers."""
    from distributed import LocalCluster

    return LocalCluster(n_workers=0, processes=False, protocol="tcp", host="127.0.0.1", **OPTIONS)
