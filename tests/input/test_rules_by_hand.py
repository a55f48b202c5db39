"""Rules of the input at their bounds: what is just allowed is not refused."""

from __future__ import annotations

from math import inf, nextafter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from plan_toys import load_small

from specfleet.experiments.load.rules import memory
from specfleet.experiments.load.rules.acceptance import _process
from specfleet.experiments.load.rules.conflicts import _model_fit
from specfleet.experiments.load.rules.own import _steps
from specfleet.experiments.load.rules.plan import plan_conflicts
from specfleet.experiments.load.rules.reach import _of_a_point
from specfleet.experiments.load.rules.sizes import MOST_SECONDS
from specfleet.experiments.load.rules.speculation import _drafter, _synthetic
from specfleet.experiments.load.rules.workload import _asked, workload_notices
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import SpeculativeConfig
from specfleet.experiments.schema.lookups import acceptance_profile_names
from specfleet.workloads.traces import collect
from specfleet.workloads.traces.report import TraceError

EAGLE3 = {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}


def small(**changes: Any) -> Experiment:
    """The small plan with other values; `serve` is merged."""
    dumped = load_small().model_dump()
    dumped["serve"] |= changes.pop("serve", {})
    return Experiment.model_validate(dumped | changes)


def test_a_profile_of_acceptance_that_nobody_knows_is_refused() -> None:
    (found,) = _process(Process.model_validate({"profile": "nonesuch"}), "acceptance")
    assert found.paths[0] == ("acceptance", "profile") and "nonesuch" in found.message
    for name in acceptance_profile_names():
        assert not [*_process(Process.model_validate({"profile": name}), "acceptance")]


