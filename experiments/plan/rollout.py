"""rollout.md: from today's deployment to the plan, one page a planner can follow."""

from __future__ import annotations

import math
from collections.abc import Iterator

from specfleet.experiments.plan.answer import answer, deployment
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.capacity import interval, mean
from specfleet.experiments.plan.deploy.watched import watched
from specfleet.experiments.plan.drafts import break_even_line, temperature_line
from specfleet.experiments.plan.flags import (
    bench_command,
    server_command,
    server_text,
    sglang_command,
    shell,
    speculative_json,
    unsaid,
)
from specfleet.experiments.plan.neighbours import BETTER, EVEN, LESS_ROOM
from specfleet.experiments.plan.numbers import NONE_LEFT, KvMemory, memory, one_more
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.report import HOLDS, trust
from specfleet.experiments.plan.seen import ATTAINMENT, of_limit
from specfleet.experiments.plan.speculation import schedule
from specfleet.experiments.schema import lookups
from specfleet.hardware.memory import GIB

TOLERATED = 0.10
"""Relative difference of a baseline from its prediction up to which to go on."""

PROMPTS = 1000


def rollout(this: Planned) -> str:
    """Returns the page, Markdown."""
    assert this.winner is not None
    drafts = bool(this.winner.candidate.k)
    sections = [_head(this), _baseline(this)]
    sections.append(_start(this) if drafts else _plain_start(this))
    if drafts:
        sections += [_gate(this), _kill(this)]
    sections += [_watch(this), _memory(this), _next(this)]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(this: Planned) -> Iterator[str]:
    slo = this.experiment.slo
    limits = slo.percentile_limits_ms or slo.request_limits_ms if slo else {}
    yield f"# Rollout: {deployment(this)}"
    yield ""
    yield answer(this)
    met = ", ".join(f"{_limit_name(key)} <= {limit:g} ms" for key, limit in limits.items())
    share = "" if slo is None or slo.percentile_limits_ms else f" for {100 * slo.attainment:g} % of requests"
    yield f"SLO: {met}{share}. Everything below is a prediction until step 1 has been done."


def _limit_name(key: str) -> str:
    """Returns a limit as people say it: `P99 TTFT`, `attainment`."""
    words = key.removesuffix("_ms").split("_")
    return " ".join(word.upper() for word in words) if key.endswith("_ms") or len(key) < 5 else key


def _baseline(this: Planned) -> Iterator[str]:
    """The plain engine, measured before anything is switched on."""
    assert this.winner is not None and this.winner.high is not None
    plain = this.plain or this.winner.candidate
    runs = this.runs[plain.id]
    rate = mean(runs, "offered_rate")
    yield "## 1. Measure the baseline first"
    yield ""
    yield "One replica without drafting, on your own prompts (random tokens say nothing about acceptance):"
    yield from _server(plain)
    bench = bench_command(plain.config, rate, PROMPTS, this.seeds[0])
    port = watched(plain.config).port
    yield from _code("sh", shell([*bench, "--port", str(port)] if port else bench))
    yield (
        f"Expected: {_expected(this, plain)}. If mean TPOT is more than {100 * TOLERATED:.0f} % off, correct "
        "the model with `specfleet calibrate` and plan again before going on."
    )


def _server(candidate: Candidate) -> Iterator[str]:
    """The command of a candidate, and what was simulated that it does not say."""
    yield from _code("sh", server_text(candidate.config))
    if missing := unsaid(candidate.config):
        yield f"Simulated, and not in this command: {'; '.join(missing)}."


def _expected(this: Planned, candidate: Candidate) -> str:
    runs = this.runs[candidate.id]
    named = {"p99_ttft_ms": "P99 TTFT", "mean_tpot_ms": "mean TPOT", "p99_tpot_ms": "P99 TPOT"}
    words = []
    for key, name in named.items():
        value, low, high = interval(runs, key)
        bounds = "" if math.isnan(low) else f" ({_ms(low)} to {_ms(high)})"
        words.append(f"{name} {_ms(value)} ms{bounds}")
    return ", ".join(words)


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100.0 else f"{value:.1f}"


