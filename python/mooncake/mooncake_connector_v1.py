"""A KV connector for vLLM 0.10 to 0.12, which have no Mooncake connector of their own: what a prefill engine has computed goes straight
into the KV cache of a decode engine. (Newer ones bring theirs; this one works with them too, but knows one group of blocks only.)

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "MooncakeConnector", "kv_role": "kv_producer",
                                            "kv_connector_module_path": "mooncake.mooncake_connector_v1"}'

and kv_consumer for the decode engines, with mooncake.vllm_v1_proxy_server before both.

The decode worker asks: it sends the prefill worker of its rank, over a ZMQ side channel, which blocks of its own belong to which
requests of the prefill's, and where its cache lies; it is answered when the prefill worker has written the blocks there with one batch of
the Transfer Engine. Names, environment variables and messages are those of upstream's connector, so either end may be upstream's.
A request whose blocks cannot be had is reported to a vLLM that knows such reports (0.11 on) as loaded with errors, and it computes
them itself; in none does it run on another's bytes.

Every request on the prefill's side has one owner, the event loop of its worker: vLLM's threads only hand over work.
"""
from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Optional

import msgspec
import zmq
import zmq.asyncio
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA
except ImportError:
    SupportsHMA = object
try:
    from vllm.utils.network_utils import get_ip, make_zmq_path
except ImportError:
    from vllm.utils import get_ip, make_zmq_path
try:
    from vllm.attention.selector import get_attn_backend
except ImportError:
    from vllm.v1.attention.selector import get_attn_backend

