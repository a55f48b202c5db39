"""Prompts that are found to their last token: it is computed with placeholder drafts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.stay import Stay


def with_placeholders(stay: Stay, drafts: int, footprints: Footprints) -> Stay:
    """Returns a stay whose last prompt token came with placeholder drafts.

    They are gone when its first round is priced, but an asynchronous engine has scheduled that round
    before it knew, and holds the blocks at least until the next.
    """
    pack, rules = footprints.packing, footprints.scheduler
    stay = replace(stay, padded=drafts)
    if stay.drafts is not None:  # a round without drafts needs fewer
        return stay.never_below(rules.blocks_at_admission(stay.tokens + drafts), footprints)
    begun = np.cumsum(stay.row[:2]) + footprints.prefilling(stay.blocks)
    decodes = (begun >> pack.rows) & pack.rows_mask
    if not rules.in_flight or not decodes[0]:
        return stay
    end = stay.tokens + footprints.query
    more = (rules.blocks(end + drafts) - rules.blocks(end)) << pack.blocks
    ends = 1 if decodes[1] or not begun[1] else 2  # no row follows a certain end, but its blocks stay
    row = stay.row.copy()
    row[0] += more
    row[ends] -= more
    footprint = stay.footprint
    if footprint is not None:
        footprint = footprint.copy()
        footprint[:ends] += more
        stay.spared, _, _ = footprints.outgrown_one(footprint, stay.rounds, stay.tokens + drafts)
    return replace(stay, row=row, footprint=footprint)
