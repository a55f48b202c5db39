"""SGLang's rules one by one, in closed form, and what must hold whatever is asked of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.sim.calendar.sglang.kv import Count
from specfleet.sim.config import EngineConfig, SglangConfig, SpeculativeConfig
from specfleet.sim.sequence import FINISHED, Sequence
from specfleet.sim.sglang.adder import PrefillAdder, admit, admit_counted
from specfleet.sim.sglang.batch import CUT, DECODE, MIXED, PREFILL, SglangBatch
from specfleet.sim.sglang.pool import Match
from specfleet.sim.sglang.radix import Key, Node, RadixTree, common, cut, length
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules, expected, left_to_write, reserve_per_decode
from specfleet.sim.sglang.scheduler import SglangScheduler

PLAIN = EngineConfig(
    max_num_seqs=16,
    max_num_batched_tokens=1 << 20,
    num_gpu_blocks=1001,
    block_size=1,
    max_model_len=4096,
    sglang=SglangConfig(chunked_prefill_size=64),
)


def engine(config: EngineConfig = PLAIN, **sglang: object) -> SglangScheduler:
    """A scheduler with some settings changed."""
    assert config.sglang is not None
    return SglangScheduler(replace(config, sglang=replace(config.sglang, **sglang)))  # type: ignore[arg-type]


def turn(scheduler: SglangScheduler, accepted: int = 0) -> SglangBatch:
    """One turn without overlap; every verification accepts so many drafts."""
    batch = scheduler.schedule()
    if batch.sequences:
        rows = zip(batch.samples, batch.num_drafts, strict=True)
        scheduler.commit(batch, [int(samples) + min(accepted, drafts) for samples, drafts in rows])
    return batch


def kinds(batch: SglangBatch) -> str:
    """The kinds of a batch's rows."""
    return "".join(batch.kinds)


def test_the_reserve_is_twice_what_a_step_drafts_or_verifies() -> None:
    assert reserve_per_decode(1, 3, 1, 4) == 8
    assert reserve_per_decode(1, 5, 4, 8) == 40
    assert reserve_per_decode(16, 3, 1, 4) == 8
    assert reserve_per_decode(16, 5, 4, 8) == 256
    assert reserve_per_decode(64, 5, 4, 8) == 1024
    assert reserve_per_decode(1, 1, 1, 12) == 24


def test_the_ratio_falls_in_600_steps_from_seven_tenths_to_its_floor() -> None:
    ratio = NewTokenRatio.of(1.0)
    assert ratio.now == 0.7
    for _ in range(600):
        ratio.fall()
    assert ratio.now == pytest.approx(0.098)
    ratio.fall()
    assert ratio.now == pytest.approx(0.098)
    assert NewTokenRatio.of(2.0).init == 1.0


def test_after_a_retraction_the_ratio_is_what_is_written_and_twenty_a_request_of_what_was_asked() -> None:
    ratio, kept = NewTokenRatio.of(1.0), [Sequence(0, 10, 100), Sequence(1, 10, 50)]
    kept[0].num_tokens += 30
    ratio.raise_after_retraction(kept)
    assert ratio.now == (30 + 40) / 151


def test_an_estimate_counts_at_most_4096_tokens_of_one_request() -> None:
    for asked, counted in ((4095, 4095), (4096, 4096), (4097, 4096), (9000, 4096)):
        sequence = Sequence(0, 10, asked)
        assert left_to_write(sequence) == counted
        assert expected(sequence, 0.5) == 0.5 * counted
    sequence = Sequence(0, 10, 5000)
    sequence.ignore_eos = True
    sequence.num_tokens += 1000
    assert left_to_write(sequence) == expected(sequence, 0.5) == 4000


def test_outputs_are_cut_to_context_and_pool_and_long_prompts_refused() -> None:
    rules = SglangRules.of(PLAIN)
    assert rules.max_req_len == 999
    assert rules.max_new_tokens(100, 5000) == 898
    assert rules.max_req_input_len == 994
    assert SglangRules.of(replace(PLAIN, max_model_len=500)).max_new_tokens(100, 5000) == 398
    pages = SglangRules.of(replace(PLAIN, num_gpu_blocks=251, block_size=4))
    assert pages.max_new_tokens(101, 5000) == 1000 - 104 - 4 - 1
    scheduler = engine()
    assert scheduler.refusal(Sequence(0, 993, 10)) is None
    assert "994" in str(scheduler.refusal(Sequence(0, 994, 10)))


def test_no_more_requests_run_than_half_the_pool_has_tokens() -> None:
    assert SglangRules.of(replace(PLAIN, num_gpu_blocks=11)).max_running_requests == 5


