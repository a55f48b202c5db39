"""A command forked from a server runs as one that is started: output, status, streams, folder, end."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from docs_pages import Workshop, blocks, commands

from specfleet import __version__

PAGE = """\
```console
$ {}
```
"""


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("specfleet --version", 0),
        ("specfleet check nothing.yaml", 2),
        ("specfleet --version | cat", 0),
        ("specfleet schema | head -c 1", 0),
        ("cd sub && specfleet check x.yaml", 2),
        ("SPECFLEET_OF_TEST=1 specfleet catalog gpus", 2),
    ],
)
def test_a_served_command_prints_and_ends_as_a_started_one(tmp_path: Path, text: str, status: int) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(text))
    found = []
    for served in (False, True):
        (tmp_path / str(served)).mkdir()
        with Workshop(tmp_path / str(served), served=served) as workshop:
            (workshop.folder / "sub").mkdir()
            (workshop.folder / "sub" / "x.yaml").write_text("serve: {\n")
            [command] = commands(blocks(page)[0])
            found.append(workshop.run(command))
    assert found[0] == found[1] and found[0][0] == status
    if text == "specfleet --version":
        assert found[0][1] == (f"specfleet {__version__}",)


def test_a_served_command_ends_with_who_asked_for_it(tmp_path: Path) -> None:
    slow = (
        "specfleet run experiments/presets/demo.yaml workload.num_prompts=1000000 --jobs 1 --quiet --no-plots"
    )
    with Workshop(tmp_path, served=True) as workshop:
        asks = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {slow}"], cwd=workshop.folder, env=workshop.environment
        )
        lock = workshop.folder / "results"
        while not lock.exists():
            assert asks.poll() is None
            time.sleep(0.02)
        asks.send_signal(signal.SIGTERM)
        assert asks.wait() == -signal.SIGTERM
        [folder] = lock.glob("*/1")
        again = ["specfleet", "run", *slow.split()[2:], "workload.num_prompts=8", "--out", str(folder)]
        ended = 2
        while ended == 2:  # until nobody is at work in it
            ended = subprocess.run(again, cwd=workshop.folder, env=workshop.environment).returncode
        assert ended == 0
