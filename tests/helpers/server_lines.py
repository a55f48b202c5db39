"""Lines of servers and keys of `serve`, as they are loaded or refused."""

from __future__ import annotations

from typing import Any

import pytest

from specfleet.experiments.load.config import Loaded, load
from specfleet.experiments.load.from_line import translate
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.faults import InputFaults

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
HEAD = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"


def served(line: str) -> Serve:
    """The `serve:` block of the first point that drafts, or of the first."""
    points = expand(load(translate(line, gpu="h100-sxm").data).experiment)
    drafting = [point for point in points if point.config.serve.speculative_config]
    return (drafting or list(points))[0].config.serve


def keys(**serve: Any) -> Loaded:
    """A file with these keys of `serve:`."""
    block = {"model": MODEL, "gpu": "h100-sxm", **serve}
    workload = {"input_len": 100, "output_len": 10, "num_prompts": 10, "max_concurrency": 2}
    return load({"serve": block, "workload": workload, "acceptance": {"conditional_acceptance": 0.6}})


def refusal(**serve: Any) -> str:
    with pytest.raises(InputFaults) as caught:
        keys(**serve)
    return str(caught.value)
