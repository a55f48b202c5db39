"""What each key of a block is for: the text below its attribute, read when somebody asks.

pydantic would read the source of every block at import, which every command would wait for.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from specfleet.experiments.schema.blocks.base import Block


@cache
def descriptions(block: type[Block]) -> dict[str, str]:
    """Returns what the source says below each of a block's fields, those it inherits included."""
    found: dict[str, str] = {}
    for cls in reversed(block.__mro__):
        if issubclass(cls, Block):
            found |= _below_attributes(cls)
    return {name: text for name, text in found.items() if name in block.model_fields}


def _below_attributes(cls: type[Block]) -> dict[str, str]:
    statements = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(statements, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(statements.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def describe_all() -> None:
    """Puts the descriptions into the models, for a JSON schema."""
    for block in _blocks(Block):
        for name, text in descriptions(block).items():
            field = block.model_fields[name]
            field.description = field.description or text
        block.model_rebuild(force=True)


def _blocks(block: type[Block]) -> Iterator[type[Block]]:
    """Yields all blocks in the order of their definition: a block after those in it."""
    for cls in block.__subclasses__():
        yield cls
        yield from _blocks(cls)
