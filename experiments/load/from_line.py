"""A line that starts a vLLM, SGLang or TensorRT-LLM server, as an experiment: what it says and leaves open.

What a line cannot say is assumed aloud: the GPU, what the drafter achieves, and the traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from specfleet.experiments.flags import sglang, shown, trtllm
from specfleet.experiments.flags.bench import sglang_bench, vllm_bench
from specfleet.experiments.flags.facts import Configs
from specfleet.experiments.flags.faults import LineFault, together
from specfleet.experiments.flags.fields import FIELDS
from specfleet.experiments.flags.parser import Parsed, parse, parse_all
from specfleet.experiments.flags.resolve import SHORT_FORMS, EngineSettings, resolve, speculative_json
from specfleet.experiments.flags.shell import without_loose
from specfleet.experiments.flags.table import HARMLESS, flags
from specfleet.experiments.flags.words import BENCH, BENCHES, SGLANG, TRTLLM, VLLM, Command, commands
from specfleet.experiments.load.catalog_configs import CatalogConfigs, named_model, without_paths
from specfleet.experiments.load.drafter_named import acceptance_for, drafter_block
from specfleet.experiments.load.serve_flags import take
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.schema.lookups import found

GPU, ENGINE = "h100-sxm", "vllm-0.33"
"""What a line without them is taken to run on."""

_WORKLOAD: dict[str, Any] = {
    "input": {"uniform": {"low": 500, "high": 1500}},
    "output": {"uniform": {"low": 50, "high": 450}},
    "max_concurrency": 32,
}
_LOADS = [1, 8, 32, 128]
_PRINTS = {
    "vllm": "vLLM prints yours by position",
    "sglang": "SGLang prints yours as accept len",
    "trtllm": "TensorRT-LLM's iteration statistics have yours",
}
"""Where a user's own acceptance stands, by whose scheduler decides."""


def _vllms(option: str) -> tuple[int | None, bool]:
    """The values that an option of vLLM takes, and whether it changes no prediction."""
    name = option.lstrip("-").replace("-", "_")
    flag = next((f for f in flags().values() if f.name == name or option in (*f.spellings, *f.off)), None)
    return (None, False) if flag is None else (int(flag.kind != "switch"), flag.does == HARMLESS)


_OPTIONS: dict[str, tuple[Callable[[str], int | None], Callable[[str], bool]]] = {
    VLLM: (lambda option: _vllms(option)[0], lambda option: _vllms(option)[1]),
    SGLANG: (sglang.takes, sglang.is_harmless),
    TRTLLM: (trtllm.takes, trtllm.is_harmless),
}
"""By engine: the values that an option takes, and whether it changes no prediction."""
AT_MOST = 3000
"""Requests of a simulation where the line says nothing of traffic: an answer in less than a minute."""


@dataclass
class Translated:
    """A line as an experiment.

    Attributes:
        data: the experiment, as a file would hold it.
        notes: what was assumed or has no effect, one sentence each.
        settings: the engine's settings as vLLM resolves them; None of another engine's line.
        said: the command, in one line.
    """

    data: dict[str, Any]
    notes: list[str]
    settings: EngineSettings | None = None
    said: str = ""
    refused: list[Fault] = field(default_factory=list)

    def text(self) -> str:
        """The experiment as a file, with the notes on top."""
        head = [f"# from: {self.said}", *(f"# {note}" for note in self.notes)]
        blocks = [
            yaml.safe_dump(
                {key: value}, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
            )
            for key, value in self.data.items()
        ]
        return "\n".join([*head, "", *blocks])


def translate(
    text: str,
    *,
    gpu: str | None = None,
    folders: Sequence[Path] = (),
    here: Path | None = None,
    engine: str | None = None,
) -> Translated:
    """The experiment of a text with a server's command, and a benchmark's where there is one.

    Args:
        text: what was pasted.
        gpu: catalogue name; assumed and said where it is None.
        folders: where `config.json` files of models lie.
        here: where the path of `--config` is seen from.
        engine: catalogue name of the build; the newest of the line's engine where it is None.

    Raises:
        InputFaults: everything that the engine or Specfleet refuses.
    """
    try:
        given = commands(text)
        servers = [command for command in given if command.engine not in BENCHES]
        if not servers:
            raise LineFault("no_command", "", "the text starts a benchmark and no server; add its line")
        this = _server(servers[0], gpu or GPU, folders, here, engine)
        if len(servers) > 1:
            this.notes.insert(0, f"the text starts {len(servers)} servers; this is the first")
        benches = [command for command in given if command.engine in BENCHES]
        if benches:
            sends = vllm_bench if benches[0].engine == BENCH else sglang_bench
            sent = sends(benches[0].words, benches[0].loops)
            this.data["workload"] = sent.workload
            this.data |= {"slo": sent.slo} if sent.slo else {}
            this.data |= {"sweep": {"axes": sent.axes}} if sent.axes else {}
            this.notes += sent.notes
        this.notes += [note for command in given for note in command.notes]
    except LineFault as fault:
        raise InputFaults([_fault(one) for one in fault.every]) from None
    if this.refused:
        raise InputFaults(this.refused)
    if gpu is None:
        this.notes.insert(0, f"the line names no GPU: {GPU} is assumed; --gpu NAME, or serve.gpu")
    _completed(this, with_traffic=not benches)
    return this


