"""What a sweep is compared with if its file does not say: plain decoding, where an axis holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SPECULATION = "serve.speculative_config"


def plain_baseline(axes: Mapping[str, Sequence[object]]) -> dict[str, object] | None:
    """Returns the axis of speculation and its value without any: K = 0, or no `speculative_config`.

    None where no axis holds plain decoding, or nothing else is on it.
    """
    for key, values in axes.items():
        if len(values) < 2:
            continue
        if key == SPECULATION:
            plain = [value for value in values if value is None or _drafts_nothing(value)]
        elif key == f"{SPECULATION}.num_speculative_tokens":
            plain = [value for value in values if value == 0]
        else:
            continue
        if plain:
            return {key: plain[0]}
    return None


def _drafts_nothing(value: object) -> bool:
    return isinstance(value, dict) and value.get("num_speculative_tokens") == 0
