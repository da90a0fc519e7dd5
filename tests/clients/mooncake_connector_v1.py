"""mooncake.mooncake_connector_v1, both halves: schedulers say what a request's parameters mean, a prefill worker's blocks go into a
decode worker's cache, whole and in part; requests that end early, expire or are not there. vLLM's base classes are real; engines,
attention backends and what describes them are stand-ins.

With MC_UPSTREAM_CONNECTOR (the file of upstream's wheel, which wants vLLM 0.10 to 0.12), it takes the place of ours on either side.
"""
import importlib.util
import inspect
import logging
import os
import socket
import sys
import time
import types

import stand_ins
from stand_ins import CLIENT, same

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    PORT = probe.getsockname()[1]
os.environ.update(VLLM_MOONCAKE_SIDE_CHANNEL_PORT=str(PORT), VLLM_MOONCAKE_PROTOCOL="tcp")
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
stand_ins.all_but({BASE}, BASE)
import torch  # noqa: E402
import vllm.logger  # noqa: E402
vllm.logger.init_logger = logging.getLogger
import vllm.utils.network_utils as network  # noqa: E402


def make_zmq_socket(context, path, kind, bind=None, linger=0):
    made = context.socket(kind)
    made.linger = linger
    (made.bind if bind or bind is None else made.connect)(path)
    return made


for place in (network, sys.modules["vllm.utils"]):
    place.get_ip = lambda: "127.0.0.1"
    place.make_zmq_path = lambda scheme, host, port: f"{scheme}://{host}:{port}"
    place.make_zmq_socket = make_zmq_socket
import vllm.distributed.parallel_state as parallel_state  # noqa: E402
parallel_state.get_tensor_model_parallel_rank = lambda: 0
import vllm.attention.selector as selector  # noqa: E402
import vllm.v1.request as request_module  # noqa: E402
LENGTH, ABORTED = object(), object()
request_module.RequestStatus.FINISHED_LENGTH_CAPPED = LENGTH

BLOCKS, TOKENS, HEADS, SIZE = 120, 16, 4, 32
NAMES = [f"layer.{i}" for i in range(3)]
apart = True  # Keys and values in one tensor's first dimension, or in each block.


class Backend:
    @staticmethod
    def get_name():
        return "FLASH_ATTN" if apart else "FLASHINFER"

    @staticmethod
    def get_kv_cache_shape(blocks, tokens, heads, size):
        return (2, blocks, tokens, heads, size) if apart else (blocks, 2, tokens, heads, size)


class AttentionBackendEnum:
    FLASHINFER, FLASHINFER_MLA, PALLAS, FLASH_ATTN = "FLASHINFER", "FLASHINFER_MLA", "PALLAS", "FLASH_ATTN"

    def __class_getitem__(cls, name):
        return name


selector.get_attn_backend = lambda *_, **__: Backend
selector.AttentionBackendEnum = AttentionBackendEnum
import mooncake.engine  # noqa: E402
import mooncake.mooncake_connector_v1 as ours  # noqa: E402
import vllm.distributed.kv_transfer.kv_connector.v1.base as base  # noqa: E402

assert base.__file__.startswith(CLIENT) and "/build/" in ours.__file__ and "/build/" in mooncake.engine.__file__