def _start(this: Planned) -> Iterator[str]:
    assert this.winner is not None and this.winner.high is not None
    mine = this.winner.candidate
    yield "## 2. One replica with drafting, then all"
    yield ""
    yield from _server(mine)
    sglang = sglang_command(mine.config)
    if sglang == server_command(mine.config):
        pass
    elif sglang is not None:
        yield "SGLang, the same (a chain of K drafts; its num-draft-tokens count the root):"
        yield from _code("sh", shell(sglang))
    else:
        yield f"SGLang has no {mine.method}."
    bought = this.winner.high + this.plan.spare_replicas
    further = f"Go on to all {bought} replicas" if bought > 1 else "It is the whole deployment: let it stand"
    yield (
        f"Same benchmark, same prompts. Expected: {_expected(this, mine)}. {further} when acceptance and P99 "
        "TPOT have held for a day."
    )


def _plain_start(this: Planned) -> Iterator[str]:
    assert this.winner is not None
    yield "## 2. Deploy without drafting"
    yield ""
    yield f"No way to draft is cheaper at this load. Expected: {_expected(this, this.winner.candidate)}."
    if this.loads:
        yield f"By load of a replica drafting could still pay: {_schedule(this)}."


def _gate(this: Planned) -> Iterator[str]:
    """Acceptance that must hold, as Prometheus computes it."""
    found = this.break_even
    yield "## 3. Acceptance gate"
    yield ""
    if found is None:
        yield "No break-even is known: the engine without drafting was not among the candidates."
        return
    assert this.winner is not None
    stated = mean(this.runs[this.winner.candidate.id], "spec_decode_acceptance_length")
    line = break_even_line(this)
    query = watched(this.winner.candidate.config).acceptance_length
    said = "Alert:" if query else f"Look at it where your server tells it, against {found.gate_length:.2f}."
    yield f"Planned: {stated:.2f} tokens a round. {line[0].upper()}{line[1:]}. {said}"
    if query:
        yield from _code("promql", f"{query} < {found.gate_length:.2f}")
    line = temperature_line(this)
    yield f"{line[0].upper()}{line[1:]}."


def _kill(this: Planned) -> Iterator[str]:
    assert this.winner is not None
    mine = this.winner.candidate
    speculative = mine.config.serve.speculative_config
    yield "## 4. Kill switch"
    yield ""
    yield (
        f"Restart without {watched(mine.config).drafts} (step 1's command), one replica after another. "
        f"{_without(this)}"
    )
    table = _table(this)
    if (
        speculative is not None
        and len(table) > 1
        and lookups.engine(mine.config.serve.engine).scheduler == "vllm"
    ):
        yield "Before that, K by the batch, the best on throughput at each load (0 still costs one pass):"
        most = max(k for _, _, k in table)
        text = speculative_json(
            speculative,
            mine.config.serve,
            num_speculative_tokens=most,
            num_speculative_tokens_per_batch_size=table,
        )
        yield from _code("sh", f"--speculative-config '{text}'")


def _without(this: Planned) -> str:
    """Returns what the same replicas do without drafting, and what has to be done first."""
    assert this.winner is not None
    rival, plain = this.rival, this.plain
    first = "add replicas first, or shed load"
    if plain is None:
        return f"What they do at the planned traffic then is not known: {first}."
    alike = next(
        (n for n in this.neighbours if n.candidate.id == plain.id and n.replicas == this.winner.high), None
    )
    p99_ms = mean(this.runs[plain.id], "p99_tpot_ms")
    text = f"At the planned traffic the same replicas without drafting have P99 TPOT {p99_ms:.0f} ms"
    if alike is not None and alike.verdict in (BETTER, EVEN, LESS_ROOM):
        return f"{text} and meet the SLO: nothing has to be added."
    if rival is not None and rival.high is not None and rival.candidate.id == plain.id:
        text += f"; they need to be {rival.high + this.plan.spare_replicas}"
    return f"{text}: {first}."


