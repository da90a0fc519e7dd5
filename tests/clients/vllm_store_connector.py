"""vLLM's MooncakeStoreConnector, the half that moves KV caches (its store worker): blocks of a paged cache are saved by one worker,
looked up and loaded by another, over its own threads, keys, layouts, lookup server and client.

vLLM's modules below are the real ones. All others of the package, which describe engines and GPUs, are stand-ins whose names are
empty classes: the worker imports them for types and for what happens on a GPU.
"""
import hashlib
import json
import logging
import os
import sys
import tempfile
import time
import types

import stand_ins
from stand_ins import CLIENT, MASTER, same

MOONCAKE = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake"
REAL = {"vllm.utils.math_utils", "vllm.distributed.mooncake_store", "vllm.distributed.kv_transfer.kv_connector.v1.base",
        "vllm.distributed.kv_transfer.kv_connector.v1.metrics", "vllm.v1.kv_cache_interface", "vllm.v1.kv_cache_layout",
        "vllm.v1.kv_cache_spec_registry", "vllm.v1.attention.backends.utils", "vllm.v1.core.kv_cache_utils",
        "vllm.v1.core.block_pool", "vllm.v1.core.kv_cache_coordinator", "vllm.v1.core.single_type_kv_cache_manager"}


stand_ins.all_but(REAL, MOONCAKE)
import torch  # noqa: E402
import zmq  # noqa: E402

import vllm.logger  # noqa: E402
vllm.logger.init_logger = logging.getLogger
import vllm.utils.torch_utils  # noqa: E402
vllm.utils.torch_utils.is_non_overlapping_and_dense = lambda tensor: tensor.is_contiguous()
import vllm.utils.network_utils as network  # noqa: E402
network.get_ip = lambda: "127.0.0.1"


def make_zmq_socket(context, path, kind, bind):
    made = context.socket(kind)
    (made.bind if bind else made.connect)(path)
    return made


network.make_zmq_socket = make_zmq_socket
import vllm.distributed as distributed  # noqa: E402
alone = types.SimpleNamespace(world_size=1, rank_in_group=0)
distributed.get_dcp_group = distributed.get_pcp_group = lambda: alone
distributed.get_tensor_model_parallel_rank = lambda: 0
distributed.get_tensor_model_parallel_world_size = lambda: 1
import vllm.envs as envs  # noqa: E402
envs.VLLM_MOONCAKE_LOAD_RECV_THREADS, envs.VLLM_MOONCAKE_STORE_TIER_LOG = 2, True


class Event:
    """torch.cuda.Event where there is no GPU: what it would wait for has happened."""

    def record(self):
        pass

    def synchronize(self):
        pass


torch.cuda.Event = Event
import mooncake.store  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import data, worker  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402

assert worker.__file__.startswith(CLIENT) and "/build/" in mooncake.store.__file__
LAYERS, BLOCKS, TOKENS, HEADS, SIZE = 4, 160, 16, 8, 64
NAMES = [f"layer.{i}" for i in range(LAYERS)]


def configuration(place, role, extra):
    parallel = types.SimpleNamespace(data_parallel_index=0, pipeline_parallel_size=1, rank=0 if role != "kv_producer" else 1,
                                     decode_context_parallel_size=1)
    model = types.SimpleNamespace(model="someone/model", get_num_layers=lambda _: LAYERS, get_total_num_kv_heads=lambda: HEADS)
    cache = types.SimpleNamespace(block_size=TOKENS, prefix_match_unit=None, enable_prefix_caching=True, num_gpu_blocks=BLOCKS)
    transfer = types.SimpleNamespace(kv_role=role, kv_connector_extra_config=dict(extra, lookup_rpc_port=os.getpid()))
    envs.VLLM_RPC_BASE_PATH = place
    return types.SimpleNamespace(model_config=model, parallel_config=parallel, cache_config=cache, kv_transfer_config=transfer,
                                 kv_events_config=None, speculative_config=None)


