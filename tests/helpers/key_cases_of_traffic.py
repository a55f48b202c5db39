"""For every key of `workload:`: what stands around it, a value, and where the difference is seen."""

from __future__ import annotations

from key_worlds import (
    AC,
    BUSY,
    DIURNAL,
    LATENT,
    LONG,
    MAPPED,
    MIX,
    NEEDED,
    OF_TRACE,
    OF_USERS,
    ONLY,
    OPEN,
    PHASES,
    RAMP,
    RESOLVED,
    SCHEDULE,
    SHORT,
    SPIKE,
    TR,
    TRACE,
    UNTIMED,
    WAITING,
    WL,
    Around,
    Case,
)

SS = f"{WL}.sessions"
SESSIONS: Around = {f"{SS}.turns": {"fixed": 3}, f"{SS}.think_time_s": {"fixed": 0.3}}
TOOL: Around = {
    **SESSIONS,
    f"{SS}.tool": {
        "probability": 0.5,
        "pause_s": {"fixed": 0.1},
        "result": {"fixed": 20},
        "call": {"fixed": 3},
    },
}
LAWS_OF_TURNS = (
    ("fixed", 4, {"fixed": 2}),
    ("uniform.low", 1, {"uniform": {"low": 4, "high": 5}}),
    ("uniform.high", 6, {"uniform": {"low": 2, "high": 3}}),
    ("lognormal.mu", 0.5, {"lognormal": {"mu": 1.5, "sigma": 0.5, "max": 6}}),
    ("lognormal.sigma", 0.1, {"lognormal": {"mu": 1.0, "sigma": 2.0, "max": 6}}),
    ("lognormal.min", 4, {"lognormal": {"mu": 1.0, "sigma": 1.0, "max": 6}}),
    ("lognormal.max", 2, {"lognormal": {"mu": 1.0, "sigma": 1.0, "max": 6}}),
    ("quantiles", [[0, 1], [100, 2]], {"quantiles": [[0, 2], [100, 6]]}),
)
LAWS_OF_PAUSES = (
    ("fixed", 0.5, {"fixed": 0.1}),
    ("uniform.low", 0.1, {"uniform": {"low": 0.5, "high": 0.6}}),
    ("uniform.high", 0.9, {"uniform": {"low": 0.1, "high": 0.2}}),
    ("exponential", 0.2, {"exponential": 1.0}),
    ("lognormal.median", 0.1, {"lognormal": {"median": 0.5, "sigma": 1.0, "max": 5.0}}),
    ("lognormal.sigma", 0.1, {"lognormal": {"median": 0.5, "sigma": 1.0, "max": 5.0}}),
    ("lognormal.max", 0.6, {"lognormal": {"median": 0.5, "sigma": 1.0, "max": 5.0}}),
    ("quantiles", [[0, 0.1], [100, 0.2]], {"quantiles": [[0, 0.5], [100, 0.6]]}),
)
SESSION_CASES = {
    **{
        f"sessions.{at}.{law}": Case(value, {**around, f"{SS}.{at}": given})
        for at, laws, around in (
            ("turns", LAWS_OF_TURNS, SESSIONS),
            ("first_input", LAWS_OF_TURNS, SESSIONS),
            ("think_time_s", LAWS_OF_PAUSES, SESSIONS),
            ("tool.pause_s", LAWS_OF_PAUSES, TOOL),
            ("tool.result", LAWS_OF_TURNS, TOOL),
            ("tool.call", LAWS_OF_TURNS, TOOL),
        )
        for law, value, given in laws
    },
    **{
        f"sessions.context.{how}.{key}": Case(
            value, {**SESSIONS, f"{SS}.context": {how: {"above_tokens": 200, "to_tokens": 60}}}
        )
        for how in ("trim", "compact")
        for key, value in (("above_tokens", 150), ("to_tokens", 120 if how == "trim" else 20))
    },
    "sessions.system_prompt.tokens": Case(100, {**SESSIONS, f"{SS}.system_prompt": {"tokens": 40}}),
    "sessions.system_prompt.pools": Case(9, {**SESSIONS, f"{SS}.system_prompt": {"tokens": 320}}),
    "sessions.tool.probability": Case(1.0, TOOL),
    "sessions.reasoning_share": Case(0.8, {**SESSIONS, **LONG}),
    **{
        f"think_time_s.{law}": Case(value, {f"{WL}.think_time_s": given})
        for law, value, given in LAWS_OF_PAUSES
    },
    "sessions.on_full": Case("end", {**SESSIONS, f"{SS}.turns": {"fixed": 20}}, NEEDED),
}
WORKLOAD_CASES = {
    "preset": Case("mt-bench", {f"{WL}.input": None, f"{WL}.output": None, f"{WL}.preset": "instructcoder"}),
    "input_len": Case(50, {f"{WL}.input": None, f"{WL}.input_len": 90}),
    "output_len": Case(9, {f"{WL}.output": None, f"{WL}.output_len": 20}),
    **{
        f"{side}.{law}": Case(value, {f"{WL}.{side}": around})
        for side in ("input", "output")
        for law, value, around in (
            ("fixed", 30, {"fixed": 60}),
            ("uniform.low", 3, {"uniform": {"low": 20, "high": 60}}),
            ("uniform.high", 90, {"uniform": {"low": 20, "high": 60}}),
            ("lognormal.mu", 2.0, {"lognormal": {"mu": 4.0, "sigma": 1.0, "max": 200}}),
            ("lognormal.sigma", 0.2, {"lognormal": {"mu": 4.0, "sigma": 1.0, "max": 200}}),
            ("lognormal.min", 50, {"lognormal": {"mu": 4.0, "sigma": 1.0, "max": 200}}),
            ("lognormal.max", 60, {"lognormal": {"mu": 4.0, "sigma": 1.0, "max": 200}}),
            ("quantiles", [[0, 1], [100, 90]], {"quantiles": [[0, 30], [50, 40], [100, 90]]}),
        )
    },
    "rank_correlation": Case(0.9),
    "trace.file": Case("other.csv", MAPPED),
    "trace.columns.arrival_s": Case("TIMESTAMP", UNTIMED, RESOLVED),
    "trace.columns.input_tokens": Case("GeneratedTokens", MAPPED),
    "trace.columns.output_tokens": Case("ContextTokens", MAPPED),
    "trace.columns.session": Case("ContextTokens", MAPPED, RESOLVED),
    **{
        f"trace.columns.{name}": Case("ContextTokens", MAPPED, RESOLVED)
        for name in ("turn", "think_s", "end_s", "duration_s")
    },
    "trace.turns": Case("after_answer", {**OF_USERS, f"{TR}.columns.end_s": "Done"}),
    "trace.pause_s": Case(9.0, WAITING, NEEDED),
    "trace.context": Case(
        "accumulate", {**WAITING, f"{TR}.pause_s": 0.5, f"{TR}.columns.output_tokens": "User"}
    ),
    "trace.columns.traffic_class": Case("ContextTokens", MAPPED, RESOLVED),
    "trace.columns.hash_ids": Case("ContextTokens", {**MAPPED, f"{TR}.block_size": 16}, RESOLVED),
    "trace.time_unit": Case("iso", {**MAPPED, f"{TR}.time_unit": None}, NEEDED),
    "trace.block_size": Case(16, MAPPED, RESOLVED),
    "trace.characters_per_token": Case(4.0, MAPPED, RESOLVED),
    "trace.rate_scale": Case(0.5, MAPPED),
    "trace.window": Case([2.0, 9.0], MAPPED),
    "trace.where": Case({"ContextTokens": "33"}, MAPPED),
    "trace.on_reset": Case("sort", MAPPED, RESOLVED),
    "trace.on_zero": Case("clip1", MAPPED, RESOLVED),
    "trace.ties": Case("spread", MAPPED, RESOLVED),
    "trace_format": Case("azure", TRACE, ONLY),
    "speed": Case(50.0, {**TRACE, f"{WL}.max_concurrency": None}),
    "limit": Case(5, TRACE),
    "on_too_long": Case("drop", {**TRACE, f"{WL}.trace": "long.csv"}, NEEDED),
    "max_concurrency": Case(2),
    "request_rate": Case(20.0, OPEN),
    "burstiness": Case(0.2, OPEN),
    "cv": Case(2.0, OPEN),
    "arrivals.schedule.every_s": Case(0.01, SCHEDULE),
    "arrivals.schedule.requests_per_s": Case([9.0, 1.0], SCHEDULE),
    "arrivals.schedule.repeats": Case(False, SCHEDULE),
    "arrivals.diurnal.peak_to_trough": Case(9.0, DIURNAL),
    "arrivals.diurnal.peak_at_s": Case(0.05, DIURNAL),
    "arrivals.diurnal.period_s": Case(0.03, DIURNAL),
    "arrivals.ramp.from_per_s": Case(200.0, RAMP),
    "arrivals.ramp.to_per_s": Case(20.0, RAMP),
    "arrivals.ramp.over_s": Case(0.01, RAMP),
    "arrivals.spike.at_s": Case(0.0, SPIKE),
    "arrivals.spike.for_s": Case(0.005, SPIKE),
    "arrivals.spike.factor": Case(9.0, SPIKE),
    "arrivals.preset": Case("azure-conv-2023", OPEN),
    "num_prompts.per_concurrency": Case(3, {f"{WL}.num_prompts": {"per_concurrency": 5}}),
    "num_prompts.min": Case(50, {f"{WL}.num_prompts": {"per_concurrency": 5}}),
    "num_warmups.per_concurrency": Case(1, {f"{WL}.num_warmups": {"per_concurrency": 2}}),
    "num_warmups.min": Case(20, {f"{WL}.num_warmups": {"per_concurrency": 1}}),
    "max_tokens": Case(9),
    "output_cap": Case(9),
    "ignore_eos": Case(True),
    "mix.share": Case(0.25, {f"{WL}.mix": {"a": {}, "b": {"share": 0.75, **SHORT}}}, NEEDED),
    "mix.request_rate": Case(80.0, {**OPEN, f"{WL}.mix": {"a": {}, "b": {"request_rate": 40.0}}}, NEEDED),
    "mix.burstiness": Case(
        0.2,
        {**OPEN, f"{WL}.mix": {"a": {"request_rate": 80.0}, "b": {"request_rate": 40.0}}},
    ),
    "mix.cv": Case(2.0, {**OPEN, f"{WL}.mix": {"a": {"request_rate": 80.0}, "b": {"request_rate": 40.0}}}),
    "mix.preset": Case("mt-bench", {f"{WL}.mix": {"a": {"share": 0.5}, "b": 0.5}}),
    "mix.input_len": Case(70, {f"{WL}.mix": {"a": {"share": 0.5, "output_len": 9}, "b": 0.5}}, NEEDED),
    "mix.output_len": Case(9, {f"{WL}.mix": {"a": {"share": 0.5, "input_len": 70}, "b": 0.5}}, NEEDED),
    "mix.rank_correlation": Case(0.9, MIX),
    "mix.trace_format": Case("azure", OF_TRACE, ONLY),
    "mix.limit": Case(5, OF_TRACE),
    "mix.speed": Case(
        50.0,
        {f"{WL}.max_concurrency": None, f"{WL}.mix": {"a": {"trace": "rows.csv"}, "b": {"request_rate": 9}}},
    ),
    "mix.on_too_long": Case(
        "drop", {f"{WL}.mix": {"a": {"share": 0.5, "trace": "long.csv"}, "b": 0.5}}, NEEDED
    ),
    "mix.max_tokens": Case(9, MIX),
    "mix.output_cap": Case(9, MIX),
    "mix.ignore_eos": Case(True, MIX),
    "mix.temperature": Case(1.2, {**MIX, AC: LATENT[AC]}),
    "mix.priority": Case(1, {**MIX, **BUSY, "serve.scheduling_policy": "priority"}),
    "phases.num_prompts": Case(20, PHASES),
    "phases.request_rate": Case(9.0, PHASES),
    "phases.traffic_class": Case(
        "b",
        {
            **PHASES,
            AC: {
                "default": {"conditional_acceptance": 0.7, "concentration": 18},
                "b": {"conditional_acceptance": 0.2, "concentration": 18},
            },
        },
    ),
    "prefix.tokens": Case(200, {f"{WL}.prefix": {"tokens": 20}}),
    "prefix.groups": Case(9, {f"{WL}.prefix": {"tokens": 320}}),
    **SESSION_CASES,
    "temperature": Case(1.2, {AC: LATENT[AC]}),
}
