"""What replicas with roles are started with, and the proxy before them: vLLM's NixlConnector."""

from __future__ import annotations

import json

from specfleet.experiments.schema.blocks.deployment import KvTransfer

SIDE_PORT = 5600
"""Where a replica tells others how to reach its KV (vLLM's default of VLLM_NIXL_SIDE_CHANNEL_PORT)."""
SIDE_HOST, SIDE = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"
PROXY_FILE = "proxy.py"
PROXY_PORT = 8000


def transfer_words() -> list[str]:
    """Returns what `vllm serve` needs in either role: it is the proxy that tells them apart."""
    return ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})]


def unsaid_of(transfer: KvTransfer) -> list[str]:
    """Returns what was simulated of handing KV over and these words do not do, a clause each."""
    found = []
    if transfer.overlap != "after":
        found.append(
            f"kv_transfer overlap {transfer.overlap}: vLLM's NixlConnector sends KV after the prompt"
        )
    if transfer.drafter_kv != "moved":
        found.append(f"kv_transfer drafter_kv {transfer.drafter_kv}: vLLM moves the drafter's KV along")
    return found


def proxy_env(prefill: list[str], decode: list[str], routers: tuple[str, str]) -> dict[str, str]:
    """Returns the environment of the proxy.

    Args:
        prefill, decode: `host:port` of the replicas of each role; a name may stand for several addresses.
        routers: of each role, by name.
    """
    hosts = {"PREFILL": ",".join(prefill), "DECODE": ",".join(decode)}
    return hosts | dict(zip(("PREFILL_ROUTER", "DECODE_ROUTER"), routers, strict=True))


PROXY = '''\
"""Sends a request to a replica that computes its prompt, then to one that decodes it (vLLM, NixlConnector).

Written by specfleet plan. PREFILL and DECODE: host:port of replicas, separated by commas; a name with several
addresses stands for all of them. PREFILL_ROUTER, DECODE_ROUTER: least_outstanding, or else in turn.
"""

import asyncio
import os
import socket
import uuid
from contextlib import asynccontextmanager

from aiohttp import ClientSession, ClientTimeout, web


class Replicas:
    def __init__(self, role):
        self.hosts, self.router = os.environ[role].split(","), os.environ[role + "_ROUTER"]
        self.open, self.turn = {}, 0

    async def addresses(self):
        loop, found = asyncio.get_running_loop(), []
        for host in self.hosts:
            name, port = host.rsplit(":", 1)
            known = await loop.getaddrinfo(name, int(port), family=socket.AF_INET, type=socket.SOCK_STREAM)
            found += sorted({f"http://{ip}:{at}" for *_, (ip, at) in known})
        return found

    @asynccontextmanager
    async def one(self):
        known = await self.addresses()
        self.turn += 1
        if self.router == "least_outstanding":
            chosen = min(known, key=lambda url: self.open.get(url, 0))
        else:
            chosen = known[(self.turn - 1) % len(known)]
        self.open[chosen] = self.open.get(chosen, 0) + 1
        try:
            yield chosen
        finally:
            self.open[chosen] -= 1


REMOTE = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")


async def serve(request):
    app, body = request.app, await request.json()
    headers = {"X-Request-Id": request.headers.get("X-Request-Id", str(uuid.uuid4()))}
    if "Authorization" in request.headers:
        headers["Authorization"] = request.headers["Authorization"]
    asked = {"do_remote_decode": True, "do_remote_prefill": False, **dict.fromkeys(REMOTE)}
    first = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": asked}
    for key in ("stream_options", "min_tokens", "max_completion_tokens"):
        first.pop(key, None)
    async with app["prefill"].one() as url:
        async with app["session"].post(url + request.path, json=first, headers=headers) as reply:
            if reply.status != 200:
                return web.Response(status=reply.status, body=await reply.read())
            there = (await reply.json())["kv_transfer_params"]
    second = {**body, "kv_transfer_params": there}
    async with app["decode"].one() as url:
        async with app["session"].post(url + request.path, json=second, headers=headers) as reply:
            kind = reply.headers.get("Content-Type", "application/json")
            answer = web.StreamResponse(status=reply.status, headers={"Content-Type": kind})
            await answer.prepare(request)
            async for chunk in reply.content.iter_any():
                await answer.write(chunk)
            await answer.write_eof()
            return answer


async def health(request):
    return web.Response()


async def begin(app):
    app["session"] = ClientSession(timeout=ClientTimeout(total=None), auto_decompress=True)
    app["prefill"], app["decode"] = Replicas("PREFILL"), Replicas("DECODE")


async def end(app):
    await app["session"].close()


app = web.Application(client_max_size=64 << 20)
app.on_startup.append(begin)
app.on_cleanup.append(end)
app.router.add_post("/v1/completions", serve)
app.router.add_post("/v1/chat/completions", serve)
app.router.add_get("/health", health)

if __name__ == "__main__":
    web.run_app(app, port=int(os.environ.get("PORT", "8000")))
'''
"""The proxy, for the image of the engine, which has aiohttp."""
