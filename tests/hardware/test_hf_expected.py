"""Real `config.json` files against what transformers builds from them (`../shared/hf_configs`)."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from specfleet.hardware.hfconfig import read_hf_config
from specfleet.hardware.model import ModelSpec

Rows = list[tuple[dict[str, str], ModelSpec]]

TRIMMED = {"stepfun-ai/Step-3.7-Flash-FP8": "its length is its class's default, 128,000"}
NOT_GIVEN = {"deepseek-ai/DeepSeek-V4-Flash": "its compressed cache has no expected bytes"}


@pytest.fixture
def rows(shared: Path) -> Rows:
    return read_all(shared / "hf_configs")


@cache
def read_all(folder: Path) -> Rows:
    with (folder / "expected.csv").open() as file:
        return [(row, read_hf_config(folder / row["file"])) for row in csv.DictReader(file)]


def whole(row: dict[str, str], key: str) -> int:
    return int(row[key] or 0)


def test_parameters_are_met_within_a_thousandth(rows: Rows) -> None:
    assert len(rows) >= 70
    for row, model in rows:
        assert model.parameters == pytest.approx(whole(row, "total_params"), rel=1e-3), row["model"]
        assert model.active_parameters == pytest.approx(whole(row, "active_params"), rel=1e-3), row["model"]
        assert model.vision_parameters == pytest.approx(whole(row, "vision_params"), rel=1e-3), row["model"]


def test_most_parameters_are_met_within_a_ten_thousandth(rows: Rows) -> None:
    """Norms and biases that are left out are less than that; a matrix that is left out is more."""
    for key, least in (("total_params", 76), ("active_params", 74)):
        found = {"total_params": "parameters", "active_params": "active_parameters"}[key]
        close = sum(abs(getattr(model, found) / whole(row, key) - 1.0) < 1e-4 for row, model in rows)
        assert close >= least, key


def test_checkpoint_bytes_are_met_within_a_thousandth(rows: Rows) -> None:
    for row, model in rows:
        if row["weight_bytes"]:
            assert model.checkpoint_bytes == pytest.approx(whole(row, "weight_bytes"), rel=1e-3), row["model"]


def kv_by_kind(model: ModelSpec) -> Iterator[tuple[str, int]]:
    for mixer, layers in model.mixers.items():
        cache = mixer.cache(1)
        kind = {"sliding": "window", "chunked": "window", "latent": "mla"}.get(cache.kind, cache.kind)
        yield f"{kind}_layers", layers
        if kind != "state":
            yield f"{kind}_kv_bytes_per_token", layers * cache.elements * 2
        yield "state_bytes_per_sequence", layers * cache.state_bytes
        yield "index_key_elements_per_token", layers * cache.index_elements


def test_kv_and_state_are_met_exactly_kind_by_kind(rows: Rows) -> None:
    for row, model in rows:
        if row["model"] in NOT_GIVEN:
            continue
        found: Counter[str] = Counter()
        for key, amount in kv_by_kind(model):
            found[key] += amount
        for key in (
            *("full_layers", "full_kv_bytes_per_token", "window_layers", "window_kv_bytes_per_token"),
            *("mla_layers", "mla_kv_bytes_per_token", "index_key_elements_per_token", "state_layers"),
            "state_bytes_per_sequence",
        ):
            assert found[key] == whole(row, key), (row["model"], key)
        windows = {m.cache(1).window for m in model.mixers if m.cache(1).window}
        assert windows == ({whole(row, "window_tokens")} - {0}), row["model"]


def test_heads_for_multi_token_prediction_and_the_kv_type_are_those_of_the_file(rows: Rows) -> None:
    for row, model in rows:
        assert model.mtp_layers == whole(row, "mtp_layers"), row["model"]
        fp8 = row["vllm_kv_cache_dtype"] == "fp8_e4m3"
        assert (model.checkpoint_kv_cache_dtype == "fp8_e4m3") == fp8, row["model"]


def test_the_longest_sequence_is_what_vllm_takes(rows: Rows) -> None:
    for row, model in rows:
        if row["model"] not in TRIMMED:
            assert model.longest(False) == whole(row, "vllm_max_model_len"), row["model"]
