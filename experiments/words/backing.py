"""What of a prediction is backed by measurement, and what is not: printed with every run.

Each sentence follows from what the points used (`words.evidence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from specfleet.experiments.load.rules.acceptance import prediction_said
from specfleet.experiments.load.sweep import Point
from specfleet.experiments.point.build import placement
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.acceptance import processes
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.experiments.schema.registry import OWN as REGISTERED
from specfleet.experiments.words.contradicted import contradicted
from specfleet.experiments.words.evidence import (
    HOST,
    KERNELS,
    RECORDED,
    SCHEDULER,
    SERVED,
    SUBJECTS,
    Evidence,
    Used,
    backing_of,
    nearest,
    used,
)
from specfleet.experiments.words.values import rounded
from specfleet.sim.config import ON_HOST

BACKED, NOT_BACKED = "Backed by measurement: ", "Not backed: "


def backing(points: Sequence[Point], rows: Sequence[Row]) -> list[str]:
    """Returns what is backed in all points, and one sentence for each thing that is not in some.

    Args:
        points: of the run; with a drafter among them, those without are what they are compared with.
        rows: its summary, a row a point; points without one are left out.
    """
    by_id = {str(row["point"]): row for row in rows}
    there = [point for point in points if point.id in by_id]
    configs = [pool for point in there for pool in pool_experiments(point.config).values()]
    chosen = [config for config in configs if config.serve.speculative_config is not None] or configs
    context_tokens = max(map(_tokens, rows), default=0.0)
    batch = max((_value(row, "mean_batch") for row in rows), default=0.0)
    return backing_of_points(chosen, context_tokens, batch)


def backing_of_points(configs: Sequence[Experiment], context_tokens: float, batch: float) -> list[str]:
    """Returns the sentences of `backing`.

    Args:
        configs: of the points, every default filled in.
        context_tokens: mean prompt and output of a request together, at most.
        batch: sequences at once, at most.
    """
    each = [(used(config.serve, round(context_tokens), round(batch)), config) for config in configs]
    different = list(dict(each).items())
    held = [backed(this) for this, _ in different]
    common = [
        says for says in dict.fromkeys(s for said in held for s in said) if all(says in h for h in held)
    ]
    missing: list[str] = []
    for this, config in different:
        missing += [*not_backed(this), *_of_file(config)]
        if (beyond := _beyond_the_drafter(config, context_tokens)) is not None:
            missing.append(beyond)
    said = [f"{BACKED}{', '.join(common)}."] if common else []
    said += [f"{NOT_BACKED}{text}." for text in dict.fromkeys(missing)]
    if any(config.acceptance is not None for config in configs):
        said.append(f"{NOT_BACKED}the acceptance itself: it is an input, measure it on your own traffic.")
        said += [f"{NOT_BACKED}{text}." for text in dict.fromkeys(_predicted(configs))]
    if any(config.serve.cost_model == "roofline" for config in configs):
        said.append("cost_model roofline is a datasheet bound; served steps take about twice as long.")
    return said


def _predicted(configs: Sequence[Experiment]) -> Iterator[str]:
    """Where points run a K that their acceptance was not measured at."""
    for config in configs:
        for name, process in processes(config.acceptance).items():
            yield from prediction_said(process, config, f"acceptance.{name}" if name else "acceptance")


def backed(this: Used) -> list[str]:
    """Returns what measurements back of a run, a phrase each."""
    return [row.says for subject in SUBJECTS for row in backing_of(this, subject)]


def not_backed(this: Used) -> list[str]:
    """Returns what no measurement backs of a run, and what one contradicts, a phrase each."""
    said = contradicted(this)
    for subject in SUBJECTS:
        if not backing_of(this, subject):
            row = nearest(this, subject)
            said += [text for name in row.outside(this) if (text := CAVEATS[subject, name](this, row))]
    return list(dict.fromkeys(said))


def _tokens(row: Row) -> float:
    """Mean prompt and output of a point's requests together."""
    tokens = _value(row, "total_input_tokens") + _value(row, "total_output_tokens")
    return tokens / max(_value(row, "completed"), 1.0)


def _value(row: Row, key: str) -> float:
    return number(row, key) if is_number(row.get(key)) else 0.0