DONE, FAILED = b"trans_done", b"trans_error"
SIDE_CHANNEL_PORT = int(os.environ.get("VLLM_MOONCAKE_SIDE_CHANNEL_PORT", "6557"))
ABORT_REQUEST_TIMEOUT = int(os.environ.get("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "120"))
SENDER_WORKERS = int(os.environ.get("VLLM_MOONCAKE_SENDER_WORKERS", "10"))
PROTOCOL = os.environ.get("VLLM_MOONCAKE_PROTOCOL", "rdma")
# A decode engine gives up, and uses its blocks for something else, after this; so a prefill engine begins to write within half of
# it or not at all. The write itself has the Transfer Engine's limit (MC_TRANSFER_TIMEOUT, 30 s).
ANSWER_TIMEOUT = 60

CAN_REPORT_LOSSES = hasattr(KVConnectorBase_V1, "get_block_ids_with_load_errors")

logger = init_logger(__name__)


class MooncakeAgentMetadata(msgspec.Struct, omit_defaults=True):
    """What a decode worker asks a prefill worker for: the blocks of these requests, into these blocks of its own."""

    remote_hostname: str
    remote_port: int
    request_ids: list[str]
    kv_caches_base_addr: list[int]
    block_ids: list[list[int]]


@dataclass
class RecvReqMeta:
    local_block_ids: list[int]
    remote_host: str
    remote_port: int
    remote_request_id: Optional[str] = None


class MooncakeConnectorMetadata(KVConnectorMetadata):
    """From the scheduler to the workers, each step. A request to send has no blocks yet while it is computed; one to forget will
    never have any."""

    def __init__(self) -> None:
        self.reqs_to_recv: dict[str, RecvReqMeta] = {}
        self.reqs_to_send: dict[str, list[int]] = {}
        self.reqs_to_forget: set[str] = set()

    def add_new_req(self, request_id: str, local_block_ids: list[int], kv_transfer_params: dict[str, Any],
                    load_remote_cache: bool = True) -> None:
        if load_remote_cache:
            self.reqs_to_recv[request_id] = RecvReqMeta(local_block_ids, kv_transfer_params["remote_host"],
                                                        kv_transfer_params["remote_port"],
                                                        kv_transfer_params.get("remote_request_id"))
        else:
            self.reqs_to_send[request_id] = local_block_ids


def get_mooncake_side_channel_port(vllm_config: Any) -> int:
    """Of rank 0; each tensor-parallel rank has the next."""
    parallel = vllm_config.parallel_config
    return SIDE_CHANNEL_PORT + parallel.data_parallel_rank * parallel.tensor_parallel_size


def group_concurrent_contiguous(src_indices: Sequence[int],
                                dst_indices: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
    """The pairs, cut wherever either side jumps: each piece is one transfer."""
    sources: list[list[int]] = []
    targets: list[list[int]] = []
    for source, target in zip(src_indices, dst_indices, strict=True):
        if sources and (source, target) == (sources[-1][-1] + 1, targets[-1][-1] + 1):
            sources[-1].append(source)
            targets[-1].append(target)
        else:
            sources.append([source])
            targets.append([target])
    return sources, targets


class MooncakeConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, *([] if kv_cache_config is None else [kv_cache_config]))
        self.engine_id: str = vllm_config.kv_transfer_config.engine_id
        scheduling = role == KVConnectorRole.SCHEDULER
        self.connector_scheduler = MooncakeConnectorScheduler(vllm_config, self.engine_id) if scheduling else None
        self.connector_worker = None if scheduling else MooncakeConnectorWorker(vllm_config, self.engine_id)

    # ---- in the scheduler ----

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return self.connector_scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.connector_scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> MooncakeConnectorMetadata:
        return self.connector_scheduler.build_connector_meta(scheduler_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, Optional[dict[str, Any]]]:
        return self.connector_scheduler.request_finished(request, block_ids)

    def request_finished_all_groups(self, request: Any,
                                    block_ids: tuple[list[int], ...]) -> tuple[bool, Optional[dict[str, Any]]]:
        return self.request_finished(request, list(itertools.chain.from_iterable(block_ids)))

    # ---- in a worker ----

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self.connector_worker.register_kv_caches(kv_caches)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[Optional[set[str]], Optional[set[str]]]:
        return self.connector_worker.get_finished()

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.connector_worker.get_block_ids_with_load_errors()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.connector_worker.start_load_kv(self._connector_metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A request is scheduled when all its layers are there."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks stay where they are until they are asked for."""

    def wait_for_save(self) -> None:
        pass

    def shutdown(self) -> None:
        if self.connector_worker is not None:
            self.connector_worker.shutdown()


class MooncakeConnectorScheduler:
    """What a request's kv_transfer_params mean. Of a prefill they say do_remote_decode; its answer holds those for the decode
    engine, which say do_remote_prefill and where the blocks are."""

    def __init__(self, vllm_config: Any, engine_id: str) -> None:
        self.engine_id = engine_id
        self.kv_role: str = vllm_config.kv_transfer_config.kv_role
        self.side_channel_host = get_ip()
        self.side_channel_port = get_mooncake_side_channel_port(vllm_config)
        self._to_receive: dict[str, tuple[Any, list[int]]] = {}
        self._to_send: dict[str, list[int]] = {}
        self._to_forget: set[str] = set()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """(tokens that come from elsewhere, whether they come between steps)."""
        if not (request.kv_transfer_params or {}).get("do_remote_prefill"):
            return 0, False
        count = len(request.prompt_token_ids) - num_computed_tokens
        return (count, True) if count > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill"):
            if self.kv_role == "kv_producer":
                raise ValueError(f"request {request.request_id} asks a kv_producer for what another has computed")
            if params.get("remote_host") and params.get("remote_port"):
                # With everything in the local cache there is nothing to fetch, but the prefill engine is still told.
                wanted = blocks.get_unhashed_block_ids() if num_external_tokens > 0 else []
                self._to_receive[request.request_id] = request, wanted
            else:
                logger.warning("request %s: kv_transfer_params without remote_host and remote_port: %s", request.request_id, params)
            params["do_remote_prefill"] = False  # Once a request.
        elif params.get("do_remote_decode"):
            self._to_send[request.request_id] = []

    def build_connector_meta(self, scheduler_output: Any) -> MooncakeConnectorMetadata:
        meta = MooncakeConnectorMetadata()
        if self.kv_role != "kv_producer":
            for request_id, (request, blocks) in self._to_receive.items():
                meta.add_new_req(request_id, blocks, request.kv_transfer_params)
            self._to_receive.clear()
        if self.kv_role != "kv_consumer":
            for request_id, blocks in self._to_send.items():
                meta.add_new_req(request_id, blocks, {}, load_remote_cache=False)
            self._to_send.clear()
            meta.reqs_to_forget, self._to_forget = self._to_forget, set()
        return meta

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, Optional[dict[str, Any]]]:
        """(whether the blocks are still needed, what the decode engine has to know)."""
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill"):
            # It ended before it was scheduled: the prefill engine is told, or it would keep the blocks until its timeout.
            self._to_receive[request.request_id] = request, []
            params["do_remote_prefill"] = False
            return False, None
        if not params.get("do_remote_decode"):
            return False, None
        if not block_ids or request.status != RequestStatus.FINISHED_LENGTH_CAPPED:  # Aborted, or its first token was its last.
            self._to_send.pop(request.request_id, None)
            self._to_forget.add(request.request_id)
            return False, None
        self._to_send[request.request_id] = block_ids
        return True, {"do_remote_prefill": True, "do_remote_decode": False, "remote_host": self.side_channel_host,
                                 "remote_port": self.side_channel_port, "remote_request_id": request.request_id}


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def start(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self) -> None:
        """Ends every task and waits for it."""

        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        if self._thread.is_alive():
            self.start(cancel()).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


@dataclass
class _Cache:
    """The KV cache as regions of equal blocks: block i of each region is part of block i."""

    addresses: list[int] = field(default_factory=list)
    block_bytes: int = 0
    blocks: int = 0


@dataclass
class _Sending:
    """A request of the prefill's that somebody will ask for. `blocks` are known when it is computed."""

    blocks: Optional[list[int]] = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    expires: float = float("inf")


class _Sender:
    """The prefill's side: answers decode workers."""

    def __init__(self, worker: MooncakeConnectorWorker) -> None:
        self._worker = worker
        self._requests: dict[str, _Sending] = {}
        self._finished: set[str] = set()
        self._pool = ThreadPoolExecutor(SENDER_WORKERS, thread_name_prefix="mooncake-sender")
        self._loop = _Loop("mooncake-sender")

    def listen(self, path: str) -> None:
        """Returns when decode workers can ask; the error when the port cannot be had."""
        socket = self._loop.start(self._bind(path)).result()
        self._loop.start(self._serve(socket))

    async def _bind(self, path: str) -> Any:
        socket = self._worker.context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.ipv6 = path.startswith("tcp://[")
        socket.bind(path)
        return socket

    async def _serve(self, socket: Any) -> None:
        answers = set()
        try:
            while True:
                sender, _, message = await socket.recv_multipart()
                answers.add(task := asyncio.create_task(self._answer(socket, sender, message)))
                task.add_done_callback(answers.discard)
        finally:
            socket.close()

    async def _answer(self, socket: Any, sender: bytes, message: bytes) -> None:
        try:
            await self._send(msgspec.msgpack.decode(message, type=MooncakeAgentMetadata))
            said = DONE
        except Exception as error:
            logger.error("blocks that a decode engine asked for were not sent: %s", error)
            said = FAILED
        await socket.send_multipart((sender, b"", said))

    async def _send(self, wanted: MooncakeAgentMetadata) -> None:
        """All of these requests' blocks, as one batch; or an error, and they can be asked for again until they expire."""
        if len(wanted.request_ids) != len(wanted.block_ids):
            raise ValueError(f"{len(wanted.block_ids)} lists of blocks for {len(wanted.request_ids)} requests")
        sending = []
        for request_id, there in zip(wanted.request_ids, wanted.block_ids):
            request = self._requests.get(request_id)
            if request is None and there:
                raise KeyError(f"no request {request_id}: it has expired, been sent, or never was")
            if request is not None:
                sending.append((request_id, request, there))
        for _, request, _ in sending:
            await asyncio.wait_for(request.ready.wait(), min(ABORT_REQUEST_TIMEOUT, ANSWER_TIMEOUT / 2))
        if any(self._requests.get(request_id) is not request for request_id, request, _ in sending):
            raise KeyError("a request has ended while it was waited for")
        runs = [run for request_id, request, there in sending for run in self._runs(request_id, request, there, wanted)]
        kept = [(request, request.expires) for _, request, _ in sending]
        for request, _ in kept:
            request.expires = float("inf")  # vLLM must not use the blocks again while they are read.
        try:
            if runs:
                await self._loop.loop.run_in_executor(self._pool, self._write, wanted, *zip(*runs))
        except Exception:
            for request, expires in kept:
                request.expires = expires
            raise
        for request_id, _, _ in sending:
            del self._requests[request_id]
        self._finished.update(request_id for request_id, _, _ in sending)

    def _runs(self, request_id: str, request: _Sending, there: list[int],
              wanted: MooncakeAgentMetadata) -> Iterable[tuple[int, int, int]]:
        """(address here, address there, bytes). The decode engine may have the first blocks already: it names the last ones."""
        cache = self._worker.cache
        if len(wanted.kv_caches_base_addr) != len(cache.addresses):
            raise ValueError(f"a cache of {len(wanted.kv_caches_base_addr)} regions, ours has {len(cache.addresses)}")
        if len(there) > len(request.blocks):
            raise ValueError(f"{len(there)} blocks of request {request_id}, which has {len(request.blocks)}")
        sources, targets = group_concurrent_contiguous(request.blocks[len(request.blocks) - len(there):], there)
        size = cache.block_bytes
        for here, far in zip(cache.addresses, wanted.kv_caches_base_addr):
            for source, target in zip(sources, targets):
                yield here + source[0] * size, far + target[0] * size, len(source) * size

    def _write(self, wanted: MooncakeAgentMetadata, sources: Sequence[int], targets: Sequence[int],
               lengths: Sequence[int]) -> None:
        host = wanted.remote_hostname
        peer = f"{f'[{host}]' if ':' in host and host[0] != '[' else host}:{wanted.remote_port}"
        code = self._worker.engine.batch_transfer_sync_write(peer, list(sources), list(targets), list(lengths))
        if code:
            raise RuntimeError(f"the transfer to {peer} failed: {code}")

    def record(self, requests: dict[str, list[int]], ended: set[str]) -> None:
        self._loop.start(self._record(requests, ended))

    async def _record(self, requests: dict[str, list[int]], ended: set[str]) -> None:
        for request_id in ended:
            if request := self._requests.pop(request_id, None):
                request.ready.set()  # Who waits for it sees that it is gone.
        for request_id, blocks in requests.items():
            request = self._requests.setdefault(request_id, _Sending())
            if blocks:
                request.blocks = blocks
                request.expires = time.monotonic() + ABORT_REQUEST_TIMEOUT
                request.ready.set()

    def finished(self) -> set[str]:
        return self._loop.start(self._take_finished()).result()

    async def _take_finished(self) -> set[str]:
        expired = [request_id for request_id, request in self._requests.items() if request.expires < time.monotonic()]
        for request_id in expired:
            logger.warning("nobody asked for request %s in %d s: its blocks are freed", request_id, ABORT_REQUEST_TIMEOUT)
            del self._requests[request_id]
        done, self._finished = self._finished | set(expired), set()
        return done

    def stop(self) -> None:
        self._loop.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)


class _Receiver:
    """The decode's side: asks prefill workers."""

    def __init__(self, worker: MooncakeConnectorWorker) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._finished: set[str] = set()
        self._lost: set[int] = set()
        self._loop = _Loop("mooncake-receiver")

    def ask(self, requests: dict[str, RecvReqMeta]) -> None:
        """Requests of one prefill worker are asked for together, so that all their blocks are one transfer."""
        by_peer: dict[str, list[tuple[str, RecvReqMeta]]] = {}
        for request_id, meta in requests.items():
            path = make_zmq_path("tcp", meta.remote_host, meta.remote_port + self._worker.tp_rank)
            by_peer.setdefault(path, []).append((request_id, meta))
        for path, asked in by_peer.items():
            self._loop.start(self._receive(path, asked))

    async def _receive(self, path: str, asked: list[tuple[str, RecvReqMeta]]) -> None:
        try:
            answer = await asyncio.wait_for(self._exchange(path, asked), ANSWER_TIMEOUT)
            if answer != DONE:
                raise RuntimeError(f"it answers {answer!r}")
            lost = []
        except Exception as error:
            logger.error("blocks of %s were not received from %s: %r", [request_id for request_id, _ in asked], path, error)
            lost = [block for _, meta in asked for block in meta.local_block_ids]
            if not CAN_REPORT_LOSSES:
                return  # This vLLM would take them for loaded. The requests wait until their clients give up.
        with self._lock:
            self._lost.update(lost)
            # Those without blocks were never waited for: it was only to tell the prefill engine.
            self._finished.update(request_id for request_id, meta in asked if meta.local_block_ids)

    async def _exchange(self, path: str, asked: list[tuple[str, RecvReqMeta]]) -> bytes:
        wanted = MooncakeAgentMetadata(
            remote_hostname=self._worker.hostname, remote_port=self._worker.rpc_port,
            request_ids=[meta.remote_request_id or request_id for request_id, meta in asked],
            kv_caches_base_addr=self._worker.cache.addresses, block_ids=[meta.local_block_ids for _, meta in asked])
        socket = self._worker.context.socket(zmq.REQ)
        socket.linger = 0
        socket.ipv6 = path.startswith("tcp://[")
        try:
            socket.connect(path)
            await socket.send(msgspec.msgpack.encode(wanted))
            return await socket.recv()
        finally:
            socket.close()

    def finished(self) -> set[str]:
        with self._lock:
            done, self._finished = self._finished, set()
        return done

    def lost(self) -> set[int]:
        with self._lock:
            lost, self._lost = self._lost, set()
        return lost

    def stop(self) -> None:
        self._loop.stop()


class MooncakeConnectorWorker:
    """One rank's engine and cache, with the side or sides that its role has."""

    def __init__(self, vllm_config: Any, engine_id: str) -> None:
        from mooncake.engine import TransferEngine

        self.vllm_config, self.engine_id = vllm_config, engine_id
        self.kv_role: str = vllm_config.kv_transfer_config.kv_role
        self.tp_rank = get_tensor_model_parallel_rank()
        self.hostname = get_ip()
        self.side_channel_port = get_mooncake_side_channel_port(vllm_config)
        self.cache = _Cache()
        self.engine = TransferEngine()
        if self.engine.initialize(self.hostname, "P2PHANDSHAKE", PROTOCOL, ""):
            raise RuntimeError(f"the Transfer Engine does not start on {self.hostname} with {PROTOCOL}")
        self.rpc_port = self.engine.get_rpc_port()
        self.context = zmq.asyncio.Context()
        self._sender = _Sender(self) if self.kv_role != "kv_consumer" else None
        self._receiver = _Receiver(self) if self.kv_role != "kv_producer" else None

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Registers the memory, once for each region, and lets decode workers ask."""
        cache, sizes = _Cache(), []
        for name, tensor in kv_caches.items():
            for region in self._regions(tensor):
                if region.data_ptr() in cache.addresses:
                    continue
                blocks, size = region.shape[0], region.numel() * region.element_size()
                if sizes and (blocks, size) != (cache.blocks, sizes[0]):
                    raise ValueError(f"the cache of {name} has {blocks} blocks in {size} bytes, others {cache.blocks} in {sizes[0]}")
                cache.blocks = blocks
                cache.addresses.append(region.data_ptr())
                sizes.append(size)
        if not sizes or sizes[0] % cache.blocks:
            raise ValueError("no KV caches of whole blocks")
        cache.block_bytes = sizes[0] // cache.blocks
        if self.engine.batch_register_memory(cache.addresses, sizes):
            raise RuntimeError(f"{len(sizes)} regions of {sizes[0]} bytes cannot be registered")
        self.cache = cache
        if self._sender is not None:
            self._sender.listen(make_zmq_path("tcp", self.hostname, self.side_channel_port + self.tp_rank))

    def _regions(self, tensor: Any) -> Sequence[Any]:
        """Those parts of a layer's tensor that are blocks one behind the other: all of it, or keys and values. Where the number
        of blocks stands in the shape that the attention backend gives its cache tells."""
        cache, model = self.vllm_config.cache_config, self.vllm_config.model_config
        backend = get_attn_backend(model.get_head_size(), model.dtype, cache.cache_dtype, cache.block_size, use_mla=model.use_mla)
        marker = 1_000_003
        shape = backend.get_kv_cache_shape(marker, cache.block_size, 1, model.get_head_size())
        return [tensor] if shape[0] == marker else list(tensor)

    def start_load_kv(self, metadata: MooncakeConnectorMetadata) -> None:
        if self._receiver is not None and metadata.reqs_to_recv:
            self._receiver.ask(metadata.reqs_to_recv)
        if self._sender is not None and (metadata.reqs_to_send or metadata.reqs_to_forget):
            self._sender.record(metadata.reqs_to_send, metadata.reqs_to_forget)

    def get_finished(self) -> tuple[Optional[set[str]], Optional[set[str]]]:
        """(sent, received) since the last call; None for none."""
        sent = self._sender.finished() if self._sender is not None else set()
        received = self._receiver.finished() if self._receiver is not None else set()
        return sent or None, received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._receiver.lost() if self._receiver is not None else set()

    def shutdown(self) -> None:
        """Twice is no harm."""
        for side in (self._sender, self._receiver):
            if side is not None:
                side.stop()
        self._sender = self._receiver = None
        self.context.term()

    def __del__(self) -> None:
        if "context" in self.__dict__:
            self.shutdown()