def upstream(path):
    spec = importlib.util.spec_from_file_location("upstream_connector", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Engine:
    """A scheduler's and a worker's connector, called as vLLM calls them."""

    def __init__(self, module, role, fill):
        self.config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(kv_role=role, engine_id=role),
            parallel_config=types.SimpleNamespace(data_parallel_rank=0, tensor_parallel_size=1),
            cache_config=types.SimpleNamespace(block_size=TOKENS, cache_dtype="auto"),
            model_config=types.SimpleNamespace(use_mla=False, dtype=torch.bfloat16, get_head_size=lambda: SIZE))
        # Newer releases pass the configuration of the cache.
        wanted = inspect.signature(base.KVConnectorBase_V1.__init__).parameters.get("kv_cache_config")
        more = [types.SimpleNamespace()] if wanted is not None and wanted.default is wanted.empty else []
        self.scheduler = module.MooncakeConnector(self.config, base.KVConnectorRole.SCHEDULER, *more)
        self.worker = module.MooncakeConnector(self.config, base.KVConnectorRole.WORKER, *more)
        count = BLOCKS * 2 * TOKENS * HEADS * SIZE * 2
        self.cache = {name: (torch.zeros(count, dtype=torch.uint8) if fill is None else stand_ins.random_bytes(torch, count, fill + i))
                      .view(torch.bfloat16).view(Backend.get_kv_cache_shape(BLOCKS, TOKENS, HEADS, SIZE))
                      for i, name in enumerate(NAMES)}
        self.worker.register_kv_caches(self.cache)
        self.sent, self.received, self.lost = set(), set(), set()

    def step(self):
        self.worker.bind_connector_metadata(self.scheduler.build_connector_meta(None))
        self.worker.start_load_kv(None)
        self.worker.clear_connector_metadata()
        self.poll()

    def poll(self):
        sent, received = self.worker.get_finished(set())
        self.sent |= sent or set()
        self.received |= received or set()
        if hasattr(self.worker, "get_block_ids_with_load_errors"):
            self.lost |= self.worker.get_block_ids_with_load_errors()

    def block(self, name, number):
        return self.cache[name][:, number] if apart else self.cache[name][number]

    def close(self):
        self.worker.connector_worker.shutdown()


class Allocated:
    def __init__(self, blocks):
        self.blocks = blocks

    def get_unhashed_block_ids(self):
        return self.blocks


def a_request(name, tokens, params):
    return types.SimpleNamespace(request_id=name, prompt_token_ids=list(range(tokens)), kv_transfer_params=params, status=LENGTH)


def wait(engines, condition):
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        for engine in engines:
            engine.poll()
        time.sleep(0.01)
    assert condition(), [(engine.sent, engine.received, engine.lost) for engine in engines]


def prefilled(prefill, name, blocks, status=LENGTH):
    """Scheduled, computed and ended; what the decode engine is told."""
    request = a_request(name, len(blocks) * TOKENS, {"do_remote_decode": True})
    assert prefill.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    prefill.scheduler.update_state_after_alloc(request, Allocated(blocks), 0)
    prefill.step()
    request.status = status
    kept, params = prefill.scheduler.request_finished_all_groups(request, (blocks,))
    assert kept == (status is LENGTH) and (params is None) == (status is not LENGTH)
    prefill.step()
    return params


def scheduled(decode, name, tokens, params, blocks, computed=0):
    request = a_request(name, tokens, params)
    count, later = decode.scheduler.get_num_new_matched_tokens(request, computed)
    assert (count, later) == (tokens - computed, tokens > computed)
    decode.scheduler.update_state_after_alloc(request, Allocated(blocks), count)
    assert request.kv_transfer_params["do_remote_prefill"] is False
    return request


def blocks_come_over(prefill, decode):
    lengths, places, first = [1, 12, 30, 41], {}, 1
    for index, length in enumerate(lengths):
        there = list(range(first, first + length))
        first += length
        here = [BLOCKS - 1 - number for number in there][::-1 if index % 2 else 1]
        params = prefilled(prefill, f"p{index}", there)
        assert params["remote_host"] == "127.0.0.1" and params["remote_port"] == PORT
        have = length // 3  # The decode engine has the first blocks already.
        scheduled(decode, f"d{index}", length * TOKENS, params, here[have:], have * TOKENS)
        places[f"d{index}"] = list(zip(there[have:], here[have:]))
    decode.step()
    wait((prefill, decode), lambda: decode.received == set(places) and prefill.sent == {f"p{i}" for i in range(4)})
    assert not decode.lost
    for name, pairs in places.items():
        for layer in NAMES:
            for there, here in pairs:
                same(torch, decode.block(layer, here), prefill.block(layer, there), (name, layer))
    written = {here for pairs in places.values() for _, here in pairs}
    for number in set(range(BLOCKS)) - written:
        assert not decode.block(NAMES[0], number).any(), number
    for layer in NAMES:
        decode.cache[layer].zero_()


