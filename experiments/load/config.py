"""An experiment file, read, checked and completed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from specfleet.experiments.load.baseline import plain_baseline
from specfleet.experiments.load.dumping import dumped
from specfleet.experiments.load.gridcheck import GridCheck
from specfleet.experiments.load.load_range import axis_key, load_axis, stand_in
from specfleet.experiments.load.rules.acceptance import acceptance_notices, elsewhere
from specfleet.experiments.load.rules.in_step import in_step_notices
from specfleet.experiments.load.rules.memory import turn_notices
from specfleet.experiments.load.rules.mix import mix_notices
from specfleet.experiments.load.rules.own import own_notices
from specfleet.experiments.load.rules.reach import reach_notices
from specfleet.experiments.load.rules.report import summary_notices
from specfleet.experiments.load.rules.sessions import session_notices
from specfleet.experiments.load.rules.sglang import sglang_notices
from specfleet.experiments.load.rules.speculation import NOT_MODELLED, speculation_notices
from specfleet.experiments.load.rules.trtllm import trtllm_notices
from specfleet.experiments.load.rules.until import until_notices
from specfleet.experiments.load.rules.workload import workload_notices
from specfleet.experiments.load.serve_flags import with_flags
from specfleet.experiments.point.acceptance_specs import written_out
from specfleet.experiments.point.plugins import content, load_plugins
from specfleet.experiments.schema import class_names, lookups, pools, prices, sglang_names, trtllm_names
from specfleet.experiments.schema.blocks.acceptance import Process, processes
from specfleet.experiments.schema.blocks.base import Block
from specfleet.experiments.schema.blocks.experiment import Experiment, Report
from specfleet.experiments.schema.blocks.own import Plugin
from specfleet.experiments.schema.blocks.serve import SpeculativeConfig, from_json
from specfleet.experiments.schema.blocks.tree import DraftTree
from specfleet.experiments.schema.blocks.workload import TrafficClass
from specfleet.experiments.schema.faults import NO_FILES, Fault, InputFaults, UserError
from specfleet.experiments.schema.given import Given
from specfleet.experiments.schema.given import document as read_given
from specfleet.experiments.schema.overrides import Override, overridden
from specfleet.experiments.schema.pools import deployment_said, pool_experiments
from specfleet.experiments.schema.yamlfile import Document, KeyPath, Value
from specfleet.sim.config import ON_HOST
from specfleet.sim.speculation.spec import UNFIT_FOR_TAILS

AnyBlock = TypeVar("AnyBlock", bound=Block)


@dataclass(frozen=True)
class Loaded:
    """An experiment, and what its user should know about it.

    Args:
        experiment: every default filled in that is the same for all points.
        notices: assumptions made for the user, one sentence each.
    """

    experiment: Experiment
    notices: tuple[str, ...]


def load_experiment(given: Given, overrides: Iterable[Override] = ()) -> Experiment:
    """The experiment of a file or mapping with changes, complete and free of faults; else InputFaults."""
    return load(given, overrides).experiment


def load(given: Given, overrides: Iterable[Override] = ()) -> Loaded:
    """The experiment of a file or mapping, and its notices; InputFaults with everything that is wrong."""
    document, said = with_flags(overridden(read_given(given), overrides))
    document = class_names.translated(pools.translated(_engine_words(document), _engine_words))
    document = prices.translated(prices.with_day_there(document))
    data = _ready(document)
    if faults := list(_plugin_faults(data.get("plugins"), document)):
        raise InputFaults([*document.faults, *faults])
    data, found = _with_loads(document, data)
    grid = _sound(document, data)
    notices = (*said, *found, *_notices(grid.experiment, grid.points))
    return Loaded(_completed(grid.experiment, grid.points), notices)


def _engine_words(document: Document) -> Document:
    """The document with SGLang's and TensorRT-LLM's names of `serve` as this package says them."""
    return trtllm_names.translated(sglang_names.translated(document))


def _sound(document: Document, data: dict[str, Value]) -> GridCheck:
    """The grid of values without faults; InputFaults with all of them."""
    grid = GridCheck(document, data)
    grid.run()
    if grid.faults:
        raise InputFaults(grid.faults)
    return grid


def _with_loads(document: Document, data: dict[str, Value]) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The values with the axis that `sweep.load` asks for, and what to say of it."""
    sweep = data.get("sweep")
    if not isinstance(sweep, dict) or sweep.get("load") is None:
        return data, ()
    asked = GridCheck(document, data)
    asked.check_load()
    if asked.faults:
        raise InputFaults(asked.faults)
    key = axis_key(asked.experiment)
    bare = stand_in(key, data)
    found = load_axis(key, _sound(document, bare).points)
    axes = sweep.get("axes") if isinstance(sweep.get("axes"), dict) else {}
    assert isinstance(axes, dict)
    return {**data, "sweep": {"axes": {found.key: found.values, **axes}}}, (found.notice,)


