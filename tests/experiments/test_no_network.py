"""No network, ever: each process of a command is refused connections and names, and none is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = """
import os, sys

LOCAL = ("127.", "localhost", "::1")
OF_NAMES = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


def refuse(event, args):
    if event not in (*OF_NAMES, "socket.connect", "socket.sendto"):
        return
    address = args[0 if event in OF_NAMES else 1]
    host = address[0] if isinstance(address, tuple) else address
    named = isinstance(address, tuple) or event in OF_NAMES
    if named and not str(host).startswith(LOCAL):  # an AF_UNIX address is a path
        with open(os.environ["ASKED"], "a") as log:
            log.write(f"{event} {address}\\n")
        raise PermissionError(f"{event} {address}")


sys.addaudithook(refuse)
with open(os.environ["ASKED"] + ".processes", "a") as log:
    log.write(f"{os.getpid()}\\n")
"""
FILE = """
name: x
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_model_len: 4096,
        speculative_config: {model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}}
acceptance: {conditional_acceptance: 0.7, concentration: 18}
workload: {input_len: 200, output_len: 20, num_prompts: 30, max_concurrency: 4}
"""
SWEEP = "sweep: {axes: {serve.speculative_config.num_speculative_tokens: [0, 3]}}\n"
PLAN = """
slo: {p50_tpot_ms: 60, p50_ttft_ms: 2000}
plan: {candidates: {gpu: [h100-sxm]}, prices_per_hour_usd: {h100-sxm: 3.9}, max_gpus: 2}
"""


class Blocked:
    """Runs Python with sockets blocked in it and in every process that it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "asked"
        (folder / "sitecustomize.py").write_text(BLOCK)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Returns how it ended."""
        environment = {**os.environ, "ASKED": str(self.log), "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}"}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False
        )

    @property
    def asked(self) -> str:
        """What asked for the network, a line each."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def processes(self) -> int:
        """Processes in which sockets were blocked."""
        return len(set(self.log.with_suffix(".processes").read_text().split()))


@pytest.fixture
def blocked(tmp_path: Path) -> Blocked:
    """Sockets blocked."""
    return Blocked(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "socket.create_connection(('192.0.2.1', 80), 1)",
        "socket.socket().connect(('192.0.2.1', 80))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 53))",
        "socket.gethostbyname('example.invalid')",
    ],
)
def test_who_asks_for_the_network_is_refused_and_written_down(blocked: Blocked, text: str) -> None:
    assert "PermissionError" in blocked.run("-c", f"import socket; {text}").stderr
    assert "192.0.2.1" in blocked.asked or "example.invalid" in blocked.asked


def test_run_report_breakeven_and_plan_ask_for_no_network(blocked: Blocked, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FILE + SWEEP)
    (tmp_path / "plan.yaml").write_text(
        FILE.replace("num_prompts: 30, max_concurrency: 4", "request_rate: 2, num_prompts: 100") + PLAN
    )
    commands = (
        ("run", "x.yaml", "--jobs", "2", "--out", "run"),
        ("report", "run"),
        ("breakeven", "x.yaml", "--jobs", "1", "--out", "breakeven", "--tolerance", "0.2"),
        ("plan", "plan.yaml", "--jobs", "1", "--out", "plan"),
    )
    for command in commands:
        done = blocked.run("-m", "specfleet", *command)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert not blocked.asked, command
    assert blocked.processes > len(commands)  # the workers of --jobs 2 too
