"""Reads measured points from CSV by column name: one reader for every file with these columns.

Three kinds of header are known: benchmark runs with and without speculation, served points collected from
elsewhere (the same names where the meaning is the same), and served TPOT by nominal lengths. A column that
a file lacks counts as empty. What an empty column leaves open comes from the engine profile; a row is
unusable only if what cannot be known otherwise is missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from specfleet.experiments.schema import lookups
from specfleet.experiments.validate import profiles
from specfleet.experiments.validate.elsewhere import filled
from specfleet.experiments.validate.lengths import monotone, workload
from specfleet.experiments.validate.parallel import (
    MOST_RANKS,
    REASONS,
    GpuSpread,
    parallel_faults,
    says_no,
    spread,
)
from specfleet.experiments.validate.points import (
    BENCH_KEYS,
    TTFT_STEPS_CONCURRENCY,
    MeasuredPoint,
    Unusable,
)
from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.engine_profile import BLOCK_SIZES
from specfleet.hardware.model import DrafterSpec, ModelSpec
from specfleet.hardware.placement import Placement
from specfleet.sim.source import FITS
from specfleet.sim.speculation.acceptance import AcceptanceSpec

GIB = 2**30
MOST = 1e12
"""No figure of a benchmark is larger, whatever its unit."""

MOST_DRAFTS = 1000
"""No drafter was measured with more drafts a round."""

SERVED = "measured_tpot_ms"
"""The column by which a file of served TPOT is known."""

_NEEDED = (
    "target_model",
    "gpu",
    "tp",
    "engine",
    "method",
    "num_prompts",
    "request_rate_rps",
    "mean_input_tokens_per_request",
    "mean_output_tokens_per_request",
)
"""Columns without which a benchmark row cannot be simulated."""

_YES, _NO = ("true", "on", "yes", "1", "1.0"), ("false", "off", "no", "0", "0.0", "flag off")
_METHODS = {"eagle-3": "eagle3", "eagle3": "eagle3", "eagle-1": "eagle", "eagle": "eagle"}


class CsvRow:
    """One row by column name; "" is a missing value, and so is a column that the file lacks.

    What another column says counts as said (`elsewhere`); `assumed` is what had to be assumed of it.
    """

    def __init__(self, cells: Mapping[str, str | None]) -> None:
        stated = {key: (value or "").strip() for key, value in cells.items() if key}
        self._cells, self.assumed = filled(stated)

    def text(self, column: str) -> str:
        """Returns a cell, "" if it is empty."""
        return self._cells.get(column, "")

    def need(self, column: str) -> str:
        """Returns a cell; Unusable if it is empty."""
        if not self.text(column):
            raise Unusable(f"{column} is empty")
        return self.text(column)

    def number(self, column: str) -> float | None:
        """Returns a number, None if the cell is empty or holds no number; Unusable if it is negative."""
        try:
            value = float(self.text(column))
        except ValueError:
            return None
        if value < 0.0:
            raise Unusable(f"{column} is negative, which nothing measures")
        return None if math.isnan(value) else value

    def finite(self, column: str, most: float = MOST) -> float | None:
        """Returns a number, None if the cell is empty; Unusable if it is above `most`."""
        value = self.number(column)
        if value is not None and value > most:
            raise Unusable(f"{column} is above {most:g}, which nothing measures")
        return value

    def need_number(self, column: str) -> float:
        """Returns a number, which may be infinite; Unusable if there is none."""
        value = self.number(column)
        if value is None:
            raise Unusable(f"{column} is empty" if not self.text(column) else f"{column} is no number")
        return value

    def need_finite(self, column: str, most: float = MOST) -> float:
        """Returns a number of at most `most`; Unusable if there is none."""
        self.need_number(column)
        return self.finite(column, most) or 0.0

    def whole(self, column: str, most: float = MOST) -> int | None:
        """Returns a whole number of at most `most`, None if the cell is empty."""
        value = self.finite(column, most)
        return None if value is None else round(value)

    def flag(self, column: str) -> bool | None:
        """Returns true or false, None where the cell says neither."""
        word = self.text(column).lower()
        return True if word in _YES else False if word in _NO else None


def bench_point(name: str, row: CsvRow, frozen: bool) -> MeasuredPoint:
    """Returns the point of a benchmark row.

    Raises:
        Unusable: the row says that it is, or lacks what is needed.
        ValueError: unknown model, GPU, drafter or engine; or they do not go together.
    """
    refuse_parallel(row)
    if row.text("quality_flag") not in ("", "ok"):
        raise Unusable(f"quality_flag is {row.text('quality_flag')}")
    if not (row.text("num_prompts") or row.text("request_rate_rps") or row.text("max_concurrency")):
        raise Unusable("no load is stated: neither num_prompts, batch_size, max_concurrency nor a rate")
    for column in _NEEDED:
        row.need(column)
    derived = derived_length(row)
    measured = _measured(row)
    k = _drafts(row, derived)
    over = spread_of(row, profiles.model(row.need("target_model")), round(row.need_finite("tp")))
    place = _placement(row, k, frozen, over)
    acceptance = _acceptance(row, place, k, derived) if k else None
    offered = workload(
        dataset=row.text("dataset"),
        model=place.model.name,
        num_prompts=round(row.need_finite("num_prompts", FITS)),
        mean_input=row.need_finite("mean_input_tokens_per_request"),
        mean_output=row.need_finite("mean_output_tokens_per_request"),
        cap=row.whole("output_cap_tokens"),
        ignore_eos=bool(row.flag("ignore_eos")),
        request_rate=row.need_number("request_rate_rps"),
        burstiness=math.inf if "constant rate" in row.text("arrival_process") else row.number("burstiness"),
    )
    length = row.whole("max_model_len_tokens") or place.model.max_position_embeddings
    return MeasuredPoint(
        name=row.text("run_id") or " ".join(filter(None, (row.text("record_id"), row.text("point")))) or name,
        campaign=row.text("campaign") or row.text("record_id"),
        dataset=row.text("dataset"),
        placement=place,
        max_model_len=length,
        drafter_max_model_len=(row.whole("drafter_max_model_len_tokens") or length) if k else None,
        enable_prefix_caching=bool(row.flag("prefix_caching")),
        workload=offered,
        max_concurrency=row.whole("max_concurrency") or _client_cap(row.text("arrival_process")),
        acceptance=acceptance,
        rounds=row.finite("draft_rounds") or 1.0,
        measured=measured,
        replicas=over.replicas,
        assumptions=(*((f"acceptance of {name}: {derived[1]}",) if k and derived else ()), *row.assumed),
    )


def refuse_parallel(row: CsvRow) -> None:
    """Raises Unusable for a row that ran in a way that is not simulated."""
    stated = {key: row.text(key) for key in REASONS}
    for key, said in parallel_faults(stated):
        raise Unusable(f"{key} {said.removesuffix('; leave it out')}")


def spread_of(row: CsvRow, model: ModelSpec, tp: int) -> GpuSpread:
    """Returns how a row's GPUs share the work, `tp` as it states them; Unusable where they cannot."""
    dp, pp = (row.whole(key, MOST_RANKS) or 1 for key in ("dp", "pp"))
    try:
        return spread(model, tp, dp, pp, not says_no(row.text("dp_attention")))
    except ValueError as error:
        raise Unusable(str(error)) from None


