"""Each pool of a file as an experiment of its own: its keys in place of those at the top."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from specfleet.experiments.schema.blocks.deployment import Routing
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.yamlfile import Document, KeyPath, Value


def pool_names(config: Experiment) -> tuple[str, ...]:
    """The pools of a file; none where all replicas are alike."""
    return tuple(config.deployment.pools or ())


def pool_data(data: Mapping[str, Value], name: str) -> dict[str, Value]:
    """The plain values of one pool's experiment, from those of the file."""
    deployment = data["deployment"]
    assert isinstance(deployment, dict)
    pools = deployment["pools"]
    assert isinstance(pools, dict)
    pool = pools[name]
    assert isinstance(pool, dict)
    serve, own = data.get("serve"), pool.get("serve")
    replicas: Value = {key: pool[key] for key in ("replicas", "slow", "autoscale", "spot") if key in pool}
    changed: dict[str, Value] = {"deployment": replicas}
    if isinstance(own, dict):
        changed["serve"] = {**(serve if isinstance(serve, dict) else {}), **own}
    if "acceptance" in pool:
        changed["acceptance"] = pool["acceptance"]
    return {**data, **changed}


def pool_experiments(config: Experiment) -> dict[str, Experiment]:
    """Pool -> its experiment; the experiment itself, under "", where all replicas are alike."""
    names = pool_names(config)
    if not names:
        return {"": config}
    data = config.model_dump(exclude_unset=True)
    return {name: Experiment.model_validate(pool_data(data, name)) for name in names}


def longest_of(config: Experiment) -> int | None:
    """The tokens of the longest request that some pool of a filled experiment holds: its max_model_len.

    Where pools have roles both must hold it. None where the model is not known.
    """
    by_role: dict[str | None, list[int]] = {}
    for pool in (config.deployment.pools or {}).values():
        own = pool.serve.get("max_model_len", config.serve.max_model_len)
        if isinstance(own, int):
            by_role.setdefault(pool.role, []).append(own)
    return min(map(max, by_role.values()), default=config.serve.max_model_len)


def pool_path(path: KeyPath, name: str) -> KeyPath:
    """Where a pool would say what stands at a key of the top."""
    return ("deployment", "pools", name, *path)


def written_path(path: KeyPath, name: str, written: Container[KeyPath]) -> KeyPath:
    """Where a key of a pool's experiment was written: in the pool, or at the top."""
    if path[:1] == ("deployment",):
        return pool_path(path[1:], name)
    least = 2 if path[:1] == ("serve",) else 1
    if path[:1] in (("serve",), ("acceptance",)):
        for length in range(len(path), least - 1, -1):
            if pool_path(path[:length], name) in written:
                return pool_path(path, name)
    return path


_SEPARATE = ("pools", "slow", "gateway", "autoscale", "spot", "failures", "kv_transfer")


def deployment_said(experiment: Experiment) -> dict[str, object]:
    """The deployment: of a pool what it says itself, for what it leaves out is as at the top."""
    deployment = experiment.deployment
    said = deployment.model_dump(exclude={*_SEPARATE})
    if isinstance(deployment.router, Routing):
        said["router"] = deployment.router.model_dump(exclude_none=True)
    if deployment.gateway is not None:
        said["gateway"] = deployment.gateway.model_dump()
    if deployment.autoscale is not None:
        del said["replicas"]
        said["autoscale"] = deployment.autoscale.model_dump()
    if deployment.spot is not None:
        said["spot"] = deployment.spot.model_dump(exclude_none=True)
    if deployment.failures is not None:
        failures = deployment.failures.model_dump(exclude_none=True, exclude={"pools"})
        own = deployment.failures.pools or {}
        named = {name: one.model_dump(exclude_unset=True) for name, one in own.items()}
        said["failures"] = failures | ({"pools": named} if named else {})
    if deployment.kv_transfer is not None:
        said["kv_transfer"] = deployment.kv_transfer.model_dump(exclude_none=True)
    if deployment.slow:
        said["slow"] = deployment.model_dump(include={"slow"}, exclude_none=True)["slow"]
    if deployment.pools:
        pools = {name: pool.model_dump(exclude_unset=True) for name, pool in deployment.pools.items()}
        said.pop("replicas", None)
        said["pools"] = pools
    return said


