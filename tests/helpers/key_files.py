"""An experiment file with one key set, and the files that it names; for tests of every key of the schema."""

from __future__ import annotations

import json
from pathlib import Path

from key_worlds import BASE, Around, Case

CLASS = "workload.mix."
"""Where classes stand, by name; cases are about the class `a`."""
LISTS = ("workload.phases", "claim.expect", "plan.candidates.drafting")
NAMED = (
    "day.csv",
    "other_day.csv",
    "days.csv",
    "prices.csv",
    "rows.csv",
    "other.csv",
    "long.csv",
    "traces.jsonl",
    "other.jsonl",
    "tokens.jsonl",
)
"""Files that cases name."""


def with_key(key: str, case: Case) -> Around:
    """What stands around a key, and the key: in the first entry of a list."""
    if key.startswith(CLASS):
        return {**case.around, f"{CLASS}a.{key.removeprefix(CLASS)}": case.value}
    block = next((block for block in LISTS if key.startswith(f"{block}.")), None)
    if block is None:
        return {**case.around, key: case.value}
    outer = next(k for k in (block, block.rpartition(".")[0]) if k in case.around)
    found = case.around[outer]
    entries = [dict(entry) for entry in (found if outer == block else found[block.rpartition(".")[2]])]
    entries[0][key.removeprefix(f"{block}.")] = case.value
    return {**case.around, block: entries}


def written(folder: Path) -> Path:
    """Writes the experiment, and the files that cases name; returns its path."""
    head = "TIMESTAMP,ContextTokens,GeneratedTokens,User,Done\n"
    rows = [
        f"2023-11-16 18:17:{i:02d}.5,{30 + i},{5 + i},{i % 3},2023-11-16 18:17:{i:02d}.9\n" for i in range(12)
    ]
    (folder / "rows.csv").write_text(head + "".join(rows))
    (folder / "other.csv").write_text(head + "".join(rows[3:]))
    (folder / "long.csv").write_text(
        head + "".join(rows) + "2023-11-16 18:18:00.5,5000,9,7,2023-11-16 18:18:00.9\n"
    )
    (folder / "traces.jsonl").write_text("[3, 0, 1, 2]\n[1, 1, 1, 1]\n")
    (folder / "other.jsonl").write_text("[3, 3, 3]\n")
    (folder / "tokens.jsonl").write_text("[3, 1, 1, 2]\n")
    (folder / "prices.csv").write_text("gpu,kind,usd_per_gpu_hour\nh100-sxm,spot,1.5\nh100-sxm,,2.5\n")
    hours = [f"2024-05-1{d} {h:02d}:30:00,9,9\n" * (1 + (d * h) % 5) for d in (4, 5) for h in range(24)]
    (folder / "day.csv").write_text(head + "".join(hours[:24]))
    (folder / "other_day.csv").write_text(head + "".join(hours[24:]))
    (folder / "days.csv").write_text(head + "".join(hours))
    path = folder / "x.yaml"
    path.write_text(BASE)
    return path


def overrides(file: Path, around: Around) -> list[str]:
    """The same as the command line has them; files by their whole path."""
    texts = []
    for key, value in around.items():
        text = json.dumps(value).replace("Infinity", ".inf")
        for name in NAMED:
            text = text.replace(f'"{name}"', f'"{file.parent / name}"')
        texts.append(f"{key}={text}")
    return texts
