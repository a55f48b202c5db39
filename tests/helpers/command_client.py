"""In the place of `specfleet`: asks a `command_server.py`; `command_client.py SOCKET WORDS..`."""

import json
import os
import signal
import socket
import sys


def main() -> None:
    """Ends as the command does."""
    asked = {"words": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109 - light
    text = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(sys.argv[1])
        socket.send_fds(server, [len(text).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(text)
        for stream in (0, 1):
            os.close(stream)  # a pipe ends with the command
        code = int.from_bytes(server.recv(4, socket.MSG_WAITALL), "big", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
