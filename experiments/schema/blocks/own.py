"""What a file says of a user's own code: where it is, and names that may be its."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from specfleet.experiments.schema.blocks.base import Block
from specfleet.experiments.schema.faults import closest
from specfleet.experiments.schema.registry import KINDS

HOW = "name the file that registers your own under plugins: (docs/python.md)"
"""What to do about an unknown name that was meant to be one's own."""


class Plugin(Block):
    """Python code that registers routers, policies, acceptance processes or step prices: a text that ends in
    `.py` is a file, any other a module."""

    file: str | None = None
    """A file, relative to the experiment file."""
    module: str | None = None
    """A module that can be imported."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Of its content. Written to resolved.yaml; where it stands, other content is refused."""

    @property
    def named(self) -> str:
        """The file or the module."""
        return self.file or self.module or ""


def _check(known: Mapping[str, object], how: str, value: str) -> str:
    """A name that is among those known now."""
    if value not in known:
        raise PydanticCustomError("unregistered", "{what}", {"what": unknown(value, list(known), how)})
    return value


def unknown(name: str, known: list[str], how: str = HOW) -> str:
    """What to do about a name that is not among those known; `how` one of one's own is made known."""
    if not known:
        return f"{name!r} is not registered; {how}"
    near = closest(name, known)
    hint = f"; did you mean {near}?" if near else f", or {how}" if how else ""
    return f"{name!r} is not supported; use one of {', '.join(known)}{hint}"


def _checks(known: Mapping[str, object], how: str = HOW) -> AfterValidator:
    return AfterValidator(partial(_check, known, how))


def _offers(known: Mapping[str, object]) -> WithJsonSchema:
    """For editors: the shipped names, or any other."""
    return WithJsonSchema({"anyOf": [{"enum": list(known)}, {"type": "string"}]})


RouterName: TypeAlias = Annotated[str, _checks(KINDS["router"].known), _offers(KINDS["router"].known)]
CostModelName: TypeAlias = Annotated[
    str, _checks(KINDS["cost_model"].known), _offers(KINDS["cost_model"].known)
]
ProcessName: TypeAlias = Annotated[str, _checks(KINDS["acceptance"].known)]


class _TraceFormat:
    """The formats of traces; their readers are imported where a format is named."""

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> dict[str, object]:
        """For editors: those that are shipped."""
        return {"enum": list(_trace_formats())}


def _trace_formats() -> Mapping[str, object]:
    from specfleet.workloads.traces.formats import TRACE_FORMATS

    return TRACE_FORMATS


def _check_format(value: str) -> str:
    return _check(_trace_formats(), "", value)


TraceFormatName: TypeAlias = Annotated[str, AfterValidator(_check_format), _TraceFormat()]


def refuse_keys(block: Block, keys: dict[str, Any]) -> None:
    """Refuses keys of a block that takes some unknown ones, as a block does that takes none."""
    if keys:
        found: list[InitErrorDetails] = [
            {"type": "extra_forbidden", "loc": (key,), "input": value} for key, value in keys.items()
        ]
        raise ValidationError.from_exception_data(type(block).__name__, found)
