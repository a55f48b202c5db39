"""Engine profiles: defaults, the graph cap, and where each value comes from."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from hardware import catalog

NEW, OLD = catalog.engine_profile("vllm-0.33"), catalog.engine_profile("vllm-2026-01")


def test_draft_models_were_synchronous_in_january_2026_and_are_not_now() -> None:
    assert OLD.schedules_async("eagle3") and not OLD.schedules_async("draft_model")
    assert NEW.schedules_async("eagle3") and NEW.schedules_async("draft_model")
    assert NEW.schedules_async(None) and not NEW.schedules_async("ngram")


def test_only_the_new_build_deducts_cuda_graphs() -> None:
    assert NEW.deducts_cudagraphs and not OLD.deducts_cudagraphs


@pytest.mark.parametrize(
    ("seqs", "budget", "query", "cap"), [(256, 8192, 1, 512), (4, 8192, 1, 8), (4, 8192, 6, 48)]
)
def test_the_graph_cap_follows_sequences_and_drafts(seqs: int, budget: int, query: int, cap: int) -> None:
    assert NEW.max_capture_tokens(seqs, budget, query) == cap


def test_the_graph_cap_never_exceeds_the_token_budget() -> None:
    assert NEW.max_capture_tokens(256, 64, 4) == 64
    assert replace(NEW, cudagraph_cap_counts_drafts=False).max_capture_tokens(4, 8192, 6) == 8


@pytest.mark.parametrize("profile", [NEW, OLD], ids=lambda profile: profile.name)
def test_every_value_has_a_source(profile: object) -> None:
    values = {field.name for field in fields(NEW)} - {"name", "aliases", "source"}
    assert set(getattr(profile, "source")) == values  # noqa: B009


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"arithmetic_rate is 1\.5"):
        replace(NEW, arithmetic_rate=1.5)
    with pytest.raises(ValueError, match="gpu_memory_utilization is 0"):
        replace(NEW, gpu_memory_utilization=0)
    with pytest.raises(ValueError, match="memory_base_bytes lacks tensor_parallel"):
        replace(NEW, memory_base_bytes={"one_gpu": 1})
    with pytest.raises(ValueError, match="lacks the entry 'none'"):
        replace(NEW, async_scheduling={"eagle3": True})
