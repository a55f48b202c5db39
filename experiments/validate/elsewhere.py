"""What a row of measurements says in words, or in another column, put where it is looked for.

Only what is said is taken: an empty cell that nothing fills stays empty, and the row is skipped for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ALL_AT_ONCE = re.compile(r"max throughput|request-rate inf|all sent at t=0", re.IGNORECASE)
_LENGTHS = re.compile(r"(\d{1,7})/(\d{1,7})")
_PROMPT, _OUTPUT = "mean_input_tokens_per_request", "mean_output_tokens_per_request"
_FLAGS = {
    "ep": r"(?:ep|expert[-_]parallel)[-_]size",
    "pp": r"(?:pp|pipeline[-_]parallel)[-_]size",
    "gpu_memory_utilization": r"gpu[-_]memory[-_]utilization",
    "max_num_batched_tokens": r"max[-_]num[-_]batched[-_]tokens",
    "max_num_seqs": r"max[-_]num[-_]seqs",
    "max_model_len_tokens": r"max[-_]model[-_]len",
}
"""Columns, and the flag of a server's command line that says the same, in the spellings of three engines."""


def filled(cells: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns a row's cells with what its other cells say, and what had to be assumed of it.

    Args:
        cells: by column name; "" is a missing value.
    """
    row, assumed = dict(cells), []

    def text(column: str) -> str:
        return row.get(column, "")

    if not text("tp") and text("n_gpus"):
        row["tp"] = text("n_gpus")
    for column, flag in _FLAGS.items():
        stated = re.search(rf"(?:^|\s)--{flag}[ =]([\d.]+)(?:\s|$)", text("serve_flags"))
        if stated and not text(column):
            row[column] = stated[1]
    if "--async-scheduling" in text("serve_flags").split() and not text("async_scheduling"):
        row["async_scheduling"] = "true"
    cards = [card.strip() for card in text("gpu").split(" / ")]
    named = [card for card in cards if card.split()[0] in text("config_note").split()] if cards[0] else []
    if len(cards) > 1 and len(named) == 1:
        row["gpu"] = named[0]
    lengths = _LENGTHS.fullmatch(text("isl_osl")) or re.search(r"random (\d+)/(\d+)", text("dataset"))
    if lengths and not text(_PROMPT) and not text(_OUTPUT):
        row[_PROMPT], row[_OUTPUT] = lengths[1], lengths[2]
    if not text("request_rate_rps") and not text("max_concurrency") and not text("batch_size"):
        if _ALL_AT_ONCE.search(f"{text('engine')} {text('dataset')}"):
            row["request_rate_rps"] = "inf"
        requests = re.search(r"(\d+)-(\d+) requests", text("dataset"))
        if requests and not text("num_prompts"):
            row["num_prompts"] = requests[1]
            assumed.append(f"{text('record_id')}: of {requests[1]} to {requests[2]} requests the fewest")
    seats = re.search(r"offline, max_num_seqs (\d+)", text("dataset"))
    if seats and not text("num_prompts") and not text("batch_size"):
        row["batch_size"] = seats[1]
    return row, assumed