def _fault(fault: LineFault) -> Fault:
    return Fault(COMMAND_LINE, 0, fault.name, fault.message)


def _server(
    command: Command, gpu: str, folders: Sequence[Path], here: Path | None, engine: str | None
) -> Translated:
    if engine is not None and _known(lambda: lookups.engine(engine), "engine").scheduler != command.engine:
        raise LineFault(
            "engine", "engine", f"{engine} is not started by a line of {command.engine}; leave it out"
        )
    takes, harmless = _OPTIONS[command.engine]
    words, left_out, loose = without_loose(command.words, takes, harmless, bool(command.files))
    words, named = without_paths(words, Configs(folders))
    command = replace(command, words=tuple(words))
    read = {SGLANG: _sglang, TRTLLM: _trtllm}.get(command.engine, _of_vllm)
    try:
        this = read(command, engine, gpu, folders, here)
    except LineFault as fault:
        known = any(one.name == "model" for one in loose)
        others = [one for one in fault.every if not (known and one.kind == "missing_model")]
        raise together([*loose, *others]) from None
    this.refused[:0] = [_fault(fault) for fault in loose]
    this.notes[:0] = [*left_out, *named]
    return this


def _sglang(
    command: Command, engine: str | None, gpu: str, folders: Sequence[Path], here: Path | None
) -> Translated:
    """A line of `sglang.launch_server`."""
    read = sglang.read(command.words, _drafts_itself, _gpu(gpu).compute_capability)
    serve = {"engine": engine or SGLANG, "gpu": gpu, **read.serve}
    data = {"serve": serve} | ({"deployment": read.deployment} if read.deployment else {})
    this = Translated(data, read.notes, said="sglang " + " ".join(command.words))
    this.refused = [Fault(COMMAND_LINE, 0, key, message) for key, message in read.refused.items()]
    if "data_parallel_size" in serve and _is_dense(serve["model"]):
        message = (
            "of a model without experts keeps the layers beside attention on all GPUs, which is not "
            "simulated; leave it out, and --dp-size is as many replicas"
        )
        this.refused.append(Fault(COMMAND_LINE, 0, "--enable-dp-attention", message))
    _named(this, Configs(folders))
    return this


def _of_vllm(
    command: Command, engine: str | None, gpu: str, folders: Sequence[Path], here: Path | None
) -> Translated:
    """A line of `vllm serve`."""
    parsed, wrong = parse_all(command.words, here)
    configs = CatalogConfigs(folders)
    said = "vllm " + " ".join(command.words)
    profile, accelerator = _known(lambda: lookups.engine(engine or ENGINE), "engine"), _gpu(gpu)
    try:
        if profile.name != ENGINE:
            this = _of_an_older_build(parsed, profile.name, gpu, configs, said)
        else:
            settings = resolve(parsed, profile.limits(accelerator), configs)
            this = Translated({}, list(parsed.warnings), settings, said)
            _vllm(this, parsed, settings, gpu, configs)
    except LineFault as fault:
        given = {name: _plain(parsed.values[name]) for name in parsed.given - {"config"}}
        refused = [LineFault("refused", _option(name), why) for name, why in take(given).faults.items()]
        raise together([*wrong, fault, *refused]) from None
    this.refused[:0] = [_fault(fault) for fault in wrong]
    for name, value in command.environment.items():
        if name.startswith("VLLM_"):
            this.notes.append(f"the environment variable {name}={value} is read past")
    return this


def _named(this: Translated, configs: Configs) -> None:
    """Model and drafter of another engine's line, by their names here."""
    serve = this.data["serve"]
    try:
        named_model(serve, configs)
    except LineFault as fault:
        this.refused.append(_fault(fault))
        return
    if isinstance(config := serve.get("speculative_config"), dict):
        config["model"], notes = drafter_block(config.get("model"), config["method"], serve["model"], configs)
        this.notes += notes
        if config["model"] is None:
            del config["model"]


