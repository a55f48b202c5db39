"""What all blocks of an experiment share: strict, frozen, no unknown keys."""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Block(BaseModel):
    """A mapping of the experiment file.

    Values are taken as YAML reads them and never converted: `"64"` is no number, `1` is no `true`. The
    infinite is refused except where a field says otherwise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


def fixed_number(value: object) -> object:
    """A number where a distribution is asked for is `{fixed: number}`."""
    return {"fixed": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


def _name_or_mapping(value: object) -> object:
    """Lets names and mappings pass."""
    if isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise PydanticCustomError("named", "must be a name or a mapping")


Named: TypeAlias = Annotated[str | dict[str, object], BeforeValidator(_name_or_mapping)]
"""A catalogue name, a Hugging Face id, or an inline mapping."""

MOST = 1_000_000_000
"""Of anything counted: no larger number means something, and none that is larger fits in memory."""

MOST_TOKENS = 100_000_000
"""Of one sequence."""

MOST_DRAFTS = 512
"""Drafts of a round, and nodes of a tree."""

RATES_PER_S = (1e-6, 1e6)
"""Lowest and highest rate of arrival, requests/s, beside .inf."""

Count: TypeAlias = Annotated[int, Field(ge=1, le=MOST)]
CountOrNone: TypeAlias = Annotated[int, Field(ge=0, le=MOST)]
Tokens: TypeAlias = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Drafts: TypeAlias = Annotated[int, Field(ge=1, le=MOST_DRAFTS)]
Milliseconds: TypeAlias = Annotated[float, Field(ge=0, le=3_600_000)]
Fraction: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Factor: TypeAlias = Annotated[float, Field(ge=1e-3, le=1e3)]


def _rate_or_inf(value: float) -> float:
    """Refuses rates that are finite and too high."""
    if RATES_PER_S[1] < value < math.inf:
        raise PydanticCustomError("rate", "{what}", {"what": f"must be at most {RATES_PER_S[1]:g}, or .inf"})
    return value


def _inf(value: object) -> object:
    """`inf` as `vllm bench serve --request-rate` takes it."""
    return math.inf if isinstance(value, str) and value.lower() in ("inf", "+inf", "infinity") else value


Rate: TypeAlias = Annotated[
    float,
    Field(ge=RATES_PER_S[0], allow_inf_nan=True),
    AfterValidator(_rate_or_inf),
    BeforeValidator(_inf),
]
"""Requests/s; .inf is all at once."""