def test_a_prompt_stops_every_decode() -> None:
    scheduler = engine()
    scheduler.add(Sequence(0, 10, 9))
    assert kinds(turn(scheduler)) == PREFILL
    assert kinds(turn(scheduler)) == DECODE
    scheduler.add(Sequence(1, 150, 9))
    assert [kinds(turn(scheduler)) for _ in range(4)] == [CUT, CUT, PREFILL, DECODE + DECODE]


def test_with_mixed_chunks_those_who_run_ride_along_at_the_end_of_the_batch() -> None:
    scheduler = engine(enable_mixed_chunk=True)
    scheduler.add(Sequence(0, 10, 20))
    turn(scheduler)
    scheduler.add(Sequence(1, 100, 9))
    batch = turn(scheduler)
    assert kinds(batch) == CUT + MIXED
    assert batch.num_tokens == [63, 1]


def test_one_prompt_at_a_time_is_cut() -> None:
    scheduler = engine()
    for number in range(3):
        scheduler.add(Sequence(number, 100, 4))
    seen = [turn(scheduler) for _ in range(5)]
    assert [kinds(batch) for batch in seen] == ["C", "PC", "C", "PC", "P"]
    assert [batch.total_tokens for batch in seen[:2]] == [64, 64]


def test_drafts_are_verified_at_full_width_to_the_last_token() -> None:
    config = replace(PLAIN, speculative=SpeculativeConfig("eagle3", 3))
    scheduler = engine(config)
    scheduler.add(Sequence(0, 10, 3))
    turn(scheduler)
    assert turn(scheduler).num_tokens == [4]
    assert turn(scheduler).num_tokens == [4]
    assert not len(scheduler)


def test_a_waiting_request_counts_with_its_whole_output_and_blocks_those_behind_it() -> None:
    scheduler = engine()
    scheduler.add(Sequence(0, 50, 500))
    scheduler.add(Sequence(1, 10, 600))
    scheduler.add(Sequence(2, 10, 4))
    assert [s.id for s in turn(scheduler).sequences] == [0]
    assert scheduler.full
    assert [s.id for s in scheduler.waiting] == [1, 2]


def test_priority_displaces_only_by_more_than_the_threshold() -> None:
    for gap, displaced in ((10, []), (11, [0])):
        scheduler = engine(replace(PLAIN, max_num_seqs=1), enable_priority_scheduling=True)
        scheduler.add(Sequence(0, 10, 50, priority=0))
        turn(scheduler)
        scheduler.add(Sequence(1, 10, 50, priority=gap))
        assert [s.id for s in turn(scheduler).displaced] == displaced


def test_keys_of_equal_content_are_equal_and_cut_where_asked() -> None:
    key: Key = (("a", 0, 5), ("b", 0, 2))
    assert key == (("a", 0, 5), ("b", 0, 2))
    assert cut(key, 4, 6) == (("a", 4, 5), ("b", 0, 1))
    assert common(key, (("a", 0, 5), ("b", 0, 1), ("c", 0, 9))) == 6


streams = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=4)


def key_of(prompt: list[tuple[str, int]]) -> Key:
    """The key of (stream, n) pieces, each from its stream's beginning."""
    return tuple(((place, stream), 0, count) for place, (stream, count) in enumerate(prompt))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ime"), streams, st.integers(1, 30)), max_size=25),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_the_tree_finds_what_was_put_in_and_counts_what_it_holds(
    steps: list[tuple[str, list[tuple[str, int]], int]], page: int, by_pairs: bool
) -> None:
    tree, inside = RadixTree(page, by_pairs), list[Key]()
    for what, prompt, number in steps:
        key = key_of(prompt)
        if what == "i":
            _, before = tree.insert(key, number)
            best = max((tree.units(common(key, other)) for other in inside), default=0)
            assert before <= best
            inside.append(key)
            node, found = tree.match(key)
            assert found == tree.units(length(key))
            tree.lock(node)
            tree.check()
            tree.unlock(node)
        elif what == "m":
            _, found = tree.match(key)
            best = max((tree.units(common(key, other)) for other in inside), default=0)
            assert found <= best
        else:
            held = tree.evictable
            freed = tree.evict(number)
            assert freed >= min(number, held)
        tree.check()


def nodes(node: Node) -> list[object]:
    """A node and all below it, with all that is known of them."""
    below = [nodes(child) for child in node.children.values()]
    return [node.key, node.units, node.locks, node.used, *below]


