"""A Compose file: a service a replica with GPUs of its own, and a gateway before them on one host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specfleet.experiments.plan.deploy.handing import (
    PROXY,
    PROXY_FILE,
    PROXY_PORT,
    SIDE,
    SIDE_HOST,
    SIDE_PORT,
    proxy_env,
)
from specfleet.experiments.plan.deploy.kubernetes import CACHE, EVERY_S, START_S, plain_yaml
from specfleet.experiments.plan.deploy.pool import DeployedPool

HOST_GPUS = 8
"""GPUs of a host: replicas that need more share the file by host, as profiles."""
GATEWAY = "nginx:1.28.0"
FIRST_PORT = 8000
BALANCED = {
    "round_robin": "",
    "least_outstanding": "least_conn;",
    "random": "random;",
    "power_of_two": "random two least_conn;",
}
"""Router -> what nginx calls it. A connection to a replica carries one request, so the fewest connections are
the fewest requests outstanding."""


def compose_text(pools: Sequence[DeployedPool], router: str) -> str:
    """Returns the Compose file.

    Args:
        pools: of the deployment, all of which can be started.
        router: that was simulated, by name.
    """
    hosts = _hosts(pools)
    head = [f"# {line}" for line in _head(pools, router, hosts)]
    services: dict[str, object] = {}
    for number, host in enumerate(hosts, 1):
        first = 0
        for port, (name, pool) in enumerate(host, FIRST_PORT):
            services[name] = _service(
                pool, name, first, None if len(hosts) == 1 else (f"host-{number}", port)
            )
            first += pool.gpus
    content: dict[str, object] = {"name": pools[0].name, "services": services, "volumes": {"models": {}}}
    if len(hosts) == 1 and any(pool.role for pool in pools):
        services["gateway"] = _proxy(pools, router)
        content["configs"] = {"gateway": {"content": PROXY.replace("$", "$$")}}
    elif len(hosts) == 1:
        services["gateway"] = _gateway(pools)
        content["configs"] = {"gateway": {"content": _nginx(pools, router)}}
    return "\n".join(head) + "\n" + plain_yaml(content)


def _hosts(pools: Sequence[DeployedPool]) -> list[list[tuple[str, DeployedPool]]]:
    """The replicas of each host by name, in turn; a host is full when the next does not fit."""
    hosts: list[list[tuple[str, DeployedPool]]] = [[]]
    free = HOST_GPUS
    for pool in pools:
        for number in range(pool.replicas):
            if hosts[-1] and pool.gpus > free:
                hosts.append([])
                free = HOST_GPUS
            hosts[-1].append((f"{pool.name}-{number}", pool))
            free -= pool.gpus
    return hosts


def _head(
    pools: Sequence[DeployedPool], router: str, hosts: Sequence[Sequence[tuple[str, DeployedPool]]]
) -> Iterator[str]:
    yield "Written by specfleet plan. It needs NVIDIA's container toolkit, and the token in the environment:"
    start = "docker compose" if len(hosts) == 1 else "docker compose --profile host-1"
    yield f"  HF_TOKEN=... {start} -f compose.yaml up -d"
    for pool in pools:
        yield f"Image of {pool.name}: {pool.image} ({pool.image_source})."
    if len(hosts) > 1:
        yield f"It is for {len(hosts)} hosts with {HOST_GPUS} GPUs: start profile host-1, .. on each. No"
        yield f"file of one host can stand before several: {router} needs a gateway before the ports"
        yield f"from {FIRST_PORT} on of all."
    elif any(pool.role for pool in pools):
        yield "The gateway is a proxy that sends each request to a prefill and then to a decode replica, as"
        yield f"simulated ({router} among the first; others than least_outstanding in turn). Docker Compose"
        yield "takes it from this file from 2.23.1 on."
    elif router in BALANCED:
        there = BALANCED[router].rstrip(";") or "round robin"
        yield f"The gateway is nginx: {router} is its `{there}`, request by request."
        yield "Its configuration stands in this file, which Docker Compose takes from 2.23.1 on."
    else:
        yield "Docker Compose from 2.23.1 on takes the configuration of the gateway from this file."
        yield f"The gateway is nginx and deals out in turn: {router}, which was simulated, it does not have."
    for number, pool in enumerate(pools):
        if pool.classes:
            at = f"port {FIRST_PORT + number}" if len(hosts) == 1 else f"the replicas {pool.name}-.."
            yield f"Requests of {', '.join(pool.classes)} belong to {at}: the client chooses."
        if pool.autoscale is not None:
            yield f"Compose does not scale: {pool.name} has the {pool.replicas} replicas that it starts with."


def _service(pool: DeployedPool, name: str, first: int, apart: tuple[str, int] | None) -> dict[str, object]:
    """A replica on the GPUs from `first` on; `apart`: its profile and port, where there are several hosts."""
    devices = [str(number) for number in range(first, first + pool.gpus)]
    reserved = {"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}
    url = f"http://localhost:{pool.port}/health"
    check = ["CMD", "python3", "-c", f"import urllib.request; urllib.request.urlopen('{url}', timeout=5)"]
    where: dict[str, object] = {}
    if apart is not None:
        where = {"profiles": [apart[0]], "ports": [f"{apart[1]}:{pool.port}"]}
    return {
        **where,
        "image": pool.image,
        "entrypoint": pool.words[:1],
        "command": [word.replace("$", "$$") for word in pool.words[1:]],
        "environment": {
            "HF_TOKEN": "${HF_TOKEN:?set HF_TOKEN to a Hugging Face token}",
            **({SIDE_HOST: name, SIDE: str(SIDE_PORT)} if pool.role else {}),
        },
        "volumes": [f"models:{CACHE}"],
        "shm_size": f"{pool.shm_gib}gb",
        "deploy": {"resources": {"reservations": {"devices": [reserved]}}},
        "healthcheck": {
            "test": check,
            "interval": f"{EVERY_S}s",
            "timeout": "6s",
            "retries": 6,
            "start_period": f"{START_S}s",
        },
        "restart": "unless-stopped",
    }


def _proxy(pools: Sequence[DeployedPool], router: str) -> dict[str, object]:
    """The proxy before pools with roles, in the image of the engine."""
    names = {
        role: [f"{pool.name}-{n}" for pool in pools if pool.role == role for n in range(pool.replicas)]
        for role in ("prefill", "decode")
    }
    first = next(pool for pool in pools if pool.role == "prefill")
    assert first.transfer is not None
    hosts = [[f"{name}:{first.port}" for name in there] for there in names.values()]
    return {
        "image": first.image,
        "entrypoint": ["python3", f"/proxy/{PROXY_FILE}"],
        "environment": proxy_env(hosts[0], hosts[1], (router, first.transfer.router)),
        "ports": [f"{FIRST_PORT}:{PROXY_PORT}"],
        "configs": [{"source": "gateway", "target": f"/proxy/{PROXY_FILE}"}],
        "depends_on": {name: {"condition": "service_healthy"} for there in names.values() for name in there},
        "restart": "unless-stopped",
    }


def _gateway(pools: Sequence[DeployedPool]) -> dict[str, object]:
    names = [f"{pool.name}-{number}" for pool in pools for number in range(pool.replicas)]
    return {
        "image": GATEWAY,
        "ports": [f"{FIRST_PORT + number}:{FIRST_PORT + number}" for number in range(len(pools))],
        "configs": [{"source": "gateway", "target": "/etc/nginx/conf.d/default.conf"}],
        "depends_on": {name: {"condition": "service_healthy"} for name in names},
        "restart": "unless-stopped",
    }


def _nginx(pools: Sequence[DeployedPool], router: str) -> str:
    """Its configuration: an upstream and a port for each pool; answers are streamed."""
    lines: list[str] = []
    for number, pool in enumerate(pools):
        how = BALANCED.get(router, "")
        lines += [f"upstream {pool.name} {{", *([f"  {how}"] if how else [])]
        lines += [f"  server {pool.name}-{i}:{pool.port};" for i in range(pool.replicas)]
        lines += ["}", "server {", f"  listen {FIRST_PORT + number};", "  client_max_body_size 64m;"]
        lines += ["  location / {", f"    proxy_pass http://{pool.name};", "    proxy_http_version 1.1;"]
        lines += ['    proxy_set_header Connection "";', "    proxy_buffering off;"]
        lines += ["    proxy_read_timeout 3600s;", "  }", "}"]
    return "\n".join(lines) + "\n"
