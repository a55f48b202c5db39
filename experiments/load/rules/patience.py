"""Rules about clients that give up: somebody does, nothing is said in vain, what is beside is modelled."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.sessions import pause_conflicts
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.patience import Patience

LIMITS = ("ttft_timeout_s", "timeout_s")


def patience_blocks(config: Experiment) -> dict[str, Patience]:
    """The blocks of a point that say how long clients wait, by dotted key."""
    found = {"workload.patience": config.workload.patience}
    found |= {f"workload.mix.{name}.patience": one.patience for name, one in config.workload.classes.items()}
    return {key: block for key, block in found.items() if block is not None}


def patience_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Everything wrong with how long clients wait."""
    blocks = patience_blocks(config)
    for key, block in blocks.items():
        yield from _said(block, key)
        if block.retries and config.deployment.failures is not None:
            message = (
                "clients that send again beside replicas that fail are not modelled; remove it, or "
                "deployment.failures (whose own retry is)"
            )
            yield Conflict.at(message, f"{key}.retries", "deployment.failures")
    if not blocks:
        return
    first, classes = next(iter(blocks)), config.workload.classes
    if first == "workload.patience" and classes and len(blocks) > len(classes):
        message = "says nothing: every class of the mix has patience of its own; remove it"
        yield Conflict.in_vain(message, first, "workload.mix")
    pools = config.deployment.pools or {}
    if any(pool.role is not None for pool in pools.values()):
        message = "clients that give up where KV is handed over are not modelled; remove it, or the roles"
        yield Conflict.at(message, first, "deployment.pools")
    if config.report.requests == "none":
        message = "figures alone are kept of requests that all are served; remove it, or keep all requests"
        yield Conflict.at(message, first, "report.requests")


def _said(block: Patience, key: str) -> Iterator[Conflict]:
    """What is said of one class is enough, and nothing is said in vain."""
    given = {name: pause for name in LIMITS if (pause := getattr(block, name)) is not None}
    if not given:
        message = "nobody gives up: give ttft_timeout_s or timeout_s, or remove it"
        yield Conflict.at(message, key)
    for name, pause in given.items():
        yield from pause_conflicts(pause, f"{key}.{name}")
        if pause.fixed == 0.0:
            yield Conflict.at("nothing is ever there in 0 s; give some seconds", f"{key}.{name}")
    both = [pause.fixed for pause in given.values()]
    if len(both) == len(LIMITS) and None not in both and both[0] >= both[1]:
        message = f"says nothing: the whole answer has to be there in {both[1]:g} s; remove it, or take less"
        yield Conflict.in_vain(message, f"{key}.ttft_timeout_s", f"{key}.timeout_s")
    if block.backoff_s is not None and not block.retries:
        message = "says nothing: nothing is sent again; add retries, or remove it"
        yield Conflict.in_vain(message, f"{key}.backoff_s", f"{key}.retries")
