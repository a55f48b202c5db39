"""The reference of the experiment file as Markdown, generated from its JSON schema.

    python -m specfleet.experiments.load.reference_text > docs/reference.md

So it says what the models say: every block and key with its type, default, limits and meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from specfleet.experiments.load.starter import json_schema

Schema = Mapping[str, Any]

COMMAND = "python -m specfleet.experiments.load.reference_text > docs/reference.md"

HEAD = f"""\
# Reference of the experiment file

Every block and every key. Generated from the models; after a change of them run
`{COMMAND}`. For how the blocks work together see
[The experiment file](yaml.md).

A block is a mapping. A key that is not listed is an error, and so is a value of another type: `"64"` is no
number. Where no default stands and the key is not *required*, it is `null`; what that means stands beside it.
`resolved.yaml` in the results folder has the value that each took.
"""

TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "`true` or `false`",
    "array": "list",
    "object": "mapping",
}
LIMITS = {"minimum": ">= {}", "exclusiveMinimum": "> {}", "maximum": "<= {}", "exclusiveMaximum": "< {}"}
FLAGS = {"serve": "vllm serve", "workload": "vllm bench serve"}
"""Blocks spelled as a command of vLLM: a key without words of its own is that command's flag."""
HUGE = 2**53
"""Limits beyond this are of the machine, not of the user."""


def reference_markdown() -> str:
    """Returns the page: a section a block, in the order in which the file is written."""
    whole = json_schema()
    definitions: dict[str, Schema] = whole["$defs"]
    paths = _paths(whole, definitions)
    sections = ["\n".join(_section("The file", whole, definitions, paths))]
    for name, found in paths.items():
        sections.append("\n".join(_section(_title(found), definitions[name], definitions, paths)))
    return HEAD + "\n" + "\n\n".join(sections) + "\n"


def _paths(whole: Schema, definitions: Mapping[str, Schema]) -> dict[str, list[str]]:
    """Returns the blocks in order, depth first, with the dotted keys under which each is written."""
    found: dict[str, list[str]] = {}

    def walk(schema: Schema, prefix: str) -> None:
        for key, value in schema.get("properties", {}).items():
            for name, by_name in _blocks(value):
                path = f"{prefix}{key}" + (".NAME" if by_name else "")
                known = found.setdefault(name, [])
                if path not in known:
                    known.append(path)
                    walk(definitions[name], f"{path}.")

    walk(whole, "")
    return {name: sorted(places, key=lambda path: path.count(".")) for name, places in found.items()}


def _blocks(schema: Schema, by_name: bool = False) -> Iterator[tuple[str, bool]]:
    """Yields the blocks that a value can be, and whether they stand under names of the user's choice."""
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2], by_name
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _blocks(choice, by_name)
    if isinstance(schema.get("items"), Mapping):
        yield from _blocks(schema["items"], by_name)
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from _blocks(schema["additionalProperties"], True)


def _title(paths: list[str]) -> str:
    """Returns a block's heading: where it is written, and the keys beside that which take the same block."""
    first = paths[0]
    beside = [path for path in paths[1:] if path == f"{first}.NAME" or _parent(path) == _parent(first) != ""]
    return ", ".join(f"`{path}`" for path in (first, *beside))


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _section(
    title: str, block: Schema, definitions: Mapping[str, Schema], paths: Mapping[str, list[str]]
) -> Iterator[str]:
    """Yields the lines of a block: heading, what it is, and a table of its keys."""
    yield f"## {title}"
    yield ""
    if block.get("description"):
        yield " ".join(block["description"].split())
        yield ""
    if not block.get("properties"):
        yield "It has no keys: write `{}`."
        return
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    required = block.get("required", ())
    for key, value in block["properties"].items():
        default = "*required*" if key in required else _default(value)
        said = _meaning(value, definitions) or _flag(title.strip("`"), key)
        cells = (f"`{key}`", _type(value, paths), default, said)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(schema: Schema, paths: Mapping[str, list[str]]) -> str:
    """Returns a value's type and limits in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        title = _title(paths[name])
        return f"[block](#{anchor(title)})"
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if choices:
        words = [_type(choice, paths) for choice in choices if choice.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{_yaml(value)}`" for value in values)
    if schema.get("type") == "array":
        return _list(schema, paths)
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"mapping of name to {_type(schema['additionalProperties'], paths)}"
    limits = " and ".join(_limits(schema))
    return " ".join(filter(None, (TYPES.get(schema.get("type", ""), "any value"), limits)))


def _list(schema: Schema, paths: Mapping[str, list[str]]) -> str:
    """Returns a list's type: its items one by one where their number is fixed."""
    if "prefixItems" in schema:
        items = [_type(item, paths) for item in schema["prefixItems"]]
        return f"[{'; '.join(items)}]"
    inner = _type(schema.get("items", {}), paths)
    least = schema.get("minItems", 0)
    return f"list of {inner}" + (f", {least} or more of them" if least else "")


def _limits(schema: Schema) -> list[str]:
    """Returns what a value must keep to, in words."""
    said = [
        form.format(_yaml(schema[key]))
        for key, form in LIMITS.items()
        if key in schema and schema[key] < HUGE
    ]
    return said + ([f"as `{schema['pattern']}`"] if "pattern" in schema else [])


def _default(schema: Schema) -> str:
    """Returns a value's default; nothing for null and for blocks, whose keys have their own."""
    value = schema.get("default")
    if value is None or isinstance(value, dict):
        return ""
    return f"`{_yaml(value)}`"


def _yaml(value: object) -> str:
    """Returns a value as one writes it in the file."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _meaning(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """Returns what a key means: its own words, or those of its block."""
    own = " ".join(schema.get("description", "").split())
    if own:
        return own
    for name, _ in _blocks(schema):
        return " ".join(definitions[name].get("description", "").split())
    return ""


def _flag(block: str, key: str) -> str:
    """Returns the meaning of a key that is vLLM's flag and nothing else; nothing for other blocks."""
    return f"`--{key.replace('_', '-')}` of `{FLAGS[block]}`." if block in FLAGS else ""


def anchor(title: str) -> str:
    """Returns the anchor that GitHub gives a heading."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


if __name__ == "__main__":
    print(reference_markdown(), end="")