def derived_length(row: CsvRow) -> tuple[float, str] | None:
    """Returns the acceptance length of a drafting row that states none, and from what; None where it states
    one, or nothing says it."""
    stated = row.number("acceptance_length_exact") or row.number("acceptance_length")
    if row.text("method") == "none" or stated or row.text("accept_pos1"):
        return None
    accepted, rounds = row.finite("accepted_tokens"), row.finite("draft_rounds")
    drafted, k = row.finite("draft_tokens"), row.finite("K", MOST_DRAFTS)
    rate = row.finite("draft_acceptance_rate", 1.0)
    if accepted and rounds:
        return 1.0 + accepted / rounds, "accepted tokens over rounds"
    if rate is None and accepted and drafted:
        rate = min(accepted / drafted, 1.0)
    if rate is not None and k:
        return 1.0 + rate * k, "accepted over drafted, times K"
    step, token = row.finite("itl_mean_ms"), row.finite("tpot_mean_ms")
    if step and token and step >= token and (not k or step / token <= k + 1.0):
        return step / token, "mean ITL (a step) over mean TPOT (a token)"
    return None


def _client_cap(arrivals: str) -> int | None:
    """Returns the client's cap where only the description of the arrivals has it."""
    found = re.search(r"cap (\d+) in flight", arrivals)
    return int(found[1]) if found else None


