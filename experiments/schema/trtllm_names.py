"""TensorRT-LLM's argument names in `serve:`, translated once, when a file is read.

`trtllm-serve --max_batch_size 64 --config extra.yaml` takes what stands here under `serve:`, beside
`engine: trtllm`: the flags by their names, and the blocks `kv_cache_config` and `scheduler_config` of the
file. Names: the pages "trtllm-serve", "KvCacheConfig" and "SchedulerConfig" at nvidia.github.io/TensorRT-LLM.
Places in the file stay, so that faults name the line that was typed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.dashes import underscored
from specfleet.experiments.schema.faults import Fault
from specfleet.experiments.schema.lookups import found
from specfleet.experiments.schema.yamlfile import Document, KeyPath, Mark, Value

NAMES = {
    "tp_size": "tensor_parallel_size",
    "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
    "max_seq_len": "max_model_len",
    "kv_cache_free_gpu_memory_fraction": "gpu_memory_utilization",
    "disable_overlap_scheduler": "async_scheduling",
}
"""Names for what both engines have."""

BLOCKS = {
    "kv_cache_config": {
        "free_gpu_memory_fraction": "gpu_memory_utilization",
        "tokens_per_block": "block_size",
        "enable_block_reuse": "enable_prefix_caching",
    },
    "scheduler_config": {
        "capacity_scheduler_policy": "capacity_scheduler_policy",
        "context_chunking_policy": "",
    },
}
"""The same, in blocks. An empty name: it has one value here and says nothing more."""

CHUNKING = "FIRST_COME_FIRST_SERVED"
"""`context_chunking_policy`: the first prompt gets all that a step has left."""


def translated(document: Document) -> Document:
    """The document with the names of this package, if its engine is TensorRT-LLM; otherwise the document."""
    serve = document.data.get("serve")
    if not isinstance(serve, dict) or not isinstance(named := serve.get("engine"), str | dict):
        return document
    profile = found(lambda: lookups.engine(named))  # type: ignore[arg-type]
    if profile is None or profile.scheduler != "trtllm":
        return document
    document = underscored(document, {*NAMES, *BLOCKS})
    serve = document.data["serve"]
    assert isinstance(serve, dict)
    on_its_way = _TrtllmNames(document)
    for key, value in serve.items():
        on_its_way.say(key, value)
    data = {**document.data, "serve": on_its_way.serve}
    sweep = data.get("sweep")
    if isinstance(sweep, dict) and isinstance(axes := sweep.get("axes"), dict):
        data["sweep"] = {**sweep, "axes": dict(on_its_way.axes(axes))}
    faults = (*document.faults, *on_its_way.faults)
    return replace(document, data=data, marks=on_its_way.marks, faults=faults)


def _said(key: str, value: Value) -> Value:
    return not value if key == "disable_overlap_scheduler" and isinstance(value, bool) else value


class _TrtllmNames:
    """One `serve` block on its way.

    Attributes:
        serve: the block as far as it is translated.
        marks: the places of its keys, under both names.
        faults: what cannot be said here.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.serve: dict[str, Value] = {}
        self.marks: dict[KeyPath, Mark] = dict(document.marks)
        self.faults: list[Fault] = []

    def say(self, key: str, value: Value) -> None:
        """Says a key of `serve`, or those of a block in it, with its name here."""
        if key not in BLOCKS:
            self._set((key,), NAMES.get(key, key), _said(key, value))
        elif not isinstance(value, dict):
            self._fault((key,), f"must be a mapping with {', '.join(BLOCKS[key])}")
        else:
            for name, inner in value.items():
                self._inside(key, str(name), inner)

    def _inside(self, block: str, name: str, value: Value) -> None:
        if name not in BLOCKS[block]:
            self._fault((block, name), f"is not simulated; use {', '.join(BLOCKS[block])}")
        elif name == "context_chunking_policy":
            if value not in (None, CHUNKING):
                self._fault((block, name), f"{value!r} is not simulated; use {CHUNKING}, or leave it out")
        else:
            self._set((block, name), BLOCKS[block][name], value)

    def _set(self, path: tuple[str, ...], name: str, value: Value) -> None:
        """Says `name` for what was typed at `path`; both names at once are a fault."""
        if name in self.serve:
            self._fault(path, f"is {name}, which is given too; keep one")
            return
        self.serve[name] = value
        if path != (name,) and ("serve", *path) in self.document.marks:
            self.marks["serve", name] = self.document.marks["serve", *path]

    def _fault(self, path: tuple[str, ...], message: str) -> None:
        mark = self.document.mark(("serve", *path))
        self.faults.append(Fault(mark.file, mark.line, ".".join(("serve", *path)), message))

    def axes(self, axes: dict[str, Value]) -> Iterator[tuple[str, Value]]:
        """Yields swept keys with their names here."""
        for key, values in axes.items():
            block, _, name = key.partition(".")
            outer, _, inner = name.partition(".")
            new = NAMES.get(name) or BLOCKS.get(outer, {}).get(inner) or name
            new = f"serve.{new}" if block == "serve" else key
            for path in [path for path in self.document.marks if path[:3] == ("sweep", "axes", key)]:
                self.marks["sweep", "axes", new, *path[3:]] = self.document.marks[path]
            if block == "serve" and isinstance(values, tuple):
                values = tuple(_said(name, value) for value in values)
            yield new, values
