"""A first experiment to start from, and the JSON schema by which an editor completes and checks one."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from specfleet.experiments.schema.blocks.described import describe_all
from specfleet.experiments.schema.blocks.experiment import Experiment

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def write_starter(path: Path) -> None:
    """Writes the commented starter, named after the file.

    Raises:
        FileExistsError: rather than overwrite.
    """
    text = files("specfleet.experiments").joinpath("presets/starter.yaml").read_text(encoding="utf-8")
    write_new(path, text.replace("FILE", str(path)).replace("name: starter\n", "", 1))


def write_new(path: Path, text: str) -> None:
    """Writes a file.

    Raises:
        FileExistsError: rather than overwrite.
    """
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def json_schema() -> dict[str, Any]:
    """Returns the schema of an experiment file; every key with what it means."""
    describe_all()
    return {"$schema": DIALECT, "title": "Specfleet experiment", **_relaxed(Experiment.model_json_schema())}


def _relaxed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as YAML files meet it: shorthands that a mapping field also takes, as text or null."""
    properties = schema["properties"]
    properties["client"] = {"anyOf": [{"const": "none"}, properties["client"]]}
    speculation = schema["$defs"]["Serve"]["properties"]["speculative_config"]
    speculation["anyOf"].append({"type": "string", "description": "The JSON text of --speculative-config."})
    properties["plugins"]["items"] = {"anyOf": [{"type": "string"}, properties["plugins"]["items"]]}
    for block in ("Lengths", "Pause"):
        _or_number(schema, f"#/$defs/{block}", schema["$defs"][block]["properties"]["fixed"]["anyOf"][0])
    return schema


def _or_number(node: object, block: str, number: dict[str, Any]) -> None:
    """Wherever a distribution is asked for, a number will do."""
    if isinstance(node, list):
        for item in node:
            _or_number(item, block, number)
    if isinstance(node, dict):
        for value in list(node.values()):
            _or_number(value, block, number)
        if node.get("$ref") == block:
            node["anyOf"] = [{"$ref": node.pop("$ref")}, dict(number)]