def _drafts(row: CsvRow, derived: tuple[float, str] | None) -> int:
    """Returns K, 0 for plain rows; Unusable where a drafting row lacks its drafter or its acceptance."""
    if row.need("method") == "none":
        return 0
    k = round(row.need_finite("K", MOST_DRAFTS))
    if row.text("method").lower() != "ngram":
        row.need("draft_model")
    lengths = (row.number("acceptance_length_exact"), row.number("acceptance_length"))
    if derived is None and lengths == (None, None):
        for position in range(1, k + 1):
            row.need_number(f"accept_pos{position}")
    return k


LEAST_STEP_MS = 0.1
"""No step is as short: a median gap below it is of chunks that the client read together."""


def _measured(row: CsvRow) -> dict[str, float]:
    """Returns the measured values by metric; Unusable if there is none."""
    columns = {metric: metric for metric in BENCH_KEYS} | {
        "output_throughput": "output_throughput_tok_s",
        "kv_pool_tokens": "kv_pool_tokens",
    }
    found = {metric: row.finite(column) for metric, column in columns.items()}
    found["acceptance_length"] = row.finite("acceptance_length_exact") or row.finite("acceptance_length")
    if row.text("method") == "none":
        found["acceptance_length"] = None
    if (found["itl_median_ms"] or 0.0) < LEAST_STEP_MS:
        found["itl_median_ms"] = None
    measured = {metric: value for metric, value in found.items() if value}
    c = row.whole("max_concurrency") or 0
    if {"ttft_median_ms", "itl_median_ms"} <= measured.keys() and c in TTFT_STEPS_CONCURRENCY:
        measured["ttft_steps"] = measured["ttft_median_ms"] / measured["itl_median_ms"]
    if not measured:
        raise Unusable("nothing that is scored was measured")
    return measured


def _accelerator(row: CsvRow, frozen: bool) -> Accelerator:
    """Returns the row's GPU with the memory, bandwidth class and peer-to-peer access of its columns."""
    base = profiles.gpu(row.need("gpu"))
    changes: dict[str, int | float | bool | None] = {}
    if memory := row.finite("gpu_mem_total_gib"):
        changes["hbm_bytes"] = round(memory * GIB)
    if assumed := row.finite("gpu_hbm_peak_tb_per_s_assumed"):
        changes["hbm_bytes_per_s"] = profiles.found_bandwidth(base, assumed * 1e12, frozen)
    if row.text("p2p").lower() in ("unavailable", *_NO):
        changes["p2p"] = False
    return base.override(**changes)


def _placement(row: CsvRow, k: int, frozen: bool, over: GpuSpread) -> Placement:
    """Returns what the row's server ran on."""
    model_name = row.need("target_model")
    drafter = _drafter(row) if k else None
    model = profiles.model(model_name)
    engine = profiles.engine(f"{row.need('engine')} {row.text('engine_version')}".strip())
    profile = profiles.on_machine(engine, row.text("campaign"), frozen)
    if over.pp > 1 and profile.scheduler != "vllm":
        raise Unusable(f"pp is {over.pp}: stages are simulated under vLLM's scheduler alone")
    return Placement.of(
        model,
        _accelerator(row, frozen),
        profile,
        tensor_parallel_size=over.tp,
        data_parallel_size=over.dp,
        pipeline_parallel_size=over.pp,
        expert_parallel_size=row.whole("ep", MOST_RANKS) or 1,
        drafter=drafter,
        num_speculative_tokens=k,
        async_scheduling=row.flag("async_scheduling"),
        max_num_seqs=row.whole("max_num_seqs"),
        max_num_batched_tokens=row.whole("max_num_batched_tokens"),
        gpu_memory_utilization=row.number("gpu_memory_utilization"),
        quantization=profiles.quantization(row.text("target_weights_dtype"), model_name),
        kv_cache_dtype="fp8" if row.text("kv_cache_dtype").lower().startswith("fp8") else "auto",
        block_size=row.whole("kv_block_tokens") or BLOCK_SIZES[profile.scheduler],
    )