def _trtllm(
    command: Command, engine: str | None, gpu: str, folders: Sequence[Path], here: Path | None
) -> Translated:
    """A line of `trtllm-serve` with its file of options."""
    read = trtllm.read(command.words, command.files, here)
    said = "trtllm-serve " + " ".join(command.words)
    serve = {"engine": engine or TRTLLM, "gpu": gpu, **read.serve}
    this = Translated({"serve": serve}, read.notes, said=said)
    this.refused = [Fault(COMMAND_LINE, 0, key, message) for key, message in read.refused.items()]
    _named(this, Configs(folders))
    return this


def _of_an_older_build(parsed: Parsed, engine: str, gpu: str, configs: Configs, said: str) -> Translated:
    """A line whose lengths and `--speculative-config` its build resolves by its own rules, as a file's."""
    serve: dict[str, Any] = {"engine": engine, "model": parsed.model, "gpu": gpu}
    if parsed.model is None:
        raise LineFault("missing_model", "model", "is not on the command line; add it")
    named_model(serve, configs)
    own = {"model", "model_tag", "config", "speculative_config", *SHORT_FORMS}
    given = {name: _plain(parsed.values[name]) for name in parsed.given - own} | {"model": serve["model"]}
    config = speculative_json(parsed.values)
    taken = take(given)
    serve |= {name: _listed(value) for name, value in taken.serve.items()}
    this = Translated({"serve": serve}, [*parsed.warnings, *taken.all_notices()], said=said)
    if config is not None:
        if missing := [key for key in ("method", "num_speculative_tokens") if config.get(key) is None]:
            message = f"{' and '.join(missing)} must be named for {engine}; add what the server used"
            raise LineFault("missing_value", "speculative_config", message)
        named, notes = drafter_block(config.get("model"), config["method"], serve["model"], configs)
        serve["speculative_config"] = config | ({} if named is None else {"model": named})
        this.notes += notes
    if taken.deployment:
        this.data["deployment"] = taken.deployment
    this.refused = [Fault(COMMAND_LINE, 0, name, message) for name, message in taken.faults.items()]
    this.notes.append(f"flags are read as {ENGINE} spells them; lengths and drafts follow {engine}")
    return this


def _gpu(name: str) -> Any:
    return _known(lambda: lookups.accelerator(name), "gpu")


def _known(look_up: Callable[[], Any], key: str) -> Any:
    """A catalogue entry; a fault of the line where there is none of that name."""
    try:
        return look_up()
    except ValueError as error:
        raise LineFault(key, key, str(error)) from None


def _vllm(this: Translated, parsed: Parsed, settings: EngineSettings, gpu: str, configs: Configs) -> None:
    """Fills in `serve:`, and what is refused."""
    own = {"model", "model_tag", "config", "hf_config_path", "hf_overrides", "performance_mode", *SHORT_FORMS}
    own |= {"speculative_config", "max_model_len", "max_num_seqs", "max_num_batched_tokens"}
    values = parsed.values
    serve: dict[str, Any] = {"engine": ENGINE, "model": settings.config.name, "gpu": gpu}
    if settings.config.path is not None and values["hf_config_path"]:
        serve["model"] = {"hf_config": str(settings.config.path)}
    named_model(serve, configs)
    given: dict[str, Any] = {"gpu": gpu} | {name: _plain(values[name]) for name in parsed.given - own}
    given |= {"model": serve["model"], "tensor_parallel_size": values["tensor_parallel_size"]}
    given |= {name: values[name] for name in ("hf_overrides", "performance_mode") if values[name]}
    if values["performance_mode"] == "throughput":
        del given["performance_mode"]
    if given.get("performance_mode") == "balanced":
        del given["performance_mode"]
    taken = take(given)
    _quantization(taken.serve, settings)
    serve |= {name: _listed(value) for name, value in taken.serve.items()}
    serve |= {
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
    }
    for name, message in taken.faults.items():
        this.refused.append(Fault(COMMAND_LINE, 0, _option(name), message))
    this.notes += taken.all_notices()
    this.data = {"serve": {key: value for key, value in serve.items() if value is not None}}
    if taken.deployment:
        this.data["deployment"] = taken.deployment
    if settings.speculation is not None:
        _speculation(this, settings, configs)


def _option(name: str) -> str:
    """A flag of vLLM as it is typed."""
    return flags()[name].option if name in flags() else name


