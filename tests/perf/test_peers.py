"""The peer of `peers.py` is given the job that we run."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from peers import JOBS, PEER_FILES, experiment, inference_lab

from specfleet.hardware import catalog

POLICIES: dict[tuple[str, ...], str] = {(): "fixed", ("goodput",): "goodput_budget"}
"""Our `draft_policy` -> the peer's."""


def told(file: Path) -> dict[str, Any]:
    """Returns what a file of the peer says."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("job", list(JOBS))
def test_the_peer_has_our_engine_model_and_drafts(job: str) -> None:
    ours = yaml.safe_load(experiment(job, 10_000))
    serve, theirs = ours["serve"], told(PEER_FILES / f"{job}.toml")
    limits = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
    assert {name: theirs["scheduler"][name] for name in limits} == {name: serve[name] for name in limits}
    assert [each["tp"] for each in theirs["hardware"].values()] == [serve["tensor_parallel_size"]]
    model, (layers,) = catalog.model(serve["model"]), theirs["model"]["layers"]
    shape = (layers["count"], layers["heads"], layers["kv_heads"], layers["head_dim"])
    assert shape == (model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim)
    assert theirs["model"]["hidden_dim"] == model.hidden_size
    (weights,) = theirs["model"]["weights"]
    assert weights["precision"] == "bf16" and "quantization" not in serve
    drafts, speculative = serve.get("speculative_config"), theirs.get("speculative")
    assert (drafts is None) == (speculative is None)
    if drafts is not None and speculative is not None:
        assert speculative["gamma"] == drafts["num_speculative_tokens"]
        assert speculative["policy"] == POLICIES[tuple(serve.get("draft_policy", ()))]
        alpha = ours["acceptance"]["conditional_acceptance"]
        assert speculative["acceptance"] == {"kind": "constant", "alpha": alpha}


def test_the_peer_has_our_requests() -> None:
    ours, theirs = yaml.safe_load(experiment("none", 10_000))["workload"], told(PEER_FILES / "workload.toml")
    assert theirs["num_requests"] == ours["num_prompts"]
    assert theirs["input_len_dist"] == {"type": "fixed", "value": ours["input_len"]}
    assert theirs["output_len_dist"] == {"type": "fixed", "value": ours["output_len"]}


@pytest.mark.parametrize("job", list(JOBS))
def test_its_command_names_files_that_are_there(job: str) -> None:
    words = shlex.split(inference_lab("/a folder/inference-lab", job))
    assert words[0] == "/a folder/inference-lab"
    named = [word for word in words if word.endswith(".toml")]
    assert [Path(word).name for word in named] == [f"{job}.toml", "workload.toml"]
    assert all(Path(word).is_file() for word in named)
