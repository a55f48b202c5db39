"""How a sequence's part in one iteration is packed in one 64-bit integer.

Each field is a sum over the batch, so sums of packed integers are sums of all fields at once, and
differences add up again as long as every prefix sum has non-negative fields: decode running sums,
never a difference.

    sequences running | sequences decoding | KV blocks held | context tokens
                       ^ rows                ^ blocks         ^ bit 0

Where the sums of large batches over large pools do not fit, the layout is *wide*: a sequence's own numbers
stay packed so, but what is added up leaves the context out; a second word has it (`Footprints.sides`).
"""

from __future__ import annotations

from dataclasses import dataclass

from specfleet.sim.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Packing:
    """Bit offsets and masks of the four fields.

    Attributes:
        blocks, rows, running: first bit of a field; context starts at bit 0.
        context_mask, blocks_mask, rows_mask: of a field moved to bit 0.
        wide: sums leave the context out.
    """

    blocks: int
    rows: int
    running: int
    context_mask: int
    blocks_mask: int
    rows_mask: int
    wide: bool = False

    @classmethod
    def of(
        cls, config: EngineConfig, growth_tokens: int, longest_tokens: int, shared: bool = False
    ) -> Packing | None:
        """Returns the layout for an engine, or None where even a wide one's fields do not fit in 63 bits.

        Args:
            config: bounds the pool and the batch.
            growth_tokens: most KV slots a sequence can ask for beyond its own in one step. The pool
                may be overdrawn by that much, for all of them, before the shortage is dealt with.
            longest_tokens: most KV tokens of a sequence.
            shared: sequences may hold the same blocks, so that the pool does not bound their context.
        """
        seqs, size, layout = config.max_num_seqs, config.block_size, config.kv_layout
        growth = layout.growth(growth_tokens) if layout else growth_tokens
        longest = layout.held(longest_tokens + growth_tokens) if layout else longest_tokens + growth_tokens
        overdrawn = config.usable_blocks + seqs * (growth // size + 1)
        most_blocks = min(overdrawn, seqs * (longest // size + 1))
        if config.reserves_max_tokens or config.receives_kv:
            most_blocks = overdrawn
        block_bits = most_blocks.bit_length()
        held_tokens = seqs * (longest_tokens + growth_tokens) if shared else most_blocks * size
        context_bits = held_tokens.bit_length()
        row_bits = config.max_num_seqs.bit_length()
        if wide := context_bits + block_bits + 2 * row_bits > 63:
            context_bits = (longest_tokens + growth_tokens).bit_length()
        rows = context_bits + block_bits
        running = rows + row_bits
        if running + row_bits > 63:
            return None
        return cls(
            blocks=context_bits,
            rows=rows,
            running=running,
            context_mask=(1 << context_bits) - 1,
            blocks_mask=(1 << block_bits) - 1,
            rows_mask=(1 << row_bits) - 1,
            wide=wide,
        )
