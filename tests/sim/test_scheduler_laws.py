"""Laws of the scheduler, on random small engines in the recording's own loop.

A failing example is printed as a trace in the format of the recorded ones, so it can be replayed.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from records import Step
from replay import Replay

from specfleet.sim.scheduler import Scheduler
from specfleet.sim.sequence import FINISHED, Batch, Sequence

SWITCHES = (
    "lookahead_at_admission",
    "pads_one_token_admission",
    "trims_drafts_to_max_tokens",
    "prefix_hash_covers_next_token",
    "spares_lone_long_prefill",
)
"""Rules in which builds of vLLM differ."""
MAX_STEPS = 6000
KS = st.integers(1, 8)
WORKLOAD = settings(max_examples=120, deadline=None)


@st.composite
def requests(draw: st.DrawFn, ident: int, k: int, asynchronous: bool) -> dict[str, Any]:
    """One request: a prompt that may begin as others do, scripted luck, perhaps a stop token."""
    shared, private = draw(st.integers(0, 40)), draw(st.integers(1, 40))
    output = draw(st.integers(1, 24))
    stream = draw(st.sampled_from(["a", "b"]))
    prompt = [[stream, shared]] * (shared > 0) + [[f"{ident}/in", private]]
    request = {
        "id": ident,
        "arrival_step": draw(st.integers(0, 12)),
        "prompt_len": shared + private,
        "output_len": output,
        "priority": draw(st.integers(0, 2)),
        "prompt": prompt,
        "accept": draw(st.lists(st.integers(0, max(k, 1)), min_size=1, max_size=5)),
    }
    if draw(st.booleans()):
        request["stop_at"] = draw(st.integers(1, output))
    if k and not asynchronous and draw(st.booleans()):
        request["drafts"] = draw(st.lists(st.integers(0, k), min_size=1, max_size=4))
    return request


@st.composite
def traces(draw: st.DrawFn, method: st.SearchStrategy[str | None] | None = None) -> dict[str, Any]:
    """A small engine, from the barest that can serve its requests to an ample one, and its requests."""
    chosen = draw(st.sampled_from([None, "ngram", "eagle", "draft_model"]) if method is None else method)
    k = draw(KS) if chosen else 0
    asynchronous = draw(st.booleans())
    rows = [draw(requests(ident, k, asynchronous)) for ident in range(draw(st.integers(1, 8)))]
    longest = max(row["prompt_len"] + row["output_len"] for row in rows)
    max_model_len = longest + draw(st.sampled_from([0, 1, 5, 200]))
    block_size = draw(st.sampled_from([1, 4, 16]))
    lookahead = 0 if chosen in (None, "ngram") else k
    most = min(longest - 1 + k * (1 + asynchronous) + lookahead, max_model_len)
    spare = draw(st.sampled_from([0, 1, 3, 10, 100])) * 16 // block_size
    chunking = draw(st.booleans())
    config = {
        "max_num_seqs": draw(st.integers(1, 24)),
        "max_num_batched_tokens": draw(st.integers(16, 96)) + (0 if chunking else max_model_len),
        "block_size": block_size,
        "num_gpu_blocks": -(-most // block_size) + 1 + spare,
        "max_model_len": max_model_len,
        "enable_prefix_caching": draw(st.booleans()),
        "enable_chunked_prefill": chunking,
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 9])),
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])),
        "spec_method": chosen,
        "num_speculative_tokens": k,
        "async_scheduling": asynchronous,
    }
    switches = {name: draw(st.booleans()) for name in SWITCHES} if draw(st.booleans()) else {}
    if config["long_prefill_token_threshold_adaptive"]:
        switches["spares_lone_long_prefill"] = True  # the adaptive cap came with it
    return {"config": config, "requests": rows, "switches": switches}


class Watched(Replay):
    """The recording's loop, with the laws of a step and of a commit asserted as it runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config = replace(self.config, **self.trace["switches"])
        self.scheduler = Scheduler(self.config)
        self.seen: dict[int, Sequence] = {}
        self.emitted: dict[int, int] = {}
        self.ended: list[int] = []

    def _schedule(self) -> tuple[Batch, Step]:
        scheduler = self.scheduler
        self.seen |= {s.id: s for s in scheduler.waiting}
        batch, record = super()._schedule()
        slots = scheduler.rules.draft_slots * len(batch.sequences)
        assert batch.total_tokens == sum(batch.num_tokens)
        assert batch.total_tokens + slots <= self.config.max_num_batched_tokens, (
            "the budget holds, drafts included"
        )
        assert len(scheduler.running) <= self.config.max_num_seqs
        assert not (batch.preempted and (batch.new or batch.resumed)), "admitted in a step that preempted"
        assert not set(batch.preempted) & set(batch.sequences)
        assert len(set(batch.sequences)) == len(batch.sequences)
        for sequence, tokens, drafts in zip(batch.sequences, batch.num_tokens, batch.num_drafts, strict=True):
            assert 0 <= drafts <= self.config.num_speculative_tokens
            assert tokens > drafts
            assert sequence.num_computed_tokens <= self.config.max_model_len
        if not batch.sequences and not batch.preempted and not self.in_flight:
            assert not len(scheduler), "idle, nothing in flight, and requests wait"
        if self.config.policy == "fcfs" and not batch.preempted:
            self._nobody_waits_in_vain(batch.total_tokens + slots)
        return batch, record

    def _nobody_waits_in_vain(self, spent: int) -> None:
        """The head of the queue waits only for a place, for budget or for blocks."""
        config, scheduler = self.config, self.scheduler
        head = next((s for s in scheduler.waiting if not s.num_stale_tokens), None)
        room = config.max_num_batched_tokens - spent - scheduler.rules.draft_slots
        if head is None or len(scheduler.running) == config.max_num_seqs:
            return
        if room <= config.num_speculative_tokens:
            return  # a padded admission may need that much
        if config.enable_prefix_caching or not config.enable_chunked_prefill:
            return  # a hit or a chunk rule decides; the recorded traces cover those
        padding = config.num_speculative_tokens if head.num_tokens == 1 else 0
        most = min(head.num_tokens + padding + scheduler.rules.lookahead, config.max_model_len)
        blocks = -(-most // config.block_size) + scheduler.rules.watermark_blocks
        assert blocks > scheduler.kv.free_blocks, f"request {head.id} fits and waits"

    def _process(self, batch: Batch) -> Step:
        scheduler = self.scheduler
        rows = zip(batch.sequences, batch.num_tokens, batch.num_drafts, strict=True)
        before = [(s, n, d, s.num_blocks, s.num_computed_tokens, s.num_stale_tokens) for s, n, d in rows]
        free = scheduler.kv.free_blocks
        held = {s.id: s.num_blocks for s in batch.sequences}
        record = super()._process(batch)
        scheduler.check()
        rows_of = {row[0]: row for row in record["rows"]}  # a row in vain may stand elsewhere in the batch
        assert rows_of.keys() == {s.id for s, *_ in before}
        for s, _, drafts, blocks, computed, stale in before:
            sampled, kept = rows_of[s.id][3:5]
            self.emitted[s.id] = self.emitted.get(s.id, 0) + kept
            if s.state == FINISHED:
                continue
            rejected = drafts + 1 - sampled if drafts and sampled and not stale else 0
            assert s.num_blocks == blocks, "a commit frees or takes a block of a sequence that goes on"
            assert s.num_computed_tokens == computed - rejected
        if not self.config.enable_prefix_caching:
            returned = sum(held[ident] for ident in record["finished"])
            assert scheduler.kv.free_blocks == free + returned
        self.ended += record["finished"]
        return record

    def play(self) -> list[Step]:
        """Runs to the end; the laws that hold over the whole run."""
        steps = list(islice(self.steps(), MAX_STEPS))
        assert len(steps) < MAX_STEPS, "requests are left after very many steps"
        inputs = {r["id"]: r for r in self.trace["requests"]}
        assert sorted(self.ended) == sorted(inputs), "requests in = finished, each once"
        wanted = {i: min(r["output_len"], r.get("stop_at", r["output_len"])) for i, r in inputs.items()}
        assert self.emitted == wanted, "tokens emitted = output length asked for"
        assert self.scheduler.kv.free_blocks == self.config.usable_blocks, "zero blocks used at the end"
        return steps


def decisions(steps: list[Step]) -> list[tuple[Any, ...]]:
    """What was decided in each step that decided something: who, how much, at whose cost."""
    names = ("new", "resumed", "cached", "preempted", "padded", "tokens", "free_after_schedule")
    return [tuple(step.get(name) for name in names) for step in steps]


@WORKLOAD
@given(traces())
def test_every_request_is_served_within_all_limits(trace: dict[str, Any]) -> None:
    Watched(trace).play()


@WORKLOAD
@given(traces())
def test_scheduling_cannot_see_where_a_stop_token_will_fall(trace: dict[str, Any]) -> None:
    blind = trace | {"requests": [{k: v for k, v in r.items() if k != "stop_at"} for r in trace["requests"]]}
    ours, theirs = Watched(trace).play(), Watched(blind).play()
    early = {r["id"] for r in trace["requests"] if r.get("stop_at", r["output_len"]) < r["output_len"]}
    surprise = next((i for i, step in enumerate(ours) if early & set(step["finished"])), len(ours))
    assert decisions(ours[: surprise + 1]) == decisions(theirs[: surprise + 1])


@WORKLOAD
@given(traces(st.sampled_from(["ngram", "eagle"])))
def test_no_drafts_a_round_equals_no_speculation(trace: dict[str, Any]) -> None:
    config = trace["config"] | {"num_speculative_tokens": 0, "enable_prefix_caching": False}
    rows = [{k: v for k, v in r.items() if k != "drafts"} for r in trace["requests"]]
    without = {"config": config | {"spec_method": None}, "requests": rows}
    assert Watched(trace | {"config": config, "requests": rows}).play() == Watched(trace | without).play()


@WORKLOAD
@given(traces())
def test_the_same_trace_makes_the_same_decisions(trace: dict[str, Any]) -> None:
    assert Watched(trace).play() == Watched(trace).play()


@WORKLOAD
@given(traces(), st.integers(0, 7))
def test_an_aborted_request_leaves_nothing_behind(trace: dict[str, Any], after: int) -> None:
    run = Replay(trace)
    for _ in islice(run.steps(), after):
        pass
    scheduler: Scheduler = run.scheduler
    for sequence in [*scheduler.running, *scheduler.waiting]:
        assert scheduler.abort([sequence.id]) == [sequence]
        assert not scheduler.abort([sequence.id])
        scheduler.check()
    while run.in_flight:
        record = run._process(run.in_flight.popleft()[1])
        assert not any(kept for *_, kept in record["rows"]), "an aborted request gets no token"
    assert not len(scheduler)
    assert scheduler.kv.free_blocks == scheduler.config.usable_blocks
