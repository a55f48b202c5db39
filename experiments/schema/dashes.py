"""Another engine's argument names as its command line spells them, with dashes, as its files do."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from specfleet.experiments.schema.yamlfile import Document, Value


def underscored(document: Document, known: Container[str]) -> Document:
    """The document with underscores in those keys of `serve`, and axes over them, that are known names then.

    Args:
        document: as it was typed.
        known: the names, with underscores. A name that is given both ways stays as it is.
    """

    def plain(typed: str) -> str:
        name = typed.replace("-", "_")
        return name if name in known else typed

    data, marks = dict(document.data), dict(document.marks)
    serve, sweep = data.get("serve"), data.get("sweep")
    if isinstance(serve, dict):
        data["serve"] = _renamed(serve, plain_of := {key: plain(key) for key in serve})
        for path, mark in document.marks.items():
            if path[:1] == ("serve",) and len(path) > 1 and path[1] in plain_of:
                marks["serve", plain_of[str(path[1])], *path[2:]] = mark
    axes = sweep.get("axes") if isinstance(sweep, dict) else None
    if isinstance(sweep, dict) and isinstance(axes, dict):
        named = {key: "serve." + plain(key[6:]) if key.startswith("serve.") else key for key in axes}
        data["sweep"] = {**sweep, "axes": _renamed(axes, named)}
        for path, mark in document.marks.items():
            if path[:2] == ("sweep", "axes") and len(path) > 2 and path[2] in named:
                marks["sweep", "axes", named[str(path[2])], *path[3:]] = mark
    return replace(document, data=data, marks=marks)


def _renamed(block: dict[str, Value], names: dict[str, str]) -> dict[str, Value]:
    """A block with other names; a key whose new name is another key of the block keeps its own."""
    return {key if names[key] in block else names[key]: value for key, value in block.items()}
