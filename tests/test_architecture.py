"""Imports run one way: experiments -> sim -> {hardware, workloads}."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "hardware": {"hardware"},
    "workloads": {"workloads"},
    "sim": {"sim", "hardware", "workloads"},
    "experiments": {"experiments", "sim", "hardware", "workloads"},
}
ONLY_EXPERIMENTS = {"pydantic", "typer", "rich", "matplotlib", "pandas"}
NEVER_WITH_THE_MODULE = {"matplotlib", "pandas"}
SIMPY_FILES = {f"sim/{name}.py" for name in ("environment", "clients", "replica")}
FILES = [str(p.relative_to(ROOT)) for package in MAY_IMPORT for p in sorted((ROOT / package).rglob("*.py"))]


def package_of(module: str | None) -> str:
    """The package a module belongs to: the part below `specfleet`, or its first part."""
    parts = (module or "").split(".")
    return parts[1] if parts[0] == "specfleet" and len(parts) > 1 else parts[0]


def imports(tree: ast.AST, only_with_the_module: bool = False) -> Iterator[str]:
    """The top-level names a file imports: all, or those that loading the module itself imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (package_of(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield package_of(
                f"{node.module}.{node.names[0].name}" if node.module == "specfleet" else node.module
            )
        elif not (only_with_the_module and _runs_later(node)):
            yield from imports(node, only_with_the_module)


def bare_imports(tree: ast.AST) -> set[str]:
    """The first parts of what a file imports."""
    plain = {
        alias.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names
    }
    return plain | {(n.module or "").split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}


def _runs_later(node: ast.AST) -> bool:
    """Function bodies run when called; `if TYPE_CHECKING` never does."""
    typing_only = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    return typing_only or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


@pytest.mark.parametrize("file", FILES)
def test_a_module_imports_only_what_lies_below_it(file: str) -> None:
    package = file.split("/")[0]
    tree = ast.parse((ROOT / file).read_text())
    found = set(imports(tree))
    assert found & set(MAY_IMPORT) <= MAY_IMPORT[package]
    assert not bare_imports(tree) & set(MAY_IMPORT), "the product imports itself as specfleet"
    assert package == "experiments" or not found & ONLY_EXPERIMENTS
    assert "simpy" not in found or file in SIMPY_FILES
    assert not set(imports(tree, only_with_the_module=True)) & NEVER_WITH_THE_MODULE


def test_simpy_lives_in_the_cluster_s_files() -> None:
    trees = {file: ast.parse((ROOT / file).read_text()) for file in FILES}
    assert {file for file, tree in trees.items() if "simpy" in imports(tree)} == SIMPY_FILES


def test_all_packages_were_read() -> None:
    assert {file.split("/")[0] for file in FILES} == set(MAY_IMPORT)
