"""With pipeline stages batches are decided as the real scheduler of vLLM 0.33.0 decides them."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from specfleet.sim.config import EngineConfig, SpeculativeConfig
from specfleet.sim.scheduler import Scheduler
from specfleet.sim.sequence import FINISHED, Batch, Sequence

WORLDS = json.loads((Path(__file__).parent / "vllm_0_33_stages" / "decisions.json").read_text())
Decision = list[Any]


def engine(config: dict[str, Any]) -> EngineConfig:
    k = config["k"]
    names = ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "max_model_len")
    return EngineConfig(
        **{name: config[name] for name in names},
        async_scheduling=config["async"],
        pipeline_parallel_size=config["pp"],
        speculative=SpeculativeConfig("eagle3", k) if k else None,
    )


class Replay:
    """Our scheduler behind the same queue of batches."""

    def __init__(self, world: dict[str, Any], **changes: Any) -> None:
        config = {**world["config"], **changes}
        self.scheduler = Scheduler(engine(config))
        self.depth = world["config"]["pp"] + world["config"]["async"]
        self.waiting = deque(config["requests"])
        self.accept = {request["id"]: request.get("accept", [0]) for request in config["requests"]}
        self.verified = dict.fromkeys(self.accept, 0)
        self.turn = 0

    def run(self) -> list[Decision]:
        scheduler, queue, made = self.scheduler, deque[Batch](), list[Decision]()
        while self.waiting or len(scheduler) or queue:
            while self.waiting and self.waiting[0]["at"] <= self.turn:
                request = self.waiting.popleft()
                scheduler.add(Sequence(request["id"], request["prompt"], request["max_tokens"]))
            if len(scheduler):
                batch = scheduler.schedule()
                rows = zip(batch.sequences, batch.num_tokens, batch.num_drafts, strict=True)
                mine = [[sequence.id, tokens, drafts] for sequence, tokens, drafts in rows]
                out = [sequence.id for sequence in batch.preempted]
                made.append([self.turn, mine, out, scheduler.kv.free_blocks])
                queue.append(batch)
                if len(queue) < self.depth and len(scheduler):
                    continue
            if queue and (batch := queue.popleft()).rows:
                scheduler.commit(batch, [self.sampled(batch, row) for row in range(batch.rows)])
            self.turn += 1
        return made

    def sampled(self, batch: Batch, row: int) -> int:
        sequence, drafts = batch.sequences[row], batch.num_drafts[row]
        if not batch.samples[row]:
            return 0
        if not drafts or sequence.state == FINISHED or sequence.id in batch.void:
            return 1
        accept, turn = self.accept[sequence.id], self.verified[sequence.id]
        self.verified[sequence.id] += 1
        return 1 + min(int(accept[turn % len(accept)]), drafts)


@pytest.mark.parametrize("number", range(len(WORLDS)))
def test_batches_in_stages_are_decided_as_recorded(number: int) -> None:
    assert Replay(WORLDS[number]).run() == WORLDS[number]["steps"]


def test_the_records_hold_what_they_are_for() -> None:
    steps = [step for world in WORLDS for step in world["steps"]]
    assert {world["config"]["pp"] for world in WORLDS} == {2, 3, 4}
    assert {world["config"]["async"] for world in WORLDS} == {False, True}
    assert any(step[2] for step in steps), "somebody is thrown out"
    assert sum(not step[1] for step in steps) > 100, "batches without rows"


def test_without_the_stagger_most_asynchronous_worlds_come_out_otherwise() -> None:
    ahead = [world for world in WORLDS if world["config"]["async"]]
    wrong = [world for world in ahead if Replay(world, pp=1).run() != world["steps"]]
    assert len(wrong) > len(ahead) / 2
