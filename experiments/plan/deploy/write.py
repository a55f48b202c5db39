"""Writes the deployment files of a plan into its folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from specfleet.experiments.plan.deploy.compose import compose_text
from specfleet.experiments.plan.deploy.handing import (
    PROXY,
    PROXY_FILE,
    SIDE,
    SIDE_HOST,
    SIDE_PORT,
    transfer_words,
)
from specfleet.experiments.plan.deploy.kubernetes import kubernetes_text
from specfleet.experiments.plan.deploy.pool import DeployedPool
from specfleet.experiments.plan.flags import server_command, server_text, sglang_command
from specfleet.experiments.run.files import write_text

FOLDER = "deploy"
MANIFEST, COMPOSE, COMMANDS = "kubernetes.yaml", "compose.yaml", "commands.sh"
FILES = tuple(f"{FOLDER}/{name}" for name in (MANIFEST, COMPOSE, COMMANDS, PROXY_FILE))
"""What may be written, in the folder of the plan."""


def missing(pools: Sequence[DeployedPool]) -> list[str]:
    """Returns why no manifest can start what was simulated; empty if one can."""
    return list(dict.fromkeys(reason for pool in pools for reason in pool.missing()))


def write_deployment(pools: Sequence[DeployedPool], router: str, folder: Path) -> list[Path]:
    """Writes manifest, Compose file and commands; returns their paths.

    Commands are always written. The others are not where they would start something else than what was
    simulated (`missing`).

    Args:
        pools: of the winner.
        router: that was simulated.
        folder: of the plan.
    """
    texts = {COMMANDS: commands_text(pools)}
    if not missing(pools):
        texts = {MANIFEST: kubernetes_text(pools, router), COMPOSE: compose_text(pools, router), **texts}
    if any(pool.role for pool in pools):
        texts[PROXY_FILE] = PROXY
    (folder / FOLDER).mkdir(exist_ok=True)
    for name in (MANIFEST, COMPOSE, COMMANDS, PROXY_FILE):
        (folder / FOLDER / name).unlink(missing_ok=True)
    for name, text in texts.items():
        write_text(folder / FOLDER / name, text)
    return [folder / FOLDER / name for name in texts]


def commands_text(pools: Sequence[DeployedPool]) -> str:
    """Returns the commands that start a replica of each pool, and SGLang's of the same where it has one."""
    return "\n".join(_lines(pools)) + "\n"


def _lines(pools: Sequence[DeployedPool]) -> Iterator[str]:
    yield "# Written by specfleet plan: a command starts one replica. Start each as often as it says."
    for pool in pools:
        of = f", for requests of {', '.join(pool.classes)}" if pool.classes else ""
        yield ""
        many = "once" if pool.replicas == 1 else f"{pool.replicas} times"
        yield f"# {pool.name}: {many}{of}; {pool.gpus} x {pool.gpu} each"
        yield from (
            f"# not in this command: {reason.removeprefix('it cannot say ')}" for reason in pool.missing()
        )
        yield server_text(pool.config, transfer_words() if pool.role else [])
        if pool.role:
            yield from _around(pool)
            continue
        other = sglang_command(pool.config)
        if other is not None and other != server_command(pool.config):
            yield f"# the same with SGLang, which was not simulated here:\n# {shlex.join(other)}"


def _around(pool: DeployedPool) -> Iterator[str]:
    """What a replica with a role needs beside its command."""
    yield f"# beside it {SIDE_HOST}: the address of this replica, and {SIDE} of its own, from {SIDE_PORT} on;"
    yield f"# role {pool.role}: {PROXY_FILE} sends it requests, its head says how it is told of replicas"


def deployed_text(pools: Sequence[DeployedPool], router: str) -> str:
    """Returns what is written, and why something is not, in sentences."""
    if reasons := missing(pools):
        return (
            f"To start it: {FOLDER}/{COMMANDS}. No Kubernetes manifest and no Compose file: they would start "
            f"something else than what was simulated: {'; '.join(reasons)}."
        )
    said = f"To start it: {', '.join(f'{FOLDER}/{name}' for name in (MANIFEST, COMPOSE, COMMANDS))}."
    if any(pool.role for pool in pools):
        return f"{said} Requests go to {FOLDER}/{PROXY_FILE}, which stands in the first two as well."
    if router != "random" and sum(pool.replicas for pool in pools) > 1:
        said += f" A Kubernetes Service sends connections to replicas at random; {router} needs a gateway."
    return said
