"""Experiments as text, loaded; and what is said of those that do not load."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults

SERVE = "model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm"
EAGLE3 = "model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3"


def experiment_text(
    serve: str = SERVE, workload: str = "input_len: 100, output_len: 10", rest: str = ""
) -> str:
    """A short experiment file."""
    return f"serve: {{{serve}}}\nworkload: {{{workload}}}\n{rest}\n"


def speculative(
    fields: str, rest: str = "acceptance: {conditional_acceptance: 0.7, concentration: 18}"
) -> str:
    """A short experiment file with a drafter."""
    return experiment_text(f"{SERVE}, speculative_config: {{{fields}}}", rest=rest)


def load_text(folder: Path, text: str, *overrides: str) -> Experiment:
    """The experiment that a text describes."""
    path = folder / "x.yaml"
    path.write_text(text)
    return load_experiment(path, overrides)


def messages(folder: Path, text: str, *overrides: str) -> list[str]:
    """The faults of a text, without the file's name."""
    with pytest.raises(InputFaults) as caught:
        load_text(folder, text, *overrides)
    return [str(fault).removeprefix(f"{folder / 'x.yaml'}:") for fault in caught.value.faults]
