"""What all blocks of an experiment share: strict, frozen, no unknown keys."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Block(BaseModel):
    """A mapping of the experiment file.

    Values are taken as YAML reads them and never converted: `"64"` is no number, `1` is no `true`. The
    infinite is refused except where a field says otherwise.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def _name_or_mapping(value: object) -> object:
    """Lets names and mappings pass."""
    if isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise PydanticCustomError("named", "must be a name or a mapping")


Named: TypeAlias = Annotated[str | dict[str, object], BeforeValidator(_name_or_mapping)]
"""A catalogue name, a Hugging Face id, or an inline mapping."""

Count: TypeAlias = Annotated[int, Field(ge=1)]
Milliseconds: TypeAlias = Annotated[float, Field(ge=0)]
Fraction: TypeAlias = Annotated[float, Field(gt=0, le=1)]
