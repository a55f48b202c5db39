"""The shipped profiles that a measured point may use: host by machine, spread by drafter, names by text.

They are files of `validation/`, each with its source. Nothing else about a point is looked up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from specfleet.experiments.schema import lookups
from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.engine_profile import EngineProfile
from specfleet.hardware.model import WEIGHT_BYTES, ModelSpec

FOLDER = Path(__file__).parent / "data"


@cache
def table(name: str) -> Mapping[str, Any]:
    """Returns a shipped profile file by its stem."""
    content: Mapping[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


@dataclass(frozen=True)
class Host:
    """Host time beyond the kernels: seconds a step, and seconds a sequence in it."""

    step_s: float
    sequence_s: float

    @classmethod
    def of(cls, entry: Mapping[str, float]) -> Host:
        """Reads `{step_ms, sequence_us}`."""
        return cls(entry["step_ms"] / 1e3, entry["sequence_us"] / 1e6)


def with_host(profile: EngineProfile, asynchronous: bool, host: Host) -> EngineProfile:
    """Returns the engine profile with the host time of one kind of scheduling replaced."""
    if asynchronous:
        return replace(profile, host_async_s=host.step_s, host_async_s_per_request=host.sequence_s)
    return replace(profile, host_sync_s=host.step_s, host_sync_s_per_request=host.sequence_s)


def on_machine(profile: EngineProfile, campaign: str, frozen: bool) -> EngineProfile:
    """Returns the engine profile on the machine of a campaign.

    An unknown campaign keeps the profile's own host time. `frozen` takes the published presets for every
    machine, and the published arithmetic rate.
    """
    hosts = table("hosts")
    entry = hosts["frozen"] if frozen else hosts["campaigns"].get(campaign)
    if entry is None:
        return profile
    for scheduling, asynchronous in (("async", True), ("sync", False)):
        profile = with_host(profile, asynchronous, Host.of(entry[scheduling]))
    return replace(profile, arithmetic_rate=entry.get("arithmetic_rate", profile.arithmetic_rate))


def _matching(entries: list[Mapping[str, Any]], text: str) -> Mapping[str, Any] | None:
    """Returns the first entry whose `match` pattern is found in `text`, case ignored."""
    return next((entry for entry in entries if re.search(entry["match"], text, re.IGNORECASE)), None)


def gpu(text: str) -> Accelerator:
    """Returns the GPU that a cell names ("NVIDIA H100 94GB (HGX board)", "h100_sxm", a catalogue name).

    Raises:
        ValueError: if the catalogue has none by that name.
    """
    known = lookups.found(lambda: lookups.accelerator(text))
    if known is not None:
        return known
    entry = _matching(table("hardware")["gpus"], text.split("(")[0])
    if entry is None or not entry["gpu"]:
        raise ValueError(f"unknown GPU {text!r}; use a catalogue name (`specfleet catalog accelerators`)")
    return lookups.accelerator(entry["gpu"])


def found_bandwidth(base: Accelerator, assumed_bytes_per_s: float, frozen: bool) -> float:
    """Returns the bandwidth of a card whose data-sheet class is assumed; `frozen` is the class itself."""
    for entry in table("hardware")["bandwidth"]:
        same = math.isclose(entry["assumed_tb_per_s"] * 1e12, assumed_bytes_per_s, rel_tol=1e-6)
        if same and entry["gpu"] == base.name and not frozen:
            return float(entry["found_tb_per_s"]) * 1e12
    return assumed_bytes_per_s


def engine(text: str) -> EngineProfile:
    """Returns the engine profile for an engine with its version ("vLLM 0.11.0", "SGLang 0.5.3").

    Raises:
        ValueError: if no profile stands for it.
    """
    known = lookups.found(lambda: lookups.engine(text))
    if known is not None:
        return known
    entry = _matching(table("hardware")["engines"], text)
    if entry is None:
        raise ValueError(f"unknown engine {text!r}; use a catalogue name (`specfleet catalog engines`)")
    return lookups.engine(entry["engine"])


def model(name: str) -> ModelSpec:
    """Returns a target by catalogue name or Hugging Face id, weight-type suffix or "-instruct" aside.

    Raises:
        ValueError: with the closest names.
    """
    bare = re.sub(r"[-_ ](fp8|bf16|mxfp4)$", "", name, flags=re.IGNORECASE)
    for candidate in (name, bare, f"{bare}-instruct"):
        known = lookups.found(lambda candidate=candidate: lookups.model(candidate))  # type: ignore[misc]
        if known is not None:
            return known
    return lookups.model(bare)


def quantization(weights_dtype: str, model_name: str) -> str | None:
    """Returns vLLM's `quantization` for a cell such as "fp8" or "FP8 (ModelOpt)"; None runs in BF16.

    A cell that states no type leaves it to the model's name ("Qwen3-8B-FP8").
    """
    stated = weights_dtype.lower()
    for kind in (kind for kind in WEIGHT_BYTES if isinstance(kind, str)):
        if stated.startswith(kind) or (
            not stated.startswith("b") and model_name.lower().endswith(f"-{kind}")
        ):
            return kind
    return None


def concentration(target: ModelSpec | None, family: str, dataset: str) -> float:
    """Returns how alike requests are in acceptance, for a target, a drafter family and a data set."""
    names = {target.name.lower(), target.hf_id.lower()} if target is not None else set()
    for entry in table("concentration")["profiles"]:
        meant = entry["target"] == "*" or any(entry["target"] in name for name in names)
        if meant and entry["family"] in ("*", family) and _dataset_is(entry["dataset"], dataset):
            return float(entry["concentration"])
    raise AssertionError("the last profile stands for anything")


def _dataset_is(named: str, dataset: str) -> bool:
    return named == "*" or named.replace("-", "") in dataset.lower().replace("-", "").replace("_", "")


def dataset_entry(dataset: str) -> Mapping[str, Any]:
    """Returns how a data set's lengths are made; the last entry stands for any."""
    entry = _matching(table("datasets")["datasets"], dataset)
    assert entry is not None, "the last data set stands for anything"
    return entry


def served_settings(gpu_name: str, engine_name: str, dtype: str) -> Mapping[str, Any]:
    """Returns the settings of a served point without speculation that its columns do not name."""
    for entry in table("served")["settings"]:
        asked = ((entry["gpu"], gpu_name), (entry["engine"], engine_name), (entry["dtype"], dtype))
        if all(named == "*" or text.startswith(named) for named, text in asked):
            return dict(entry)
    raise AssertionError("the last entry stands for anything")