@pytest.mark.parametrize(("rate", "speed"), [(None, 1.0), (None, 4.0), (1e-4, 1.0)])
def test_a_trace_may_last_as_long_as_a_run_and_no_longer(
    rate: float | None, speed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = MOST_SECONDS * speed
    rows = 1000 if rate is None else round(MOST_SECONDS * rate)
    workload = SimpleNamespace(request_rate=rate, on_too_long="error", num_warmups=0, speed=speed)
    monkeypatch.setattr(memory, "_as_read", lambda workload: workload)
    monkeypatch.setattr(memory, "requests_asked", lambda workload, asked: asked)

    def faults(rows: int, last: float) -> list[str]:
        class Table(SimpleNamespace):
            def __len__(self) -> int:
                return rows

        table = Table(arrival_s=np.array([0.0, last]))
        monkeypatch.setattr(memory, "_trace_of", lambda workload: (table, SimpleNamespace(timed=True)))
        config: Any = SimpleNamespace(workload=workload)
        return [fault.message for fault in memory._rows(config, 4096)]

    assert faults(rows, last) == []
    longer = (rows, nextafter(last, inf)) if rate is None else (rows + 1, 0.0)
    assert "and a run lasts at most 1e+07 s" in faults(*longer)[0]
    assert "0 are left, and 0 warm-ups leave none to count" in faults(0, 0.0)[0]


def test_synthetic_drafting_needs_no_acceptance_in_a_plan() -> None:
    synthetic = EAGLE3 | {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    plan: Any = load_small().model_dump()["plan"]
    plan["candidates"]["drafting"] = (
        {"speculative_config": synthetic, "num_speculative_tokens": (2,)},
        {"speculative_config": EAGLE3, "num_speculative_tokens": (2,)},
    )
    said = [c.message for c in plan_conflicts(small(plan=plan, acceptance=None))]
    assert not any("way 1 to draft has no acceptance" in message for message in said)
    assert any("way 2 to draft has no acceptance" in message for message in said)
    said = [c.message for c in plan_conflicts(small(plan=plan))]
    assert not any("has no acceptance" in message for message in said)


def test_a_length_of_the_drafter_changes_nothing_only_where_one_was_written() -> None:
    def notices(written: int | None, point: int | None) -> list[str]:
        each = [
            small(serve={"speculative_config": EAGLE3 | {"num_speculative_tokens": 3, "max_model_len": n}})
            for n in (written, point)
        ]
        return [*_of_a_point(*each)]

    assert notices(None, None) == notices(2048, 2048) == notices(None, 2048) == []
    assert "changes nothing" in notices(2048, None)[0]
    assert [*_of_a_point(small(), small())] == []


def test_a_synthetic_length_is_at_most_all_drafts_and_one() -> None:
    config = small(acceptance=None)

    def faults(length: float, k: int) -> list[str]:
        speculative = SpeculativeConfig.model_validate(
            EAGLE3
            | {"num_speculative_tokens": k, "rejection_sample_method": "synthetic"}
            | {"synthetic_acceptance_length": length}
        )
        return [fault.message for fault in _synthetic(config, speculative)]

    assert faults(4.0, 3) == faults(1.0, 3) == faults(2.0, 1) == []
    assert "4.1 tokens a round are more than 3 drafts and one; use at most 4" in faults(4.1, 3)[0]


def test_as_many_traffic_classes_as_the_limit_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MOST_NAMES", 2)
    rows: Any = collect.Collector("log.csv", None, None)  # type: ignore[arg-type]

    def take(name: str, session: str = "") -> None:
        row: Any = SimpleNamespace(session=session, traffic_class=name)
        rows._take_names(row)

    for name in ("", "chat", "chat", ""):
        take(name)
    for name, session in (("chat", "a"), ("", "b"), ("", "a")):
        take(name, session)
    assert rows.traffic_class.tolist() == [0, 1, 1, 0, 1, 0, 0]
    assert rows.session.tolist() == [-1, -1, -1, -1, 0, 1, 0]
    assert rows.classes == {"default": 0, "chat": 1}
    with pytest.raises(TraceError, match=r"log\.csv: more than 2 traffic classes"):
        take("code")


@pytest.mark.parametrize(("attainment", "refused"), [(0.99, 0), (0.999999, 0), (0.9999999, 1), (1.0, 1)])
def test_a_plan_for_every_request_that_will_ever_come_is_refused(attainment: float, refused: int) -> None:
    """A run has so many requests; that none of them was late says nothing of the next."""
    found = [*plan_conflicts(small(slo={"tpot_ms": 50.0, "attainment": attainment}))]
    assert [fault.paths[0] for fault in found] == [("slo", "attainment")] * refused
    assert all("no run is long enough" in fault.message for fault in found)


def test_gpus_that_can_share_the_heads_are_named_up_to_sixteen() -> None:
    (found,) = _model_fit(small(serve={"tensor_parallel_size": 3}).serve)
    assert found.message.endswith("use one of 1, 2, 4, 8, 16")
    model: Any = SimpleNamespace(num_heads=34, name="odd")
    serve: Any = SimpleNamespace(model="odd", tensor_parallel_size=3, max_model_len=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookups, "model", lambda name: model)
        assert next(_model_fit(serve)).message.endswith("use one of 1, 2"), "17 GPUs are no server"


def test_behind_a_gpu_that_nobody_knows_the_next_without_a_price_is_still_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = lookups.accelerator

    def accelerator(named: str) -> Any:
        return SimpleNamespace(price_per_hour_usd=None) if named == "l40s" else known(named)

    monkeypatch.setattr(lookups, "accelerator", accelerator)
    plan = {"candidates": {"gpu": ("nonesuch", "l40s"), "tensor_parallel_size": (1,)}}
    found = [fault.message for fault in plan_conflicts(small(plan=plan))]
    assert any("unknown accelerator 'nonesuch'" in message for message in found)
    assert any("l40s has no price in the catalogue" in message for message in found)


@pytest.mark.parametrize(("limit", "longest", "refused"), [(4096, 4096, 0), (4097, 4096, 1), (4097, None, 0)])
def test_a_drafter_reads_no_further_than_its_target(limit: int, longest: int | None, refused: int) -> None:
    serve: Any = SimpleNamespace(tensor_parallel_size=1, max_model_len=longest, engine="vllm-0.33")
    speculative: Any = SimpleNamespace(
        draft_tensor_parallel_size=None, max_model_len=limit, model=None, method="ngram"
    )
    found = [*_drafter(SimpleNamespace(serve=serve), speculative)]  # type: ignore[arg-type]
    assert [fault.paths[0][-1] for fault in found] == ["max_model_len"] * refused


def test_burstiness_without_a_rate_is_said_to_have_no_effect_if_any_point_has_it() -> None:
    def notices(*bursts: float) -> list[str]:
        loads = [{"input_len": 9, "output_len": 9, "max_concurrency": 4, "burstiness": b} for b in bursts]
        return [*workload_notices([small(plan=None, slo=None, workload=load) for load in loads])]

    assert any("burstiness has no effect" in each for each in notices(1.0, 0.5))
    assert not any("burstiness" in each for each in notices(1.0, 1.0))


def test_more_warm_ups_than_requests_are_said_and_phases_hold_their_own() -> None:
    asked = {"input_len": 9, "output_len": 9, "max_concurrency": 4, "num_warmups": 30, "num_prompts": 20}
    said = workload_notices([small(plan=None, slo=None, workload=asked)])
    assert any("num_warmups, 30" in each for each in said)
    phases: Any = SimpleNamespace(phases=(), trace=None, num_prompts=5)
    assert _asked(phases, 7) == 0 and _asked(SimpleNamespace(phases=None, trace="x"), 7) == 0  # type: ignore[arg-type]
    assert _asked(SimpleNamespace(phases=None, trace=None), 7) == 7  # type: ignore[arg-type]


def test_a_price_of_ones_own_is_tried_on_a_plain_a_verifying_and_a_prompt_s_step() -> None:
    serve: Any = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=3), max_num_batched_tokens=10
    )
    assert [(s.tokens, s.decode_sequences, s.prefill_sequences, s.logit_rows) for s in _steps(serve)] == [
        *((1, 1, 0, 1), (4, 1, 0, 4), (10, 0, 1, 1)),
    ]
    assert [(s.draft_tokens, s.draft_passes, s.prefill_pairs) for s in _steps(serve)][1:] == [
        (3, 3, 0),
        (0, 0, 55),
    ]
    plain: Any = SimpleNamespace(speculative_config=None, max_num_batched_tokens=None)
    assert [s.tokens for s in _steps(plain)] == [1, 1, 64]


@pytest.mark.parametrize(
    ("method", "named", "limit", "advice"),
    [
        (
            "eagle3",
            "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
            4000,
            "leave it out: the head drafts at any length",
        ),
        ("draft_model", "qwen2.5-0.5b-instruct", 40_000, "lower it"),
    ],
)
def test_a_head_that_drafts_at_any_length_needs_no_limit_and_a_model_a_lower_one(
    method: str, named: str, limit: int, advice: str
) -> None:
    serve: Any = SimpleNamespace(tensor_parallel_size=1, max_model_len=100_000, engine="vllm-0.33")
    own: Any = SimpleNamespace(
        draft_tensor_parallel_size=None, max_model_len=limit, model=named, method=method
    )
    found = [fault.message for fault in _drafter(SimpleNamespace(serve=serve), own)]  # type: ignore[arg-type]
    assert any("which vLLM refuses" in said and said.endswith(advice) for said in found), found
