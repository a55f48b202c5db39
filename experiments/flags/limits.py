"""The limits that vLLM 0.33.0 sets where a line leaves them out: lengths, budget, sequences, CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specfleet.experiments.flags.facts import Config
from specfleet.experiments.flags.faults import LineFault
from specfleet.hardware import catalog
from specfleet.hardware.cudagraph import Tier

_MOST_BY_ARCHITECTURE = {"GptOssForCausalLM": 1024}


class Graphs(NamedTuple):
    """CUDA graphs: the mode, and the token counts that have one."""

    mode: str
    sizes: tuple[int, ...]

    @property
    def largest(self) -> int:
        """Tokens of the largest; 0 for none."""
        return self.sizes[-1] if self.sizes else 0


def longest_sequence(asked: int | None, config: Config, overridden: bool) -> int | None:
    """`max_model_len`: as asked, else the model's own.

    Raises:
        LineFault: more than the model's positions.
    """
    own = config.positions()
    if asked is None or asked == -1:
        return own
    if asked < 1:
        raise LineFault("out_of_range", "max_model_len", f"must be at least 1, or auto, not {asked}")
    if own is not None and asked > own:
        yarn = config.rope_type == "yarn"
        hint = (
            "; YaRN's factor no longer lengthens: add max_position_embeddings to --hf-overrides"
            if yarn and overridden
            else "; lower it, or set --hf-overrides.max_position_embeddings"
        )
        raise LineFault(
            "length", "max_model_len", f"{asked} is beyond the {own} positions of {config.name}{hint}"
        )
    return asked


def batch_limits(values: Mapping[str, Any], usual: tuple[int, int], longest: int | None) -> tuple[int, int]:
    """`max_num_seqs` and `max_num_batched_tokens`.

    Args:
        values: the line's flags.
        usual: sequences and tokens by default, on this GPU.
        longest: `max_model_len`.

    Raises:
        LineFault: fewer tokens a step than sequences, or than the longest prompt where it is one piece.
    """
    seqs, budget = usual
    if values["performance_mode"] == "throughput":
        seqs, budget = 2 * seqs, 2 * budget
    chunked = values["enable_chunked_prefill"] is not False
    given_seqs, given_budget = values["max_num_seqs"], values["max_num_batched_tokens"]
    seqs = given_seqs or seqs
    if given_budget is None:
        budget = budget if chunked else max(budget, longest or 0)
        budget = min(budget, seqs * (longest or budget))
    else:
        budget = given_budget
    if given_seqs is None:
        seqs = min(seqs, budget)
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if values[name] is not None and values[name] < 1:
            raise LineFault("out_of_range", name, f"must be at least 1, not {values[name]}")
    if budget < seqs:
        message = f"{budget} tokens in a step are fewer than max_num_seqs, {seqs}; raise it"
        raise LineFault("budget", "max_num_batched_tokens", message)
    if not chunked and longest is not None and budget < longest:
        message = f"without chunked prefill {budget} tokens must hold max_model_len, {longest}; raise it"
        raise LineFault("budget", "max_num_batched_tokens", message)
    return seqs, budget


def graphs(
    values: Mapping[str, Any], config: Config, seqs: int, budget: int, k: int, tiers: Sequence[Tier] = ()
) -> Graphs:
    """The CUDA graphs that are captured, by the law of `EngineProfile.capture_sizes`.

    Sizes that the user gives are left alone. `tiers`: of a schedule, each 1 + K with its most requests.

    Raises:
        LineFault: sizes given twice.
    """
    compilation = values["compilation_config"] or {}
    mode = str(compilation.get("cudagraph_mode") or _mode(str(values["optimization_level"]))).upper()
    if values["enforce_eager"] or mode == "NONE":
        return Graphs("NONE", ())
    sizes, most = (
        _once(values, compilation, name) for name in ("cudagraph_capture_sizes", "max_cudagraph_capture_size")
    )
    if sizes:
        kept = sorted({int(size) for size in sizes if most is None or int(size) <= most})
        return Graphs(mode, tuple(size for size in kept if size <= budget))
    own = int(most or _MOST_BY_ARCHITECTURE.get(config.architecture, 0))
    profile = catalog.engine_profile("vllm-0.33")
    ladder = {*profile.capture_sizes(seqs, budget, k + 1, tiers=tiers, own=own)}
    if values["performance_mode"] == "interactivity":
        largest = profile.max_capture_tokens(seqs, budget, k + 1, own=own)
        ladder |= set(range(1, min(32, largest) + 1))
    return Graphs(mode, tuple(sorted(ladder)))


def _mode(level: str) -> str:
    return {"0": "NONE", "1": "PIECEWISE"}.get(level, "FULL_AND_PIECEWISE")


def _once(values: Mapping[str, Any], compilation: Mapping[str, Any], name: str) -> Any:
    """A setting that is a flag of its own and a field of `--compilation-config`."""
    flag, field = values[name], compilation.get(name)
    if flag and field:
        raise LineFault("given_twice", name, "is given as a flag and in --compilation-config; keep one")
    return flag or field
