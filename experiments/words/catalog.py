"""`specfleet catalog`: what an experiment can name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults, did_you_mean
from specfleet.experiments.words.table import Column, table_text
from specfleet.hardware import catalog
from specfleet.hardware.model import DrafterSpec, ModelSpec

KINDS = ("models", "drafters", "accelerators", "engines", "workloads", "acceptance")


def _names(kind: str) -> tuple[str, ...]:
    if kind == "workloads":
        # Here, because it brings numpy, and the other kinds need not wait for it.
        from specfleet.workloads.profiles import preset_names

        return tuple(preset_names())
    if kind == "acceptance":
        return lookups.acceptance_profile_names()
    return tuple(catalog.names(kind))


def _record(kind: str, name: str) -> object:
    finders: dict[str, Callable[[str], object]] = {
        "models": lookups.model,
        "drafters": lookups.drafter,
        "accelerators": lookups.accelerator,
        "engines": lookups.engine,
        "workloads": lookups.preset,
        "acceptance": lookups.acceptance_profile,
    }
    return finders[kind](name)


def catalog_text(kind: str | None, name: str | None) -> str:
    """Returns the entries of a kind (or of all) with what one chooses by, or one entry field by field.

    Raises:
        InputFaults: for an unknown kind or name.
    """
    if kind is not None and kind not in KINDS:
        raise InputFaults([Fault(COMMAND_LINE, 0, kind, f"no such kind; {did_you_mean(kind, KINDS)}")])
    if kind is None or name is None:
        chosen = KINDS if kind is None else (kind,)
        return "\n\n".join(f"{k}:\n{_table(k)}" for k in chosen)
    try:
        record = _record(kind, name)
    except ValueError as error:
        raise InputFaults([Fault(COMMAND_LINE, 0, name, str(error))]) from None
    return "\n".join([name, *_fields(record)])


def _table(kind: str) -> str:
    """The entries of a kind, a line each."""
    columns, row = _TABLES[kind]
    return table_text([Column("name", left=True), *columns], [(n, *row(n)) for n in _names(kind)], indent=2)


def _model_row(name: str) -> tuple[object, ...]:
    model = lookups.model(name)
    active = model.active_parameters
    whole = model.parameters
    heads = [d for d in catalog.names("drafters") if _fits(lookups.drafter(d), model)]
    return (
        whole / 1e9,
        active / 1e9 if active < 0.99 * whole else None,
        model.weight_bytes(None, 1) / 1e9,
        model.kv_bytes_per_token("auto", 1) / 1e3,
        _holds(model.weight_bytes(None, 1)),
        len(heads) or None,
        _accepted(lambda measured: measured in (model.hf_id, model.name)),
    )


def _fits(drafter: DrafterSpec, model: ModelSpec) -> bool:
    """Whether a head has the shape that it would have for a model."""
    own = drafter.model
    alike = own is not None and own.vocab_size == model.vocab_size
    return bool(drafter.target_hidden_size == model.hidden_size and alike)


def _holds(weights: int) -> str:
    """The fewest H100 and H200 whose memory holds weights, an eighth left for the KV cache."""
    said = []
    for name in ("h100-sxm", "h200"):
        room = 0.8 * lookups.accelerator(name).hbm_bytes
        gpus = next((n for n in (1, 2, 4, 8) if weights <= n * room), None)
        said.append(f"{gpus} x {name.partition('-')[0]}" if gpus else "")
    return ", ".join(filter(None, said)) or "more than 8"


def _accepted(measured_on: Callable[[str], bool]) -> str | None:
    """Tokens a round at K = 3 of the shipped profiles that were measured on a model: lowest to highest."""
    found = []
    for name in lookups.acceptance_profile_names():
        profile = lookups.acceptance_profile(name)
        where = profile.measured_on
        if where is not None and measured_on(where.model or "") and profile.by_position:
            found.append(1 + sum(profile.by_position[:AT_K]))
    if not found:
        return None
    return f"{min(found):.2f}" if len(found) == 1 else f"{min(found):.2f} to {max(found):.2f}"


def _drafter_row(name: str) -> tuple[object, ...]:
    drafter = lookups.drafter(name)
    return (
        drafter.method,
        drafter.weight_bytes(1) / 1e9,
        drafter.kv_bytes_per_token("auto", 1) / 1e3,
        drafter.max_model_len or None,
        drafter.target_hidden_size or None,
    )


def _gpu_row(name: str) -> tuple[object, ...]:
    gpu = lookups.accelerator(name)
    dense = gpu.flops_per_s.get("bfloat16", 0.0) / 1e12
    return gpu.hbm_bytes / 1e9, gpu.hbm_bytes_per_s / 1e12, dense, gpu.price_per_hour_usd


def _engine_row(name: str) -> tuple[object, ...]:
    engine = lookups.engine(name)
    ahead = [method for method, on in engine.async_scheduling.items() if on and method != "none"]
    reach = "any" if engine.drafts_at_any_length else "its own"
    limits = engine.max_num_seqs, engine.max_num_batched_tokens, engine.gpu_memory_utilization
    by_gpu = engine.scheduler == "sglang"
    return (*(("by GPU",) * 3 if by_gpu else limits), reach, ", ".join(ahead))


def _workload_row(name: str) -> tuple[object, ...]:
    preset = lookups.preset(name)
    return preset.input.mean, preset.output.mean


def _profile_row(name: str) -> tuple[object, ...]:
    profile = lookups.acceptance_profile(name)
    where = profile.measured_on
    known = profile.by_position
    length = 1 + sum(known[:AT_K]) if known else None
    if where is None:
        return (length,)
    return length, where.model, where.method, where.dataset


AT_K = 3
"""Drafts a round at which acceptance is shown."""

_TABLES: dict[str, tuple[Sequence[Column | str], Callable[[str], tuple[object, ...]]]] = {
    "models": (
        (
            Column("1e9 weights", "{:,.1f}"),
            Column("active", "{:,.1f}"),
            Column("GB", "{:,.1f}"),
            Column("KV kB a token", "{:,.1f}"),
            Column("held by", left=True),
            Column("heads"),
            Column(f"tokens a round, K = {AT_K}", left=True),
        ),
        _model_row,
    ),
    "drafters": (
        (
            Column("method", left=True),
            Column("GB", "{:,.2f}"),
            Column("KV kB a token", "{:,.1f}"),
            Column("positions", "{:,}"),
            Column("target's hidden size", "{:,}"),
        ),
        _drafter_row,
    ),
    "accelerators": (
        (
            Column("GB", "{:,.0f}"),
            Column("TB/s", "{:.2f}"),
            Column("TFLOP/s BF16", "{:,.0f}"),
            Column("$ an hour", "{:.2f}"),
        ),
        _gpu_row,
    ),
    "engines": (
        (
            Column("sequences", "{:,}"),
            Column("tokens a step", "{:,}"),
            Column("memory share", "{:.2f}"),
            Column("a head's reach", left=True),
            Column("scheduled ahead with", left=True),
        ),
        _engine_row,
    ),
    "workloads": ((Column("mean prompt", "{:,.0f}"), Column("mean output", "{:,.0f}")), _workload_row),
    "acceptance": (
        (
            Column(f"tokens a round, K = {AT_K}", "{:.2f}"),
            Column("model", left=True),
            Column("method", left=True),
            Column("dataset", left=True),
        ),
        _profile_row,
    ),
}
"""Kind -> columns beside the name, and what fills them."""


def _fields(record: object) -> list[str]:
    values = record.model_dump() if hasattr(record, "model_dump") else vars(record)
    return [f"  {key}: {value}" for key, value in values.items() if value not in (None, (), {})]
