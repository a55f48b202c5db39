"""What `specfleet explain` prints: where a step's time goes, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.explain import C_Q_RANGE, MEANING, Explanation, PricedStep
from specfleet.experiments.words.table import Column, table_text
from specfleet.hardware.pipeline.stages import layers_by_stage
from specfleet.hardware.stepcost import TERMS

VERDICTS = {"pays": "pays", "does not": "does not pay", "not settled": "is not settled"}


def explain_text(said: Explanation) -> str:
    """Returns the table and what follows from it."""
    steps = [said.plain, *([said.drafting] if said.drafting else [])]
    columns = [Column("term", left=True)]
    for step in steps:
        columns += [Column(f"K = {step.k} ms", "{:.3f}"), Column("share", "{:.0%}")]
    columns.append(Column("what it is", left=True))
    rows: list[list[object]] = []
    sent = ("communication",) if said.stages_ms else ()
    for name in TERMS:
        cells = [c for s in steps for c in (s.terms_ms[name], s.terms_ms[name] / s.total_ms)]
        gathers = name == "communication" and said.place.data_parallel_size > 1
        meaning = "gathers and scatters between ranks" if gathers else MEANING[name]
        rows.append([name, *cells, f"{meaning}, sends between stages" if name in sent else meaning])
    rows.append(["step", *[c for s in steps for c in (s.total_ms, 1.0)], "sum of the above"])
    in_stages = f"{said.place.pipeline_parallel_size} stages of " if said.stages_ms else ""
    gpus = f"{said.place.tensor_parallel_size} x {said.place.accelerator.name}"
    head = (
        f"{said.place.model.name} on {in_stages}{gpus}, "
        f"engine {said.place.profile.name}, cost model {said.cost_model}: one step of {said.batch} sequences "
        f"with {said.context:,} tokens of context each"
    )
    return "\n".join([head, "", table_text(columns, rows), "", *_consequences(said, steps)])


def _consequences(said: Explanation, steps: Sequence[PricedStep]) -> list[str]:
    lines = []
    for step in steps:
        graph = f"padded to the CUDA graph of {step.graph}" if step.graph else "larger than any CUDA graph"
        lines.append(f"K = {step.k}: largest term {step.bound_by}; {step.shape.tokens} tokens, {graph}")
    lines.extend(_stage_lines(said))
    if said.drafting is not None:
        ratio = said.drafting.total_ms / said.plain.total_ms
        lines.append(
            f"a step with K = {said.drafting.k} takes {ratio:.2f} times a plain one: it pays above an "
            f"acceptance length of {ratio:.2f}"
        )
    if said.gain is not None and said.verdict is not None:
        length, ratio, least = said.acceptance_length, said.gain.value, 100 * said.least_gain
        law, drafts = said.predicted, said.place.num_speculative_tokens
        how = f", predicted at K = {drafts}," if law else ""
        within = f" (90 % interval {law.low:.2f} to {law.high:.2f})" if law else ""
        lines.append(
            f"the file's acceptance{how} is {length:.2f} tokens a round{within}, {ratio:.2f} times the plain "
            f"throughput of such steps alone: drafting {VERDICTS[said.verdict]} (a gain counts from "
            f"{least:.3g} % on)"
        )
    if said.one_more_draft_ms is not None:
        lines.append(f"one more drafted token a sequence: {said.one_more_draft_ms:+.3f} ms a step")
    lines.append(f"one more sequence: {said.one_more_sequence_ms:+.3f} ms a step")
    if said.c_q_ms:
        values = ", ".join(
            f"{ms:.3f} ms at c_q = {c:g}" for c, ms in zip(C_Q_RANGE, said.c_q_ms, strict=True)
        )
        lines.append(
            f"the KV term takes c_q = {said.place.c_q:g}, the cost of one more query token in attention, "
            f"which no public table measures: {values}"
        )
    return lines


def _stage_lines(said: Explanation) -> list[str]:
    """How a step passes through the stages of a pipeline, and what more of them at once bring."""
    stages, alone = said.stages_ms, sum(said.stages_ms) + sum(said.sends_ms)
    if not stages:
        return []
    counts = layers_by_stage(said.place.model.num_layers, len(stages))
    each = ", ".join(f"{layers} layers {ms:.2f} ms" for layers, ms in zip(counts, stages, strict=True))
    count, slowest = len(stages), max(stages)
    return [
        f"stages, one after another: {each}; sends between them {sum(said.sends_ms):.3f} ms",
        f"such a batch alone leaves a stage idle for {1.0 - sum(stages) / count / alone:.0%} of the time; "
        f"{count} under way ({count * said.batch:,} sequences in all) end a step every {slowest:.2f} ms: "
        f"{alone / slowest:.2f} times the throughput, each step as long",
    ]
