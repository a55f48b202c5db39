"""What is wrong with a command line: one kind of error for all of it."""

from __future__ import annotations


class LineFault(ValueError):  # noqa: N818 (what is wrong with the user's line)
    """Something that the engine itself would refuse, or that is not simulated.

    Args:
        kind: one word for the sort of mistake, such as `unknown_flag`, `wrong_type` or `missing_k`.
        name: the flag or field at fault, with underscores.
        message: what is wrong; what to do.
    """

    def __init__(self, kind: str, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}" if name else message)
        self.kind = kind
        self.name = name
        self.message = message
