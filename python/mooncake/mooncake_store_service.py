"""A node of the store with a REST interface: `mc_store_rest_server`, or `python -m mooncake.mooncake_store_service`.

Needs aiohttp. Every call of the store runs in a thread, so that a slow one delays no other request; what changes the set of
mounted segments is done one at a time. Errors are answered as {"error": text} by one wrapper around every handler: a handler
returns what a success says, or raises `_Refused`.
"""
from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import signal
import time
from typing import Any, Awaitable, Callable, Dict, List, Optional

try:
    from aiohttp import web
except ImportError:  # Its --help works without.
    web = None

from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

MAX_BODY_BYTES = 100 << 20
MAX_GRACE_SECONDS = 3600
RETRY_SECONDS = 1.0
REFUSALS = {-705: (409, "Key exists"), -300: (409, "The object is another by now"), -704: (404, "Key not found"),
            -703: (409, "The object is being written"), -1012: (501, "The master knows no such puts")}


class _Refused(Exception):
    def __init__(self, status: int, error: str, **more: Any) -> None:
        super().__init__(error)
        self.status, self.body = status, {"error": error, **more}


def _json(status: int, body: Dict[str, Any]) -> web.Response:
    return web.Response(status=status, text=json.dumps(body), content_type="application/json")


def _answers(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[web.Response]]:
    """Makes a response of what a handler returns or raises, and logs how long it took."""
    name = handler.__name__.replace("handle_", "").upper()

    @functools.wraps(handler)
    async def answer(self: "MooncakeStoreService", request: web.Request) -> web.Response:
        start = time.perf_counter()
        try:
            result = await handler(self, request)
            return result if isinstance(result, web.Response) else _json(200, {"status": "success", **result})
        except _Refused as refused:
            return _json(refused.status, refused.body)
        except Exception as error:  # A client is told; the service goes on.
            logging.error("%s: %s", name, error)
            return _json(500, {"error": str(error)})
        finally:
            logging.info("%s took %.2f ms", name, (time.perf_counter() - start) * 1e3)
    return answer


def _shm_name_to_path(name: Any) -> Optional[str]:
    """The file of a POSIX shared memory name, which has no folder; None for any other."""
    if not isinstance(name, str):
        return None
    name = name[1:] if name.startswith("/") else name
    return f"/dev/shm/{name}" if name and "/" not in name and name not in (".", "..") else None


def _terms(data: Dict[str, Any]) -> List[ReplicateConfig]:
    """What a put asks beyond upstream's: ttl_ms and one of if_absent, if_version, if_checksum. [] when it asks nothing."""
    numbers = {name: data[name] for name in ("ttl_ms", "if_version", "if_checksum") if data.get(name) is not None}
    absent = data.get("if_absent", False)
    for name, value in numbers.items():
        if type(value) is not int or not 0 <= value < 1 << 64:
            raise _Refused(400, f"{name} must be an unsigned integer")
    if type(absent) is not bool or absent + ("if_version" in numbers) + ("if_checksum" in numbers) > 1:
        raise _Refused(400, "if_absent is true or false, and one of if_absent, if_version, if_checksum can be asked for")
    if not numbers and not absent:
        return []
    config = ReplicateConfig()
    config.if_absent = absent
    for name, value in numbers.items():
        setattr(config, name, value if name == "ttl_ms" else [value])
    return [config]


def _segment_ids(data: Dict[str, Any]) -> List[str]:
    ids = data.get("segment_ids", [])
    ids = [ids] if isinstance(ids, str) else ids
    if not ids:
        raise _Refused(400, "Missing segment_ids")
    return ids


