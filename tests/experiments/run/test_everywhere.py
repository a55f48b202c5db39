"""The same bytes whatever the processes and the hash seed; the same figures elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from everywhere import HEAD, ROOT, differences, oldest

import specfleet as sf

TEXT = (
    f"name: x\n{HEAD}"
    "workload: {input_len: 200, output_len: 20, num_prompts: 20}\n"
    "sweep: {axes: {workload.max_concurrency: [2, 8], "
    "serve.speculative_config.num_speculative_tokens: [0, 3]}}\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sweep of four points."""
    path = tmp_path / "x.yaml"
    path.write_text(TEXT)
    return path


def test_the_start_method_and_the_number_of_processes_change_no_byte(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sf.load(file).run(out=file.with_name("alone"))
    alone = (file.with_name("alone") / "summary.csv").read_bytes()
    for methods in (["spawn"], ["spawn", "forkserver"]):
        monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda methods=methods: methods)
        out = file.with_name(methods[-1])
        sf.load(file).run(jobs=2, out=out)
        assert (out / "summary.csv").read_bytes() == alone


def test_the_hash_seed_changes_no_byte(file: Path) -> None:
    found = set()
    for seed in ("0", "4242"):
        out = file.with_name(f"seed-{seed}")
        command = [
            sys.executable,
            "-m",
            "specfleet",
            "run",
            str(file),
            "--no-plots",
            "--quiet",
            "--jobs",
            "1",
        ]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([*command, "--out", str(out)], env=environment, capture_output=True, check=True)
        said = done.stdout.decode().replace(str(out), "")
        found.add((said, (out / "summary.csv").read_bytes(), (out / "resolved.yaml").read_bytes()))
    assert len(found) == 1


def test_the_processors_instructions_change_no_figure(tmp_path: Path) -> None:
    script, kept = ROOT / "tests" / "fidelity" / "everywhere.py", tmp_path / "here.json"
    subprocess.run([sys.executable, str(script), "--out", str(kept)], check=True, capture_output=True)
    slow = {**os.environ, "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX2 FMA3 ASIMDHP ASIMDDP"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), "--against", str(kept)],
        env=slow,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()


def test_a_figure_that_differs_is_found() -> None:
    here: dict[str, float | str] = {"a": 1, "b": 0.5, "c": "x", "d": float("nan")}
    assert not list(differences(here, {**here, "b": 0.5 * (1 + 1e-13)}))
    assert list(differences(here, {**here, "b": 0.5 * (1 + 1e-11)}))
    assert list(differences(here, {**here, "a": 2})) and list(differences(here, {"a": 1}))


def test_the_lowest_versions_declared_are_exact_for_the_job_that_tests_them() -> None:
    assert all("==" in line and "<" not in line and ">" not in line for line in oldest())
