"""Values of an axis as people write them."""

from __future__ import annotations

import ast

PLAIN = "plain"
"""What a line without speculation is called."""

_LONGEST_LABEL = 30
"""Characters of a value in a legend."""

K = "num_speculative_tokens"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, `1 point` or `12 points`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def on_average(number: float, noun: str) -> str:
    """Returns a mean with its noun: `1 failure` of a whole number, else `1.3 failures on average`."""
    whole = round(number)
    return counted(whole, noun) if abs(number - whole) < 0.05 else f"{number:.1f} {noun}s on average"


def rounded(number: float, digits: int = 3) -> str:
    """A number of so many significant digits, never with an exponent where it is a thousand or more."""
    return f"{float(f'{number:.{digits}g}'):,.12g}"


def text(value: object) -> str:
    """Returns an axis' value as people write it."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:g}"
    found = _of_mapping(str(value)) if str(value).startswith("{") else str(value)
    return found if len(found) <= _LONGEST_LABEL else found[: _LONGEST_LABEL - 2] + ".."


def _of_mapping(value: str) -> str:
    """A mapping among an axis' values by what tells it apart: its name or method, and K."""
    try:
        mapping = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    pools = mapping.get("pools")
    if isinstance(pools, dict):
        return " + ".join(f"{dict(pool or {}).get('replicas', 1)} {name}" for name, pool in pools.items())
    if "notice_s" in mapping:  # spot instances
        dollars = mapping.get("usd_per_gpu_hour")
        return f"at {mapping.get('price_factor')}" if dollars is None else f"at ${dollars:g}"
    if "replicas" in mapping:
        return counted(mapping["replicas"], "replica")
    words = [str(mapping[key]) for key in ("name", "base", "method") if key in mapping]
    words += [f"K = {mapping[K]}"] if K in mapping else []
    if not words and all(not isinstance(inner, dict) for inner in mapping.values()):
        words = [f"{name} {_plain(inner)}" for name, inner in mapping.items()]
    if not words and len(mapping) == 1:
        name, inner = next(iter(mapping.items()))
        words = [str(name), *(f"{k} {v}" for k, v in (inner.items() if isinstance(inner, dict) else ()))]
    if not words:  # rules by name, such as a router's by class
        rules = next((inner for inner in mapping.values() if isinstance(inner, dict)), {})
        words = [", ".join(f"{name} {_plain(inner)}" for name, inner in rules.items())]
    return " ".join(words) or value


def _plain(value: object) -> str:
    """A number, or a sequence as 2-2-2; long ones say how many they are."""
    if not isinstance(value, tuple | list):
        return str(value)
    return (
        f"of {len(value)}"
        if len(value) > 4 or isinstance(value[0], tuple | list)
        else "-".join(map(str, value))
    )


def named(key: str, value: object) -> str:
    """Returns an axis and its value, such as `K = 3`; the value alone where it says enough."""
    last = key.rpartition(".")[2]
    if last == "speculative_config":
        return PLAIN if value is None else text(value)
    if last == "spot":
        return "on demand" if value is None else f"spot {text(value)}"
    if last == K:
        return f"K = {text(value)}" + (f" ({PLAIN})" if value == 0 else "")
    if isinstance(value, str) and not value.startswith("{"):
        return text(value)
    return f"{last.replace('_', ' ')} = {text(value)}"


def same(a: object, b: object) -> bool:
    """Whether two values of an axis are one: a table may give 0 as 0.0, and a mapping as text."""
    return a == b or str(a) == str(b)