def _drafter(row: CsvRow) -> DrafterSpec:
    """Returns the drafter; one of another family than the row's method is an error."""
    stated = row.need("method").lower()
    if stated == "ngram":
        return lookups.drafter("ngram")
    drafter = lookups.drafter(row.need("draft_model"))
    method = _METHODS.get(stated, stated)
    if drafter.method != method:
        raise ValueError(
            f"method {stated} with {drafter.name}, which is a drafter of method {drafter.method}"
        )
    return drafter


def _acceptance(row: CsvRow, place: Placement, k: int, derived: tuple[float, str] | None) -> AcceptanceSpec:
    """Returns the measured acceptance: by position, else by length."""
    assert place.drafter is not None
    spread = profiles.concentration(place.model, place.drafter.method, row.text("dataset"))
    rates = [row.finite(f"accept_pos{i + 1}", 1.0) for i in range(k)]
    if derived is not None:
        return AcceptanceSpec(acceptance_length=derived[0], measured_at_k=k, concentration=spread)
    if all(rate is not None for rate in rates):
        steps = tuple(rate for rate in rates if rate is not None)
        return AcceptanceSpec(by_position=monotone(steps), concentration=spread)
    length = row.finite("acceptance_length_exact") or row.finite("acceptance_length")
    assert length is not None, "_drafts asks for one of the two"
    return AcceptanceSpec(acceptance_length=length, measured_at_k=k, concentration=spread)


def served_point(name: str, row: CsvRow, frozen: bool) -> MeasuredPoint:
    """Returns the point of a served-TPOT row; its settings are assumptions by GPU and engine.

    Raises:
        Unusable: a column that it needs is empty.
        ValueError: unknown model, GPU or engine.
    """
    gpu_name, engine_name, dtype = row.need("system"), row.need("backend"), row.need("dtype")
    c, tp = round(row.need_finite("max_concurrency")), round(row.need_finite("tensor_parallel_size"))
    set_ = profiles.served_settings(gpu_name, engine_name, dtype)
    hosts = profiles.table("served")["hosts"]
    engine = profiles.engine(engine_name)
    if frozen:
        engine = profiles.on_machine(engine, "", frozen)
    elif engine_name in hosts:
        engine = profiles.with_host(engine, True, profiles.Host.of(hosts[engine_name]))
    place = Placement.of(
        profiles.model(row.need("model")),
        profiles.gpu(gpu_name),
        engine,
        tensor_parallel_size=tp,
        async_scheduling=True,
        quantization=profiles.quantization(dtype, ""),
        kv_cache_dtype=set_["kv_cache_dtype"],
    )
    lengths = [set_["lengths"] * row.need_finite(column) for column in ("input_len", "output_len")]
    assumed = f"{gpu_name} {engine_name} {dtype}: KV cache {set_['kv_cache_dtype']}, "
    assumed += f"lengths {set_['lengths']:g} of nominal ({set_['source']})"
    return MeasuredPoint(
        name=name,
        campaign=f"{gpu_name} {engine_name} {row.text('model')} {dtype}",
        dataset="nominal lengths",
        placement=place,
        max_model_len=max(place.model.max_position_embeddings, round(sum(lengths)) + 1),
        workload=workload(
            dataset="",
            model=place.model.name,
            num_prompts=c * int(profiles.table("datasets")["requests_per_user"]),
            mean_input=lengths[0],
            mean_output=lengths[1],
            ignore_eos=True,
        ),
        max_concurrency=c,
        measured={"tpot_mean_ms": row.need_finite(SERVED)},
        closed_form=True,
        assumptions=(assumed,),
    )