def translated(document: Document, words: Callable[[Document], Document]) -> Document:
    """The document with the `serve` of each pool translated as the one at the top is, and the axes over it.

    Args:
        document: whose top is translated already, so a pool's engine and GPUs can be read there.
        words: translates the `serve` of a document, and nothing else of one that has only that.
    """
    deployment = document.data.get("deployment")
    pools = deployment.get("pools") if isinstance(deployment, dict) else None
    if not isinstance(deployment, dict) or not isinstance(pools, dict):
        return document
    top, sweep = document.data.get("serve"), document.data.get("sweep")
    there = {name: top[name] for name in _READ_THERE if name in top} if isinstance(top, dict) else {}
    axes = sweep.get("axes") if isinstance(sweep, dict) else None
    swept = axes if isinstance(axes, dict) else {}
    said, named = dict(pools), {key: (key, values) for key, values in swept.items()}
    for name, pool in pools.items():
        own = pool.get("serve", {}) if isinstance(pool, dict) else None
        if not isinstance(pool, dict) or not isinstance(own, dict):
            continue
        document, serve, axes_said = _in_pool(document, name, {**there, **own}, swept, words)
        kept = {key: value for key, value in serve.items() if key in own or there.get(key) != value}
        said[name] = {**pool, "serve": kept} if "serve" in pool else pool
        named |= axes_said
    data = {**document.data, "deployment": {**deployment, "pools": said}}
    if isinstance(sweep, dict) and named:
        data["sweep"] = {**sweep, "axes": dict(named.values())}
    return replace(document, data=data)


_Axes = dict[str, tuple[str, Value]]
"""Swept keys as they were typed, with the name here and the values."""


def _in_pool(
    document: Document,
    name: str,
    serve: dict[str, Value],
    swept: Mapping[str, Value],
    words: Callable[[Document], Document],
) -> tuple[Document, dict[str, Value], _Axes]:
    """Translates what a file says of one pool.

    Args:
        document: the file.
        name: of the pool.
        serve: its block, with what decides how it is read.
        swept: the axes of the file.
        words: as in `translated`.

    Returns:
        The file with marks and faults of the translation; the block; the axes over it, by what was typed.
    """
    path, prefix = pool_path(("serve",), name), f"deployment.pools.{name}."
    mine = {key.removeprefix(prefix): key for key in swept if key.startswith(f"{prefix}serve.")}
    under = {at[len(path) - 1 :]: mark for at, mark in document.marks.items() if at[: len(path)] == path}
    for at, mark in document.marks.items():
        if at[:2] == ("sweep", "axes") and len(at) > 2 and str(at[2]) in mine.values():
            under["sweep", "axes", str(at[2]).removeprefix(prefix), *at[3:]] = mark
    data: dict[str, Value] = {"serve": serve}
    if mine:
        data["sweep"] = {"axes": {short: swept[key] for short, key in mine.items()}}
    done = words(replace(document, data=data, marks=under, faults=()))
    marks = dict(document.marks)
    for at, mark in done.marks.items():
        if at[:2] == ("sweep", "axes"):
            marks["sweep", "axes", f"{prefix}{at[2]}", *at[3:]] = mark
        else:
            marks[pool_path(at, name)] = mark
    faults = [replace(fault, key=f"{prefix}{fault.key}") for fault in done.faults]
    document = replace(document, marks=marks, faults=(*document.faults, *faults))
    found, sweep = done.data["serve"], done.data.get("sweep")
    assert isinstance(found, dict)
    axes = sweep.get("axes") if isinstance(sweep, dict) else None
    said = axes.items() if isinstance(axes, dict) else ()
    pairs = zip(mine.values(), said, strict=True)
    return document, found, {key: (f"{prefix}{new}", values) for key, (new, values) in pairs}


_READ_THERE = ("engine", "model", "tensor_parallel_size")
"""Keys of the top's `serve` that decide how a pool's words are read."""
