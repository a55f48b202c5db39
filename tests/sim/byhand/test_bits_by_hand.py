"""Rules of one line each, worked by hand: who was refused, what a notice knows, how rounds vary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plan_toys import load_small
from sim_toys import World
from timeline_worlds import requests

from specfleet.experiments.load.rules.acceptance import same_model
from specfleet.experiments.load.rules.plan import plan_conflicts
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.config import EngineConfig
from specfleet.sim.errors import Breach
from specfleet.sim.laws import names
from specfleet.sim.laws.whole import check_run
from specfleet.sim.metrics.columns import by_replica
from specfleet.sim.recorder import REJECTED
from specfleet.sim.sglang.radix import common, cut, length
from specfleet.sim.speculation.bursts import Burst, deviations, deviations_each
from specfleet.sim.speculation.exactness import chi_square, chi_square_limit
from specfleet.sim.speculation.ngram_lm import NGram, tiny_pair, zipf_text

TIGHT = EngineConfig(16, 64, 5, 16, max_model_len=4096, async_scheduling=False)


def test_who_was_refused_did_not_end_as_well() -> None:
    world = World([100, 8], [3, 3], engine=TIGHT)
    result, table = world.run(), requests(world)
    assert result.requests["status"].tolist()[0] == REJECTED, "else nothing is asked here"
    check_run(result, table)
    ended = result.requests["finished_s"].copy()
    ended[0] = 1.0
    spoilt = replace(result, requests={**result.requests, "finished_s": ended})
    with pytest.raises(Breach, match="refused, and ended as well") as found:
        check_run(spoilt, table)
    assert found.value.law == names.ENDS_ONCE and found.value.request == 0


@pytest.mark.parametrize(
    ("measured", "served", "alike"),
    [
        (None, "anything", True),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b-instruct", True),
        ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B", False),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8", True),
        ("acme/New-9B", "acme/New-9B-FP8", True),
        ("acme/New-9B-AWQ", "else/new-9b", True),
        ("acme/New-9B", "acme/Newer-9B", False),
        ("acme/New-9B", "llama-3.1-8b-instruct", False),
    ],
)
def test_a_model_is_the_same_however_its_weights_are_stored(
    measured: str | None, served: str, alike: bool
) -> None:
    assert same_model(measured, served) == alike


def test_every_way_to_draft_is_looked_at_though_the_one_before_is_at_fault() -> None:
    experiment = load_small()
    dumped: dict[str, Any] = experiment.model_dump()
    dumped["plan"]["candidates"]["drafting"] = (
        {"speculative_config": None},
        {"speculative_config": {"method": "ngram"}},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
    )
    found = [c.message for c in plan_conflicts(Experiment.model_validate(dumped))]
    assert sum("way 1 to draft has no speculative_config" in said for said in found) == 1
    assert sum("way 2 to draft has no num_speculative_tokens" in said for said in found) == 1
    assert not any("way 3" in said for said in found)


def test_rounds_of_a_request_are_an_autoregression_of_its_own_draws_alone_or_among_others() -> None:
    burst = Burst(sigma=0.7, rho=0.6)
    each = deviations_each(burst, 3, np.array([5, 9], dtype=np.int64), 4000)
    for column, request in enumerate((5, 9)):
        assert deviations(burst, 3, request, 4000) == pytest.approx(each[:, column], abs=1e-12)
        assert deviations(burst, 3, request, 7) == pytest.approx(each[:7, column], abs=1e-12)
    assert each.std() == pytest.approx(0.7, rel=0.1)
    assert np.corrcoef(each[1:, 0], each[:-1, 0])[0, 1] == pytest.approx(0.6, abs=0.06)
    white = deviations(Burst(sigma=1.0, rho=0.0), 3, 5, 4000)
    assert abs(white.mean()) < 0.06 and np.abs(white).max() < 6.0


def test_the_tiny_pair_is_a_trigram_of_a_fifth_and_a_bigram_of_twenty_pseudo_counts() -> None:
    target, draft = tiny_pair(vocabulary=5, tokens=400, seed=2)
    text = zipf_text(5, 400, 2)
    assert (target.order, draft.order) == (3, 2)
    assert target.table == pytest.approx(NGram.fit(text, 5, 3, 0.2).table)
    assert draft.table == pytest.approx(NGram.fit(text, 5, 2, 20.0).table)


def test_pieces_of_a_radix_key_are_cut_joined_and_compared_by_their_streams() -> None:
    key = (("a", 0, 5), ("b", 2, 6), ("a", 9, 12))
    assert length(key) == 12
    assert cut(key, 0, 12) == key
    assert cut(key, 3, 7) == (("a", 3, 5), ("b", 2, 4))
    assert cut(key, 5, 9) == (("b", 2, 6),)
    assert cut(key, 9, 10) == (("a", 9, 10),)
    assert cut(key, 4, 4) == ()
    assert common(key, key) == 12
    assert common(key, (("a", 0, 5), ("b", 2, 4), ("c", 0, 9))) == 7
    assert common(key, (("a", 0, 4), ("b", 2, 6))) == 4
    assert common(key, (("a", 1, 5),)) == common(key, (("b", 0, 5),)) == common(key, ()) == 0


def test_offsets_of_segments_never_fall() -> None:
    table = replace(
        requests(World([2, 3, 1], [1, 1, 1])),
        segment_offset=np.array([0, 1, 2, 3]),
        segment_stream=np.array([1, 1, 2]),
        segment_tokens=np.array([2, 3, 1]),
    )
    table.validate()
    for offset in ([0, 2, 1, 3], [1, 1, 2, 3], [0, 1, 2, 2]):
        with pytest.raises(ValueError, match="must rise"):
            replace(table, segment_offset=np.array(offset)).validate()


def test_a_mean_time_to_a_first_token_counts_from_the_arrival() -> None:
    world = World([8, 8], [2, 2], arrival_s=[5.0, 50.0])
    result = world.run()
    rows = result.requests
    waited = rows["first_token_s"] - rows["arrived_s"]
    (found,) = by_replica(result)
    assert found.mean_engine_ttft_ms == pytest.approx(1e3 * waited.mean(), rel=1e-9)
    queued = rows["admitted_s"] - rows["arrived_s"]
    assert found.mean_queue_ms == pytest.approx(1e3 * queued.mean(), abs=1e-9)


def test_degrees_of_chi_square_are_rows_times_columns_less_one() -> None:
    p = np.full((3, 4), 0.25)
    statistic, limit = chi_square(np.full((3, 4), 20.0), p)
    assert statistic == 0.0 and limit == chi_square_limit(0.95, 9)
    counts = np.array([[30.0, 10.0, 20.0, 20.0]] * 3)
    assert chi_square(counts, p)[0] == pytest.approx(3 * (100 + 100) / 20)
    assert chi_square_limit(0.95, 9) == pytest.approx(16.919, rel=0.003)