@settings(deadline=None)
@given(
    st.lists(st.tuples(streams, streams, st.integers(1, 30)), min_size=1, max_size=12),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_a_text_that_goes_on_is_added_from_where_it_is_kept_as_from_the_root(
    texts: list[tuple[list[tuple[str, int]], list[tuple[str, int]], int]], page: int, by_pairs: bool
) -> None:
    whole, short = RadixTree(page, by_pairs), RadixTree(page, by_pairs)
    for first, more, prompt in texts:
        begun, key = key_of(first), key_of(first + more)
        for tree in (whole, short):
            node, _ = tree.insert(begun, prompt)
            tree.lock(node)
            path = (node, tree.units(length(begun))) if tree is short else None
            _, found = tree.insert(key, prompt, path)
            _, again = tree.insert(key, prompt, path)
            assert (found, again) <= (again, tree.units(length(key)))
            tree.unlock(node)
            tree.evict(prompt)
            tree.check()
        assert nodes(whole.root) == nodes(short.root)


worlds = st.fixed_dictionaries(
    {
        "prompts": st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=15),
        "page": st.sampled_from([1, 4, 16]),
        "pool": st.integers(200, 600),
        "chunk": st.sampled_from([-1, 16, 64]),
        "radix": st.booleans(),
        "drafts": st.sampled_from([0, 3]),
        "conservativeness": st.sampled_from([0.02, 1.0]),
        "policy": st.sampled_from(["fcfs", "lpm"]),
        "overlap": st.booleans(),
    }
)


@settings(deadline=None, max_examples=60)
@given(worlds)
def test_every_request_ends_with_its_tokens_and_gives_its_kv_back(world: dict[str, object]) -> None:
    page, pool, drafts = int(str(world["page"])), int(str(world["pool"])), int(str(world["drafts"]))
    config = replace(
        PLAIN,
        block_size=page,
        num_gpu_blocks=pool // page + 1,
        enable_prefix_caching=bool(world["radix"]),
        async_scheduling=bool(world["overlap"]),
        speculative=SpeculativeConfig("eagle3", drafts) if drafts else None,
    )
    scheduler = engine(
        config,
        chunked_prefill_size=int(str(world["chunk"])),
        schedule_conservativeness=float(str(world["conservativeness"])),
        schedule_policy=str(world["policy"]),
    )
    pairs: list[tuple[int, int]] = world["prompts"]  # type: ignore[assignment]
    asked = [Sequence(number, prompt, output) for number, (prompt, output) in enumerate(pairs)]
    for sequence in asked:
        scheduler.add(sequence)
    flying: list[SglangBatch] = []
    for _ in range(3000):
        batch = scheduler.schedule()
        scheduler.check()
        if batch.sequences:
            flying.append(batch)
        if flying and (len(flying) > int(config.async_scheduling) or not batch.sequences):
            done = flying.pop(0)
            scheduler.commit(done, [int(samples) for samples in done.samples])
            scheduler.check()
        if not len(scheduler) and not flying:
            break
    assert all(sequence.state == FINISHED for sequence in asked)
    assert all(s.num_output_tokens == s.max_tokens for s in asked if s.num_output_tokens)
    assert scheduler.pool.available == scheduler.pool.total_blocks * page


@given(
    st.sampled_from([1, 16]),
    st.sampled_from([-1, 64]),
    st.sampled_from([None, 1, 2]),
    st.integers(0, 400),
    st.sampled_from([0.0, 7.0, 60.3, 150.0]),
    st.integers(0, 3),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 150), st.integers(1, 150)), max_size=4),
    st.booleans(),
    st.integers(0, 90),
)
def test_those_counted_alone_are_admitted_as_by_the_batch(
    page: int,
    chunk: int,
    most: int | None,
    available: int,
    promised: float,
    places: int,
    full: bool,
    asked: list[tuple[int, int]],
    cutting: bool,
    computed: int,
) -> None:
    settings = SglangConfig(chunked_prefill_size=chunk, prefill_max_requests=most, max_prefill_tokens=200)
    rules = SglangRules.of(replace(PLAIN, block_size=page, sglang=settings))
    waits, pool = [Sequence(place, *one) for place, one in enumerate(asked)], Count(rules, radix=True)
    pool.available = available
    batch: PrefillAdder[Sequence] = PrefillAdder(rules, pool, list, promised, 0.7, 0)
    begun = None
    if cutting and waits and chunk > 0:
        first = waits.pop(0)
        first.num_computed_tokens = min(computed, first.num_tokens - 1)
        begun = first.num_tokens - first.num_computed_tokens, first.max_tokens
        batch.chunked = batch.go_on(first)
    then = admit(batch, waits, full, lambda: places, lambda sequence: Match(None, 0))
    tokens = [(one.num_tokens, one.max_tokens) for one in waits]
    found = admit_counted(rules, available, promised, places, full, begun, iter(tokens))
    assert found == ([piece.tokens for piece in batch.pieces], batch.chunked is not None, then)