def requests_that_need_nothing(prefill, decode):
    """All is there already, or the request ends before it is scheduled: the prefill engine is told, and frees its blocks."""
    prefill.sent.clear()
    scheduled(decode, "hit", TOKENS, prefilled(prefill, "hit", [1]), [], TOKENS)
    gone = a_request("gone", TOKENS, prefilled(prefill, "gone", [2]))
    assert decode.scheduler.request_finished(gone, []) == (False, None)
    decode.step()
    wait((prefill, decode), lambda: prefill.sent == {"hit", "gone"})


def what_cannot_be_had(prefill, decode):
    """Of ours only: upstream's decode worker never hears the end of these."""
    decode.received.clear()
    decode.lost.clear()
    assert prefilled(prefill, "aborted", [5], ABORTED) is None
    params = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": PORT}
    scheduled(decode, "unknown", 2 * TOKENS, {**params, "remote_request_id": "nobody"}, [7, 8])
    scheduled(decode, "of an aborted one", TOKENS, {**params, "remote_port": PORT, "remote_request_id": "aborted"}, [9])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ours.ANSWER_TIMEOUT, answer = 2, ours.ANSWER_TIMEOUT
        scheduled(decode, "no such engine", TOKENS, {**params, "remote_port": free.getsockname()[1]}, [10])
        decode.step()
        wait((prefill, decode), lambda: len(decode.received) == 3)
        ours.ANSWER_TIMEOUT = answer
    assert decode.lost == {7, 8, 9, 10}, decode.lost
    ours.ABORT_REQUEST_TIMEOUT, abort = 0, ours.ABORT_REQUEST_TIMEOUT
    prefilled(prefill, "expired", [6])
    wait((prefill, decode), lambda: "expired" in prefill.sent)
    ours.ABORT_REQUEST_TIMEOUT = abort
    for request in (a_request("plain", TOKENS, None), a_request("half", TOKENS, {"do_remote_prefill": True})):
        decode.scheduler.update_state_after_alloc(request, Allocated([1]), TOKENS)
        assert not decode.scheduler.build_connector_meta(None).reqs_to_recv
    try:
        prefill.scheduler.update_state_after_alloc(a_request("wrong", TOKENS, dict(params)), Allocated([1]), TOKENS)
    except (ValueError, AssertionError):
        pass
    else:
        raise AssertionError("a producer receives")


assert ours.group_concurrent_contiguous([1, 2, 4, 5], [7, 8, 9, 3]) == ([[1, 2], [4], [5]], [[7, 8], [9], [3]])
pairs = [(ours, ours)]
if os.environ.get("MC_UPSTREAM_CONNECTOR"):
    theirs = upstream(os.environ["MC_UPSTREAM_CONNECTOR"])
    assert theirs.group_concurrent_contiguous([1, 2, 4, 5], [7, 8, 9, 3]) == ([[1, 2], [4], [5]], [[7, 8], [9], [3]])
    pairs += [(ours, theirs), (theirs, ours), (theirs, theirs)]
moved = 0
for apart in (True, False):
    for first, second in pairs:
        prefill, decode = Engine(first, "kv_producer", 5), Engine(second, "kv_consumer", None)
        for turn in range(2):
            blocks_come_over(prefill, decode)
            decode.received.clear()
            prefill.sent.clear()
            moved += sum(length - length // 3 for length in (1, 12, 30, 41))
        requests_that_need_nothing(prefill, decode)
        if first is second is ours:
            what_cannot_be_had(prefill, decode)
        print(f"{first.__name__} to {second.__name__}, {'keys apart' if apart else 'keys and values together'}: ok", flush=True)
        if first is second is ours:
            prefill.worker.shutdown()
            decode.worker.shutdown()
            prefill.worker.shutdown()
        else:
            PORT += 1  # Upstream's worker does not give its port back.
            for module in {first, second, ours}:
                for name in ("SIDE_CHANNEL_PORT", "VLLM_MOONCAKE_SIDE_CHANNEL_PORT"):
                    if hasattr(module, name):
                        setattr(module, name, PORT)
stand_ins.finish(moved * len(NAMES) * 2 * TOKENS * HEADS * SIZE * 2)
sys.stdout.flush()
os._exit(0)  # Upstream's loops run for ever.
