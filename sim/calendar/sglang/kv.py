"""KV under SGLang's rules on the calendar: counted, or with the radix tree.

How many pages everybody holds, as if each had its own, is read off the calendar. What several share is
counted once by the tree, which is brought up to date only when a request comes, has its prompt computed, or
leaves. What decodes in between had evicted is owed until then: the same nodes go, in the same order.
"""

from __future__ import annotations

from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.sglang.asking import Asking, Followed
from specfleet.sim.calendar.sglang.lives import SglangPacking
from specfleet.sim.errors import Unsuited
from specfleet.sim.rules import NEVER
from specfleet.sim.sglang.pool import Evicting, Match, leave, protect, tokens_of
from specfleet.sim.sglang.radix import RadixTree
from specfleet.sim.sglang.rules import SglangRules

NO_MATCH = Match(None, 0)


class Count:
    """A KV pool of which only what is left counts: nothing in it can be found by anybody else.

    Args:
        rules: of the engine.
        radix: the tree is used, though nothing is found there.

    Attributes:
        available: KV tokens free, or free once evicted.
        saved: pages that several hold, counted once; taken off what all hold together.
        tree: something where the tree is used.
    """

    saved, shared = 0, None
    tree: object | None
    available: int

    def __init__(self, rules: SglangRules, radix: bool) -> None:
        self.rules, self.pages = rules, rules.pool // rules.page
        self.available, self.tree = 0, self if radix else None

    def begin(self, held: int) -> None:
        """A turn may need KV; so many pages are held, those that several share counted for each."""
        self.available = (self.pages - held) * self.rules.page

    def match(self, asking: Asking) -> Match:
        """Nothing is found."""
        return NO_MATCH

    def lock(self, match: Match) -> None:
        """Nothing was found."""

    def unlock(self, match: Match) -> None:
        """Nothing was found."""


