"""What metrics and axes are called, and their units."""

from __future__ import annotations

import re

_LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL per streamed chunk",
    "itl_per_token": "ITL per token",
    "e2el": "end-to-end latency",
    "client_queue_time": "wait at the client's cap",
    "e2el_including_client_queue": "end-to-end latency with the wait at the client's cap",
}
_STATISTICS = {"std": "standard deviation of"}
_METRICS = {
    "output_throughput": ("output throughput", "tokens/s"),
    "total_token_throughput": ("throughput of prompt and output", "tokens/s"),
    "output_throughput_per_gpu": ("output throughput per GPU", "tokens/s"),
    "output_throughput_per_user": ("output throughput per running request", "tokens/s"),
    "max_output_tokens_per_s": ("peak output throughput", "tokens/s"),
    "request_throughput": ("request throughput", "requests/s"),
    "request_goodput": ("goodput: requests that meet the SLO", "requests/s"),
    "slo_attainment": ("requests that meet the SLO", "share"),
    "duration": ("duration", "s"),
    "completed": ("completed", "requests"),
    "failed": ("failed", "requests"),
    "max_concurrent_requests": ("peak concurrency", "requests"),
    "total_input_tokens": ("prompts in all", "tokens"),
    "total_output_tokens": ("outputs in all", "tokens"),
    "spec_decode_acceptance_rate": ("drafted tokens that are accepted", "%"),
    "spec_decode_acceptance_length": ("acceptance length", "tokens per verification"),
    "spec_decode_num_drafts": ("verifications", "count"),
    "spec_decode_draft_tokens": ("drafted", "tokens"),
    "spec_decode_accepted_tokens": ("accepted drafts", "tokens"),
    "acceptance_length": ("acceptance length", "tokens per verification"),
    "tokens_per_step": ("tokens per step", "of one sequence"),
    "verify_overhead": ("time that verification adds", "share of the plain step"),
    "draft_overhead": ("time that drafting adds", "share of the plain step"),
    "proposed_share": ("rounds that verify drafts", "share"),
    "gain": ("gain of a step", "tokens over time, both relative to the plain step"),
    "mean_batch": ("mean batch", "decoding sequences"),
    "mean_running": ("mean running", "requests"),
    "mean_waiting": ("mean waiting", "requests"),
    "peak_kv_usage": ("peak use of the KV cache", "share"),
    "gpu_busy": ("GPU busy", "share of the time"),
    "energy_j_per_output_token": ("energy an output token", "J, all GPUs"),
    "energy_low_j_per_output_token": ("least energy an output token", "J, all GPUs"),
    "energy_high_j_per_output_token": ("most energy an output token", "J, all GPUs"),
    "mean_replicas": ("replicas paid for", "mean"),
    "peak_replicas": ("replicas paid for", "most at a time"),
    "scale_outs": ("scale-outs", "decisions that added replicas"),
    "gpu_hours": ("GPU time paid for", "hours"),
    "first_scale_out_s": ("first scale-out ordered at", "s"),
    "starting_p99_ttft_ms": ("P99 TTFT while replicas start", "ms"),
    "ttft_client_ms": ("of the mean TTFT, the client", "ms"),
    "ttft_queue_ms": ("of the mean TTFT, waiting for admission", "ms"),
    "ttft_prefill_ms": ("of the mean TTFT, computing the prompt", "ms"),
    "ttft_handover_ms": ("of the mean TTFT, until the decode replica has room", "ms"),
    "ttft_transfer_ms": ("of the mean TTFT, KV on its way", "ms"),
    "ttft_decode_queue_ms": ("of the mean TTFT, waiting to be decoded", "ms"),
    "ttft_first_step_ms": ("of the mean TTFT, the first step of the decode replica", "ms"),
    "kv_gb": ("KV handed over a request", "1e9 bytes"),
    "p99_transfer_ms": ("P99 of the time KV is on its way", "ms"),
    "link_out_busy": ("links out of prefill replicas busy", "share"),
    "link_in_busy": ("links into decode replicas busy", "share"),
    "kv_given_up": ("requests whose KV was given up", "requests"),
    "prefill_stood_still": ("prefill replicas stand still, full of KV", "share of the time"),
    "energy_x_plain": ("energy an output token", "ratio to the baseline"),
    "mean_gpu_w": ("mean power", "W a GPU"),
    "gpu_ms_per_output_token": ("GPU time an output token", "ms"),
    "gpu_memory_share": ("GPU time at memory", "share"),
    "gpu_compute_share": ("GPU time at tensor cores", "share"),
    "gpu_waiting_share": ("GPU time at links, launches, host", "share"),
    "cost_usd_per_million_output_tokens": ("cost of a million output tokens", "$"),
    "preemptions": ("preemptions", "count"),
    "rejected": ("refused", "requests"),
    "prefix_hit_share": ("prompt tokens found in the prefix cache", "share"),
    "drafter_off_share": ("steps past the drafter's max_model_len", "share"),
    "steps": ("steps", "count"),
    "kv_cache_tokens": ("KV cache", "tokens"),
    "gave_up": ("requests given up by clients", "requests"),
    "gave_up_unanswered": ("requests given up without a token", "requests"),
    "client_retries": ("requests sent again by clients", "sends"),
    "gave_up_share": ("requests given up by clients", "share"),
    "wasted_tokens": ("output tokens thrown away", "tokens"),
    "wasted_seat_share": ("time in seats for requests given up", "share"),
    "cost_usd": ("price of the replicas paid for", "$"),
    "cost_usd_on_demand": ("price of as many GPU-hours on demand", "$"),
    "cost_x_on_demand": ("price over that on demand", "ratio"),
    "interruptions": ("spot instances taken", "count"),
    "drained": ("spot instances empty when they were taken", "count"),
    "failures": ("failures of replicas", "count"),
    "downtime_s": ("time in which replicas were down", "s"),
    "availability": ("replica time available", "share"),
    "retried": ("requests sent anew after a failure", "requests"),
    "lost": ("requests lost with a replica", "requests"),
    "recomputed_tokens": ("KV lost with replicas", "tokens"),
    "recovery_s": ("from a failure to the last end of what it lost", "s"),
    "recovering_requests": ("requests sent while the fleet recovers", "requests"),
    "p99_ttft_recovering_ms": ("P99 TTFT while the fleet recovers", "ms"),
    "p99_ttft_otherwise_ms": ("P99 TTFT otherwise", "ms"),
    "p99_e2el_recovering_ms": ("P99 end-to-end latency while the fleet recovers", "ms"),
    "p99_e2el_otherwise_ms": ("P99 end-to-end latency otherwise", "ms"),
    "gateway_rejected": ("requests that the gateway refused", "requests"),
    "gateway_timed_out": ("requests that waited too long at the gateway", "requests"),
    "gateway_turned_away": ("times that the gateway turned somebody away", "count"),
    "gateway_mean_held_ms": ("mean time at the gateway", "ms"),
    "gateway_p99_held_ms": ("P99 of the time at the gateway", "ms"),
    "capacity_per_s": ("what can be served by closed form", "requests/s"),
    "speedup_output_throughput": ("speedup of output throughput", "ratio to the baseline"),
    "speedup_mean_tpot": ("speedup of mean TPOT", "ratio to the baseline"),
    "speedup_p99_tpot": ("speedup of P99 TPOT", "ratio to the baseline"),
    "offered_per_s": ("offered", "requests/s over the window of arrivals"),
    "served_per_s": ("served", "requests/s over the window of arrivals"),
    "step_ms": ("mean decoding step", "ms"),
    "tasks": ("whole sessions", "count"),
    "task_throughput": ("tasks finished", "tasks/s"),
    "task_turns": ("turns of a task", "requests"),
    "task_input_tokens": ("prompts of a task", "tokens"),
    "task_cached_tokens": ("prompt tokens of a task found in the cache", "tokens"),
    "task_output_tokens": ("outputs of a task", "tokens"),
    "gpu_s_per_task": ("GPU time of a task", "s"),
    "usd_per_task": ("cost of a task", "$"),
    "speedup_mean_task": ("speedup of a task", "ratio to the baseline"),
    "speedup_p99_task": ("speedup of the P99 task", "ratio to the baseline"),
    "speedup_mean_task_model": ("speedup of the answers of a task", "ratio to the baseline"),
}
_AXES = {
    "max_concurrency": ("concurrency", "users or requests in flight"),
    "request_rate": ("request rate", "requests/s"),
    "num_speculative_tokens": ("K", "drafted tokens per step"),
    "tensor_parallel_size": ("tensor parallel size", "GPUs"),
    "replicas": ("replicas", "engines"),
    "gpu": ("GPU", ""),
    "max_num_seqs": ("max_num_seqs", "sequences"),
    "input_len": ("prompt length", "tokens"),
    "output_len": ("output length", "tokens"),
    "burstiness": ("burstiness", "gamma shape; 1 is Poisson"),
    "temperature": ("temperature", ""),
}
_UNITS = {"_ms": "ms", "_bytes": "bytes", "_bytes_per_s": "bytes/s", "_tokens": "tokens", "_len": "tokens"}


def name_and_unit(key: str) -> tuple[str, str]:
    """Returns what a metric, or an axis by its dotted key, is called, and its unit ('' without one)."""
    latency = re.fullmatch(r"(mean|median|std|p[\d.]+)_(\w+?)_ms", key)
    if latency and latency[2] in _LATENCIES:
        statistic = _STATISTICS.get(latency[1], latency[1].replace("p", "P"))
        return f"{statistic} {_LATENCIES[latency[2]]}", "ms"
    task = re.fullmatch(r"(mean|median|p\d+)_task(_model)?_s", key)
    if task:
        what = "time in answers of a task" if task[2] else "time of a task"
        return f"{task[1].replace('p', 'P')} {what}", "s"
    last = key.rpartition(".")[2]
    found = _METRICS.get(key) or _AXES.get(last)
    if found:
        return found
    unit = next((unit for end, unit in _UNITS.items() if last.endswith(end)), "")
    return last.removesuffix("_ms").replace("_", " "), unit


def noun(key: str) -> str:
    """Returns the name alone, for titles."""
    return name_and_unit(key)[0]


def label(key: str) -> str:
    """Returns the name with its unit, for an axis."""
    name, unit = name_and_unit(key)
    return f"{name} ({unit})" if unit else name
