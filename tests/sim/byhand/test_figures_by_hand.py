"""Figures of runs whose answer is known beforehand, and parts that only unusual runs use."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sim_toys import SPREAD, World, drafting

from specfleet.sim.calendar.slots import Queue
from specfleet.sim.columns import luck as columns_luck
from specfleet.sim.columns.head import ColumnBatch
from specfleet.sim.columns.luck import Arena
from specfleet.sim.config import EngineConfig
from specfleet.sim.laws.everywhere import _unequal
from specfleet.sim.laws.whole import Totals
from specfleet.sim.metrics.columns import benchmark, engine_load
from specfleet.sim.metrics.seconds import Seconds
from specfleet.sim.metrics.steady import _pauses
from specfleet.sim.recorder import FINISHED
from specfleet.sim.speculation.exactness import total_variation
from specfleet.sim.statistics.startup import Startup
from specfleet.sim.stepped import EngineServer


@pytest.mark.parametrize("k", [0, 3])
def test_a_run_that_begins_later_has_the_same_figures(k: int) -> None:
    def figures(late_s: float) -> dict[str, float]:
        arrival_s = [late_s + 0.0713 * i for i in range(20)]
        world = World([30] * 20, [12] * 20, arrival_s=arrival_s, engine=drafting(k), acceptance=SPREAD)
        result = world.run()
        load = engine_load(result)
        assert load is not None
        return dict(benchmark(result).numbers()) | asdict(load)

    now, later = figures(0.0), figures(4096.0)
    assert later == pytest.approx(now, rel=1e-6, nan_ok=True)
    assert now["mean_running"] > 0.5


def test_a_long_pause_counts_once_a_chunk_and_shared_out_once_a_token() -> None:
    """Two steps of 10 ms with a chunk each, of one token and of two; a pause of 60 ms before three tokens."""
    iterations = {
        "start_s": np.array([0.0, 0.01, 0.02]),
        "end_s": np.array([0.01, 0.02, 0.03]),
        "replica": np.zeros(3, dtype=np.int64),
        "gaps_by_tokens": np.array([[0, 0, 0], [0, 1, 0], [0, 0, 1]]),
    }
    odd = {"end_s": [0.025, 0.5], "gap_s": [0.06, 9.0], "tokens": [3, 5], "counted": [1, 1]}
    result: Any = SimpleNamespace(
        iterations=iterations, odd_gaps={name: np.array(values) for name, values in odd.items()}
    )
    found = _pauses(result, Startup(0, 3, "stationary", from_s=0.0, to_s=0.03))
    by_chunk, by_token = found["itl"], found["itl_per_token"]
    assert by_chunk.weights is not None and by_token.weights is not None
    whole = sorted(zip(by_chunk.values.tolist(), by_chunk.weights.tolist(), strict=True))
    assert [pair for pair in whole if pair[1]][-1] == pytest.approx((0.06, 1.0))
    shared = sorted(
        (v, w) for v, w in zip(by_token.values.tolist(), by_token.weights.tolist(), strict=True) if w
    )
    assert shared[-1] == pytest.approx((0.02, 3.0)), "60 ms over three tokens"
    total = float((by_chunk.values * by_chunk.weights).sum())
    assert total == pytest.approx(float((by_token.values * by_token.weights).sum()))


def test_an_arena_that_is_full_moves_those_aboard_to_the_front_of_a_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(columns_luck, "LEAST_BYTES", 8)
    arena, starts, widths = Arena(), np.zeros(3, dtype=np.int64), np.array([3, 4, 5])
    for place in range(3):
        aboard = slice(0, place)
        own = bytes([10 * place + i for i in range(1, 3)])
        starts[place] = arena.add(own, int(widths[place]), starts[aboard], widths[aboard])
    for place in range(3):
        kept = arena.bytes[starts[place] : starts[place] + widths[place]].tolist()
        assert kept == [10 * place + 1, 10 * place + 2, *[0] * (int(widths[place]) - 2)]
    assert len(arena.bytes) >= 12 and arena.end == 12
    left = arena.add(b"\1" * 9, 4, starts[1:], widths[1:])
    assert arena.bytes[left : left + 4].tolist() == [1, 1, 1, 1], "what goes beyond its width is not kept"


def test_whoever_is_given_up_is_answered_with_an_error_and_nothing_else() -> None:
    request = SimpleNamespace(id=7)
    engine = SimpleNamespace(aborted=[request], finished=[])
    noted: list[Any] = []
    server: Any = SimpleNamespace(
        engine=engine, refusals={}, _now=3.5, _note=lambda who, how: noted.append(who), _leaving=[]
    )
    server._those_who_left = lambda: EngineServer._those_who_left(server)
    (answer,) = EngineServer.answers(server)
    assert (answer.row, answer.failed, answer.finished_s) == (7, True, 3.5)
    assert (answer.first_token_s, answer.first_rank, answer.last_rank) == (0.0, 0, 0)
    assert noted == [request] and engine.aborted == [] and sum(server.refusals.values()) == 1


def test_chunks_after_a_pause_reach_the_client_as_late_as_others() -> None:
    """Half a second to be received: a chunk that leaves at 0.7 s falls into the second after."""
    seconds = Seconds(0.0, 0.5)
    pauses = {"end_s": [0.7, 0.2, 0.9], "counted": [1, 1, 0], "gap_s": [0.1] * 3, "tokens": [1, 2, 1]}
    seconds.add_gaps({name: np.array(values) for name, values in pauses.items()})
    seconds.add_iterations(np.array([0.7, 0.2]), np.array([2, 1]))
    assert seconds._chunks[:3].tolist() == [2, 3, 0]


def test_what_differs_wholly_is_one_apart_and_what_is_alike_nothing() -> None:
    a, b = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])
    assert (total_variation(a, b), total_variation(a, a)) == (1.0, 0.0)
    assert total_variation(a, np.array([0.25, 0.5, 0.25])) == 0.25


def test_luck_is_skipped_of_those_aboard_who_stayed_and_of_those_listed_in_their_own_places() -> None:
    """Rows 0 to 3 are aboard, of whom 1 left since; rows 4 and 5 are listed."""
    told: dict[str, list[int]] = {}

    def note(name: str) -> Any:
        return SimpleNamespace(skip_luck=lambda rows: told.update({name: rows.tolist()}))

    batch: Any = SimpleNamespace(
        head=SimpleNamespace(n=4, left=np.array([1])), tail=note("listed"), notes=note("aboard")
    )
    ColumnBatch.skip_luck(batch, np.array([0, 1, 3, 4, 5]))
    assert told == {"listed": [0, 1], "aboard": [0, 2]}
    batch.notes = None
    ColumnBatch.skip_luck(batch, np.array([5]))
    assert told["listed"] == [1]


def test_a_queue_counts_on_when_its_front_is_forgotten() -> None:
    queue: Queue[str] = Queue()
    queue.append("a")
    queue.extend(["b", "c"])
    del queue[0]
    queue.append("d")
    assert len(queue) == 4 and [queue[at] for at in (1, 2, 3)] == ["b", "c", "d"]


def test_a_time_that_never_was_equals_another_and_no_number_does() -> None:
    nan = float("nan")
    times = _unequal(np.array([1.0, nan, nan, 2.0]), np.array([1.0, nan, 3.0, 2.5]))
    counts = _unequal(np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]]))
    assert (times.tolist(), counts.tolist()) == ([False, False, True, True], [False, True])


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
        ("block_size", 1),
        ("max_model_len", 1),
        ("num_gpu_blocks", 2),
    ],
)
def test_an_engine_has_one_of_everything_at_least_and_two_blocks(name: str, least: int) -> None:
    sizes: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "num_gpu_blocks": 9,
        "block_size": 16,
    }
    sizes |= {"max_model_len": 128}
    assert getattr(EngineConfig(**(sizes | {name: least})), name) == least
    with pytest.raises(ValueError, match=rf"{name} is {least - 1}.* at least {least}"):
        EngineConfig(**(sizes | {name: least - 1}))


def test_sums_of_iterations_are_sequences_times_seconds() -> None:
    laws = Totals()
    for begin in (0.0, 1.0):
        laws.add_iterations(
            {
                "start_s": np.array([begin, begin + 0.5]),
                "end_s": np.array([begin + 0.25, begin + 1.0]),
                "running": np.array([4, 2]),
                "waiting": np.array([1, 3]),
                "gaps_by_tokens": np.array([[0, 2, 0], [1, 0, 1]]),
            }
        )
    assert laws.running_s == 2 * (4 * 0.25 + 2 * 0.5)
    assert laws.present_s == laws.running_s + 2 * (1 * 0.25 + 3 * 0.5)
    assert (laws.busy_s, laws.longest_s, laws.start_s, laws.end_s) == (1.5, 0.5, 0.0, 2.0)
    assert laws.chunked == 2 * (2 * 1 + 1 * 2)


@pytest.mark.parametrize("engine", ["auto", "step"])
def test_where_prompts_are_whole_one_longer_than_a_step_is_refused(
    engine: str,
) -> None:
    whole = replace(
        drafting(0), reserves_max_tokens=True, enable_chunked_prefill=False, max_num_batched_tokens=64
    )
    result = World([60, 64, 65, 10], [3, 3, 3, 3], engine=whole).run(engine=engine)
    assert sum(result.refusals.values()) == 1
    served = result.requests["status"] == FINISHED
    assert served.tolist() == [True, True, False, True]
