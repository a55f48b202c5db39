"""What a router sees of replicas: counts of its own, as old as its refresh."""

from __future__ import annotations

from collections.abc import Callable
from math import floor


class Gauge:
    """A number that is seen as it was at the last multiple of a refresh.

    Args:
        refresh_s: seconds between two looks; 0 sees it as it is.
    """

    __slots__ = ("_before", "_period", "_refresh_s", "value")

    def __init__(self, refresh_s: float) -> None:
        self.value = 0
        self._refresh_s = refresh_s
        self._before, self._period = 0, -1

    def add(self, change: int, now: float) -> None:
        """Changes the number at `now`."""
        if self._refresh_s:
            period = floor(now / self._refresh_s)
            if period > self._period:
                self._before, self._period = self.value, period
        self.value += change

    def seen(self, now: float) -> int:
        """Returns the number as it is seen at `now`."""
        if self._refresh_s and floor(now / self._refresh_s) == self._period:
            return self._before
        return self.value


class DeskClock:
    """What time it is for those who look.

    Attributes:
        now: seconds.
    """

    now = 0.0


class View:
    """One replica, as a router sees it.

    Args:
        desk: whose clock says how old the view is.
        refresh_s: as in `Gauge`.
        kv: asks the engine for the share of KV blocks in use; None where it does not show it.
    """

    __slots__ = ("_desk", "_kv", "_kv_at", "_kv_seen", "_outstanding", "_refresh_s", "_tokens")

    def __init__(self, desk: DeskClock, refresh_s: float, kv: Callable[[], float] | None) -> None:
        self._desk, self._refresh_s, self._kv = desk, refresh_s, kv
        self._outstanding, self._tokens = Gauge(refresh_s), Gauge(refresh_s)
        self._kv_at, self._kv_seen = -1, 0.0

    @property
    def outstanding(self) -> int:
        """Requests sent there whose end has not been seen yet."""
        return self._outstanding.seen(self._desk.now)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of the requests outstanding."""
        return self._tokens.seen(self._desk.now)

    @property
    def kv_usage(self) -> float:
        """Share of its KV blocks in use; in each period of the refresh the first who looks asks."""
        assert self._kv is not None, "a router that looks into engines has them stepped"
        if not self._refresh_s:
            return self._kv()
        period = floor(self._desk.now / self._refresh_s)
        if period > self._kv_at:
            self._kv_at, self._kv_seen = period, self._kv()
        return self._kv_seen

    @property
    def inside(self) -> int:
        """Requests outstanding now: what the gateway itself knows, however old the router's view."""
        return self._outstanding.value

    @property
    def tokens_inside(self) -> int:
        """Their prompt tokens."""
        return self._tokens.value

    def sent(self, tokens: int, now: float) -> None:
        """Notes a request that goes there."""
        self._outstanding.add(1, now)
        self._tokens.add(tokens, now)

    def ended(self, tokens: int, now: float) -> None:
        """Notes its end."""
        self._outstanding.add(-1, now)
        self._tokens.add(-tokens, now)
