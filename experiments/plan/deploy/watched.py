"""What a server tells Prometheus, and how its drafts are switched off: by whose engine it is."""

from __future__ import annotations

from dataclasses import dataclass

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.experiment import Experiment

WINDOW = "10m"
"""Over which the acceptance is averaged before anyone acts on it."""


@dataclass(frozen=True)
class Watched:
    """The figures of one engine's servers.

    Attributes:
        acceptance_length: expression of the mean over `WINDOW`, tokens a round; "" where none is known.
        p99_s: expression of the P99 that is nearest to TPOT, seconds; "" where none is known.
        p99_of: what that is the P99 of.
        running: the metric of requests that run.
        drafts: what the command says only where it drafts.
        acceptance_from: where a server tells what was accepted.
        port: where it listens if nothing is said; 0 where the benchmark's own default is right.
        beside: what else it must say for these figures to be there.
    """

    acceptance_length: str
    p99_s: str
    p99_of: str
    running: str
    drafts: str
    acceptance_from: str
    port: int = 0
    beside: str = ""


def _p99_of(histogram: str) -> str:
    return f"histogram_quantile(0.99, sum by (le) (rate({histogram}_bucket[{WINDOW}])))"


WATCHED = {
    "vllm": Watched(
        f"1 + sum(rate(vllm:spec_decode_num_accepted_tokens_total[{WINDOW}]))"
        f" / sum(rate(vllm:spec_decode_num_drafts_total[{WINDOW}]))",
        _p99_of("vllm:request_time_per_output_token_seconds"),
        "TPOT",
        "vllm:num_requests_running",
        "`--speculative-config`",
        "by position: `--per-request-spec-decode-metrics summary`",
    ),
    "sglang": Watched(
        f"avg(avg_over_time(sglang:spec_accept_length[{WINDOW}]))",
        _p99_of("sglang:inter_token_latency_seconds"),
        "gaps between tokens, as SGLang tells no TPOT of requests",
        "sglang:num_running_reqs",
        "the `--speculative-` arguments",
        "its length: `avg_spec_accept_length` of `/server_info`",
        30000,
        "--enable-metrics",
    ),
    "trtllm": Watched("", "", "", "", "`speculative_config`", "its iteration statistics"),
}
"""By whose rules decide. vLLM's names as `vllm:` metrics of V1; SGLang's as its page "Production Metrics"."""


def watched(config: Experiment) -> Watched:
    """Returns what the servers of a candidate tell."""
    return WATCHED[lookups.engine(config.serve.engine).scheduler]
