"""The `workload.patience:` block: how long clients wait for an answer, and what they do then."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specfleet.experiments.schema.blocks.base import Block
from specfleet.experiments.schema.blocks.sessions import Pause


class Patience(Block):
    """When a client gives a request up: it closes the connection, and the engine lets the request go. Seconds
    from the send of an attempt; a number, or a distribution of which each request has its own value."""

    ttft_timeout_s: Pause | None = None
    """Within which the first token has to come; left out: any time."""
    timeout_s: Pause | None = None
    """Within which the whole answer has to be there; left out: any time."""
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    """How often a request that was given up is sent again, from its beginning, before it fails."""
    backoff_s: Annotated[float, Field(ge=0, le=86_400)] | None = None
    """Before the first time, 1 if left out; twice as long before each further one."""
