"""From timed rows to constants in the format of the shipped ones, with the error of every fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specfleet.experiments.measure.numbers import (
    Numbers,
    all_reduce_numbers,
    decode_numbers,
    gemm_numbers,
    prefill_numbers,
    short,
)
from specfleet.experiments.measure.points import Backend, KernelCall, TimedCall
from specfleet.experiments.measure.reference import Reference, copy_bytes_per_s
from specfleet.hardware import fitting
from specfleet.hardware.constants import DecodeConstants, GemmConstants
from specfleet.hardware.fitting import AttentionTimes, FitError, GemmTimes, fit_error
from specfleet.hardware.interconnect import all_reduce_s

Array = NDArray[np.float64]
Json = dict[str, object]

_POOR_PCT = 15.0
"""Mean error of a fit above which its constants are called unreliable; shipped ones have 2 to 13 %."""


class LawReport(NamedTuple):
    """One fitted law: its error, that of the shipped law on the same rows, and both sets of constants."""

    name: str
    error: FitError
    shipped: FitError | None
    constants: Numbers
    shipped_constants: Numbers


class Fits:
    """Laws fitted to rows one after the other; collects the entry, the reports and the predictions."""

    def __init__(self, rows: Sequence[TimedCall], reference: Reference, backend: Backend) -> None:
        """`reference` gives the rates that shares refer to and the laws that are missing here."""
        self.rows = rows
        self.reference = reference
        self.entry: Json = {
            "bw": reference.bytes_per_s,
            **reference.flops_per_s,
            "sms": reference.sms,
            "framework": f"specfleet measure: {backend.software}, {backend.attention}",
            "gpu": backend.device.name,
            "data": "random weights, cold L2",
        }
        self.reports: list[LawReport] = []
        self.notes: list[str] = []
        self.predicted: dict[int, float] = {}
        self._quantises = backend.quantises
        self._peers = backend.device.peers
        self._l2_bytes = backend.device.l2_bytes

    def run(self) -> None:
        """Fit what was timed, take the rest from the shipped constants and say so."""
        self._speeds()
        for dtype in ("bfloat16", "fp8"):
            self._attempt(f"gemm_{dtype}", lambda dtype=dtype: self._gemm(dtype))  # type: ignore[misc]
        self._attempt("attn_decode", self._decode)
        self._attempt("attn_prefill", self._prefill)
        self._attempt("allreduce", self._all_reduce)
        self.entry["fit"] = {
            report.name: {
                "rows": report.error.rows,
                "mape_pct": round(report.error.mape_pct, 2),
                "p90_pct": round(report.error.p90_pct, 2),
            }
            for report in self.reports
        }

    def _attempt(self, key: str, fit: Callable[[], Json]) -> None:
        """Store what `fit` gives under `key`, or the shipped constants when too little was timed."""
        try:
            self.entry[key] = fit()
        except ValueError as reason:
            if key in self.reference.entry:
                self.entry[key] = self.reference.entry[key]
                self.notes.append(f"{key} is that of {self.reference.shipped}: {reason}")

    def _speeds(self) -> None:
        copy = copy_bytes_per_s(self.rows)
        self.entry["copy_bytes_per_s"] = short(copy)
        for law in ("launch_graph", "launch_eager"):
            chosen = [row.seconds for row in self.rows if row.point.law == law]
            if chosen:
                self.entry[f"{law}_us"] = short(1e6 * chosen[0])

    def _chosen(self, law: str, dtype: str | None = None) -> list[int]:
        return [
            at for at, row in enumerate(self.rows)
            if row.point.law == law and dtype in (None, row.point.dtype)
        ]  # fmt: skip

    def _column(self, places: Sequence[int], field: str) -> Array:
        index = KernelCall._fields.index(field)
        return np.array([self.rows[at].point[index] for at in places], dtype=np.float64)

    def _seconds(self, places: Sequence[int]) -> Array:
        return np.array([self.rows[at].seconds for at in places])

    def _report(
        self, name: str, places: Sequence[int], predicted: Array, shipped: Array | None,
        constants: Numbers, shipped_constants: Numbers,
    ) -> None:  # fmt: skip
        measured = self._seconds(places)
        error = fit_error(predicted, measured)
        against = None if shipped is None else fit_error(shipped, measured)
        if error.mape_pct > _POOR_PCT:
            self.notes.append(
                f"{name} misses its own rows by {error.mape_pct:.0f} %: no law for this GPU, or "
                "something else ran on it; do not rely on these constants"
            )
        self.reports.append(LawReport(name, error, against, constants, shipped_constants))
        self.predicted.update(zip(places, predicted.tolist(), strict=True))

    def _gemm(self, dtype: str) -> Json:
        places = self._chosen("gemm", dtype)
        if not places:
            raise ValueError("not timed")
        times = GemmTimes(
            self._column(places, "rows"),
            self._column(places, "columns"),
            self._column(places, "depth"),
            self._seconds(places),
            weight_bytes=1 if dtype == "fp8" else 2,
        )
        rates = self.reference.rates(dtype)
        law = fitting.fit_gemm(times, rates, quantises=dtype == "fp8" and self._quantises)
        shipped = self._shipped_gemm(dtype)
        against = None if shipped is None else fitting.gemm_s(times, shipped, rates)
        residual = fitting.row_residual(times, law, rates)
        self._report(
            f"gemm_{dtype}", places, fitting.gemm_s(times, law, rates), against,
            gemm_numbers(law), gemm_numbers(shipped) if shipped else {},
        )  # fmt: skip
        full = gemm_numbers(law)
        if dtype == "fp8" and not self._quantises:
            full = self._with_quantisation(full)
        return {"full": full, "m_residual": {str(m): round(value, 3) for m, value in residual.items()}}

    def _shipped_gemm(self, dtype: str) -> GemmConstants | None:
        """The shipped law of what was timed: without the quantise pass where that was not."""
        constants = self.reference.constants
        if dtype not in constants.gemm:
            return None
        bare = dtype == "fp8" and not self._quantises
        return constants.fused().gemm[dtype] if bare else constants.gemm[dtype]

    def _with_quantisation(self, full: Numbers) -> Numbers:
        """The pass that quantises the input as shipped: its share of the floor, its passes."""
        shipped = self.reference.constants.gemm
        if "fp8" not in shipped:
            return full
        floor = max(0.0, shipped["fp8"].floor_s - shipped["bfloat16"].floor_s)
        self.notes.append(
            "the FP8 product was timed alone (vLLM's quantise kernel is not installed here): "
            f"gemm_fp8.full has the shipped quantise pass of {self.reference.shipped} added, "
            f"{1e6 * floor:.1f} us and {shipped['fp8'].quantise_passes:.1f} passes"
        )
        return {
            **full,
            "t0_us": short(full["t0_us"] + 1e6 * floor),
            "quant_passes": short(shipped["fp8"].quantise_passes),
        }

    def _attention(self, places: Sequence[int]) -> AttentionTimes:
        return AttentionTimes(
            self._column(places, "batch"),
            self._column(places, "context"),
            self._column(places, "query"),
            self._column(places, "heads"),
            self._column(places, "kv_heads"),
            self._column(places, "head_dim"),
            self._seconds(places),
        )

    def _decode(self) -> Json:
        """BF16 KV, fitted on all rows and on those with KV beyond twice the L2; FP8 KV as shipped."""
        places = self._chosen("decode")
        times = self._attention(places)
        bandwidth = self.reference.bytes_per_s
        law = fitting.fit_decode(times, bandwidth)
        shipped = self.reference.constants.decode["bfloat16", "all"]
        single = [at for at in places if self.rows[at].point.query == 1]
        alone = self._attention(single)
        self._report(
            "attn_decode", single, fitting.decode_s(alone, law, bandwidth),
            fitting.decode_s(alone, shipped, bandwidth), decode_numbers(law), decode_numbers(shipped),
        )  # fmt: skip
        cold_law = law
        cold = alone.kv_set_bytes > 2.0 * self._l2_bytes
        if cold.sum() >= 8:
            cold_law = fitting.fit_decode(alone.where(cold), bandwidth)
        query = self._query_cost(places, law)
        fp8 = self._shipped_kv("fp8")
        both: Json = {"bfloat16": {**decode_numbers(law), **query, "cold": decode_numbers(cold_law)}}
        if fp8:
            both["fp8"] = {**fp8, **query}
            self.notes.append(f"attn_decode.fp8 is that of {self.reference.shipped}: FP8 KV is not timed")
        return both

    def _query_cost(self, places: Sequence[int], law: DecodeConstants) -> Numbers:
        several = [at for at in places if self.rows[at].point.query > 1]
        if not several:
            self.notes.append("no row with several query tokens: c_q is not in the constants")
            return {}
        bandwidth = self.reference.bytes_per_s
        cost = fitting.query_cost(self._attention(places), law, bandwidth)
        times = self._attention(several)
        numbers = {"c_q": round(cost.value, 4), "c_q_p10": round(cost.p10, 4), "c_q_p90": round(cost.p90, 4)}
        self._report(
            "attn_verify", several, fitting.decode_s(times, law, bandwidth, cost.value), None, numbers, {}
        )
        return numbers

    def _shipped_kv(self, dtype: str) -> Json:
        decode = self.reference.entry["attn_decode"]
        assert isinstance(decode, dict)
        return dict(decode.get(dtype, {}))

    def _prefill(self) -> Json:
        places = self._chosen("prefill")
        times = self._attention(places)
        rates = self.reference.rates("bfloat16")
        law = fitting.fit_prefill(times, rates)
        shipped = self.reference.constants.prefill
        self._report(
            "attn_prefill", places, fitting.prefill_s(times, law, rates),
            fitting.prefill_s(times, shipped, rates), prefill_numbers(law), prefill_numbers(shipped),
        )  # fmt: skip
        return {**prefill_numbers(law)}

    def _all_reduce(self) -> Json:
        """NCCL by GPU count. Over peer-to-peer links the engine's own all-reduce is kept as shipped."""
        places = self._chosen("all_reduce")
        if not places:
            raise ValueError("not timed" if self._peers else "one GPU, or its all-reduce did not run")
        by_gpus: dict[str, Numbers] = {}
        for gpus in sorted({self.rows[at].point.gpus for at in places}):
            some = [at for at in places if self.rows[at].point.gpus == gpus]
            sizes, seconds = self._column(some, "message_bytes"), self._seconds(some)
            law = fitting.fit_all_reduce(sizes, seconds)
            by_gpus[str(gpus)] = all_reduce_numbers(law)
            self._report(
                f"allreduce_nccl_{gpus}", some, all_reduce_s(sizes, law), None, by_gpus[str(gpus)], {}
            )
        if not self._peers:
            return {"nccl": by_gpus}
        shipped = self.reference.entry["allreduce"]
        assert isinstance(shipped, dict)
        self.notes.append(
            "NCCL was timed; engines use their own all-reduce between GPUs that reach each other's memory: "
            f"its constants are those of {self.reference.shipped}"
        )
        return {**shipped, "nccl": {**shipped.get("nccl", {}), **by_gpus}}
