"""Constants of the kernel laws as the constants file writes them: microseconds, shares, five digits."""

from __future__ import annotations

from specfleet.hardware.constants import AllReduceLaw, DecodeConstants, GemmConstants, PrefillConstants

Numbers = dict[str, float]


def short(value: float) -> float:
    """Five significant digits: no fit says more."""
    return float(f"{value:.5g}")


def gemm_numbers(law: GemmConstants) -> Numbers:
    """The `full` form of `gemm_DTYPE`."""
    return {
        "t0_us": short(1e6 * law.floor_s),
        "eff_bw": short(law.bandwidth_share),
        "eff_flops": short(law.peak_share),
        "smooth_p": short(law.smooth_exponent),
        "wave_w": short(law.wave_weight),
        "quant_passes": short(law.quantise_passes),
    }


def decode_numbers(law: DecodeConstants) -> Numbers:
    """One KV type of `attn_decode`."""
    return {
        "t0_us": short(1e6 * law.floor_s),
        "per_b_kv_ns": short(1e9 * law.sequence_head_s),
        "eff_bw": short(law.bandwidth_share),
    }


def prefill_numbers(law: PrefillConstants) -> Numbers:
    """`attn_prefill`."""
    return {
        "t0_us": short(1e6 * law.floor_s),
        "eff_max": short(law.peak_share),
        "s_half": short(law.half_length),
        "mem_mult": short(law.memory_multiple),
    }


def all_reduce_numbers(law: AllReduceLaw) -> Numbers:
    """One GPU count of `allreduce`."""
    return {
        "alpha_us": short(1e6 * law.alpha_s),
        "oneshot_us_per_MB": short(1e12 * law.oneshot_s_per_byte),
        "twoshot_us": short(1e6 * law.twoshot_s),
        "twoshot_us_per_MB": short(1e12 * law.twoshot_s_per_byte),
    }
