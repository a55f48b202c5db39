"""Layers in a row: how many are alike, and what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from specfleet.hardware.layers.attention import CompressedAttention, GroupedAttention, LatentAttention
from specfleet.hardware.layers.feedforward import DenseMlp, ExpertMlp
from specfleet.hardware.layers.parts import Part
from specfleet.hardware.layers.recurrent import GatedDelta, Lightning, Mamba, ShortConv

Attention = GroupedAttention | LatentAttention | CompressedAttention
Recurrent = GatedDelta | Mamba | Lightning | ShortConv
Mixer = Attention | Recurrent
"""What mixes tokens."""
FeedForward = DenseMlp | ExpertMlp


class LayerRun(NamedTuple):
    """`layers` layers alike: one or more mixers side by side (Falcon-H1), a feed-forward, or one of the two.

    `formats` are (role of a part, format) where they differ from the checkpoint's as a whole; the experts'
    role is "experts".
    """

    layers: int
    mixers: tuple[Mixer, ...]
    feed_forward: FeedForward | None
    formats: tuple[tuple[str, str], ...] = ()

    def parts(self, hidden: int, tp: int) -> tuple[Part, ...]:
        """All projections of one layer on one GPU but router and experts."""
        own = self.feed_forward.parts(hidden, tp) if self.feed_forward else ()
        return (*(part for mixer in self.mixers for part in mixer.parts(hidden, tp)), *own)

    @property
    def experts(self) -> ExpertMlp | None:
        """The routed experts of one layer, if it has any."""
        return self.feed_forward if isinstance(self.feed_forward, ExpertMlp) else None

    @property
    def norms(self) -> int:
        """Norms of one layer: one before each of the two."""
        return bool(self.mixers) + bool(self.feed_forward)


def alike(layers: Iterable[LayerRun]) -> tuple[LayerRun, ...]:
    """Equal layers added up, in order of their first."""
    found: dict[LayerRun, int] = {}
    for run in layers:
        key = run._replace(layers=1)
        found[key] = found.get(key, 0) + run.layers
    return tuple(run._replace(layers=count) for run, count in found.items())


def as_projected(runs: Iterable[LayerRun]) -> tuple[LayerRun, ...]:
    """The same with windows left out: what GEMMs see."""
    return alike(run._replace(mixers=tuple(mixer.unwindowed for mixer in run.mixers)) for run in runs)


def mixers(runs: Iterable[LayerRun]) -> dict[Mixer, int]:
    """How many layers have which mixer."""
    found: Counter[Mixer] = Counter()
    for run in runs:
        for mixer in run.mixers:
            found[mixer] += run.layers
    return dict(found)


def same(one: Iterable[LayerRun], other: Iterable[LayerRun]) -> bool:
    """Whether two stacks hold, cache and compute the same, however windows and experts pair up."""
    first, second = tuple(one), tuple(other)
    return mixers(first) == mixers(second) and Counter(as_projected(first)) == Counter(as_projected(second))
