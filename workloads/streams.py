"""Streams of random numbers, one a seed and purpose, and one more of each for every traffic class."""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers is for; each has its own, so changing one never moves another."""

    ARRIVAL = 1
    PROMPT = 2
    OUTPUT = 3
    PREFIX = 4
    TRAFFIC_CLASS = 5
    TURNS = 6
    THINK = 7
    TOOL = 8
    BETWEEN = 9
    PATIENCE = 10
    ANSWER_PATIENCE = 11


def stream(seed: int, purpose: Purpose, traffic_class: str | None = None) -> np.random.Generator:
    """The random numbers of one seed and purpose, and of one class: counter-based Philox keyed by them.

    ValueError for a seed outside 0 .. 2**64 - 1.
    """
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"the seed must be a whole number from 0 to 2**64 - 1, got {seed}")
    low = int(purpose) if traffic_class is None else int(purpose) | class_key(traffic_class) << 8
    return np.random.Generator(np.random.Philox(key=np.array([seed, low], dtype=np.uint64)))


def class_key(traffic_class: str) -> int:
    """A number of 31 bits for a class that depends on its name alone: not on its place, nor on the others."""
    digest = hashlib.sha256(traffic_class.encode()).digest()
    return int.from_bytes(digest[:4], "little") & 0x7FFFFFFF