def _of_file(config: Experiment) -> list[str]:
    """What a file adds that no measurement can back: step prices of one's own, assumptions of a method."""
    serve, found = config.serve, []
    if ("cost_model", serve.cost_model) in REGISTERED:
        found.append(f"the step prices: {REGISTERED['cost_model', serve.cost_model]} is your own")
    speculative = serve.speculative_config
    if speculative is not None and speculative.method in ON_HOST:
        found.append("drafting by look-up (the time of the matcher is not priced)")
    return [*_carried_over(serve), *found]


def _beyond_the_drafter(config: Experiment, context_tokens: float) -> str | None:
    """Contexts beyond the positions that a drafter was published for."""
    speculative = config.serve.speculative_config
    if speculative is None or speculative.model is None or speculative.max_model_len is not None:
        return None
    own = lookups.drafter(speculative.model).max_model_len
    if not own or context_tokens <= own:
        return None
    stated = [process.context_multiplier for process in processes(config.acceptance).values()]
    if all(stated):
        return f"acceptance beyond the drafter's {own} positions: as context_multiplier states it"
    return (
        f"acceptance beyond the drafter's {own} positions: it falls there, and is taken here as below them; "
        f"acceptance.context_multiplier, for example [[{own}, 1.0], [{8 * own}, 0.5]], gives the other end"
    )


def _carried_over(serve: Serve) -> list[str]:
    """What the kernel constants take from another GPU or engine, and where they are the user's own."""
    return list(placement(serve).constants.notes)


def _ways(this: Used) -> str:
    return " with speculation" if this.drafts else ""


def _engine(this: Used, row: Evidence) -> str:
    return f"served runs{_ways(this)} of {this.engine} (those measured ran {_listed(row, 'engine')})"


def _host(this: Used, row: Evidence) -> str:
    if this.engine == "vllm-0.33":
        return "host time and memory of vLLM 0.33 itself (constants of a January 2026 build)"
    if this.rules == "sglang":
        return (
            f"host time of {this.engine} (from a handful of published steps, a batch: 0.05 to 0.2 ms with "
            "overlap scheduling, 0.6 to 1.2 ms without, and 0 to 30 us a request)"
        )
    kind = "constants of" if this.engine.startswith("vllm") else "assumed as those of"
    return f"host time and memory of {this.engine} ({kind} a January 2026 build of vLLM)"


def _scheduler(this: Used, row: Evidence) -> str:
    replayed = ", ".join(dict.fromkeys(RECORDED.values()))
    if this.rules == "trtllm":
        return f"the scheduler of {this.engine}: by documentation, not by record (replayed are {replayed})"
    foreign = this.rules == "vllm" and not this.engine.startswith("vllm")
    stands_in = ": it is not simulated, vLLM's rules stand in" if foreign else ""
    return f"the scheduler of {this.engine}{stands_in} (replayed are {replayed})"


def _gpu(this: Used, row: Evidence) -> str:
    name = lookups.accelerator(this.gpu).name if "changed" not in this.gpu else this.gpu
    where = "H100" if "h100" in row.ranges else _listed(row, "gpu")
    return f"served runs{_ways(this)} on {name} (those measured are on {where})"


def _kernels_gpu(this: Used, row: Evidence) -> str:
    return f"kernel times of {this.gpu} itself (those of a measured GPU, scaled by bandwidth and peak)"


def _weights(this: Used, row: Evidence) -> str:
    kind = {"bfloat16": "BF16"}.get(this.weights, this.weights.upper())
    if this.weights == "fp8" and this.drafts:
        return "FP8 weights with speculation (FP8 kernels are measured, no served run is)"
    return f"served runs{_ways(this)} with {kind} weights (those measured have {_listed(row, 'weights')})"


def _method(this: Used, row: Evidence) -> str:
    return f"served runs with {this.method} (those measured draft with {_listed(row, 'method')})"


def _context(this: Used, row: Evidence) -> str:
    most = _ends(row, "context_tokens")[1]
    if this.drafts:
        return (
            f"long contexts with speculation (mean prompt and output here {this.context_tokens:.0f} tokens, "
            f"measured up to {most:.0f}; acceptance falls beyond a drafter's training length and is taken as "
            "stated)"
        )
    measured = _listed(row, "context_tokens")
    return f"contexts of {this.context_tokens:.0f} tokens in served runs (measured {measured})"


