"""Stands before prefill and decode engines (OpenAI's HTTP interface, as vLLM serves it) and makes one of each pair answer a request:

    python -m mooncake.vllm_v1_proxy_server --port 8000 --prefiller-hosts HOST... --prefiller-ports PORT...
                                            --decoder-hosts HOST... --decoder-ports PORT...

A request first goes to a prefill engine, for one token; what that says about where the blocks are (kv_transfer_params) goes with the
request to a decode engine, whose answer is passed on as it comes. Engines are taken in turn. Needs aiohttp.
"""
from __future__ import annotations

import argparse
import itertools
import logging
import os
import uuid
from typing import Any, Optional

try:
    import aiohttp
    from aiohttp import web
except ImportError:  # Its --help works without.
    web = None

logger = logging.getLogger(__name__)

ASK_FOR_BLOCKS = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
                  "remote_host": None, "remote_port": None}
MAX_REQUEST_BYTES = 100 << 20
CONNECT_TIMEOUT = 10


class Refused(Exception):
    """An engine's answer that is the client's: its status and body."""

    def __init__(self, status: int, body: bytes, content_type: str) -> None:
        super().__init__(f"status {status}")
        self.response = web.Response(status=status, body=body, headers={"Content-Type": content_type})


class Proxy:
    def __init__(self, prefillers: list[str], decoders: list[str]) -> None:
        self.prefillers, self.decoders = prefillers, decoders
        self._prefillers, self._decoders = itertools.cycle(prefillers), itertools.cycle(decoders)
        self._session: Optional[aiohttp.ClientSession] = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_get("/healthcheck", self.health)
        app.cleanup_ctx.append(self._sessions)
        return app

    async def _sessions(self, _app: web.Application) -> Any:
        # An answer may take as long as it takes; there are as many connections as requests.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as self._session:
            yield

    async def health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "prefill_instances": len(self.prefillers),
                                  "decode_instances": len(self.decoders)})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return web.json_response({"error": "the body is not a JSON object"}, status=400)
        headers = {"X-Request-Id": str(uuid.uuid4())}
        if "Authorization" in request.headers:
            headers["Authorization"] = request.headers["Authorization"]
        elif os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
        engine = next(self._prefillers)
        try:
            params = await self._prefill(engine + request.path, body, headers)
            engine = next(self._decoders)
            return await self._decode(request, engine + request.path, {**body, **params}, headers)
        except Refused as refused:
            logger.warning("%s refuses: %s", engine, refused)
            return refused.response
        except aiohttp.ClientError as error:
            logger.error("%s: %s", engine, error)
            return web.json_response({"error": f"the engine {engine} cannot be reached: {error}"}, status=502)

    async def _prefill(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        """What the decode engine's request has in addition."""
        first = {**body, "kv_transfer_params": ASK_FOR_BLOCKS, "stream": False, "max_tokens": 1}
        first.pop("stream_options", None)
        for name in ("max_completion_tokens", "min_tokens"):
            if name in first:
                first[name] = min(first[name] or 0, 1) if name == "min_tokens" else 1
        async with self._session.post(url, json=first, headers=headers) as response:
            await self._check(response)
            answer = await response.json(content_type=None)
        params = answer.get("kv_transfer_params") if isinstance(answer, dict) else None
        return {"kv_transfer_params": params} if params else {}

    async def _decode(self, request: web.Request, url: str, body: dict[str, Any], headers: dict[str, str]) -> web.StreamResponse:
        async with self._session.post(url, json=body, headers=headers) as response:
            await self._check(response)
            passed = web.StreamResponse(headers={"Content-Type": response.headers.get("Content-Type", "application/json")})
            await passed.prepare(request)
            try:
                async for piece in response.content.iter_any():
                    await passed.write(piece)
                await passed.write_eof()
            except (aiohttp.ClientError, ConnectionError) as error:
                # The status is on its way already. Without an end, the client sees that the answer is cut short.
                logger.error("%s: the answer is cut short: %s", url, error)
                if request.transport is not None:
                    request.transport.abort()
            return passed

    @staticmethod
    async def _check(response: aiohttp.ClientResponse) -> None:
        if response.status >= 400:
            raise Refused(response.status, await response.read(), response.headers.get("Content-Type", "application/json"))


def parse_args(argv: Optional[list[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sends requests to prefill and decode engines, in turn.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    for kind, port in (("prefiller", 8100), ("decoder", 8200)):
        parser.add_argument(f"--{kind}-hosts", f"--{kind}-host", nargs="+", default=["localhost"])
        parser.add_argument(f"--{kind}-ports", f"--{kind}-port", nargs="+", type=int, default=[port])
    args = parser.parse_args(argv)
    for kind in ("prefiller", "decoder"):
        hosts, ports = getattr(args, f"{kind}_hosts"), getattr(args, f"{kind}_ports")
        if len(hosts) != len(ports):
            parser.error(f"{len(hosts)} {kind} hosts, but {len(ports)} {kind} ports")
        setattr(args, f"{kind}_instances", list(zip(hosts, ports)))
    return args


def urls(instances: list[tuple[str, int]]) -> list[str]:
    return [f"http://{f'[{host}]' if ':' in host else host}:{port}" for host, port in instances]


def main(argv: Optional[list[str]] = None) -> None:
    args = parse_args(argv)
    if web is None:
        raise SystemExit("the proxy needs aiohttp: pip install aiohttp")
    logging.basicConfig(level=logging.INFO)
    proxy = Proxy(urls(args.prefiller_instances), urls(args.decoder_instances))
    web.run_app(proxy.app(), host=args.host, port=args.port)


if __name__ == "__main__":
    main()
