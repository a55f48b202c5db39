"""Mistakes by chance: in the structure of an experiment, in the bytes of a file, on the command line."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from specfleet.experiments.schema.structure import homes, known_keys
from specfleet.experiments.schema.yamlfile import read_yaml

PRESETS = Path(__file__).parents[2] / "experiments" / "presets"

JUNK: tuple[Any, ...] = (
    *(None, True, False, "", "x", "null", "on", "=1+1", "a\nb", "../../x", "é" * 50, "x" * 5000),
    *(0, 1, 2, -1, 3, 7, 100, 10**6, 3 * 10**12, 2**63, 10**30),
    *(0.0, -0.5, 0.3, 1.5, 1e-300, 1e-12, 1e12, 1e308, -1e308, math.inf, -math.inf, math.nan),
    *([], [[]], {}, [1], [0.5, 0.4, 0.3], [[1, 4, 3]], [None], {"a": 1}, {"default": {}}, [{}], ["x", 1]),
)
FACTORS = (0, -1, 0.5, 2, 3, 10, 1e-6, 1e3, 1e6, 1e12)
SWITCHES: tuple[tuple[str, Any], ...] = (
    *(("async_scheduling", False), ("enable_chunked_prefill", False), ("enable_prefix_caching", False)),
    *(
        ("max_num_seqs", 2),
        ("max_num_seqs", 8),
        ("max_num_batched_tokens", 64),
        ("num_gpu_blocks_override", 40),
    ),
    *(
        ("draft_policy", {"goodput": {}}),
        ("draft_policy", {"early_stop": {}}),
        ("draft_policy", {"oracle": {}}),
    ),
    *(("draft_policy", {"bandit": {}}), ("draft_policy", {"adaptive_tiers": {}}), ("draft_policy", {})),
    *(("draft_tree", {"shape": [2, 2]}), ("draft_tree", {"optimal": 6}), ("kv_cache_dtype", "fp8")),
    *(("quantization", "fp8"), ("cost_model", "roofline"), ("engine", "sglang-0.5.14"), ("watermark", 0.2)),
    *(
        ("max_model_len", 300),
        ("block_size", 64),
        ("long_prefill_token_threshold", 8),
        ("reroll_on_reject", True),
    ),
    *(("scheduling_policy", "priority"), ("tensor_parallel_size", 2), ("request_rate", 2.0)),
    *(("prefix", {"tokens": 40, "groups": 2}), ("mix", {"a": 0.5, "b": 0.5}), ("ignore_eos", True)),
    *(("num_warmups", 5), ("num_warmups", 100), ("output_cap", 3), ("max_tokens", 2), ("temperature", 0.8)),
    *(("phases", [{"num_prompts": 9, "request_rate": 3}]), ("max_concurrency", 1), ("num_prompts", 1)),
    *(
        ("input", {"lognormal": {"mu": 3, "sigma": 2, "max": 99}}),
        ("output", {"fixed": 1}),
        ("output_len", 1),
    ),
)
"""Keys of serve and workload with values that they have elsewhere."""
BYTES = (b"\xff", b"\x00", b"\xc3", b":", b"{", b"}", b"[", b"]", b"-", b" ", b"\n", b'"', b"1e999", b"nan")

Place = tuple[Any, Any]
"""A mapping or list, and a key or place in it."""


def plain(value: Any) -> Any:
    """Tuples as lists, so that values can be changed and written."""
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    return [plain(child) for child in value] if isinstance(value, list | tuple) else value


def presets() -> list[dict[str, Any]]:
    """Every shipped experiment, its axes cut to two values and its requests to a few."""
    found = []
    for path in sorted(PRESETS.glob("**/*.yaml")):
        data = plain(read_yaml(path).data)
        if "serve" not in data:
            continue
        axes = data.get("sweep", {}).get("axes", {})
        for key in axes:
            axes[key] = axes[key][:2]
        claim = data.get("claim", {"expect": []})
        kept = [asked for asked in claim["expect"] if _there(asked, axes)]
        data.pop("claim", None)
        if kept:
            data["claim"] = {**claim, "expect": kept}
        data["replications"] = 1
        data["name"] = path.stem
        if "phases" not in data["workload"]:
            data["workload"]["num_prompts"] = 8
        found.append(data)
    return found


def _there(asked: dict[str, Any], axes: dict[str, list[Any]]) -> bool:
    """Whether the points of an expectation are left."""
    named = {**asked.get("where", {}), **(asked.get("over") or {})}
    return all(value in axes[key] for key, value in named.items())


def places(value: Any) -> Iterator[Place]:
    """Every key and every place in a list."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def structure(data: Any, chance: random.Random) -> None:
    """Changes one to three things in a value, in place."""
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3))):
        there = list(places(data))
        if not there:
            return
        holder, key = chance.choice(there)
        chance.choice(STRUCTURE)(data, holder, key, chance)


