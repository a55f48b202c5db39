"""A point's figures under the keys of SGLang's own benchmark, `sglang.bench_serving --output-file`."""

from __future__ import annotations

from dataclasses import asdict

from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.metrics.figures import Figures


def sglang_bench_json(config: Experiment, figures: Figures) -> dict[str, object]:
    """Returns what SGLang's benchmark would write of a point, without its lists and its own settings.

    Its ITL is each pause divided among the tokens that came after it, one sample a token: `itl_per_token`.
    Throughput is in requests and tokens a second, latencies in milliseconds on the client's clock.
    """
    workload, duration_s = config.workload, figures.duration_s
    rate = workload.request_rate
    per_s = 1.0 / duration_s if duration_s else 0.0
    values: dict[str, object] = {
        "backend": "specfleet",
        "request_rate": "inf" if rate is None or rate == float("inf") else rate,
        "max_concurrency": workload.max_concurrency,
        "duration": duration_s,
        "completed": figures.completed,
        "total_input_tokens": figures.total_input_tokens,
        "total_output_tokens": figures.total_output_tokens,
        "request_throughput": figures.request_throughput,
        "input_throughput": figures.total_input_tokens * per_s,
        "output_throughput": figures.output_throughput,
        "total_throughput": figures.total_token_throughput,
        "concurrency": figures.e2el.mean_ms / 1e3 * figures.completed * per_s,
        "accept_length": figures.acceptance_length if figures.spec_decode is not None else None,
    }
    latencies = {"e2e_latency": figures.e2el, "ttft": figures.ttft, "tpot": figures.tpot}
    for name, stats in {**latencies, "itl": figures.itl_per_token}.items():
        values |= {f"{key.removesuffix('ms')}{name}_ms": value for key, value in asdict(stats).items()}
    return values
