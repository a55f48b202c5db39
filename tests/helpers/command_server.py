"""`specfleet` from a process that has imported it: `python command_server.py SOCKET`.

A command is a process of its own, forked from the server, with the arguments, folder, environment and streams
of who asks, and ends with its status. What a start costs, the import of the product and the reading of its
catalogue, is paid once. `command_client.py` stands in the place of the command.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path

from specfleet.__main__ import main
from specfleet.experiments.cli.main import main as command_line
from specfleet.experiments.figures.run import ready_to_draw

ROOT = Path(__file__).resolve().parents[2]
STREAMS = 3
READY = b"."


def prepare() -> None:
    """Reads what every command reads, and imports what those import that draw."""
    ready_to_draw()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        command_line(["check", str(ROOT / "experiments" / "presets" / "demo.yaml")])


def serve(path: str) -> None:
    """Runs the commands that are asked for at a socket, side by side, until it is ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for commands
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(16)
        sys.stdout.buffer.write(READY)
        sys.stdout.flush()
        while True:
            asked, _ = listener.accept()
            if os.fork() == 0:
                try:
                    listener.close()
                    attend(asked)
                finally:
                    os._exit(0)
            asked.close()


def attend(asked: socket.socket) -> None:
    """Runs one command; says its exit code, or minus its signal. It ends with who asks."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, streams, _, _ = socket.recv_fds(asked, 8, STREAMS)
    text = asked.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
    process = os.fork()
    if process == 0:
        asked.close()
        run(json.loads(text), streams)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(process)
    select.select([ended, asked.fileno()], [], [])
    if not select.select([ended], [], [], 0)[0]:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(OSError):
        asked.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def run(asked: dict[str, object], streams: list[int]) -> None:
    """Becomes the command."""
    code = 70
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", buffering=1)
        os.chdir(str(asked["folder"]))
        os.environ.clear()
        os.environ.update(asked["environment"])  # type: ignore[call-overload]
        sys.argv = ["specfleet", *asked["words"]]  # type: ignore[misc]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with contextlib.suppress(BrokenPipeError, ValueError):
            sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    prepare()
    serve(sys.argv[1])