def _junk(data: Any, holder: Any, key: Any, chance: random.Random) -> None:
    holder[key] = plain(chance.choice(JUNK))


def _scaled(data: Any, holder: Any, key: Any, chance: random.Random) -> None:
    if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        factor = chance.choice(FACTORS)
        scaled = holder[key] * factor
        holder[key] = int(scaled) if isinstance(holder[key], int) and math.isfinite(scaled) else scaled
    else:
        _junk(data, holder, key, chance)


def _nudged(data: Any, holder: Any, key: Any, chance: random.Random) -> None:
    """Some number of all, a little larger or smaller: mostly still a sound experiment."""
    there = [(h, k) for h, k in places(data) if type(h[k]) in (int, float)]
    if there:
        holder, key = chance.choice(there)
        nudged = holder[key] * chance.choice((0.5, 0.9, 1.1, 1.5, 2, 4)) + chance.choice((0, 0, 1, -1))
        holder[key] = round(nudged) if isinstance(holder[key], int) and math.isfinite(nudged) else nudged


def _flipped(data: Any, holder: Any, key: Any, chance: random.Random) -> None:
    """A switch, or a word that another key has in its place."""
    blocks = data if isinstance(data, dict) else {}
    block = chance.choice([b for b in ("serve", "workload") if isinstance(blocks.get(b), dict)] or [None])
    if block is not None:
        name, value = chance.choice(SWITCHES)
        data[block][name] = value


def _gone(data: Any, holder: Any, key: Any, chance: random.Random) -> None:
    del holder[key]


def _mistyped(data: Any, holder: Any, key: Any, chance: random.Random) -> None:
    if isinstance(holder, dict) and len(key) > 1:
        at = chance.randrange(len(key))
        holder[key[:at] + chance.choice(("", "x", "-")) + key[at + 1 :]] = holder.pop(key)


def _doubled(data: Any, holder: Any, key: Any, chance: random.Random) -> None:
    if isinstance(holder, list):
        holder.append(plain(holder[key]))
    else:
        holder[key] = [holder[key], plain(holder[key])]


def _swapped(data: Any, holder: Any, key: Any, chance: random.Random) -> None:
    other, there = chance.choice(list(places(data)))
    holder[key] = plain(other[there])


def _known(data: Any, holder: Any, key: Any, chance: random.Random) -> None:
    """A key of the schema where it belongs, or where it does not."""
    if not isinstance(data, dict):
        return
    name, blocks = chance.choice(list(homes().items()))
    block = data
    for part in chance.choice(blocks) if chance.random() < 0.9 else ():
        if not isinstance(block.get(part), dict):
            block[part] = {}
        block = block[part]
    block[name] = plain(chance.choice(JUNK))


def _axis(data: Any, holder: Any, key: Any, chance: random.Random) -> None:
    name, blocks = chance.choice(list(homes().items()))
    sweep = data.get("sweep") if isinstance(data, dict) else None
    if isinstance(sweep, dict) and isinstance(sweep.get("axes"), dict):
        values = [plain(chance.choice(JUNK)) for _ in range(chance.choice((1, 2)))]
        sweep["axes"][".".join((*chance.choice(blocks), name))] = values


STRUCTURE: tuple[Callable[[Any, Any, Any, random.Random], None], ...] = (
    *(_nudged, _nudged, _nudged, _nudged, _nudged, _flipped, _flipped),
    *(_junk, _junk, _scaled, _scaled, _gone, _mistyped, _doubled, _swapped, _known, _known, _axis),
)


def content(data: bytes, chance: random.Random) -> bytes:
    """Changes a few bytes, lines or numbers of a file."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            data = data[:at] + chance.choice(BYTES) + data[at:]
        elif kind == 1:
            data = data[:at] + data[at + chance.choice((1, 1, 4, 40)) :]
        elif kind == 2:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        else:
            lines = data.split(b"\n")
            line = chance.randrange(len(lines))
            lines[line:line] = [chance.choice(lines)]
            data = b"\n".join(lines)
    return data


def override(chance: random.Random) -> str:
    """A `key=value` of a key that there is, or that there nearly is."""
    name, blocks = chance.choice(list(homes().items()))
    path = [*chance.choice(blocks), name]
    inside = known_keys(tuple(path))
    if inside and chance.random() < 0.5:
        path.append(chance.choice(inside))
    value = chance.choice(JUNK)
    text = json.dumps(value) if chance.random() < 0.5 else str(value)
    return f"{'.'.join(path)}={text.replace('Infinity', '.inf').replace('NaN', '.nan')}"


def written(data: Any) -> bytes:
    """An experiment as YAML."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True).encode(
        "utf-8", "backslashreplace"
    )
