"""How the house is built: who imports whom, how long files and functions are, which names stand twice.

Lists of exceptions below must shrink: each test fails, too, where an exception is no longer needed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import pytest
from source_tree import ROOT, arrows, below_the_top, circles, classes, functions, sources

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

STUDIES = ("breakeven", "calibrate", "measure", "plan", "theory", "validate")
ROOMS = (
    "flags",
    "schema",
    "tools",
    "point",
    "load",
    "run",
    "words",
    "figures",
    "page",
    STUDIES,
    "api",
    "cli",
)
"""Folders of `experiments/`, the lowest first: a room imports from those before it."""

STUDY_TO_STUDY = {
    ("calibrate", "validate"): "fits to measured points as validate reads, samples and simulates them",
}

SIM_DOES_NOT_KNOW = {
    "speculation": {"calendar", "metrics", "engine", "scheduler", "kvcache", "requests", "recorder"}
    | {"simulation", "summarise", "clients", "replica", "router", "environment"},
    "metrics": {"calendar", "speculation", "engine", "scheduler", "kvcache", "clients", "replica"},
    "scheduler": {"calendar", "metrics", "engine", "simulation", "cluster", "clients", "replica", "router"},
    "kvcache": {"calendar", "metrics", "engine", "scheduler", "simulation", "clients", "replica", "router"},
    "engine": {"calendar", "metrics", "simulation", "cluster", "stepped", "clients", "replica", "router"}
    | {"environment"},
}
"""Parts of `sim/`, a folder or a file, and the other parts that they must do without."""

IN_CIRCLES: set[tuple[str, str]] = set()
"""Imports without which there would be no circle."""

MOST_FILES, MOST_FILE_LINES, MOST_FUNCTION_LINES = 30, 450, 60
LARGE_FOLDERS: set[str] = set()
LONG_FUNCTIONS: dict[str, str] = {}
"""In `sim/`, with the reason."""

BLOCKS_BY_THE_NAME_OF_WHAT_THEY_DESCRIBE = {
    *("AcceptanceGate", "AdaptiveTiers", "Bandit", "DisableAboveQueue", "EarlyStop", "Goodput", "Oracle"),
    *("SloBudget", "TemperatureGate", "Burst", "HotCold", "LowAtom", "Overlap", "SpeculativeConfig"),
    *(
        "Client",
        "Experiment",
        "Gateway",
        "LogNormal",
        "Phase",
        "ReplicaPool",
        "Slo",
        "TrafficClass",
        "Uniform",
    ),
    *("Cut", "LogNormalPause", "Tools", "UniformPause"),
}
NAMES_OF_TWO_THINGS = {"Candidate"}


def trees() -> dict[str, ast.Module]:
    """The parsed files of the product, by file."""
    return dict(zip(FILES, sources().values(), strict=True))


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


def faults_of_imports(file: str, tree: ast.Module) -> Iterator[str]:
    """What a file imports that it must do without."""
    package = file.split("/")[0]
    found = set(imports(tree))
    yield from (f"{above} lies above it" for above in (found & set(MAY_IMPORT)) - MAY_IMPORT[package])
    yield from (f"{name}, but as specfleet.{name}" for name in bare_imports(tree) & set(MAY_IMPORT))
    if package != "experiments":
        yield from (f"{name} outside experiments" for name in found & ONLY_EXPERIMENTS)
    if "simpy" in found and file not in SIMPY_FILES:
        yield "simpy"
    with_it = set(imports(tree, only_with_the_module=True)) & NEVER_WITH_THE_MODULE
    yield from (f"{name} with the module" for name in with_it)


def test_a_module_imports_only_what_lies_below_it() -> None:
    assert {
        file: faults for file, tree in trees().items() if (faults := [*faults_of_imports(file, tree)])
    } == {}


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("sim/step.py", "from specfleet.experiments.run import runner", "experiments lies above it"),
        ("hardware/rope.py", "import specfleet.sim.step", "sim lies above it"),
        ("sim/step.py", "from sim.rules import least", "sim, but as specfleet.sim"),
        ("workloads/laws.py", "def f():\n    import pandas", "pandas outside experiments"),
        ("sim/step.py", "import simpy", "simpy"),
        ("experiments/run/runner.py", "if True:\n    import matplotlib.pyplot", "matplotlib with the module"),
    ],
)
def test_a_file_that_imports_what_it_must_not_is_found(file: str, text: str, fault: str) -> None:
    assert [*faults_of_imports(file, ast.parse(text))] == [fault]


def test_simpy_lives_in_the_cluster_s_files() -> None:
    assert {file for file, tree in trees().items() if "simpy" in imports(tree)} == SIMPY_FILES


def test_statistics_know_numbers_and_no_engine() -> None:
    mine = {file: tree for file, tree in trees().items() if file.startswith("sim/statistics/")}
    assert mine
    for file, tree in mine.items():
        inside = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        ours = {name for name in inside if "specfleet" in name}
        assert all(name.startswith("specfleet.sim.statistics.") for name in ours), file
        assert bare_imports(tree) <= {"specfleet", "numpy", *sys.stdlib_module_names}, file


def test_all_packages_were_read() -> None:
    assert {file.split("/")[0] for file in FILES} == set(MAY_IMPORT)
    assert {module.split(".")[0] for module in sources()} == set(MAY_IMPORT)


def test_rooms_ask_the_door_for_the_version_alone() -> None:
    asked = {(module, name) for module, tree in sources().items() for name in below_the_top(tree)}
    assert {(module, name) for module, name in asked if name not in MAY_IMPORT} <= {
        (module, "__version__") for module in sources()
    }


def test_a_circle_is_found_however_long_and_a_line_is_none() -> None:
    ring = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    assert circles(ring) == [frozenset("abc")]
    assert circles({"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()}) == []


def test_no_import_closes_a_circle() -> None:
    straight = {a: frozenset(b for b in bs if (a, b) not in IN_CIRCLES) for a, bs in arrows().items()}
    assert circles(straight) == []


def test_an_import_excused_for_its_circle_is_in_one() -> None:
    for importer, imported in IN_CIRCLES:
        assert imported in arrows()[importer]
        assert any({importer, imported} <= circle for circle in circles(arrows()))


def room(module: str) -> str | None:
    """The folder of `experiments/` that a module stands in."""
    parts = module.split(".")
    return parts[1] if parts[0] == "experiments" and len(parts) > 1 else None


def height(of: str) -> int:
    """Where a room stands in `ROOMS`."""
    return next(i for i, level in enumerate(ROOMS) if of == level or (of in level and level is STUDIES))


def test_every_room_of_experiments_has_its_height() -> None:
    levels = {name for level in ROOMS for name in ([level] if isinstance(level, str) else level)}
    assert {found for module in sources() if (found := room(module))} == levels


def test_no_arrow_in_experiments_runs_up() -> None:
    rising = {
        (a, b)
        for a, bs in arrows().items()
        for b in bs
        if (here := room(a)) and (there := room(b)) and here != there
        if height(there) >= height(here) and (here, there) not in STUDY_TO_STUDY
    }
    assert rising == set()


def test_a_study_that_may_use_another_does() -> None:
    assert {(room(a), room(b)) for a, bs in arrows().items() for b in bs} >= set(STUDY_TO_STUDY)


@pytest.mark.parametrize("part", SIM_DOES_NOT_KNOW)
def test_a_part_of_sim_does_without_those_above_it(part: str) -> None:
    mine = {module: bs for module, bs in arrows().items() if module.split(".")[:2] == ["sim", part]}
    known = {b.split(".")[1] for bs in mine.values() for b in bs if b.startswith("sim.")}
    assert mine
    assert not known & SIM_DOES_NOT_KNOW[part]


def test_no_folder_holds_more_files_than_a_reader_can_survey() -> None:
    folders = {file.parent for top in (*MAY_IMPORT, "tests") for file in (ROOT / top).rglob("*.py")}
    large = {
        str(folder.relative_to(ROOT)) for folder in folders if len(list(folder.glob("*.py"))) > MOST_FILES
    }
    assert large == LARGE_FOLDERS


def test_no_file_is_long() -> None:
    lines = {file: len((ROOT / file).read_text().splitlines()) for file in FILES}
    assert {file: count for file, count in lines.items() if count > MOST_FILE_LINES} == {}


def test_functions_of_sim_are_short_or_say_why_not() -> None:
    long = {
        f"{found.module}.{found.name}"
        for found in functions()
        if found.module.startswith("sim.") and found.lines > MOST_FUNCTION_LINES
    }
    assert long == set(LONG_FUNCTIONS)


def test_a_class_name_means_one_thing() -> None:
    twice = {name: modules for name, modules in classes().items() if len(modules) > 1}
    assert set(twice) == BLOCKS_BY_THE_NAME_OF_WHAT_THEY_DESCRIBE | NAMES_OF_TWO_THINGS
    for name in BLOCKS_BY_THE_NAME_OF_WHAT_THEY_DESCRIBE:
        below = [module for module in twice[name] if not module.startswith("experiments.schema.blocks.")]
        assert len(below) == 1 and len(twice[name]) == 2, name
