"""Values written as YAML: by libyaml where it writes what PyYAML writes, in a third of the time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import yaml

from specfleet.experiments.schema.yamlfile import dumper_resolvers

LONG_KEY = 100
"""Characters; from some 120 on a key has a line of its own, libyaml counts them otherwise."""


def dumped(data: object) -> str:
    """Values as YAML, as PyYAML writes them: libyaml writes the same where nothing has to be escaped and no
    key is so long that it gets a line of its own."""
    how: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 10_000}
    with suppress(UnicodeEncodeError):  # half of a surrogate pair
        text: str = yaml.dump(data, Dumper=_FastDumper, **how) if _longest_key(data) < LONG_KEY else "\\"
        if "\\" not in text and "? " not in text:
            return text
    written: str = yaml.dump(data, Dumper=_Dumper, **how)
    return written


def _longest_key(data: object) -> int:
    """Characters of the longest key, however deep."""
    if isinstance(data, dict):
        inside = max(map(_longest_key, data.values()), default=0)
        return max(inside, max((len(str(key)) for key in data), default=0))
    return max(map(_longest_key, data), default=0) if isinstance(data, list | tuple) else 0


class _Plain:
    """Quotes what YAML 1.1 or 1.2 would not read as text; writes no aliases."""

    yaml_implicit_resolvers = dumper_resolvers()

    def ignore_aliases(self, data: object) -> bool:
        """Every value is written out."""
        return True


class _Dumper(_Plain, yaml.SafeDumper):
    """By PyYAML."""


class _FastDumper(_Plain, getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """By libyaml, where PyYAML was built with it."""


def _flow_list(dumper: yaml.SafeDumper, values: tuple[object, ...] | list[object]) -> yaml.Node:
    """Lists in one line, as people write axes."""
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    """Text with line separators other than a newline is quoted, or a reader would fold them."""
    style = '"' if any(mark in value for mark in "\x85\u2028\u2029\ufeff") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


for _kind in (_Dumper, _FastDumper):
    _kind.add_representer(str, _text)
    _kind.add_representer(tuple, _flow_list)
    _kind.add_representer(list, _flow_list)
