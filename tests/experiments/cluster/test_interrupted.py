"""A command that starts a cluster is asked to end: it starts it first, and then ends both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from specfleet.experiments.cli.endings import ended_alike
from specfleet.experiments.run.cluster.connect import interrupts_wait

ASKED = {name: getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP")}


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Ctrl-C is ignored by what a shell started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ASKED)
def test_who_asks_to_end_while_a_cluster_starts_is_heard_when_it_has_started(name: str) -> None:
    started = []
    with ended_alike():
        before = signal.getsignal(ASKED[name]), signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with pytest.raises(KeyboardInterrupt), interrupts_wait():
            os.kill(os.getpid(), ASKED[name])
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED.values())  # as if another thread were told
            time.sleep(0.01)
            started.append(name)
        assert started == [name]
        assert (signal.getsignal(ASKED[name]), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == before


def test_who_asks_nothing_is_told_nothing_and_an_error_stays_one() -> None:
    with ended_alike():
        with interrupts_wait():
            pass
        with pytest.raises(ZeroDivisionError), interrupts_wait():
            _ = 1 / 0


def test_what_starts_meanwhile_does_not_hear_of_a_terminal_but_of_a_scheduler() -> None:
    deaf = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    with ended_alike(), interrupts_wait():
        told = subprocess.run([sys.executable, "-c", deaf], capture_output=True, text=True, check=True)
    assert "SIGINT" in told.stdout and "SIGHUP" in told.stdout and "SIGTERM" not in told.stdout
