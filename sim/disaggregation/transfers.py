"""What of each prompt's KV has been made, sent and taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from specfleet.sim.disaggregation.config import AFTER, LAYERS, HandoverConfig
from specfleet.sim.disaggregation.network import Network
from specfleet.sim.disaggregation.servers import PromptPiece
from specfleet.sim.environment import Environment
from specfleet.sim.rules import SchedulerRules

TIMES = ("prefilled_s", "handed_s", "opened_s", "moved_s")
"""Of a request whose KV is handed over: its prompt was computed; the decode replica had it in its inbox; it
had blocks for its KV; its KV was there."""
COUNTS = ("prefill_replica", "kv_blocks", "kv_bytes", "kv_given_up")
"""The replica that computed its prompt; the blocks and bytes that were sent; how often its KV was given up
where it had come, for others to go on."""


class Transfers:
    """The transfers of a run.

    Args:
        config: how KV is handed over.
        rules: of the replicas that compute prompts.
        prompt_tokens: of every request.
        env: the cluster's clock.
        bytes_per_s: of each replica's link.
        arrived: learns that the KV of a request is there, and when.

    Attributes:
        columns: `TIMES` and `COUNTS`, a value a request.
    """

    def __init__(
        self,
        config: HandoverConfig,
        rules: SchedulerRules,
        prompt_tokens: npt.NDArray[np.int64],
        env: Environment,
        bytes_per_s: Sequence[float],
        arrived: Callable[[int, float], None],
    ) -> None:
        self._config, self._rules, self._env = config, rules, env
        self._prompts = prompt_tokens.tolist()
        self._network = Network(env, bytes_per_s, self._done)
        self._made: dict[int, int] = {}
        self._arrived = arrived
        n = len(self._prompts)
        self.columns: dict[str, npt.NDArray[np.float64] | npt.NDArray[np.int64]] = {
            **{name: np.full(n, np.nan) for name in TIMES},
            **{name: np.zeros(n, dtype=np.int64) for name in COUNTS},
        }

    def begin(self, row: int, source: int) -> None:
        """A replica is to compute a prompt, and to send its KV."""
        self._network.begin(row, source)
        self._made[row] = 0
        self.columns["prefill_replica"][row] = source

    def handed(self, row: int, now: float) -> None:
        """The decode replica has the request in its inbox."""
        self.columns["handed_s"][row] = now

    def opened(self, row: int, target: int, now: float) -> None:
        """The decode replica has blocks for a prompt."""
        self.columns["opened_s"][row] = now
        due = now + self._config.setup_s
        self._env.at(due, lambda then: self._network.open(row, target, then))

    def made(self, piece: PromptPiece) -> None:
        """A step has begun that computes a piece of a prompt, sent while the next ones are computed."""
        config, network, env = self._config, self._network, self._env
        count = 0 if config.overlap == AFTER else self._more(piece.row, piece.computed)
        if not count:
            return
        row, last = piece.row, count
        seconds = piece.end_s - piece.start_s
        if config.overlap == LAYERS and config.layers > 1 and seconds > 0.0:
            # a layer's KV is there when the layer is computed: the first after one of so many parts of the
            # step, the last at its end, and between them as much as is computed
            last = count // config.layers
            first_s = piece.start_s + seconds / config.layers
            rate = (count - last) / (piece.end_s - first_s)
            env.at(first_s, lambda then: network.pour(row, rate, then))
            env.at(piece.end_s, lambda then: network.pour(row, 0.0, then))
        env.at(piece.end_s, lambda then: network.put(row, last, then))

    def _more(self, row: int, computed: int) -> int:
        """Returns the bytes that are made when so many tokens of a prompt are computed, but those before."""
        prompt, size = self._prompts[row], self._rules.block_size
        blocks = computed // size if computed < prompt else self._rules.blocks_received(prompt)
        before, whole = self._made[row], self._config.bytes_of(blocks, computed)
        if whole <= before:  # it was thrown out, and is computed again
            return 0
        self._made[row] = whole
        self.columns["kv_blocks"][row] = blocks
        self.columns["kv_bytes"][row] = whole
        return whole - before

    def prefilled(self, row: int, now: float) -> None:
        """A prompt is computed."""
        self.columns["prefilled_s"][row] = now
        if self._config.overlap == AFTER:
            self._network.put(row, self._more(row, self._prompts[row]), now)
        self._network.close(row, now)

    def _done(self, row: int, now: float) -> None:
        self.columns["moved_s"][row] = now
        del self._made[row]
        self._arrived(row, now)