def _quantization(serve: dict[str, Any], settings: EngineSettings) -> None:
    """Formats that the checkpoint brings itself are not asked for again."""
    if serve.get("quantization") is not None and settings.config.quantization is not None:
        del serve["quantization"]


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _speculation(this: Translated, settings: EngineSettings, configs: Configs) -> None:
    """`speculative_config` as the block takes it."""
    speculation = settings.speculation
    assert speculation is not None
    method = "ngram" if speculation.method == "ngram_gpu" else speculation.method
    if method in ("custom_class", "extract_hidden_states"):
        message = f"{method} drafts with code of its own and is not simulated; the nearest is a draft_model"
        this.refused.append(Fault(COMMAND_LINE, 0, "speculative_config.method", message))
        return
    block: dict[str, Any] = {"method": method}
    given = {k: v for k, v in speculation.fields.items() if v is not None and v != FIELDS[k][1]}
    if speculation.draft_tensor_parallel_size is not None:
        own = speculation.model != settings.config.name
        named = speculation.model if own else None
        block["model"], notes = drafter_block(named, method, this.data["serve"]["model"], configs)
        this.notes += notes
    block["num_speculative_tokens"] = speculation.num_speculative_tokens
    if speculation.lookup is not None:
        block |= dict(zip(("prompt_lookup_min", "prompt_lookup_max"), speculation.lookup, strict=True))
    skip = {"method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"}
    if method in ("mtp", "dspark") and given.get("quantization") == settings.quantization:
        skip.add("quantization")
    if method != "draft_model" and not speculation.skips_beyond:
        skip.add("max_model_len")
    this.data["serve"]["speculative_config"] = block | {k: v for k, v in given.items() if k not in skip}
    if speculation.lowers_to is not None:
        this.notes.append(
            f"vLLM lowers max_model_len from {settings.asked_max_model_len} to {speculation.lowers_to}, as "
            "far as the drafter reaches, and refuses longer requests"
        )


def _completed(this: Translated, with_traffic: bool) -> None:
    """Acceptance, traffic and axes: what a line cannot say."""
    serve = this.data["serve"]
    if with_traffic:
        workload = dict(_WORKLOAD)
        longest = serve.get("max_model_len") or 1 << 30
        if longest < sum(workload[key]["uniform"]["high"] for key in ("input", "output")):
            parts = {"input": (longest // 4, longest * 3 // 4), "output": (longest // 32, longest // 8)}
            workload |= {
                key: {"uniform": {"low": max(1, low), "high": max(1, high)}}
                for key, (low, high) in parts.items()
            }
        this.data["workload"] = workload
        this.notes.append(
            "the traffic is assumed: replace workload (spelled as in vllm bench serve) with yours"
        )
        this.data["run"] = {"at_most": AT_MOST}
        this.data["sweep"] = {"axes": {"workload.max_concurrency": _LOADS}}
    config = serve.get("speculative_config")
    if not config:
        return
    k, key = config.get("num_speculative_tokens"), "serve.speculative_config.num_speculative_tokens"
    if config.get("rejection_sample_method") != "synthetic":
        this.data["acceptance"], how = acceptance_for(config["method"], serve["model"], k)
        prints = _PRINTS[lookups.engine(serve["engine"]).scheduler]
        this.notes.append(f"acceptance is {how}: {prints}; replace the block")
    fixed = "num_speculative_tokens_per_batch_size" in config or "draft_tree" in serve
    if config.get("rejection_sample_method") != "synthetic" and not fixed:
        this.data.setdefault("sweep", {"axes": {}})["axes"][key] = [0, k]
        this.data["report"] = {"baseline": {key: 0}}


def resolved_settings(
    text: str, *, gpu: str | None = None, folders: Sequence[Path] = (), here: Path | None = None
) -> dict[str, object]:
    """What vLLM makes of a line, whether it can be simulated or not: `settings`, `speculative`, `warnings`.

    Raises:
        InputFaults: what vLLM refuses.
    """
    try:
        command = next(c for c in commands(text) if c.engine not in BENCHES)
        if command.engine == SGLANG:
            return {"serve": sglang.read(command.words, _drafts_itself).serve}
        if command.engine == TRTLLM:
            return {"serve": trtllm.read(command.words, command.files, here).serve}
        parsed = parse(command.words, here)
        limits = lookups.engine(ENGINE).limits(_gpu(gpu or GPU))
        found_ = resolve(parsed, limits, CatalogConfigs(folders))
    except LineFault as fault:
        raise InputFaults([_fault(one) for one in fault.every]) from None
    return {
        "given": {name: parsed.values[name] for name in sorted(parsed.given)},
        "settings": shown.settings(found_),
        "speculative": shown.drafting(found_),
        "warnings": list(parsed.warnings),
    }


def _drafts_itself(name: str) -> bool:
    """Whether a model has MTP layers."""
    model = found(lambda: lookups.model(name))
    return model is not None and model.mtp_layers > 0


def _is_dense(name: str) -> bool:
    """Whether a model is known to have no experts."""
    model = found(lambda: lookups.model(name))
    return model is not None and not model.num_experts
