"""`specfleet catalog`: what an experiment can name."""

from __future__ import annotations

from collections.abc import Callable

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults, did_you_mean
from specfleet.hardware import catalog

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
    """Returns the names of a kind (or of all), or one entry field by field.

    Raises:
        InputFaults: for an unknown kind or name.
    """
    if kind is not None and kind not in KINDS:
        raise InputFaults([Fault(COMMAND_LINE, 0, kind, f"no such kind; {did_you_mean(kind, KINDS)}")])
    if kind is None or name is None:
        chosen = KINDS if kind is None else (kind,)
        return "\n\n".join("\n".join([f"{k}:", *(f"  {n}" for n in _names(k))]) for k in chosen)
    try:
        record = _record(kind, name)
    except ValueError as error:
        raise InputFaults([Fault(COMMAND_LINE, 0, name, str(error))]) from None
    return "\n".join([name, *_fields(record)])


def _fields(record: object) -> list[str]:
    values = record.model_dump() if hasattr(record, "model_dump") else vars(record)
    return [f"  {key}: {value}" for key, value in values.items() if value not in (None, (), {})]
