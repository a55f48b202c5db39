"""What a command says, as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def json_text(content: Mapping[str, object]) -> str:
    """Returns JSON that any parser reads: NaN is null, infinities are "inf" and "-inf"."""
    return json.dumps(_plain(content), indent=1, allow_nan=False)


def _plain(content: object) -> object:
    if isinstance(content, float):
        if math.isnan(content):
            return None
        return content if math.isfinite(content) else "inf" if content > 0 else "-inf"
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    return content if content is None or isinstance(content, bool | int | str) else str(content)