class MooncakeStoreService:
    def __init__(self, config_path: Optional[str] = None, cli_config: Optional[Dict[str, str]] = None) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        self.store: Optional[MooncakeDistributedStore] = None
        self.current_mode = "prefill"
        self.mounted_segment_ids: List[str] = []
        self.last_mount_info: Dict[str, Any] = {}
        self._state_lock = asyncio.Lock()
        self.config = MooncakeConfig.from_file(config_path) if config_path else MooncakeConfig.load_from_env()
        for key, value in (cli_config or {}).items():
            if hasattr(self.config, key):
                setattr(self.config, key, value)
            else:
                logging.warning("-D %s: there is no such field in the configuration", key)

    # ---- life ----

    def _options(self) -> Dict[str, Any]:
        options = {name: getattr(self.config, name) for name in (
            "local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol", "enable_ssd_offload",
            "ssd_offload_path", "tenant_id", "enable_client_http_server", "client_http_port")}
        return {**options, "rdma_devices": self.config.device_name, "master_server_addr": self.config.master_server_address}

    async def start_store_service(self, max_wait_time: float = 60, shutdown_event: Optional[asyncio.Event] = None) -> bool:
        """Joins the cluster, trying every second until it works, the time is over, or the event is set."""
        end = time.monotonic() + max_wait_time
        stop = shutdown_event if shutdown_event is not None else asyncio.Event()
        await asyncio.sleep(0)  # Let a signal that is there already set the event.
        while not stop.is_set() and time.monotonic() < end:
            try:
                self.store = MooncakeDistributedStore()
                code = await asyncio.to_thread(self.store.setup, self._options())
                error = f"setup: {code}" if code else None
            except Exception as failure:
                error = str(failure)
            if error is None and not stop.is_set():
                logging.info("the store is up at %s", self.config.local_hostname)
                return True
            await self.stop()
            left = end - time.monotonic()
            if error is not None and left > 0:
                logging.warning("the store did not start (%s); %.0f s are left to try again", error, left)
                try:
                    await asyncio.wait_for(stop.wait(), min(RETRY_SECONDS, left))
                except asyncio.TimeoutError:
                    pass
        logging.error("the store did not start: %s", "shutdown was asked for" if stop.is_set() else
                      f"{max_wait_time:g} s are over")
        return False

    async def start_http_service(self, port: int = 8080) -> bool:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes([
            web.put("/api/put", self.handle_put),
            web.get("/api/get/{key}", self.handle_get),
            web.get("/api/exist/{key}", self.handle_exist),
            web.get("/api/inspect/{key}", self.handle_inspect),
            web.delete("/api/remove/{key}", self.handle_remove),
            web.delete("/api/remove_all", self.handle_remove_all),
            web.post("/api/mount_shm", self.handle_mount_shm),
            web.post("/api/unmount_shm", self.handle_unmount_shm),
            web.post("/api/mount", self.handle_mount),
            web.post("/api/unmount", self.handle_unmount),
            web.post("/api/unmount_local_disk", self.handle_unmount_local_disk),
            web.post("/api/reconfigure", self.handle_reconfigure),
        ])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", port).start()
        logging.info("REST at port %d", port)
        return True

    async def stop(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            code = await asyncio.to_thread(store.close)
            if code:
                logging.warning("closing the store: %d", code)

    # ---- objects ----

    @_answers
    async def handle_put(self, request: web.Request) -> Any:
        data = await request.json()
        key, value = data.get("key"), data.get("value")
        if not key or value is None:
            raise _Refused(400, "Missing key or value")
        terms = _terms(data)
        code = await asyncio.to_thread(self.store.put, key, value.encode(), *terms)
        if terms and code in REFUSALS:
            raise _Refused(*REFUSALS[code])
        if code:
            raise _Refused(500, "PUT operation failed")
        return {}

    async def _require(self, key: str) -> None:
        exists = await asyncio.to_thread(self.store.is_exist, key)
        if exists == 0:
            raise _Refused(404, "Key not found")
        if exists < 0:
            raise _Refused(500, "Exist check failed")

    @_answers
    async def handle_get(self, request: web.Request) -> Any:
        key = request.match_info["key"]
        await self._require(key)
        value = await asyncio.to_thread(self.store.get, key)
        if value is None:
            raise _Refused(500, "GET operation failed")
        if not value:  # Also what the store says of a key that went away meanwhile.
            await self._require(key)
        return web.Response(body=value, content_type="application/octet-stream")

    @_answers
    async def handle_exist(self, request: web.Request) -> Any:
        exists = await asyncio.to_thread(self.store.is_exist, request.match_info["key"])
        if exists < 0:
            raise _Refused(500, "Exist check failed")
        return _json(200, {"exists": exists > 0})

    @_answers
    async def handle_inspect(self, request: web.Request) -> Any:
        info = (await asyncio.to_thread(self.store.inspect, [request.match_info["key"]]))[0]
        if isinstance(info, int):
            raise _Refused(404, "Key not found") if info == -704 else _Refused(500, "Inspect failed")
        return _json(200, info._asdict())

    @_answers
    async def handle_remove(self, request: web.Request) -> Any:
        if await asyncio.to_thread(self.store.remove, request.match_info["key"]):
            raise _Refused(500, "Remove operation failed")
        return {}

    @_answers
    async def handle_remove_all(self, request: web.Request) -> Any:
        count = await asyncio.to_thread(self.store.remove_all)
        if count < 0:
            raise _Refused(500, "RemoveAll operation failed")
        return {"status": f"success removed {count} keys"}

    # ---- segments ----

    async def _mount_file(self, path: str, data: Dict[str, Any]) -> Dict[str, Any]:
        return await asyncio.to_thread(self.store.mount_segment, path, data.get("size"), data.get("offset", 0),
                                       data.get("protocol", self.config.protocol), data.get("location", ""))

    async def _unmount_each(self, ids: List[str], grace: int = 0) -> List[str]:
        """The ids that could not be unmounted; one call each, because a list's answer is its first error."""
        return [one for one in ids if await asyncio.to_thread(self.store.unmount_segment, [one], grace)]

    @_answers
    async def handle_mount_shm(self, request: web.Request) -> Any:
        data = await request.json()
        path = _shm_name_to_path(data.get("name"))
        if not path or data.get("size") is None:
            raise _Refused(400, "Missing or invalid name or size")
        result = await self._mount_file(path, data)
        if result["ret"]:
            raise _Refused(500, f"Mount failed, ret={result['ret']}")
        return {"segment_ids": list(result["segment_ids"])}

    @_answers
    async def handle_unmount_shm(self, request: web.Request) -> Any:
        data = await request.json()
        ids = _segment_ids(data)
        async with self._state_lock:
            failed = await self._unmount_each(ids, data.get("grace_period_seconds", 0))
            gone = set(ids) - set(failed)
            self.mounted_segment_ids = [one for one in self.mounted_segment_ids if one not in gone]
            if not self.mounted_segment_ids:
                self.current_mode = "prefill"
        if failed:
            raise _Refused(500, "Unmount failed for one or more segments", failed_segment_ids=failed)
        return {}

    @_answers
    async def handle_mount(self, request: web.Request) -> Any:
        data = await request.json()
        size = data.get("size")
        if type(size) is not int or size <= 0:
            raise _Refused(400, "Invalid size, must be a positive integer")
        result = await asyncio.to_thread(self.store.allocate_and_mount_segment, size,
                                         data.get("protocol", self.config.protocol), data.get("location", ""))
        if result["ret"]:
            raise _Refused(500, f"Allocate and mount failed, ret={result['ret']}")
        return {"segment_ids": list(result["segment_ids"]), "allocated_size": result["allocated_size"]}

    @_answers
    async def handle_unmount(self, request: web.Request) -> Any:
        data = await request.json()
        code = await asyncio.to_thread(self.store.unmount_and_free_segment, _segment_ids(data),
                                       data.get("grace_period_seconds", 0))
        if code:
            raise _Refused(500, f"Unmount and free failed, ret={code}")
        return {}

    @_answers
    async def handle_unmount_local_disk(self, request: web.Request) -> Any:
        try:
            data = await request.json()
        except ValueError:
            raise _Refused(400, "Malformed JSON body") from None
        if not isinstance(data, dict):
            raise _Refused(400, "Request body must be a JSON object")
        grace = data.get("grace_period_seconds", 0)
        if type(grace) is not int or not 0 <= grace <= MAX_GRACE_SECONDS:
            raise _Refused(400, "Invalid grace_period_seconds, must be a non-negative integer no greater than "
                                f"{MAX_GRACE_SECONDS}")
        code = await asyncio.to_thread(self.store.unmount_local_disk_segment, grace)
        if code:
            raise _Refused(500, f"Unmount local disk failed, ret={code}")
        return {}

    @_answers
    async def handle_reconfigure(self, request: web.Request) -> Any:
        data = await request.json()
        mode = data.get("mode", "").lower()
        if mode not in ("decode", "prefill"):
            raise _Refused(400, "Invalid mode. Use 'decode' or 'prefill'")
        if mode == "decode" and (not data.get("path") or data.get("size") is None):
            raise _Refused(400, "Missing path or size for decode mode")
        async with self._state_lock:
            return await (self._to_decode(data) if mode == "decode" else self._to_prefill())

    async def _to_decode(self, data: Dict[str, Any]) -> Dict[str, Any]:
        """Mounts the new segment before the old ones go, so that a failure costs no capacity."""
        old = self.mounted_segment_ids
        result = await self._mount_file(data["path"], data)
        if result["ret"]:
            if not old:
                self.current_mode, self.last_mount_info = "prefill", {}
            outcome = "keeping previous decode segments" if old else "rolled back to prefill"
            raise _Refused(500, f"Mount failed, ret={result['ret']}; {outcome}", mode=self.current_mode)
        kept = await self._unmount_each(old)
        if kept:
            logging.warning("old segments %s could not be unmounted; the next change tries again", kept)
        self.mounted_segment_ids = list(result["segment_ids"]) + kept
        self.current_mode = "decode"
        self.last_mount_info = {"path": data["path"], "offset": data.get("offset", 0), "size": data["size"],
                                "protocol": data.get("protocol", self.config.protocol), "location": data.get("location", "")}
        return {"mode": self.current_mode, "segment_ids": self.mounted_segment_ids}

    async def _to_prefill(self) -> Dict[str, Any]:
        if self.mounted_segment_ids:
            code = await asyncio.to_thread(self.store.unmount_segment, self.mounted_segment_ids)
            if code:
                raise _Refused(500, f"Unmount failed, ret={code}")
        self.mounted_segment_ids, self.last_mount_info, self.current_mode = [], {}, "prefill"
        return {"mode": self.current_mode}


def parse_arguments(argv: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A node of the Mooncake store with a REST interface")
    parser.add_argument("--config", help="JSON file with the configuration (else MOONCAKE_CONFIG_PATH, MOONCAKE_*)")
    parser.add_argument("-D", "--define", action="append", default=[], metavar="KEY=VALUE",
                        help="a field of the configuration, for example -Dlocal_hostname=10.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="port of the REST interface (8080)")
    parser.add_argument("--max-wait-time", type=float, default=60, help="seconds to wait for the master (60)")
    return parser.parse_args(argv)


async def main() -> None:
    args = parse_arguments()
    if web is None:
        raise SystemExit("mc_store_rest_server needs aiohttp: pip install aiohttp")
    defined = dict(item.split("=", 1) for item in args.define if "=" in item)
    for item in args.define:
        if "=" not in item:
            logging.warning("-D %s is ignored: it is not KEY=VALUE", item)
    service = MooncakeStoreService(args.config, defined)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        if await service.start_store_service(args.max_wait_time, stop):
            await service.start_http_service(args.port)
            await stop.wait()
        elif not stop.is_set():
            raise SystemExit("the store did not start")
    finally:
        await service.stop()


def sync_main() -> None:
    asyncio.run(main())


if __name__ == "__main__":
    sync_main()
