"""Ways to spread a model that are not simulated for a measured row: it is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

REASONS = {
    "dp": "several engines behind one address (DP); a point is simulated on one",
    "pp": "layers in stages (PP); stages are not simulated",
    "dp_attention": "attention by data parallelism; it is not simulated",
    "disagg": "prefill and decode on GPUs of their own; both are simulated on the same",
}
"""Column or key to why a row that sets it cannot be simulated."""

_NO = ("", "0", "1", "1.0", "0.0", "none", "false", "no", "off", "nan", "null")


def parallel_faults(stated: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yields (key, reason) for each way that is used; 1, false and nothing use none."""
    for key, reason in REASONS.items():
        value = str(stated.get(key, "")).strip().lower()
        if value not in _NO:
            yield key, f"is {value[:20]}: {reason}; leave it out"
