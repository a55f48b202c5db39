"""Who has ended, for those who wait for an end while an engine is running."""

from __future__ import annotations

from specfleet.sim.calendar.watch import Ended, Watch


class Ends:
    """The ends of one engine's requests, told when their outcome is known.

    Args:
        watch: notes who ends when; None if nobody has to know before the run is over.
        stops: the engine rests whenever somebody has ended, instead of running on.
        runs_ahead: while nobody waits it runs on to the next end, whoever may arrive before; what was too
            much is taken back then (`Lane.take_back`).

    Attributes:
        ended, turn_s: who has ended when the engine rests, and the time of the turn.
        committed: last iteration whose outcome is known.
    """

    def __init__(self, watch: Watch | None, stops: bool, runs_ahead: bool = False) -> None:
        self.watch = watch
        self.stops = stops
        self.runs_ahead = runs_ahead
        self.ended: list[Ended] = []
        self.turn_s = 0.0
        self.committed = -1

    def publish(self, upto: int, turn_s: float) -> bool:
        """Makes outcomes known up to an iteration; True if somebody ended whom others wait for."""
        self.committed = upto
        if not self.stops or self.watch is None or not (ended := self.watch.commit(upto)):
            return False
        self.ended, self.turn_s = ended, turn_s
        return True
