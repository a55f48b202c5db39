"""Length laws as written in YAML: plain mappings to `LengthDistribution`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, cast

from specfleet.workloads.lengths import (
    Capped,
    Empirical,
    Fixed,
    LengthDistribution,
    LogNormal,
    Scaled,
    Shifted,
    Uniform,
)

WRAPPERS = ("scale", "shift", "cap")


def length_law(described: object) -> LengthDistribution:
    """The law described by a whole number (fixed length) or a mapping with exactly one law:

    `{fixed: 128}`; `{uniform: {min: 1, max: 9}}` or `{uniform: {tokens: 1024, range_ratio: 0.2}}` (vLLM's
    `--random-range-ratio`); `{lognormal: {min: 1, max: 4096, ...}}` with `mu` and `sigma` of the logarithm,
    or `mean_tokens` and `sigma` (mean within the limits), or `mean_tokens` and `p50_tokens` (before the
    limits), optionally `tails: redraw`; `{quantiles: {0: 3, 50: 120, 100: 900}}` (percentile: tokens).
    Beside the law `scale`, `shift` and `cap` may stand; they apply in that order.

    Raises ValueError saying what is wrong and which keys exist.
    """
    if isinstance(described, int) and not isinstance(described, bool):
        return Fixed(described)
    if not isinstance(described, Mapping):
        raise ValueError(
            f"a length is a whole number or a mapping such as {{lognormal: ...}}, got {described!r}"
        )
    refuse_unknown(described, (*LAWS, *WRAPPERS), "length")
    kinds = [kind for kind in LAWS if kind in described]
    if len(kinds) != 1:
        raise ValueError(f"give exactly one of {', '.join(LAWS)} for a length, got {kinds or 'none'}")
    law = LAWS[kinds[0]](described[kinds[0]])
    if "scale" in described:
        law = Scaled(law, _number(described, "scale"))
    if "shift" in described:
        law = Shifted(law, _whole(described, "shift"))
    if "cap" in described:
        law = Capped(law, _whole(described, "cap"))
    return law


def _fixed(value: object) -> LengthDistribution:
    """`fixed: tokens`."""
    return Fixed(_whole({"fixed": value}, "fixed"))


def _uniform(value: object) -> LengthDistribution:
    """`uniform: {min, max}` or `{tokens, range_ratio}`."""
    keys = _mapping(value, "uniform")
    refuse_unknown(keys, ("min", "max", "tokens", "range_ratio"), "uniform length")
    if "tokens" in keys or "range_ratio" in keys:
        _exactly(keys, ("tokens", "range_ratio"), "uniform")
        return Uniform.around(_whole(keys, "tokens"), _number(keys, "range_ratio"))
    _exactly(keys, ("min", "max"), "uniform")
    return Uniform(_whole(keys, "min"), _whole(keys, "max"))


def _lognormal(value: object) -> LengthDistribution:
    """`lognormal: {min, max, mu, sigma}` and its two other spellings."""
    keys = _mapping(value, "lognormal")
    known = ("mu", "sigma", "mean_tokens", "p50_tokens", "min", "max", "tails")
    refuse_unknown(keys, known, "lognormal length")
    tails = cast(Literal["clamp", "redraw"], keys.get("tails", "clamp"))
    given = {key for key in keys if key != "tails"} - {"min", "max"}
    if not {"min", "max"} <= set(keys):
        raise ValueError("a lognormal length needs min and max: an unlimited tail overshoots real traffic")
    low, high = _whole(keys, "min"), _whole(keys, "max")
    if given == {"mu", "sigma"}:
        return LogNormal(_number(keys, "mu"), _number(keys, "sigma"), low, high, tails)
    if given == {"mean_tokens", "sigma"}:
        return LogNormal.from_mean(_number(keys, "mean_tokens"), _number(keys, "sigma"), low, high, tails)
    if given == {"mean_tokens", "p50_tokens"} and tails == "clamp":
        return LogNormal.from_mean_p50(_number(keys, "mean_tokens"), _number(keys, "p50_tokens"), low, high)
    raise ValueError(
        "a lognormal length needs mu and sigma (of the logarithm), or mean_tokens and sigma, or mean_tokens "
        f"and p50_tokens (tails: clamp); got {', '.join(sorted(map(str, given))) or 'none of them'}"
    )


def _quantiles(value: object) -> LengthDistribution:
    """`quantiles: {percentile: tokens}`, in any order."""
    table = _mapping(value, "quantiles")
    pairs = sorted((_real(node, "percentile"), _real(tokens, "tokens")) for node, tokens in table.items())
    return Empirical(tuple(node for node, _ in pairs), tuple(tokens for _, tokens in pairs))


LAWS: Mapping[str, Callable[[object], LengthDistribution]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "lognormal": _lognormal,
    "quantiles": _quantiles,
}


def refuse_unknown(given: Iterable[object], known: Iterable[str], what: str) -> None:
    """ValueError with the closest known key for the first key of `given` that is not `known`."""
    names = list(known)
    for key in given:
        if key not in names:
            close = difflib.get_close_matches(str(key), names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
            raise ValueError(f"{key!r} is not a key of a {what}; {hint}")


def _mapping(value: object, what: str) -> Mapping[object, object]:
    """`value` as a mapping, else ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} takes a mapping, got {value!r}")
    return value


def _exactly(keys: Mapping[object, object], needed: tuple[str, ...], what: str) -> None:
    """ValueError unless `keys` are exactly the needed ones."""
    if set(keys) != set(needed):
        raise ValueError(f"{what} needs {' and '.join(needed)}, got {', '.join(map(str, keys)) or 'nothing'}")


def _real(value: object, what: str) -> float:
    """`value` as a float, else ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} must be a number, got {value!r}")
    return float(value)


def _number(keys: Mapping[object, object], key: str) -> float:
    """`keys[key]` as a float, else ValueError."""
    return _real(keys[key], key)


def _whole(keys: Mapping[object, object], key: str) -> int:
    """`keys[key]` as a whole number of tokens, else ValueError."""
    value = _number(keys, key)
    if value != int(value):
        raise ValueError(f"{key} must be a whole number of tokens, got {value}")
    return int(value)
