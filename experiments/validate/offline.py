"""Rows that state how many sequences there are at once and no more: offline tables, or a client's users.

They are priced in closed form. What such a table leaves out is assumed and said: the lengths, which a ratio
depends on little, and the number of GPUs, without which nothing but a ratio is scored. Those are the fewest
that hold the model and could have been as fast as the rows of one record were: a server that reads its
weights in less time than the datasheet's bandwidth allows has more of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from specfleet.experiments.schema import lookups
from specfleet.experiments.validate import profiles
from specfleet.experiments.validate.columns import (
    MOST_DRAFTS,
    CsvRow,
    derived_length,
    refuse_parallel,
    spread_of,
)
from specfleet.experiments.validate.lengths import workload
from specfleet.experiments.validate.points import SPEEDUP, MeasuredPoint, Unusable, pool_tokens
from specfleet.hardware.heads import eagle3_for, eagle_for
from specfleet.hardware.leastwork import LeastWork
from specfleet.hardware.memory import DoesNotFit
from specfleet.hardware.model import DrafterSpec, ModelSpec
from specfleet.hardware.placement import Placement
from specfleet.sim.speculation.acceptance import AcceptanceSpec

_LENGTHS = (200.0, 400.0)
"""Prompt and output tokens of chat, code and mathematics sets where a table states none."""

_MOST_BATCH = 4096
_MOST_BRANCHES = 64


@dataclass(frozen=True)
class OfflineDraft:
    """How a row drafts: nodes verified beside the root, the drafter's passes, tokens a round.

    A chain has as many nodes as passes; a tree more, and `branches` rows a sequence in passes but the first.
    """

    nodes: int
    passes: int
    acceptance_length: float
    branches: int = 1

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """Rows of a sequence by pass, as a placement takes them: none for a chain."""
        return (1, *[self.branches] * (self.passes - 1)) if self.branches > 1 else ()


def is_offline(row: CsvRow) -> bool:
    """Whether a row states how many sequences there are at once, and nothing of requests."""
    more = row.text("num_prompts") or row.text("request_rate_rps")
    return bool(row.text("batch_size") or row.text("max_concurrency")) and not more


def offline_point(name: str, row: CsvRow, frozen: bool, record: Iterable[CsvRow] = ()) -> MeasuredPoint:
    """Returns the point of an offline row; Unusable says what it lacks.

    `record`: the rows that were measured on the same server, where the number of its GPUs is not stated.
    """
    refuse_parallel(row)
    batch = row.whole("batch_size", _MOST_BATCH) or row.whole("max_concurrency", _MOST_BATCH)
    if not batch:
        raise Unusable("batch_size is no number of sequences")
    draft = _draft(row)
    assumed: list[str] = []
    lengths = _stated_lengths(row)
    place, replicas, tp_stated = _placed(row, draft, frozen, tuple(_rounds((row, *record))))
    measured = _measured(row, place.gpus * replicas if tp_stated else 0)
    source = row.text("record_id") or name
    if lengths is None:
        assumed.append(f"{source}: lengths not stated, {_LENGTHS[0]:g} + {_LENGTHS[1]:g} tokens")
    if not tp_stated:
        fewest = f"the fewest that hold the model as fast as it was ({place.tensor_parallel_size})"
        assumed.append(f"{source}: number of GPUs not stated, {fewest}")
    prompt, output = lengths or _LENGTHS
    acceptance = None
    if draft is not None:
        assert place.drafter is not None
        spread = profiles.concentration(place.model, place.drafter.method, row.text("dataset"))
        acceptance = AcceptanceSpec(
            acceptance_length=draft.acceptance_length, measured_at_k=draft.nodes, concentration=spread
        )
    return MeasuredPoint(
        name=" ".join(filter(None, (row.text("record_id"), row.text("point")))) or name,
        campaign=row.text("record_id") or row.text("campaign"),
        dataset=row.text("dataset") or "not stated",
        placement=place,
        max_model_len=place.model.max_position_embeddings,
        workload=workload(
            dataset="",
            model=place.model.name,
            num_prompts=batch,
            mean_input=prompt,
            mean_output=output,
            ignore_eos=True,
        ),
        max_concurrency=batch,
        acceptance=acceptance,
        measured=measured,
        closed_form=True,
        replicas=replicas,
        tree_passes=draft.passes if draft else 0,
        assumptions=tuple(assumed),
    )


def _measured(row: CsvRow, gpus: int) -> dict[str, float]:
    """Returns what is scored: all, or the ratio alone where the cards are not stated (0)."""
    found = {SPEEDUP: row.finite("throughput_speedup_vs_none")}
    if gpus:
        found["tpot_mean_ms"] = row.finite("tpot_mean_ms")
        each = row.finite("output_throughput_tok_s_per_gpu")
        found["output_throughput"] = row.finite("output_throughput_tok_s") or (each and each * gpus)
    measured = {metric: value for metric, value in found.items() if value}
    if not measured and not gpus:
        raise Unusable("cards are not stated, nor a ratio to plain decoding")
    if not measured:
        raise Unusable("nothing that is scored was measured")
    return measured


def _stated_lengths(row: CsvRow) -> tuple[float, float] | None:
    prompt, output = (row.finite(f"mean_{side}_tokens_per_request") for side in ("input", "output"))
    return (prompt, output) if prompt and output else None


def _draft(row: CsvRow) -> OfflineDraft | None:
    """Returns how a row drafts; None for plain rows; Unusable where K or acceptance is not to be had."""
    if row.need("method") == "none":
        return None
    nodes, passes = row.whole("verify_tokens_incl_root", MOST_DRAFTS), row.whole("tree_steps", MOST_DRAFTS)
    branches = row.whole("tree_topk", _MOST_BRANCHES) or 1
    noted = re.fullmatch(r"(\d{1,3})/(\d{1,3})/(\d{1,3})", row.text("config_note"))
    k = row.whole("K", MOST_DRAFTS)
    if nodes is None and noted is not None:
        passes, branches, nodes = int(noted[1]), min(int(noted[2]), _MOST_BRANCHES) or 1, int(noted[3])
    k = nodes - 1 if nodes else k
    if not k:
        raise Unusable("K is empty")
    derived = derived_length(row)
    length = row.finite("acceptance_length", MOST_DRAFTS) or (derived[0] if derived else None)
    if length is None:
        raise Unusable("acceptance is not stated, and nothing says it")
    if not 1.0 <= length <= k + 1.0:
        raise Unusable(f"acceptance_length is {length:g}, which K = {k} cannot give")
    return OfflineDraft(k, passes or k, length, branches)


class Round(NamedTuple):
    """A round as a row measured it: sequences, drafts verified of each, seconds."""

    batch: int
    drafts: int
    seconds: float


def _rounds(rows: Iterable[CsvRow]) -> Iterator[Round]:
    """Yields a round of each row that says how many tokens a second so many sequences got."""
    for row in rows:
        try:
            batch, rate = row.whole("batch_size", _MOST_BATCH), row.finite("output_throughput_tok_s")
            draft = _draft(row)
        except Unusable:
            continue
        if batch and rate:
            tokens = draft.acceptance_length if draft else 1.0
            yield Round(batch, draft.nodes if draft else 0, batch * tokens / rate)


def could_be(place: Placement, rounds: Sequence[Round]) -> bool:
    """Whether a placement reads the target's weights as fast as all rounds took, by its GPU's datasheet.

    Of experts those that evenly routed tokens meet; KV, drafter and arithmetic are left out. So "no" is sure
    for a dense model.
    """
    alone = replace(place, drafter=None, num_speculative_tokens=0, draft_pass_tokens=())
    tokens = [each.batch * (1 + (1 - place.routing_correlation) * each.drafts) for each in rounds]
    counts = np.minimum(np.array(tokens, dtype=np.int64), alone.largest_step)
    nothing = np.zeros_like(counts)
    columns = {"tokens": counts, "kv_tokens": nothing, "kv_tokens_in_window": nothing}
    least = LeastWork(alone).bytes_s(columns)
    return bool((np.array([each.seconds for each in rounds]) >= least).all())


def _placed(
    row: CsvRow, draft: OfflineDraft | None, frozen: bool, rounds: tuple[Round, ...]
) -> tuple[Placement, int, bool]:
    """Returns what the row ran on, in how many replicas, and whether it states the number of GPUs."""
    try:
        model = profiles.model(row.need("target_model"))
        drafter = _drafter(row, model) if draft else None
        card = profiles.gpu(row.need("gpu"))
        engine = profiles.engine(f"{row.need('engine')} {row.text('engine_version')}".strip())
    except ValueError as error:
        raise Unusable(str(error).split(";")[0]) from None
    stated = row.whole("tp", 64) or row.whole("n_gpus", 64)
    why, slow = "fits on no number of GPUs up to 8", list[tuple[Placement, int, bool]]()
    dtype = profiles.quantization(row.text("target_weights_dtype"), row.text("target_model"))
    for gpus in (stated,) if stated else (1, 2, 4, 8):
        over = spread_of(row, model, gpus)
        try:
            place = Placement.of(
                model,
                card,
                profiles.on_machine(engine, "", frozen),
                tensor_parallel_size=over.tp,
                data_parallel_size=over.dp,
                pipeline_parallel_size=over.pp,
                expert_parallel_size=row.whole("ep", 64) or 1,
                drafter=drafter,
                num_speculative_tokens=draft.nodes if draft else 0,
                draft_pass_tokens=draft.pass_tokens if draft else (),
                max_num_seqs=row.whole("max_num_seqs"),
                quantization=dtype,
            )
            pool = pool_tokens(place)
        except (DoesNotFit, ValueError) as error:
            why = str(error).splitlines()[0]
            continue
        if pool > 0:
            slow.append((place, over.replicas, stated is not None))
            if stated or could_be(place, rounds):
                return slow[-1]
    if slow:
        return slow[0]
    raise Unusable(why)


def _drafter(row: CsvRow, target: ModelSpec) -> DrafterSpec:
    """Returns the drafter that a row names, or an EAGLE head of its target's shape."""
    named = row.text("draft_model")
    known = lookups.found(lambda: lookups.drafter(named)) if named else None
    if known is not None:
        return known
    method = row.text("method").lower()
    said = f"{method} {named.lower()}"
    if re.search(r"eagle-?3", said):
        return eagle3_for(target)
    if "eagle" in said:
        return eagle_for(target)
    if method.startswith("speculative"):
        return eagle3_for(target)
    raise Unusable(f"no drafter is known for method {row.text('method')[:40]}")
