"""A command line read to its end whatever is wrong in it, so that all of it is said at once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Sequence

from specfleet.experiments.flags.faults import LineFault


def parsed(
    parser: argparse.ArgumentParser,
    words: Sequence[str],
    spellings: Callable[[str], Collection[str]],
    unknown: Callable[[str], str],
) -> tuple[argparse.Namespace, list[LineFault]]:
    """What a parser makes of the words that it takes, and what is wrong with the others.

    Args:
        parser: raises `LineFault` where argparse ends the process.
        words: of the line, options and their values.
        spellings: the option strings of a flag, by its name.
        unknown: what to say of a word that the parser does not know.

    Raises:
        LineFault: one that no words can be found for.
    """
    faults: list[LineFault] = []
    rest = list(words)
    while True:
        try:
            said, strange = parser.parse_known_args(rest, argparse.Namespace())
        except LineFault as fault:
            shorter = _without(rest, {fault.option} if fault.option else set(spellings(fault.name)))
            if len(shorter) == len(rest):
                raise
            faults.append(fault)
            rest = shorter
            continue
        return said, [*faults, *_strange(strange, unknown)]


def _without(words: list[str], options: Collection[str]) -> list[str]:
    """The words without an option, however often and however shortened it was given, and its values."""
    kept: list[str] = []
    skips = False
    for word in words:
        option = word.partition("=")[0]
        if _is_option(word):
            skips = option in options or (
                option.startswith("--") and any(long.startswith(option) for long in options)
            )
        if not skips:
            kept.append(word)
    return kept


def _strange(words: list[str], unknown: Callable[[str], str]) -> list[LineFault]:
    """A fault for each word that is not known; what follows an unknown option is taken for its value."""
    faults = []
    value = False
    for word in words:
        if _is_option(word) or not value:
            faults.append(LineFault("unknown_flag", word.split("=")[0], unknown(word)))
        value = _is_option(word) and "=" not in word
    return faults


def _is_option(word: str) -> bool:
    return word.startswith("-") and re.fullmatch(r"-\.?\d.*", word) is None