class Engine:
    """A worker and its cache: per layer [blocks, K and V, tokens, heads, size]."""

    def __init__(self, place, role, mode, extra, fill=None):
        path = os.path.join(place, f"{role}.json")
        with open(path, "w") as file:
            json.dump({"metadata_server": "P2PHANDSHAKE", "master_server_address": MASTER, "protocol": "tcp", "mode": mode,
                       "global_segment_size": "64MB" if mode == "embedded" else 0, "local_buffer_size": "16MB"}, file)
        os.environ["MOONCAKE_CONFIG_PATH"] = path
        spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.bfloat16)
        self.config = configuration(place, role, extra)
        self.caches = {}
        for i, name in enumerate(NAMES):
            count = BLOCKS * 2 * TOKENS * HEADS * SIZE * 2
            raw = torch.zeros(count, dtype=torch.uint8) if fill is None else stand_ins.random_bytes(torch, count, fill + i)
            self.caches[name] = raw.view(torch.bfloat16).view(BLOCKS, 2, TOKENS, HEADS, SIZE)
        self.worker = worker.MooncakeStoreWorker(self.config, KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(NAMES, spec)]))
        self.worker.register_kv_caches(self.caches)

    def step(self, *requests):
        meta = data.MooncakeStoreConnectorMetadata({one.req_id for one in requests}, set())
        for one in requests:
            meta.add_request(one)
        self.worker.start_load_kv(meta)
        if self.worker.can_put:
            self.worker.wait_for_save(meta)

    def wait(self, done, what):
        meta, found = data.MooncakeStoreConnectorMetadata(set(), set()), []
        deadline = time.monotonic() + 120
        while len(found) < done and time.monotonic() < deadline:
            if what == "saves":
                found += list((self.worker.build_connector_worker_meta() or data.MooncakeStoreWorkerMetadata()).completed_saves)
            else:
                found += self.worker.get_finished(set(), meta)[1]
            time.sleep(0.01)
        assert len(found) == done, f"{len(found)} of {done} {what}"


def hashes(seed, blocks):
    """As the engine's: each block's folds in the one before it."""
    made, last = [], seed.encode()
    for i in range(blocks):
        last = hashlib.sha256(last + i.to_bytes(4, "little")).digest()
        made.append(last)
    return made


def request(name, job, blocks, tokens, save=False, load=0):
    spec = data.LoadSpec(vllm_cached_tokens=0, kvpool_cached_tokens=load, can_load=True) if load else None
    return data.ReqMeta(name, tokens, (blocks,), hashes(name, tokens // TOKENS), can_save=save, load_spec=spec, store_job_id=job,
                        num_prompt_tokens=tokens, prefill_end_tokens=tokens)


def prefixes_go_and_come(place, extra):
    producer = Engine(place, "kv_producer", "embedded", extra, fill=7)
    consumer = Engine(place, "kv_consumer", "standalone-store", {})
    client = worker.LookupKeyClient(consumer.config)
    names = [f"request {i} {len(extra)}" for i in range(4)]
    lengths = [10, 20, 33, 40]
    first = [1 + sum(lengths[:i]) for i in range(4)]
    assert client.lookup(names[0], lengths[0] * TOKENS + 5, hashes(names[0], lengths[0])).hit_length == 0
    producer.step(*(request(name, i, list(range(first[i], first[i] + lengths[i])), lengths[i] * TOKENS, save=True)
                    for i, name in enumerate(names)))
    producer.wait(4, "saves")
    again = request(names[0], 4, list(range(first[0], first[0] + lengths[0])), lengths[0] * TOKENS, save=True)
    producer.step(again)  # All there already.
    producer.wait(1, "saves")
    for name, length in zip(names, lengths):
        # A longer request with the same beginning; what follows is not in the store.
        found = client.lookup(name, (length + 3) * TOKENS, hashes(name, length) + hashes("other", 3))
        assert found.hit_length == length * TOKENS, (found, length)
    # In the other order of blocks.
    places = [list(range(first[i], first[i] + lengths[i]))[::-1] for i in range(4)]
    consumer.step(*(request(name, None, places[i], lengths[i] * TOKENS, load=lengths[i] * TOKENS) for i, name in enumerate(names)))
    consumer.wait(4, "loads")
    assert consumer.worker.get_block_ids_with_load_errors() == set()
    for i, name in enumerate(names):
        for layer in NAMES:
            for k, place_of in enumerate(places[i]):
                same(torch, consumer.caches[layer][place_of], producer.caches[layer][first[i] + k], (name, layer, k))
    # What is not there is said so, block by block, and the engine computes it.
    consumer.step(request("never saved", None, [3, 4, 5], 3 * TOKENS, load=3 * TOKENS))
    consumer.wait(1, "loads")
    assert consumer.worker.get_block_ids_with_load_errors() == {3, 4, 5}
    stats = consumer.worker.get_kv_connector_stats().reduce()
    assert stats and producer.worker.get_kv_connector_stats().reduce()
    assert client.reset()
    assert client.lookup(names[1], lengths[1] * TOKENS + 5, hashes(names[1], lengths[1])).hit_length == 0
    client.close()
    for engine in (producer, consumer):
        engine.worker.close()
    print(f"{extra}: {sum(lengths)} blocks of {LAYERS} layers", flush=True)


with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
    prefixes_go_and_come(scratch, {})
    prefixes_go_and_come(scratch, {"enable_group_semantics": "True"})
stand_ins.finish(2 * 103 * LAYERS * 2 * TOKENS * HEADS * SIZE * 2)
sys.stdout.flush()
os._exit(0)  # Threads of the connector wait in queues for ever.
