"""SGLang's argument names in `serve:`, translated once, when a file is read.

`python -m sglang.launch_server` takes `--max-running-requests 64`; here that is `max_running_requests: 64`
under `serve:`, beside `engine: sglang`. What both engines have gets this package's one name for it; what
SGLang alone has goes to `serve.sglang`. Places in the file stay, so that faults name the line that was typed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.sglang import Sglang
from specfleet.experiments.schema.dashes import underscored
from specfleet.experiments.schema.faults import Fault
from specfleet.experiments.schema.lookups import found
from specfleet.experiments.schema.yamlfile import Document, KeyPath, Mark, Value
from specfleet.hardware.sglang.defaults import NGRAM_DRAFT_TOKENS, draft_shape


def _same(value: Value) -> Value:
    return value


def _opposite(value: Value) -> Value:
    return not value if isinstance(value, bool) else value


def _kv_type(value: Value) -> Value:
    return "fp8" if value in ("fp8_e5m2", "fp8_e4m3") else value


NAMES: dict[str, tuple[str, Callable[[Value], Value]]] = {
    "model_path": ("model", _same),
    "tp_size": ("tensor_parallel_size", _same),
    "tp": ("tensor_parallel_size", _same),
    "ep_size": ("expert_parallel_size", _same),
    "ep": ("expert_parallel_size", _same),
    "context_length": ("max_model_len", _same),
    "max_running_requests": ("max_num_seqs", _same),
    "mem_fraction_static": ("gpu_memory_utilization", _same),
    "page_size": ("block_size", _same),
    "disable_radix_cache": ("enable_prefix_caching", _opposite),
    "disable_overlap_schedule": ("async_scheduling", _opposite),
    "kv_cache_dtype": ("kv_cache_dtype", _kv_type),
}
"""Names for what both engines have, and how a value is said here."""

ALONE = tuple(name for name in Sglang.model_fields if not name.startswith("speculative_"))
"""Names for what SGLang alone has."""

ALGORITHMS = {
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "NEXTN": "eagle",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
}
"""`speculative_algorithm`, and the method here. NEXTN is SGLang's other name for EAGLE.

Without a drafter both have the model's own layers draft: MTP.
"""

SPECULATIVE = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
"""Names that together say what is drafted."""

OF_THE_SERVER = {"max_running_requests": "max_num_seqs", "chunked_prefill_size": "max_num_batched_tokens"}
"""What SGLang divides among the ranks of DP attention, and the key of a rank's share."""

PARALLEL = ("dp_size", "dp", "enable_dp_attention")
"""Names that together say how attention is spread."""

AXES = {
    "speculative_num_steps": "serve.speculative_config.num_speculative_tokens",
    "chunked_prefill_size": "serve.max_num_batched_tokens",
}
"""Names that may be swept although they are not translated alone: the steps of a chain, the chunk."""


def translated(document: Document) -> Document:
    """The document with the names of this package, if its engine is SGLang's; otherwise the document."""
    serve = document.data.get("serve")
    if not isinstance(serve, dict) or not isinstance(named := serve.get("engine"), str | dict):
        return document
    profile = found(lambda: lookups.engine(named))  # type: ignore[arg-type]
    if profile is None or profile.scheduler != "sglang":
        return document
    document = underscored(document, {*NAMES, *ALONE, *SPECULATIVE, *OF_THE_SERVER, *PARALLEL, *AXES})
    serve = document.data["serve"]
    assert isinstance(serve, dict)
    found_names = _Translation(document, serve)
    found_names.run()
    data = {**document.data, "serve": found_names.serve}
    sweep = data.get("sweep")
    if isinstance(sweep, dict) and isinstance(axes := sweep.get("axes"), dict):
        data["sweep"] = {**sweep, "axes": dict(found_names.axes(axes))}
    return replace(
        document, data=data, marks=found_names.marks, faults=(*document.faults, *found_names.faults)
    )


