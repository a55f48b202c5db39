"""A request as SGLang's rules read it on the calendar: it waits, its prompt is cut, it runs."""

from __future__ import annotations

from specfleet.sim.calendar.sglang.lives import SglangLives
from specfleet.sim.sglang.radix import Node
from specfleet.sim.sglang.rules import CLIP_MAX_NEW_TOKENS


class Asking:
    """One who waits, whose prompt is being cut, or who runs.

    Attributes:
        num_tokens, num_output_tokens: known before its prompt was computed; outputs if it was retracted.
        block, j: its life from then on.
        admitted: the iteration of its first admission, -1 before that.
        first, first_rank: the iteration of its first token, and the place of that in its batch.
        rank: the place in its batch of the first token of this stay.
        stay: of those that the lane notes.
        since, last: its first decode batch and its last one; before `since` if it has none.
    """

    __slots__ = (
        "admitted",
        "block",
        "first",
        "first_rank",
        "ignore_eos",
        "j",
        "last",
        "max_tokens",
        "num_computed_tokens",
        "num_output_tokens",
        "num_tokens",
        "place",
        "rank",
        "since",
        "stay",
    )

    def __init__(self, place: int, prompt: int, most: int, ignore_eos: bool) -> None:
        self.place = place
        self.num_tokens, self.max_tokens = prompt, most
        self.num_computed_tokens = self.num_output_tokens = 0
        self.ignore_eos = ignore_eos
        self.admitted = self.first = self.last = -1
        self.since = self.rank = self.first_rank = self.stay = 0

    @property
    def most(self) -> int:
        """Output tokens that it may have yet."""
        return self.max_tokens - self.num_output_tokens

    def live(self, block: SglangLives, j: int) -> None:
        """Gives it a life."""
        self.block, self.j = block, j


class Followed(Asking):
    """One of whom more is asked: its tokens, its priority, what became of it before it was retracted.

    Attributes:
        prompt_tokens, stop_at, stretches: its content, as of `Sequence`.
        priority, arrival: by which a queue may sort.
        protected, node: what it has in the radix tree.
        looked_at: tokens that were not found when it was tried last.
        retractions: how often. verified, accepted: rounds before that, and their drafts accepted.
    """

    __slots__ = (
        "accepted",
        "arrival",
        "looked_at",
        "node",
        "priority",
        "prompt_tokens",
        "protected",
        "retractions",
        "stop_at",
        "stretches",
        "verified",
    )

    def __init__(
        self,
        place: int,
        prompt: int,
        most: int,
        ignore_eos: bool,
        stop_at: int,
        stretches: tuple[tuple[object, int], ...],
        priority: int,
    ) -> None:
        super().__init__(place, prompt, most, ignore_eos)
        self.prompt_tokens, self.stop_at, self.stretches = prompt, stop_at, stretches
        self.priority, self.arrival = priority, 0
        self.protected = self.retractions = self.verified = self.accepted = self.looked_at = 0
        self.node: Node | None = None

    @property
    def id(self) -> int:
        """Its place."""
        return self.place


class Written:
    """One who runs, with its outputs, as the rules read it."""

    __slots__ = ("ignore_eos", "max_tokens", "num_output_tokens", "num_tokens")
    num_computed_tokens = 0

    def __init__(self, asking: Asking, output: int) -> None:
        self.num_tokens = asking.num_tokens + output - asking.num_output_tokens
        self.num_output_tokens = output
        self.max_tokens, self.ignore_eos = asking.max_tokens, asking.ignore_eos


class Prefilled:
    """A prefill batch whose result is not known yet.

    Attributes:
        members: its requests, but for one whose prompt goes on. size: where KV is counted alone, how many.
        at_once: those that end with their first token; pages: of their prompts.
        sure: KV pages of those of them whose end is certain. ghosts, ghost_context, ghost_pages,
            ghost_beyond: of the others, who decode once in vain.
        left: what an admission expects of its requests on top of what it will expect once their first token
            is known.
    """

    __slots__ = (
        "at_once",
        "ghost_beyond",
        "ghost_context",
        "ghost_pages",
        "ghosts",
        "left",
        "members",
        "pages",
        "size",
        "sure",
    )

    def __init__(self) -> None:
        self.at_once = self.pages = self.sure = self.size = 0
        self.ghosts = self.ghost_context = self.ghost_pages = self.ghost_beyond = 0
        self.left = 0
        self.members: list[Asking] = []

    def count(self, block: SglangLives, j: int, most: int, pages: int, context_mask: int, sign: int) -> None:
        """Counts a member, or takes it out again: outputs that it may have yet, and its KV pages."""
        self.left += sign * min(most, CLIP_MAX_NEW_TOKENS)
        if block.rounds[j]:
            self.left -= sign * min(most - 1, CLIP_MAX_NEW_TOKENS)
            return
        leave = block.leave
        self.at_once += sign
        self.pages += sign * pages
        if leave.sure[j]:
            self.sure += sign * pages
        else:
            self.ghosts += sign
            self.ghost_context += sign * (leave.ghost[j] & context_mask)
            self.ghost_pages += sign * leave.ghost_pages[j]
            self.ghost_beyond += sign * leave.ghost_beyond[j]


NOTHING = Prefilled()