def _parameters(this: Used, row: Evidence) -> str:
    measured = " to ".join(f"{end / 1e9:.0f}B" for end in _ends(row, "parameters"))
    size = f"{rounded(this.parameters / 1e9)}B parameters (measured {measured})"
    return f"served runs{_ways(this)} of a model of {size}"


def _link(this: Used, row: Evidence) -> str:
    if this.link == "peers":
        return (
            "tensor parallelism over NVLink (all-reduce kernels are measured, served runs"
            f"{_ways(this)} are not)"
        )
    if this.link == "host":
        return f"{this.gpus} GPUs without peer-to-peer access in served runs"
    return f"one GPU in served runs{_ways(this)} like those measured"


def _says(text: str) -> Callable[[Used, Evidence], str]:
    return lambda this, row: text


def _gpus(this: Used, row: Evidence) -> str:
    if not row.holds("link", this.link):
        return ""  # `_link` says so
    return f"{this.gpus} GPUs a replica in served runs{_ways(this)} (measured {_listed(row, 'gpus')})"


def _ends(row: Evidence, name: str) -> tuple[float, float]:
    measured = row.ranges[name]
    assert isinstance(measured, tuple)
    return measured


def _listed(row: Evidence, name: str) -> str:
    measured = row.ranges[name]
    if isinstance(measured, tuple):
        return " to ".join(f"{end:,.0f}" for end in measured)
    return " or ".join(sorted(map(str, measured - {"none"})))


_ATTENTION = {
    "full": "full attention",
    "windowed": "sliding-window attention (priced by the keys it sees, not measured)",
    "latent": "latent attention (priced by its kernels, no served steps measured)",
    "compressed": "compressed attention (priced by the keys it reads, not measured)",
    "recurrent": "layers that keep a state (priced by its bytes, not measured)",
}
_EIGHT_BIT_KV = "an FP8 KV cache"
_TREE = (
    "trees of drafts (vLLM V1 drafts chains; acceptance beyond the first candidate and 40 us to move KV are "
    "assumed)"
)

CAVEATS: Mapping[tuple[str, str], Callable[[Used, Evidence], str]] = {
    (KERNELS, "gpu"): _kernels_gpu,
    (KERNELS, "kernels"): _says(""),  # `_carried_over` names the pair
    (KERNELS, "weights"): lambda this, row: f"kernels with {this.weights} weights on {this.gpu}",
    (KERNELS, "kv"): _says(_EIGHT_BIT_KV),
    (KERNELS, "attention"): lambda this, row: _ATTENTION[this.attention],
    (KERNELS, "experts"): _says("which experts tokens choose (uniform routing, not measured)"),
    (SCHEDULER, "engine"): _scheduler,
    (SCHEDULER, "method"): lambda this, row: f"how {this.method} is scheduled (not among what was recorded)",
    (SCHEDULER, "tree"): _says(_TREE),
    (SCHEDULER, "stages"): lambda this, row: (
        f"how batches are dealt out to {this.stages} stages (recorded: vLLM 0.33.0, up to 4)"
    ),
    (KERNELS, "link"): _says("all-reduce through the host (a law fitted on one server)"),
    (HOST, "engine"): _host,
    (SERVED, "engine"): _engine,
    (SERVED, "gpu"): _gpu,
    (SERVED, "h100"): _gpu,
    (SERVED, "weights"): _weights,
    (SERVED, "kv"): _says(_EIGHT_BIT_KV),
    (SERVED, "attention"): lambda this, row: _ATTENTION[this.attention],
    (SERVED, "experts"): _says(""),  # `contradicted` says more
    (SERVED, "parameters"): _parameters,
    (SERVED, "link"): _link,
    (SERVED, "gpus"): _gpus,
    (SERVED, "stages"): lambda this, row: (
        f"{this.stages} stages of a pipeline in served runs (sends are priced)"
    ),
    (SERVED, "method"): _method,
    (SERVED, "k"): lambda this, row: f"{this.k} drafts a round (served runs have up to 7)",
    (SERVED, "tree"): _says(_TREE),
    (SERVED, "context_tokens"): _context,
    (SERVED, "batch"): lambda this, row: (
        f"{this.batch:.0f} sequences at once (served runs have up to {_ends(row, 'batch')[1]:.0f})"
    ),
}
"""(subject, field outside its range) -> what is not backed; empty where another sentence says it."""
