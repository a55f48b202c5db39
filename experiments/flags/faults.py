"""What is wrong with a command line: one kind of error for all of it."""

from __future__ import annotations

from collections.abc import Iterable


class LineFault(ValueError):  # noqa: N818 (what is wrong with the user's line)
    """Something that the engine itself would refuse, or that is not simulated.

    Args:
        kind: one word for the sort of mistake, such as `unknown_flag`, `wrong_type` or `missing_k`.
        name: the flag or field at fault, with underscores.
        message: what is wrong; what to do.
        option: the option as it was typed, where that is known.

    Attributes:
        every: this fault and all others of the same line, in the order in which they were found.
    """

    def __init__(self, kind: str, name: str, message: str, option: str = "") -> None:
        super().__init__(f"{name}: {message}" if name else message)
        self.kind = kind
        self.name = name
        self.message = message
        self.option = option
        self.every: tuple[LineFault, ...] = (self,)


def together(faults: Iterable[LineFault]) -> LineFault:
    """The first of several faults, which knows of the others.

    Args:
        faults: at least one.
    """
    every = tuple(one for fault in faults for one in fault.every)
    every[0].every = every
    return every[0]