class Shared(Evicting):
    """A KV pool with its radix tree, or without one, in which requests may be retracted.

    Args:
        rules: of the engine.
        radix: the tree is used. by_pairs: as `RadixTree`.
        layout: of the sums that count for each what several share; None: nobody shares.

    Attributes:
        free: KV tokens that nobody holds and that are not in the tree, in the turn that was begun last.
        owed: KV tokens that decodes since then would have evicted.
        saved: pages that several hold, counted once.
    """

    def __init__(self, rules: SglangRules, radix: bool, by_pairs: bool, layout: SglangPacking | None) -> None:
        self._tokens, self._margin, self._most_tokens = 0, rules.reserve + 2 * rules.page, NEVER
        if layout is not None:
            self._most_tokens = min(layout.context_mask, layout.pages_mask * rules.page)
        self.rules, self.pages = rules, rules.pool // rules.page
        self.tree = RadixTree(rules.page, by_pairs) if radix else None
        self.free = self.owed = self.saved = 0
        self._protected = 0
        self._leaving: dict[int, list[Followed]] = {}

    @property
    def shared(self) -> Shared:
        """What more it can do than count."""
        return self

    @property
    def spare(self) -> int:
        """KV tokens that would be free if nobody held any for itself."""
        return (self.pages + self.saved) * self.rules.page - self.evictable

    def begin(self, held: int) -> None:
        """As `Count.begin`."""
        self._settle()
        self.free = self.spare - held * self.rules.page

    def owe(self, tokens: int) -> None:
        """A decode would have evicted so many tokens."""
        if tokens > self.owed and self.tree is not None:
            self.owed = tokens

    def _settle(self) -> None:
        """Evicts what is owed."""
        if self.owed and self.tree is not None:
            self.tree.evict(self.owed)
        self.owed = 0

    def _count(self) -> None:
        """Counts what several share."""
        if self.tree is not None:
            self.saved = (self._protected - self.tree.locked) // self.rules.page

    def match(self, asking: Asking, short_by: int = 1) -> Match:
        """As `TokenPool.match`."""
        assert isinstance(asking, Followed)
        if self.tree is None:
            asking.looked_at = asking.num_tokens if short_by else asking.looked_at
            return NO_MATCH
        self._settle()
        node, found = self.tree.match(tokens_of(asking, asking.num_tokens - short_by))
        if short_by:
            asking.looked_at = asking.num_tokens - found
        return Match(node, found)

    def hold(self, asking: Asking, match: Match) -> None:
        """Begins to hold a prefix, which has been locked."""
        assert isinstance(asking, Followed)
        asking.protected, asking.node = match.tokens, match.node
        self._protected += match.tokens
        self._count()

    def keep(self, told: Followed, tokens: int) -> None:
        """As `TokenPool.keep`."""
        if self.tree is None:
            return
        self._settle()
        self._protected -= told.protected
        protect(self.tree, told, told, tokens)
        self._protected += told.protected
        self._count()

    def joins(self, asking: Asking) -> None:
        """One is prefilled, and decodes up to its last batch.

        Raises:
            Unsuited: all together may hold more than a sum has room for.
        """
        assert isinstance(asking, Followed)
        self._tokens += asking.block.largest(asking.j) + self._margin
        if self._tokens > self._most_tokens:
            raise Unsuited("counts that do not fit in one integer")
        if asking.last >= asking.since:
            self._leaving.setdefault(asking.last, []).append(asking)

    def computed(self, members: list[Asking], in_vain: bool) -> None:
        """The result of a prefill batch is known; `in_vain`: a decode was decided before that."""
        for told in members:
            assert isinstance(told, Followed)
            if told.last < told.since:
                self.finish(told, in_vain)
            else:
                self.keep(told, told.num_tokens)

    def decodes(self, rows: int, held: int, used: int, slack: int) -> None:
        """A decode has its KV.

        Args:
            rows: of it.
            held: pages held before, those that several share counted for each. used: held now.
            slack: tokens between the prompts of those who decode for the first time and whole pages.
        """
        page = self.rules.page
        wanted = rows * page if page > 1 or not self.rules.reserve else 0
        if self.rules.reserve:
            wanted += (used + self.saved - held) * page + slack
        self.owe(wanted - self.spare + held * page)

    def decode_together(self, rows: I64, held: I64, used: I64) -> None:
        """As `decodes`, for several in which nobody decodes for the first time and nobody leaves."""
        page = self.rules.page
        wanted = rows * page if page > 1 or not self.rules.reserve else 0
        if self.rules.reserve:
            wanted = wanted + (used + self.saved - held) * page
        self.owe(int((wanted + held * page).max()) - self.spare)

    def ended(self, decode: int, in_vain: bool) -> None:
        """The result of a decode batch is known.

        Args:
            decode: its number.
            in_vain: the next one was decided before that.
        """
        for told in self._leaving.pop(decode, ()):
            self.finish(told, in_vain)

    def finish(self, told: Followed, in_vain: bool) -> None:
        """A request has ended: what it computed stays in the tree."""
        self._tokens -= told.block.largest(told.j) + self._margin
        if self.tree is None:
            return
        self._settle()
        leave(self.tree, told, told, told.block.kept_in_tree(told.j, in_vain))
        self._protected -= told.protected
        told.protected, told.node = 0, None
        self._count()

    def drop(self, told: Followed, pages: int) -> None:
        """Takes everything from a request that held so many pages; nothing new of it stays in the tree."""
        self._tokens -= told.block.largest(told.j) + self._margin
        self.free += pages * self.rules.page - told.protected
        self._protected -= told.protected
        if self.tree is not None and told.node is not None:
            self.tree.unlock(told.node)
        told.protected, told.node = 0, None
        self._count()

    def rearrange(self, decode: int, before: list[Followed], after: list[Followed]) -> None:
        """Notes anew who leaves when: by the order up to a decode batch, and by that from then on."""
        self._leaving.clear()
        ends_before = [told for told in before if told.since <= told.last < decode]
        for told in (*ends_before, *(told for told in after if told.last >= decode)):
            self._leaving.setdefault(told.last, []).append(told)
