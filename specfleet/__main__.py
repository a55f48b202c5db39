"""`specfleet`, and `python -m specfleet`: the command line, which ends with 130 if ever it is interrupted."""

import os
import sys

INTERRUPTED = 130


def main() -> None:
    """Runs the command line; an interrupt while it is imported, or while the process goes, ends it alike."""
    try:
        from specfleet.experiments.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        _end_with_its_own_status()


def _end_with_its_own_status() -> None:
    """What is left is Python's own way out, which an interrupt must not change any more.

    An interrupt that comes while Python runs the text of a program (`exec`, as dataclasses do) is noted, and
    Python ends itself by the signal even where it was caught (CPython's `run_eval_code_obj`); any other text
    that it runs forgets the note.
    """
    import signal  # 1 ms in which an interrupt would still end in a traceback, were it imported above

    exec("")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))


if __name__ == "__main__":
    main()