def as_given(given: Given, overrides: Iterable[Override] = ()) -> str:
    """A file with its changes as YAML that can lie anywhere: nothing filled in, files named in full."""
    data = _ready(prices.seen_from_anywhere(overridden(read_given(given), overrides)))
    return dumped(data)


def resolved(experiment: Experiment) -> str:
    """The experiment as YAML with every default written out; loading it gives an equal experiment.

    Left out are the fields of `speculative_config` that have no other value than their default, and what is
    said of one's own code where there is none.
    """
    data = experiment.model_dump()
    plugins = [plugin.model_dump(exclude_none=True) for plugin in experiment.plugins]
    data |= {"plugins": plugins}
    if not plugins:
        del data["plugins"]
    own, said = data["acceptance"], experiment.acceptance
    if isinstance(said, dict):
        data["acceptance"] = {name: _said(process, own[name]) for name, process in said.items()}
    elif said is not None:
        data["acceptance"] = _said(said, own)
    if data["sweep"]["load"] is None:
        del data["sweep"]["load"]
    data["deployment"] = deployment_said(experiment)
    if (mix := experiment.workload.mix) is not None:
        data["workload"]["mix"] = {
            name: each.model_dump(exclude_none=True) if isinstance(each, TrafficClass) else each
            for name, each in mix.items()
        }
    for key in ("sglang", "capacity_scheduler_policy"):
        if data["serve"][key] is None:
            del data["serve"][key]
    speculative = data["serve"]["speculative_config"]
    for key in NOT_MODELLED if speculative else ():
        if speculative[key] == SpeculativeConfig.model_fields[key].default:
            del speculative[key]
    return dumped(data)


def _said(process: Process, data: dict[str, object]) -> dict[str, object]:
    """What a process says: the keys of the shipped ones, or the parameters of one of one's own."""
    if process.process is None:
        left = {"process"} | ({"concentration"} if process.spread_unknown else set())
        return {key: value for key, value in data.items() if key not in left}
    return {"source": process.source, "process": process.process, **process.own}


