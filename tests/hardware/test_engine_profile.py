"""Engine profiles: defaults, the graph cap, and where each value comes from."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from specfleet.hardware import catalog

NEW, OLD = catalog.engine_profile("vllm-0.33"), catalog.engine_profile("vllm-2026-01")


def test_draft_models_were_synchronous_in_january_2026_and_are_not_now() -> None:
    assert OLD.schedules_async("eagle3") and not OLD.schedules_async("draft_model")
    assert NEW.schedules_async("eagle3") and NEW.schedules_async("draft_model")
    assert NEW.schedules_async(None) and NEW.schedules_async("ngram") and not NEW.schedules_async("suffix")


def test_smaller_gpus_and_the_a100_take_fewer_sequences_and_tokens() -> None:
    for name in ("h100", "h200", "b200"):
        assert NEW.limits(catalog.accelerator(name)) == (1024, 8192)
    for name in ("a100", "l40s"):
        assert NEW.limits(catalog.accelerator(name)) == (256, 2048)
    assert catalog.engine_profile("vllm-0.6").limits(catalog.accelerator("h100")) == (256, 2048)


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


@pytest.mark.parametrize("name", catalog.names("engines"))
def test_every_value_has_a_source(name: str) -> None:
    set_later = {"kernel_time_scale", "decode_graphs"}  # by a calibration, by a server's own flags
    values = {field.name for field in fields(NEW)} - {"name", "aliases", "source"} - set_later
    assert catalog.engine_profile(name).kernel_time_scale == 1.0
    assert catalog.engine_profile(name).decode_graphs == NEW.decode_graphs
    assert set(catalog.engine_profile(name).source) - {"base"} == values


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"arithmetic_rate is 1\.5"):
        replace(NEW, arithmetic_rate=1.5)
    with pytest.raises(ValueError, match="gpu_memory_utilization is 0"):
        replace(NEW, gpu_memory_utilization=0)
    with pytest.raises(ValueError, match=r"memory\.sampler_copies is -1; it cannot be negative"):
        replace(NEW.memory, sampler_copies=-1)
    with pytest.raises(ValueError, match="kernels is 'llama'; use one of vllm, sglang, trtllm"):
        replace(NEW, kernels="llama")
    with pytest.raises(ValueError, match="runs of"):
        replace(NEW, cudagraph_ladder=((8, 16),))
    with pytest.raises(ValueError, match="lacks the entry 'none'"):
        replace(NEW, async_scheduling={"eagle3": True})


def test_a_method_that_a_build_does_not_name_is_scheduled_synchronously() -> None:
    known = {"none": True, "eagle3": True}
    profile = replace(catalog.engine_profile("vllm-0.33"), async_scheduling=known)
    found = [profile.schedules_async(name) for name in (None, "none", "eagle3", "suffix")]
    assert found == [True, True, True, False]
