"""What is installed is `specfleet`, nothing else, and works beside packages that have our folders' names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from specfleet import __version__

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("experiments", "hardware", "sim", "workloads")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "specfleet", *FOLDERS)
FOREIGN = (*FOLDERS, "tests")

ONE_POINT = """
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm}
workload: {input_len: 100, output_len: 20, max_concurrency: 4, num_prompts: 8}
"""


def _cannot_build() -> str | None:
    """Why a wheel cannot be built here without the network; None where it can."""
    for name, least in (("setuptools", 77), ("pip", 21)):
        try:
            if int(version(name).split(".")[0]) < least:
                return f"{name} is older than {least}; install the dev extra"
        except PackageNotFoundError:
            return f"{name} is not installed; install the dev extra"
    return None


pytestmark = pytest.mark.skipif(_cannot_build() is not None, reason=str(_cannot_build()))


def _run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """The output of a command that must succeed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=kept | {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def _pip(python: Path, *arguments: str | Path, cwd: Path) -> None:
    """Runs pip as the given Python would."""
    _run(python, "-m", "pip", *arguments, "--no-build-isolation", "--no-deps", cwd=cwd)


@dataclass(frozen=True)
class Home:
    """An environment that holds one install of the product, and a folder of somebody else's code.

    Attributes:
        programs: where its commands are.
        work: a folder with packages called as our folders are.
    """

    programs: Path
    work: Path

    def run(self, *command: str) -> str:
        """Runs one of its commands in the folder, as `PYTHONPATH=. command`."""
        return _run(self.programs / command[0], *command[1:], cwd=self.work, PYTHONPATH=".")


def _environment(folder: Path) -> Home:
    """A new environment with the dependencies of this one, and foreign packages beside it."""
    venv.create(folder / "env", symlinks=os.name != "nt")
    paths = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    here = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (Path(sysconfig.get_path("purelib", "venv", paths)) / "dependencies.pth").write_text("\n".join(here))
    work = folder / "work"
    for name in FOREIGN:
        (work / name).mkdir(parents=True)
        (work / name / "__init__.py").write_text("raise ImportError('somebody else was imported')\n")
    return Home(Path(sysconfig.get_path("scripts", "venv", paths)), work)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built, links as links."""
    copy = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copyfile(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the copy."""
    folder = tmp_path_factory.mktemp("wheel")
    _pip(Path(sys.executable), "wheel", "-w", folder, tree, cwd=folder)
    [built] = folder.glob("*.whl")
    shutil.rmtree(tree / "build", ignore_errors=True)
    return built


@pytest.fixture(scope="module", params=["wheel", "editable"])
def home(request: pytest.FixtureRequest, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The product installed from a wheel, or to be edited in place."""
    made = _environment(tmp_path_factory.mktemp("home"))
    what = ("-e", tree) if request.param == "editable" else (request.getfixturevalue("wheel"),)
    _pip(made.programs / "python", "install", "--ignore-installed", *what, cwd=made.work)
    return made


def test_a_wheel_holds_specfleet_alone_and_every_file_of_it(tree: Path, wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {f"specfleet/{path.relative_to(tree)}" for top in FOLDERS for path in (tree / top).rglob("*.*")}
    assert held == files | {f"specfleet/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}


@pytest.mark.parametrize("command", [("specfleet",), ("python", "-m", "specfleet")])
def test_both_ways_to_call_it_answer_beside_foreign_packages(home: Home, command: tuple[str, ...]) -> None:
    assert home.run(*command, "--version") == f"specfleet {__version__}\n"
    assert home.run(*command, "run", "--help").split()[:3] == ["Usage:", "specfleet", "run"]


def test_a_study_is_checked_and_run_beside_foreign_packages(home: Home) -> None:
    found = home.run("python", "-c", "from specfleet.experiments.load import config; print(config.__file__)")
    demo = Path(found.strip()).parents[1] / "presets" / "demo.yaml"
    assert "36 points" in home.run("specfleet", "check", str(demo))
    (home.work / "one.yaml").write_text(ONE_POINT)
    two = ("seed=1", "replications=2", "--jobs", "2")
    assert "results/one" in home.run("specfleet", "run", "one.yaml", *two, "--no-plots", "--quiet")
    assert (home.work / "results" / "one" / "1" / "summary.csv").is_file()


def test_a_clone_without_links_says_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "specfleet", tmp_path / "specfleet", ignore=shutil.ignore_patterns(*FOLDERS))
    (tmp_path / "specfleet" / "sim").write_text("../sim")
    asked = subprocess.run(
        [sys.executable, "-c", "import specfleet"], cwd=tmp_path, capture_output=True, text=True
    )
    assert asked.returncode == 1 and "core.symlinks=true" in asked.stderr
