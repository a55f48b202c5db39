"""What a task takes and costs, from columns worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from session_worlds import Turn, table_of
from sim_toys import ENGINE, ToyCost, World

from specfleet.sim.config import LoadConfig
from specfleet.sim.metrics.tasks import Tasks, due_s
from specfleet.sim.recorder import FINISHED, REJECTED, Columns
from specfleet.sim.simulation import simulate


def columns(**changed: list[int]) -> Columns:
    """Three sessions of two, three and one turns."""
    given: dict[str, list[int] | list[float]] = {
        "session_id": [0, 0, 1, 1, 1, 2],
        "turn": [0, 1, 0, 1, 2, 0],
        "counted": [1] * 6,
        "status": [FINISHED] * 6,
        "sent_s": [0.0, 10.0, 1.0, 4.0, 9.0, 20.0],
        "last_chunk_s": [2.0, 11.0, 3.0, 5.0, 12.0, 25.0],
        "prompt_tokens": [10, 30, 10, 20, 30, 5],
        "cached_tokens": [0, 20, 0, 8, 16, 0],
        "output_tokens": [4, 4, 2, 2, 2, 9],
    }
    return {name: np.array(values) for name, values in (given | changed).items()}


def test_a_task_lasts_from_its_first_turn_to_its_last_answer() -> None:
    tasks = Tasks.of(columns())
    assert tasks.task_s.tolist() == [11.0, 11.0, 5.0]
    assert tasks.model_s.tolist() == [3.0, 6.0, 5.0]
    assert tasks.turns.tolist() == [2.0, 3.0, 1.0]
    figures = tasks.figures(gpus=2, usd_per_hour=7.2)
    assert figures["mean_task_s"] == 9.0
    assert figures["p99_task_model_s"] == pytest.approx(5.98)
    assert figures["task_input_tokens"] == 35.0
    assert figures["task_cached_tokens"] == pytest.approx(44 / 3)
    assert figures["task_throughput"] == pytest.approx(3 / 25.0)
    assert figures["gpu_s_per_task"] == pytest.approx(2 * 25.0 / 3)
    assert figures["usd_per_task"] == pytest.approx(7.2 / 3600 * 25.0 / 3)


def test_only_sessions_that_are_counted_and_finished_whole_are_tasks() -> None:
    for changed in (
        {"counted": [0, 1, 1, 1, 1, 1]},
        {"status": [FINISHED, REJECTED, FINISHED, FINISHED, FINISHED, FINISHED]},
    ):
        tasks = Tasks.of(columns(**changed))
        assert tasks.task_s.tolist() == [11.0, 5.0]
        # the turn that counts without its session takes its share of the run's time
        figures = tasks.figures(1, None)
        counted = sum(changed.get("counted", [1] * 6))
        assert tasks.whole_share == pytest.approx(4 / counted)
        assert figures["gpu_s_per_task"] == pytest.approx(tasks.duration_s * 4 / counted / 2)
        assert "usd_per_task" not in figures
    assert Tasks.of(columns(counted=[0] * 6)).figures(1, 1.0) == {}


def test_requests_wait_for_the_cap_and_not_for_their_own_pauses() -> None:
    turns = [Turn(((-1, 8),), 4), Turn(((-1, 20),), 4, 5.0)]
    world = World([1], [1], engine=ENGINE, cost=ToyCost(1.0), load=LoadConfig(1))
    table = table_of([(0.0, turns), (3.0, turns)])
    result = simulate(world.scenario({}), table, 0)
    waited = result.requests["sent_s"] - due_s(result, table)
    # 4 + 5 + 4 s are gone when the second session may begin, that was due at 3 s
    assert waited.tolist() == [0.0, 0.0, 10.0, 0.0]