class _Translation:
    """One `serve` block on its way.

    Attributes:
        serve: the block as far as it is translated.
        marks: the places of its keys, under both names.
        faults: what cannot be said here.
        ranks: of DP attention.
    """

    def __init__(self, document: Document, serve: dict[str, Value]) -> None:
        self.document = document
        self.given = serve
        self.serve: dict[str, Value] = {}
        self.marks: dict[KeyPath, Mark] = dict(document.marks)
        self.faults: list[Fault] = []
        self.ranks = 1

    def run(self) -> None:
        """Translates every key."""
        settings = self.given.get("sglang")
        alone: dict[str, Value] = dict(settings) if isinstance(settings, dict) else {}
        for key, value in self.given.items():
            if key in NAMES:
                name, said = NAMES[key]
                self._say(key, (name,), said(value))
            elif key in ALONE:
                alone[key] = value
                self._mark(key, ("sglang", key))
            elif key == "chunked_prefill_size":
                off = isinstance(value, int) and value <= 0
                self._say(
                    key,
                    ("enable_chunked_prefill",) if off else ("max_num_batched_tokens",),
                    not off and value,
                )
            elif key == "max_total_tokens":
                page = self.given.get("page_size", self.given.get("block_size", 1))
                if isinstance(value, int) and isinstance(page, int) and page > 0:
                    value = value // page
                self._say(key, ("num_gpu_blocks_override",), value)
            elif key not in SPECULATIVE and key not in PARALLEL and key != "sglang":
                self._say(key, (key,), value)
        if alone or settings is not None:
            self.serve["sglang"] = alone
        self._data_parallel()
        if any(key in self.given for key in SPECULATIVE):
            self._speculation()

    def _data_parallel(self) -> None:
        """`dp_size` with `enable_dp_attention`: a part of the GPUs of `tp_size` for each rank's attention."""
        key = next((name for name in ("dp_size", "dp") if name in self.given), None)
        dp, gpus = self.given.get(key) if key else None, self.serve.get("tensor_parallel_size", 1)
        if key is None or dp in (None, 1):
            return
        if not self.given.get("enable_dp_attention"):
            self._fault(key, "without enable_dp_attention it is as many servers; give deployment.replicas")
        elif not isinstance(dp, int) or not isinstance(gpus, int) or dp < 1 or gpus % dp:
            self._fault(key, f"is {dp}; it must divide tp_size, {gpus}, among its ranks")
        else:
            self.ranks = dp
            self.serve["tensor_parallel_size"] = gpus // dp
            self._say(key, ("data_parallel_size",), dp)
            for given, name in OF_THE_SERVER.items():
                if given in self.given and name in self.serve:
                    self.serve[name] = self._share(given, self.serve[name])

    def _share(self, key: str, value: Value) -> Value:
        """A rank's share of what the server is given."""
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            return value
        if value < self.ranks:
            self._fault(
                key, f"{value} leaves nothing for each of {self.ranks} ranks; give {self.ranks} or more"
            )
        return max(value // self.ranks, 1)

    def _mark(self, key: str, path: KeyPath) -> None:
        """Notes that what stands at `path` was typed as `key`."""
        if ("serve", key) in self.document.marks:
            self.marks[("serve", *path)] = self.document.marks[("serve", key)]

    def _fault(self, key: str, message: str) -> None:
        mark = self.document.mark(("serve", key))
        self.faults.append(Fault(mark.file, mark.line, f"serve.{key}", message))

    def _say(self, key: str, path: tuple[str, ...], value: Value) -> None:
        """Says a key with its name here; both names at once are a fault."""
        name = path[0]
        if name in self.serve:
            self._fault(key, f"is {name}, which is given too; keep one")
            return
        self.serve[name] = value
        if name != key:
            self._mark(key, path)

    def _speculation(self) -> None:
        """The five names of speculation as `speculative_config`, and `draft_tree` where it branches."""
        algorithm = self.given.get("speculative_algorithm")
        first = next(key for key in SPECULATIVE if key in self.given)
        if "speculative_config" in self.given or "draft_tree" in self.given:
            self._fault(first, "and speculative_config or draft_tree say the same; keep one of the two ways")
            return
        if algorithm is None:
            if "speculative_algorithm" not in self.given:
                self._fault(first, "needs speculative_algorithm: EAGLE3, EAGLE, STANDALONE or NGRAM")
            return
        method = "mtp" if self._drafts_itself() else ALGORITHMS.get(str(algorithm))
        if method is None:
            self._fault(
                "speculative_algorithm", f"{algorithm!r} is not simulated; use one of {', '.join(ALGORITHMS)}"
            )
            return
        numbers = [self.given.get(key) for key in SPECULATIVE[2:]]
        if any(number is not None and not isinstance(number, int) for number in numbers):
            self._fault(first, "steps, topk and draft tokens must be whole numbers")
            return
        config: dict[str, Value] = {"method": method}
        if "speculative_draft_model_path" in self.given:
            config["model"] = self.given["speculative_draft_model_path"]
            self._mark("speculative_draft_model_path", ("speculative_config", "model"))
        self._shape(config, method, [n if isinstance(n, int) else None for n in numbers])
        self.serve["speculative_config"] = config
        self._mark("speculative_algorithm", ("speculative_config",))
        self._mark("speculative_num_steps", ("speculative_config", "num_speculative_tokens"))

    def _drafts_itself(self) -> bool:
        """Whether the model's MTP layers draft: no drafter is named, and there are some or NEXTN says so."""
        algorithm = self.given.get("speculative_algorithm")
        if self.given.get("speculative_draft_model_path") is not None or algorithm not in ("NEXTN", "EAGLE"):
            return False
        named = self.serve.get("model")
        model = found(lambda: lookups.model(named)) if isinstance(named, str | dict) else None  # type: ignore[arg-type]
        return algorithm == "NEXTN" or (model is not None and model.mtp_layers > 0)

    def _shape(self, config: dict[str, Value], method: str, numbers: list[int | None]) -> None:
        """Steps, branches and width, SGLang's own where none of them is given."""
        steps, topk, width = numbers
        if method == "ngram":
            config["num_speculative_tokens"] = (width or NGRAM_DRAFT_TOKENS) - 1
            return
        if numbers == [None, None, None]:
            steps, topk, width = draft_shape(str(self.serve.get("model", "")), method)
        if steps is None or (topk is None and width is None):
            message = (
                "give speculative_num_steps, speculative_eagle_topk and speculative_num_draft_tokens, or none"
            )
            self._fault(next(key for key in SPECULATIVE[2:] if key in self.given), message)
            return
        if topk in (None, 1):
            config["num_speculative_tokens"] = steps  # SGLang makes it steps + 1 tokens to verify
            return
        assert topk is not None
        tree: dict[str, Value] = {"steps": steps, "topk": topk, "num_draft_tokens": width or steps * topk + 1}
        self.serve["draft_tree"] = {"sglang": tree}
        self._mark("speculative_eagle_topk", ("draft_tree",))

    def axes(self, axes: dict[str, Value]) -> Iterator[tuple[str, Value]]:
        """Yields swept keys with their names here."""
        for key, values in axes.items():
            block, _, name = key.partition(".")
            new, said = key, NAMES["model_path"][1]
            if block == "serve" and name in NAMES:
                new, said = f"serve.{NAMES[name][0]}", NAMES[name][1]
            elif block == "serve" and name in ALONE:
                new = f"serve.sglang.{name}"
            elif block == "serve" and name in AXES:
                new = AXES[name]
            for path in [path for path in self.document.marks if path[:3] == ("sweep", "axes", key)]:
                self.marks[("sweep", "axes", new, *path[3:])] = self.document.marks[path]
            if isinstance(values, tuple):
                values = tuple(map(said, values))
                if block == "serve" and name in OF_THE_SERVER:
                    values = tuple(self._share(name, value) for value in values)
            yield new, values