def _watch(this: Planned) -> Iterator[str]:
    """P99 and the predicted difference."""
    assert this.winner is not None
    mine, plain = this.winner.candidate, this.plain
    number = 5 if mine.k else 3
    yield f"## {number}. Watch P99"
    yield ""
    value, low, high = interval(this.runs[mine.id], "p99_tpot_ms")
    text = f"P99 TPOT {value:.1f} ms{'' if math.isnan(low) else f' ({low:.1f} to {high:.1f})'} a replica"
    if mine.k and plain is not None:
        base = mean(this.runs[plain.id], "p99_tpot_ms")
        itl = [mean(this.runs[c.id], "p99_itl_ms") for c in (mine, plain)]
        text += (
            f", {value - base:+.1f} ms against the baseline at the same load. P99 ITL goes from "
            f"{itl[1]:.0f} to {itl[0]:.0f} ms: with drafts a step takes longer and yields several tokens, so "
            "judge speed by TPOT"
        )
    tells = watched(mine.config)
    if tells.p99_s:
        of = "" if tells.p99_of == "TPOT" else f", P99 of {tells.p99_of}"
        needs = f", with {tells.beside} in the command" if tells.beside else ""
        yield f"{text}. Query (seconds{of}{needs}):"
        yield from _code("promql", tells.p99_s)
    else:
        yield f"{text}."
    if this.capacity is not None:
        at = this.capacity
        running = f"`{tells.running}` stays" if tells.running else "requests under way stay"
        yield (
            f"One replica reaches the limit on {_limit_name(at.limit)} at {at.rate:.2f} requests/s or "
            f"{at.concurrency} in flight ({at.resource}): scale out before {running} there."
        )


def _memory(this: Planned) -> Iterator[str]:
    assert this.winner is not None and this.winner.high is not None
    mine = this.winner.candidate
    kv: KvMemory = memory(this, mine)
    yield f"## {6 if mine.k else 4}. Memory and cost"
    yield ""
    if mine.k:
        lost = kv.tokens_without_drafter - kv.tokens
        yield (
            f"The drafter takes {kv.drafter_weight_bytes / GIB:.2f} GiB of weights and "
            f"{kv.drafter_kv_bytes_per_token:,} B a token on each GPU: the KV cache falls from "
            f"{kv.tokens_without_drafter:,} to {kv.tokens:,} tokens, by "
            f"{100 * lost / kv.tokens_without_drafter:.1f} %."
        )
    spare = one_more(this)
    further = (
        f"N + 1 ({spare.replicas} replicas) costs ${spare.per_hour_usd:.2f}/h"
        if spare
        else f"N + 1: {NONE_LEFT}"
    )
    yield (
        f"KV cache at the peak: {100 * kv.peak_usage:.0f} % of {kv.tokens:,} tokens, "
        f"{kv.preemptions_per_hour:.0f} preemptions/h. {further}."
    )
    limit = _drafter_positions(mine)
    if limit:
        yield limit


def _drafter_positions(mine: Candidate) -> str:
    """Returns a warning where a drafter is run beyond the positions it was published with."""
    speculative = mine.config.serve.speculative_config
    if speculative is None or speculative.model is None:
        return ""
    own = lookups.drafter(speculative.model).max_model_len
    reaches = speculative.max_model_len or mine.config.serve.max_model_len
    if not own or not reaches or reaches <= own:
        return ""
    return (
        f"The drafter is published for {own:,} positions and run up to {reaches:,}: watch the acceptance of "
        "long prompts."
    )


def _next(this: Planned) -> Iterator[str]:
    assert this.winner is not None
    mine = this.winner.candidate
    yield f"## {7 if mine.k else 5}. What to measure next"
    yield ""
    if mine.k:
        yield (
            f"- Acceptance on your traffic ({watched(mine.config).acceptance_from}); put it under "
            "`acceptance:` and plan again."
        )
    for changed in this.changed:
        word = HOLDS[changed.verdict]
        more = f", {changed.replicas} replicas do" if changed.replicas and changed.replicas > 1 else ""
        need = more if changed.verdict == "missed" else ""
        named = of_limit(changed) if changed.limit == ATTAINMENT else ""
        what = named or f"{changed.ratio:.2f} of {_limit_name(changed.limit)}"
        yield f"- {changed.name}: {word} ({what}{need})."
    unbacked = [line.removeprefix("Not backed: ").rstrip(".") for line in trust(this)[1:]]
    yield f"- What no measurement backs: {'; '.join(unbacked)}."


def _table(this: Planned) -> list[list[int]]:
    """vLLM's schedule of K by the number of sequences."""
    assert this.winner is not None
    return schedule(this.loads, this.winner.candidate.config.serve.max_num_seqs or 1)


def _schedule(this: Planned) -> str:
    return ", ".join(f"batch {low} to {high}: K = {k}" for low, high, k in _table(this))


def _code(language: str, text: str) -> Iterator[str]:
    yield f"```{language}"
    yield text
    yield "```"