def _ready(document: Document) -> dict[str, Value]:
    """The document's values with its name, JSON texts read, and trace paths made absolute.

    A JSON text that cannot be read stays as it is: the schema says what is wrong with it.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(document.file).stem).strip("-._")
    data: dict[str, Value] = {"name": stem or "experiment", **document.data}
    data = {key: _with_configs(value, (key,), document) for key, value in data.items()}
    _ready_trace(data, document)
    for block, key in (("serve", "speculative_config"),):
        here = data.get(block)
        if isinstance(here, dict) and key in here:
            file = document.mark((block, key)).file
            data[block] = {**here, key: _ready_value(key, here[key], file)}
    if isinstance(data.get("acceptance"), dict):
        data["acceptance"] = _with_replays(data["acceptance"], ("acceptance",), document)
    data = _with_scale(data)
    plugins = data.get("plugins")
    if isinstance(plugins, tuple):
        files = [document.mark(("plugins", i)).file for i in range(len(plugins))]
        data["plugins"] = tuple(map(_ready_plugin, plugins, files))
    sweep = data.get("sweep")
    axes = sweep.get("axes") if isinstance(sweep, dict) else None
    if isinstance(sweep, dict) and isinstance(axes, dict):
        data["sweep"] = {**sweep, "axes": {key: _ready_axis(key, axes[key], document) for key in axes}}
    return data


def _ready_trace(data: dict[str, Value], document: Document) -> None:
    """The mapping form of a trace, its file seen from the file that names it."""
    workload = data.get("workload")
    if not isinstance(workload, dict):
        return
    workload = _with_trace(workload, ("workload",), document)
    if isinstance(mix := workload.get("mix"), dict):
        workload["mix"] = {
            name: _with_trace(each, ("workload", "mix", name), document) if isinstance(each, dict) else each
            for name, each in mix.items()
        }
    data["workload"] = workload


def _with_trace(here: dict[str, Value], path: tuple[str, ...], document: Document) -> dict[str, Value]:
    """What a workload, or a class of it, says, its trace seen from the file that names it."""
    trace = here.get("trace")
    if isinstance(trace, dict) and "file" in trace:
        there = _ready_value("trace", trace["file"], document.mark((*path, "trace", "file")).file)
        return {**here, "trace": {**trace, "file": there}}
    if isinstance(trace, str):
        return {**here, "trace": _ready_value("trace", trace, document.mark((*path, "trace")).file)}
    return dict(here)


def _with_configs(value: Value, path: KeyPath, document: Document) -> Value:
    """A value whose `hf_config:` paths are seen from the file that they are written in."""
    if isinstance(value, tuple):
        return tuple(_with_configs(child, (*path, i), document) for i, child in enumerate(value))
    if not isinstance(value, dict):
        return value
    found = {key: _with_configs(child, (*path, key), document) for key, child in value.items()}
    named = found.get("hf_config")
    if isinstance(named, str):
        there = str(_ready_value("trace", named, document.mark(path).file))
        found["hf_config"] = (
            there if lookups.is_there(there) or not lookups.is_there(named) else str(Path(named).resolve())
        )
    return found


def _with_scale(data: dict[str, Value]) -> dict[str, Value]:
    """`acceptance: {scale: 0.8}` counts for every traffic class, and for the drafters of a plan."""
    block = data.get("acceptance")
    if not isinstance(block, dict) or "scale" not in block:
        return data
    scale, rest = block["scale"], {key: value for key, value in block.items() if key != "scale"}
    if rest and not rest.keys() & Process.model_fields.keys():
        data = {**data, "acceptance": {name: _scaled(child, scale) for name, child in rest.items()}}
    plan = data.get("plan")
    listed = plan.get("candidates") if isinstance(plan, dict) else None
    ways = listed.get("drafting") if isinstance(listed, dict) else None
    if not isinstance(plan, dict) or not isinstance(listed, dict) or not isinstance(ways, tuple):
        return data
    drafting = tuple(
        {**way, "acceptance": _scaled(way["acceptance"], scale)}
        if isinstance(way, dict) and "acceptance" in way
        else way
        for way in ways
    )
    data = {**data, "plan": {**plan, "candidates": {**listed, "drafting": drafting}}}
    return data if rest else {key: value for key, value in data.items() if key != "acceptance"}


def _scaled(given: Value, scale: Value) -> Value:
    """An acceptance block, or one a class, with a scale where it has none of its own."""
    if not isinstance(given, dict):
        return given
    if given.keys() & Process.model_fields.keys():
        return {"scale": scale, **given}
    return {name: _scaled(child, scale) for name, child in given.items()}


def _ready_plugin(value: Value, file: str) -> Value:
    """A plugin as a mapping: a Python file, seen from the file it is written in, or a module."""
    if isinstance(value, dict) and "file" in value:
        return {**value, "file": _ready_value("trace", value["file"], file)}
    if not isinstance(value, str):
        return value
    return {"file": _ready_value("trace", value, file)} if value.endswith(".py") else {"module": value}


def _plugin_faults(plugins: Value, document: Document) -> Iterator[Fault]:
    """Loads the plugins; what keeps one from it. What is none, the schema says."""
    for i, value in enumerate(plugins if isinstance(plugins, tuple) else ()):
        try:
            plugin = Plugin.model_validate(value)
            if (plugin.file is None) == (plugin.module is None):
                raise UserError("must have a file or a module; write `plugins: [mine.py]`")
            load_plugins([plugin])
        except ValidationError:
            continue
        except UserError as error:
            mark = document.mark(("plugins", i))
            yield Fault(mark.file, mark.line, f"plugins[{i}]", str(error))


def _pinned(plugins: tuple[Plugin, ...]) -> tuple[Plugin, ...]:
    """Plugins with the hash of what was loaded."""
    return tuple(plugin.model_copy(update={"sha256": content(plugin)[1]}) for plugin in plugins)


def _with_replays(here: Value, path: tuple[str, ...], document: Document) -> Value:
    """An acceptance block, or one a class, with the files of recorded requests made absolute."""
    if not isinstance(here, dict):
        return here
    return {
        key: _ready_value("trace", child, document.mark((*path, key)).file)
        if key == "replay"
        else (_with_replays(child, (*path, key), document) if len(path) == 1 else child)
        for key, child in here.items()
    }


def _ready_axis(key: str, values: Value, document: Document) -> Value:
    """The values of an axis, as `_ready` treats the key itself."""
    end = key.rpartition(".")[2]
    replays = key.startswith("acceptance.") and end == "replay"
    if not (replays or key in ("serve.speculative_config", "workload.trace")) or not isinstance(
        values, tuple
    ):
        return values
    file = document.mark(("sweep", "axes", key)).file
    return tuple(_ready_value("trace" if replays else end, value, file) for value in values)


def _ready_value(key: str, value: Value, file: str) -> Value:
    """A JSON text as a mapping, or a path seen from the file it is written in."""
    if not isinstance(value, str):
        return value
    if key == "trace":
        folder = Path() if file in NO_FILES else Path(file).parent
        return str((folder / value).resolve())
    try:
        return from_json(value)
    except ValueError:
        return value


def _completed(experiment: Experiment, points: list[Experiment]) -> Experiment:
    """The experiment with every default that all its points share; a default that differs stays null."""
    axes = tuple(experiment.sweep.axes)
    if not any(key.startswith("acceptance") for key in axes):
        experiment = experiment.model_copy(
            update={"acceptance": _profiles_written_out(experiment.acceptance)}
        )
    experiment = experiment.model_copy(update={"plugins": _pinned(experiment.plugins)})
    report = experiment.report
    shown: dict[str, object] = {
        "x": report.x or next(iter(axes), None),
        "lines": report.lines or next(iter(axes[1:]), None),
    }
    if report.baseline is None and (baseline := plain_baseline(experiment.sweep.axes)) is not None:
        shown |= {"baseline": baseline}
    completed = _shared(experiment, points)
    if experiment.deployment.pools:
        completed = completed.model_copy(update={"deployment": experiment.deployment})
    return completed.model_copy(update={"report": Report.model_validate(report.model_dump() | shown)})


def _profiles_written_out(given: Process | dict[str, Process] | None) -> Process | dict[str, Process] | None:
    """The acceptance with the numbers of its profiles in place of their names."""
    if isinstance(given, dict):
        return {name: written_out(process) for name, process in given.items()}
    return written_out(given) if given else None


def _shared(base: AnyBlock, points: list[AnyBlock]) -> AnyBlock:
    """A block whose null values take what all the points have in their place."""
    update: dict[str, object] = {}
    for key in type(base).model_fields:
        value = getattr(base, key)
        there = [getattr(point, key) for point in points]
        if value is None:
            if there and there[0] is not None and all(other == there[0] for other in there):
                update[key] = there[0]
        elif isinstance(value, DraftTree):
            update[key] = there[0] if there and all(other == there[0] for other in there) else value
        elif isinstance(value, Block):
            update[key] = _shared(value, [other for other in there if isinstance(other, type(value))])
        elif key == "acceptance":
            by_class = [other for other in there if isinstance(other, dict)]
            update[key] = {
                name: _shared(process, [p[name] for p in by_class if name in p])
                for name, process in value.items()
            }
    if points and all(point.model_extra == points[0].model_extra for point in points):
        update |= points[0].model_extra or {}
    return base.model_copy(update=update)


def _hot(points: list[Experiment], name: str) -> bool:
    """Whether a request of a class samples at a temperature above 0; of any class for ""."""
    loads = [point.workload for point in points]
    return any(
        (load.of_class(name).temperature if name in load.classes else load.hottest) > 0 for load in loads
    )


def _notices(experiment: Experiment, points: list[Experiment]) -> Iterator[str]:
    """What was assumed, and what has no effect."""
    yield from summary_notices(points)
    yield from until_notices(experiment, points)
    points = [pool for point in points for pool in pool_experiments(point).values()]
    yield from own_notices(points)
    yield from workload_notices(points)
    yield from mix_notices(points)
    yield from turn_notices(points)
    yield from session_notices(points)
    yield from sglang_notices(experiment, points)
    yield from trtllm_notices(experiment, points)
    if experiment.plan is None:
        yield from in_step_notices(points)
    drafting = [c for point in points if (c := point.serve.speculative_config) is not None]
    if not drafting:
        return
    yield from reach_notices(experiment, points)
    if experiment.serve.speculative_config is not None:
        yield from speculation_notices(experiment.serve.speculative_config)
    if any(c.rejection_sample_method == "synthetic" for c in drafting):
        yield UNFIT_FOR_TAILS
    looked_up = any(c.method in ON_HOST for c in drafting)
    for name, process in processes(experiment.acceptance).items():
        block = f"acceptance.{name}" if name else "acceptance"
        yield from acceptance_notices(process, block, looked_up, _hot(points, name))
    yield from dict.fromkeys(
        said
        for point in points
        for name, process in processes(point.acceptance).items()
        for said in elsewhere(process, point, f"acceptance.{name}" if name else "acceptance")
    )
