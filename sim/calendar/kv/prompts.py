"""What prompts have in common, as keys of their KV blocks, for the fast path.

An output that a later prompt may hold, that of a turn of a session, counts as the end of its own prompt.

`sim.kvcache` makes a key of what a block holds. Here a key comes from where the block stands: prompts
that begin with the same pieces of the same streams walk the same chain, and a chain numbers its blocks.
Blocks that no other prompt can ask for get none: they need no identity.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.luck import I64
from specfleet.workloads.requests import RequestTable

Chain = tuple[int, list[int]]
"""A number, and the keys of the blocks that end in one stream behind one beginning."""
NO_KEYS: list[int] = []


class Prompts:
    """Prompts by their block keys.

    Args:
        table: the requests. Who asks for an output comes after the request that wrote it.
        rows: those that are served.
        block_size: tokens a block.
        ahead: tokens past a block that its key covers.
        repeats: whether each request may come again, with the same prompt and answer; None: none may.

    Attributes:
        shareable: blocks at the beginning of each prompt, and of its output behind it, that another prompt
            may begin with, by row. with_outputs: it may be one of an output.
    """

    def __init__(
        self,
        table: RequestTable,
        rows: I64,
        block_size: int,
        ahead: int,
        repeats: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self._size = block_size
        self._ahead = ahead
        self._chains: dict[tuple[int, int, int], Chain] = {}
        self._num_keys = 0
        self._last: tuple[int, list[int]] = (-1, NO_KEYS)
        self.with_outputs = table.output_stream is not None or repeats is not None
        offset, streams, tokens = _with_outputs(table)
        shared = _shared_tokens(len(table), rows, offset, streams, tokens)
        if repeats is not None:
            shared = np.where(repeats, np.maximum(shared, table.prompt_tokens), shared)
        blocks = np.maximum(shared - ahead, 0) // block_size
        self.shareable, self._offset = blocks.data, offset.data
        self._streams, self._tokens = streams.data, tokens.data

    def keys(self, row: int) -> list[int]:
        """Returns the keys of the blocks, of a prompt and its output, that another prompt may begin with.

        They are not to be changed.
        """
        count = self.shareable[row]
        if not count:
            return NO_KEYS
        if self._last[0] == row:
            return self._last[1]
        size, ahead = self._size, self._ahead
        keys: list[int] = []
        parent, start = -1, 0
        for segment in range(self._offset[row], self._offset[row + 1]):
            place = parent, start, self._streams[segment]
            found = self._chains.get(place)
            if found is None:
                found = self._chains[place] = len(self._chains), []
            parent, chain = found
            start += self._tokens[segment]
            wanted = min(count, (start - ahead) // size) - len(keys)
            while len(chain) < wanted:
                chain.append(self._num_keys)
                self._num_keys += 1
            if wanted > 0:
                keys += chain[:wanted]
            if len(keys) == count:
                break
        self._last = row, keys
        return keys


def _with_outputs(table: RequestTable) -> tuple[I64, I64, I64]:
    """Returns (offset, stream, tokens) of prompts, each with the output that others may ask for behind it."""
    if table.segment_offset is None:  # each has a prompt of its own
        return np.arange(len(table) + 1), np.arange(len(table)), table.prompt_tokens
    assert table.segment_stream is not None
    assert table.segment_tokens is not None
    offset, streams, tokens = table.segment_offset, table.segment_stream, table.segment_tokens
    if table.output_stream is None:
        return offset, streams, tokens
    ends = offset[1:] - 1
    goes_on = streams[ends] == table.output_stream
    tokens = tokens.copy()
    tokens[ends[goes_on]] += table.output_tokens[goes_on]
    begins = np.flatnonzero(~goes_on)
    streams = np.insert(streams, offset[1:][begins], table.output_stream[begins])
    tokens = np.insert(tokens, offset[1:][begins], table.output_tokens[begins])
    return offset + np.concatenate([[0], np.cumsum(~goes_on)]), streams, tokens


def _shared_tokens(requests: int, rows: I64, offset: I64, streams: I64, tokens: I64) -> I64:
    """Returns how many tokens of each prompt lie before the first stream that no other prompt has."""
    row_of = np.repeat(np.arange(requests), np.diff(offset))
    served = np.zeros(requests, dtype=np.bool_)
    served[rows] = True
    names, stream_of = np.unique(streams, return_inverse=True)
    pairs = np.unique(np.stack([stream_of, row_of])[:, served[row_of]], axis=1)
    known = np.bincount(pairs[0], minlength=len(names)) > 1
    ends = np.cumsum(tokens)
    before = np.concatenate([[0], ends])[offset[:-1]]
    lone = np.flatnonzero(~known[stream_of])
    stop = np.concatenate([[0], ends])[offset[1:]]
    begins = (ends - tokens)[lone]
    np.minimum.at(stop, row_of[lone], begins)
    return np.asarray(stop - before)
