"""Replays recorded decisions of the real SGLang scheduler through ours, turn by turn.

A turn: requests arrive, a batch is picked and launched, a result is processed: of this batch, or with overlap
scheduling of the batch launched one turn earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from records import SGLANG_DETAIL_FIELDS, Differences, Step, Trace, differences

from specfleet.sim.config import EngineConfig, SglangConfig, SpeculativeConfig
from specfleet.sim.sequence import Sequence
from specfleet.sim.sglang.aboard.scheduler import ColumnScheduler
from specfleet.sim.sglang.batch import CUT, MIXED, PREFILL, SglangBatch

METHODS = {"EAGLE": "eagle", "EAGLE3": "eagle3", "STANDALONE": "draft_model", "NGRAM": "ngram"}
SGLANG_FIELDS = [
    *("arrived", "mode", "batch", "rows", "tokens", "retracted", "preempted", "aborted", "processed"),
    *("out", "finished", "free", "evictable", "free_end", "evictable_end"),
]


SGLANG_FIELDS += SGLANG_DETAIL_FIELDS


def is_sglang(trace: Trace) -> bool:
    """Whether a trace was recorded from SGLang."""
    return "sglang_version" in trace


def sglang_config(trace: Trace) -> EngineConfig:
    """Builds our configuration from a trace's `config` block (SGLang's argument names)."""
    config, speculative = trace["config"], None
    algorithm = config["speculative_algorithm"]
    steps, topk = 0, 1
    if algorithm:
        speculative = SpeculativeConfig(METHODS[algorithm], config["speculative_num_draft_tokens"] - 1)
        steps = 1
        if algorithm != "NGRAM":
            derived = trace["derived"]
            steps, topk = derived["speculative_num_steps"], derived["speculative_eagle_topk"]
    same = [
        *("chunked_prefill_size", "max_prefill_tokens", "prefill_max_requests", "enable_mixed_chunk"),
        *("schedule_policy", "schedule_conservativeness", "enable_priority_scheduling"),
        *("schedule_low_priority_values_first", "priority_scheduling_preemption_threshold"),
        *("disable_priority_preemption", "retraction_policy"),
    ]
    page = config["page_size"]
    return EngineConfig(
        max_num_seqs=config["max_running_requests"],
        max_num_batched_tokens=1 << 30,
        num_gpu_blocks=config["max_total_tokens"] // page + 1,
        block_size=page,
        max_model_len=config["context_length"],
        enable_prefix_caching=not config["disable_radix_cache"],
        async_scheduling=not config["disable_overlap_schedule"],
        speculative=speculative,
        sglang=SglangConfig(
            **{name: config[name] for name in same},
            speculative_num_steps=steps,
            speculative_eagle_topk=topk,
        ),
    )


@dataclass
class SglangReplay:
    """Our scheduler in the event loop of the recording.

    Args:
        trace: a parsed trace; only its inputs are used.
    """

    trace: dict[str, Any]
    launched: deque[tuple[int, SglangBatch, list[int]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.config = sglang_config(self.trace)
        self.scheduler = ColumnScheduler(self.config)
        self.depth = self.trace["derived"]["max_accepted"] or 0
        self.accept = {r["id"]: r.get("accept") or [0] for r in self.trace["requests"]}
        self.verifications = dict.fromkeys(self.accept, 0)
        self.pending = deque(sorted(self.trace["requests"], key=lambda r: (r["arrival_step"], r["id"])))
        self.batches = 0
        self.launched_last = False

    def steps(self) -> Iterator[Step]:
        """Yields our record of each turn, the one that finds nothing left to do included."""
        for step in count():
            turn: Step = {"step": step, "arrived": self._arrivals(step)} | self._turn()
            yield turn
            if turn["batch"] is None and not (self.pending or len(self.scheduler) or self.launched):
                return

    def _arrivals(self, step: int) -> list[int]:
        arrived = []
        while self.pending and self.pending[0]["arrival_step"] <= step:
            request = self.pending.popleft()
            sequence = Sequence(
                request["id"],
                request["prompt_len"],
                request["output_len"],
                stop_at=request.get("stop_at") or 1 << 62,
                priority=request.get("priority") or 0,
                segments=tuple((stream, count) for stream, count in request["prompt"]),
                output_stream=f"{request['id']}/out",
            )
            sequence.ignore_eos = bool(request.get("ignore_eos"))
            self.scheduler.add(sequence)
            arrived.append(request["id"])
        return arrived

    def _turn(self) -> Step:
        scheduler = self.scheduler
        batch = scheduler.schedule()
        scheduler.check()
        record = self._picked(batch)
        launched = bool(batch.sequences)
        if launched:
            record["batch"] = self.batches
            self.launched.append((self.batches, batch, self._sample(batch)))
            self.batches += 1
        record |= {"processed": None, "out": [], "finished": [], "rows": self._rows(batch)}
        overlap = self.config.async_scheduling
        if len(self.launched) == (2 if overlap and launched else 1):
            number, done, sampled = self.launched.popleft()
            record["processed"] = number
            outcome = scheduler.commit(done, sampled)
            rows = zip(done.sequences, sampled, outcome.kept, strict=True)
            record["out"] = [[s.id, new, kept] for s, new, kept in rows]
            record["finished"] = [s.id for s in outcome.finished]
        elif not launched:
            scheduler.rest()
        if overlap:
            record["rows"] = self._rows(batch)
        scheduler.check()
        pool = scheduler.pool
        present = {s.id: s for s in scheduler.present()}
        holders = sorted(pool.held.items())
        return record | {
            "ntr_end": round(scheduler.ratio.now, 6),
            "free_end": pool.free,
            "evictable_end": pool.evictable,
            "kv_end": [
                [id, held.committed, held.allocated, present[id].num_output_tokens] for id, held in holders
            ],
        }

    def _picked(self, batch: SglangBatch) -> Step:
        scheduler, mode = self.scheduler, None
        if batch.kinds:
            mode = "decode"
            if batch.kinds[0] in (CUT, PREFILL):
                mode = "mixed" if MIXED in batch.kinds else "prefill"
        return {
            "mode": mode,
            "batch": None,
            "tokens": batch.total_tokens,
            "retracted": [s.id for s in batch.retracted],
            "preempted": [s.id for s in batch.displaced],
            "aborted": [s.id for s in batch.aborted],
            "ntr": round(scheduler.ratio.now, 6),
            "free": scheduler.pool.free,
            "evictable": scheduler.pool.evictable,
            "chunked": scheduler.chunked.id if scheduler.chunked is not None else None,
            "full": scheduler.full,
            "running": [s.id for s in scheduler.running],
            "waiting": [s.id for s in scheduler.waiting],
        }

    def _rows(self, batch: SglangBatch) -> list[list[Any]]:
        """Returns the launched rows with the KV before them, as far as it is known by now."""
        rows = zip(batch.sequences, batch.kinds, batch.num_tokens, strict=True)
        return [[s.id, "P" if k == CUT else k, s.num_computed_tokens - n, n] for s, k, n in rows]

    def _sample(self, batch: SglangBatch) -> list[int]:
        """Returns the scripted answers: 1 + accepted drafts; nothing for a prompt that is cut."""
        sampled = []
        for sequence, samples, drafts in zip(batch.sequences, batch.samples, batch.num_drafts, strict=True):
            new = int(samples)
            if drafts:
                accept, verification = self.accept[sequence.id], self.verifications[sequence.id]
                new += min(accept[verification % len(accept)], self.depth)
                self.verifications[sequence.id] += 1
            sampled.append(new)
        return sampled


def compare(trace: Trace) -> Differences:
    """Replays one trace through SGLang's rules."""
    return differences(trace, SglangReplay(trace).steps(), fields=SGLANG_FIELDS)
