"""Logs of vLLM's, SGLang's, llama.cpp's and TensorRT-LLM's servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.experiments.calibrate.acceptance import read_report
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.tools.read import read_tool
from specfleet.experiments.tools.result import ToolResult

RATE = " ".join(("acceptance", "rate"))


def the_one(tmp_path: Path, format_: str, text: str | bytes) -> ToolResult:
    path = tmp_path / "server.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reading = read_tool(path)
    assert reading.format == format_
    (found,) = reading.results
    return found


VLLM = (
    "(EngineCore pid=9) INFO 09-13 10:00:00 [kv_cache_utils.py:1] GPU KV cache size: 476,016 tokens\n"
    + "".join(
        f"\x1b[32mINFO\x1b[0m 09-13 10:01:{at} [loggers.py:1] Engine 000: Avg prompt throughput: 9.0 "
        f"tokens/s, Avg generation throughput: {tokens} tokens/s, Running: {running} reqs, Waiting: 0 reqs, "
        "GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
        for at, tokens, running in (
            (10, 200.0, 3),
            (20, 800.0, 16),
            (30, 820.0, 16),
            (40, 100.0, 1),
            (50, 0.0, 0),
        )
    )
    + "INFO 09-13 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.20, Accepted: 120 tokens, "
    + f"Drafted: 200 tokens, Per-position {RATE}: 0.800, 0.400, Avg Draft {RATE}: 60.0%\n"
)


def test_vllm_s_log_under_full_load_gives_throughput_time_per_token_pool_and_acceptance(
    tmp_path: Path,
) -> None:
    found = the_one(tmp_path, "vllm-log", VLLM)
    assert found.max_concurrency == 16 and found.numbers["output_throughput"] == pytest.approx(810.0)
    assert found.numbers["mean_tpot_ms"] == pytest.approx(16e3 / 810.0)
    assert found.numbers["kv_pool_tokens"] == 476016
    assert found.per_position_acceptance_rates == (0.8, 0.4) and found.drafts == 2
    assert "medians of 2 of 4 lines" in found.notes[0]


def test_a_log_in_another_encoding_says_the_same(tmp_path: Path) -> None:
    assert the_one(tmp_path, "vllm-log", VLLM.encode("utf-16")).max_concurrency == 16


def test_engines_of_one_log_are_added_up(tmp_path: Path) -> None:
    found = the_one(tmp_path, "vllm-log", VLLM + VLLM.replace("Engine 000", "Engine 001"))
    assert found.max_concurrency == 32 and found.numbers["output_throughput"] == pytest.approx(1620.0)


SGLANG = (
    "[2026-03-04 15:13:01] server_args=ServerArgs(model_path='m', tp_size=1, speculative_algorithm='EAGLE3', "
    "speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)\n"
    "[2026-03-04 15:13:09] max_total_num_tokens=926080, chunked_prefill_size=8192\n"
    "[2026-03-04 15:13:22] Prefill batch, #new-seq: 1, #new-token: 9, #running-req: 1, #queue-req: 1\n"
    + "".join(
        f"[2026-03-04 15:13:{at}] Decode batch, #running-req: {n}, #token: 84, token usage: 0.00, accept "
        f"len: {length}, accept rate: 0.69, cuda graph: True, gen throughput (token/s): {tokens}, "
        "#queue-req: 2\n"
        for at, n, length, tokens in ((30, 1, 1.5, 3.6), (31, 14, 2.6, 900.0), (32, 14, 2.8, 900.0))
    )
)


def test_sglang_s_accept_length_is_acceptance_length_and_k_is_nodes_less_the_root(tmp_path: Path) -> None:
    found = the_one(tmp_path, "sglang-log", SGLANG)
    assert found.max_concurrency == 16, "14 that run and 2 that wait"
    assert found.drafts == 3 and found.acceptance_length == pytest.approx(2.7)
    assert found.numbers["mean_tpot_ms"] == pytest.approx(14e3 / 900.0)
    block = read_report(tmp_path / "server.log").block()
    assert block["acceptance_length"] == pytest.approx(2.7) and block["measured_at_k"] == 3


def test_an_older_line_of_sglang_without_drafts_is_read(tmp_path: Path) -> None:
    line = (
        "[x TP0] Decode batch. #running-req: 2, #token: 84, gen throughput (token/s): 150.05, #queue-req: 0\n"
    )
    found = the_one(tmp_path, "sglang-log", line)
    assert found.drafts is None and not found.counted and found.max_concurrency == 2


LLAMACPP = "".join(
    f"slot print_timing: id  0 | task {task} |\n"
    f"prompt eval time =      {prompt} ms /    18 tokens (   59.86 ms per token,    16.70 "
    "tokens per second)\n"
    f"       eval time =    {total} ms /    {n} tokens (  230.44 ms per token,     4.34 tokens per second)\n"
    f"      total time =    9999.00 ms /   368 tokens\n"
    f"slot print_timing: id  0 | task {task} | draft {{0}} = 0.84783 (   40 accepted /    60 "
    "generated), mean len =  3.0\n"
    for task, prompt, total, n in ((0, 100.0, 990.0, 100), (27, 200.0, 2970.0, 100))
)


def test_llama_cpp_s_requests_are_averaged_and_rounds_come_from_the_mean_length(tmp_path: Path) -> None:
    found = the_one(
        tmp_path, "llamacpp-log", "load_model: initializing, n_slots = 1\n" + LLAMACPP.format("acceptance")
    )
    assert found.completed == 2 and found.max_concurrency == 1
    assert found.numbers["mean_tpot_ms"] == pytest.approx(20.0), "99 tokens come after the first"
    assert found.numbers["mean_ttft_ms"] == pytest.approx(150.0)
    assert found.acceptance_length == pytest.approx(3.0) and found.drafts == 3, (
        "40 accepted in 20 rounds of 3"
    )


def test_llama_cpp_s_older_log_has_rounds_in_the_drafter_s_statistics(tmp_path: Path) -> None:
    text = LLAMACPP.format(RATE).replace(", mean len =  3.0", "")
    assert not the_one(tmp_path, "llamacpp-log", text).counted
    text += "statistics draft: #calls = 40, #gen drafts = 40, #acc drafts = 33, #gen tokens = 120, "
    text += "#acc tokens = 80\n"
    found = the_one(tmp_path, "llamacpp-log", text)
    assert found.acceptance_length == pytest.approx(3.0) and found.drafts == 3


def iteration(n: int, rows: int, ms: float, tokens: int, context: int = 0) -> str:
    states = {
        "num_ctx_requests": int(context > 0),
        "num_ctx_tokens": context,
        "num_generation_tokens": tokens,
    }
    return (
        f"[08/04/2026-19:08:13] [TRT-LLM] [I] iter = {n}, global_rank = 0, rank = 0, "
        f"num_scheduled_requests = {rows}, kv_cache_util = 0.1, host_step_time = {ms}ms, "
        f"prev_device_step_time = {ms}ms, states = {states}\n"
    )


def test_tensorrt_llm_s_steps_say_k_and_their_time(tmp_path: Path) -> None:
    log = iteration(1, 1, 900.0, 1) + iteration(2, 8, 50.0, 7, 1000)
    plain = the_one(tmp_path, "trtllm-log", log + "".join(iteration(n, 8, 20.0, 8) for n in range(3, 6)))
    assert (plain.max_concurrency, plain.drafts) == (8, 0)
    assert plain.numbers["mean_tpot_ms"] == 20.0 and plain.numbers["output_throughput"] == pytest.approx(
        400.0
    )
    drafting = the_one(tmp_path, "trtllm-log", log + "".join(iteration(n, 8, 24.0, 32) for n in range(3, 6)))
    assert drafting.drafts == 3 and "mean_tpot_ms" not in drafting.numbers, "what was accepted is not logged"
    assert drafting.numbers["mean_itl_ms"] == 24.0


def test_tensorrt_llm_s_statistics_count_what_was_accepted(tmp_path: Path) -> None:
    one = {
        "iter": 1,
        "iterLatencyMS": 24.0,
        "inflightBatchingStats": {"numContextRequests": 0, "numGenRequests": 8, "numScheduledRequests": 8},
        "specDecodingStats": {
            **{"numDraftTokens": 24, "numAcceptedTokens": 12, "numRequestsWithDraftTokens": 8},
            **{"acceptanceLength": 2.5},
        },
    }
    found = the_one(tmp_path, "trtllm-log", json.dumps([one, one, one]))
    assert (found.drafts, found.max_concurrency) == (3, 8)
    assert found.acceptance_length == pytest.approx(2.5) and found.numbers["mean_tpot_ms"] == pytest.approx(
        9.6
    )


def test_a_log_of_an_idle_server_is_refused_with_what_to_give(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("INFO Engine 000: Avg generation throughput: 0.0 tokens/s\n")
    with pytest.raises(InputFaults, match="no line of vLLM's about what runs; start the server without"):
        read_tool(path)
    path.write_text("hello\n")
    with pytest.raises(InputFaults, match="is neither JSON nor a log or scrape that can be read; give"):
        read_tool(path)
