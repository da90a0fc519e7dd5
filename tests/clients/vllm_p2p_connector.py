"""vLLM's MooncakeConnector, the half that moves KV caches (its worker): a prefill engine's blocks go straight into a decode engine's
cache, over its own bootstrap server, side channel and thread pool. Two workers in one process, each with a Transfer Engine.

As in vllm_store_connector.py, what describes engines and GPUs is stand-ins.
"""
import logging
import os
import sys
import time
import types

import stand_ins
from stand_ins import CLIENT, absent, same

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"
stand_ins.all_but({f"{CONNECTOR}.utils", f"{CONNECTOR}.v1.base", f"{CONNECTOR}.v1.metrics", "vllm.utils.math_utils",
                   "vllm.v1.kv_cache_interface", "vllm.v1.kv_cache_layout", "vllm.v1.attention.backends.utils"},
                  f"{CONNECTOR}.v1.mooncake")
import httpx  # noqa: E402
import torch  # noqa: E402

absent("huggingface_hub")
absent("huggingface_hub.utils").httpx = httpx
import vllm.logger  # noqa: E402
vllm.logger.init_logger = logging.getLogger
import vllm.utils.torch_utils  # noqa: E402
vllm.utils.torch_utils.is_non_overlapping_and_dense = lambda tensor: tensor.is_contiguous()
import vllm.utils.network_utils as network  # noqa: E402
network.get_ip = lambda: "127.0.0.1"
network.make_zmq_path = lambda scheme, host, port: f"{scheme}://{host}:{port}"
network.split_host_port = lambda address: (address.rsplit(":", 1)[0], int(address.rsplit(":", 1)[1]))


def make_zmq_socket(context, path, kind, bind=False, linger=0):
    made = context.socket(kind)
    made.linger = linger
    (made.bind if bind else made.connect)(path)
    return made


network.make_zmq_socket = make_zmq_socket
import vllm.distributed.parallel_state as parallel_state  # noqa: E402
parallel_state.get_pp_group = lambda: types.SimpleNamespace(world_size=1, rank_in_group=0)
parallel_state.get_tensor_model_parallel_rank = lambda: 0
parallel_state.get_tensor_model_parallel_world_size = lambda: 1
import vllm.model_executor.models.utils as models  # noqa: E402
models.extract_layer_index = lambda name: int(name.split(".")[-1])
import vllm.v1.worker.utils as worker_utils  # noqa: E402
worker_utils.select_common_block_size = lambda size, *_: size
import vllm.envs as envs  # noqa: E402
envs.VLLM_MOONCAKE_CONNECTOR_TIMEOUT, envs.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT = 60, 120
import vllm.distributed.kv_transfer.kv_connector.utils as utils  # noqa: E402
utils.get_current_attn_backends = lambda *_: []
utils.get_current_attn_backends_and_specs = lambda *_: ([], [])
torch.accelerator.current_device_index = lambda: 0

import mooncake.engine  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as connector  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_utils import MooncakeBootstrapServer  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402

assert connector.__file__.startswith(CLIENT) and "/build/" in mooncake.engine.__file__
LAYERS, BLOCKS, TOKENS, HEADS, SIZE = 4, 200, 16, 8, 64
NAMES = [f"layer.{i}" for i in range(LAYERS)]


def worker(role, bootstrap, fill):
    extra = {"mooncake_protocol": "tcp", "bootstrap_server_address": f"127.0.0.1:{bootstrap.port}"}
    config = types.SimpleNamespace(
        kv_transfer_config=types.SimpleNamespace(kv_role=role, kv_connector_extra_config=extra, get_from_extra_config=extra.get),
        parallel_config=types.SimpleNamespace(data_parallel_index=0, data_parallel_rank_local=0, local_engines_only=False,
                                              pipeline_parallel_size=1),
        cache_config=types.SimpleNamespace(block_size=TOKENS),
        model_config=types.SimpleNamespace(use_mla=False, get_total_num_kv_heads=lambda: HEADS))
    spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.bfloat16)
    made = connector.MooncakeConnectorWorker(config, f"engine of the {role}", KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(NAMES, spec)]))
    count = BLOCKS * 2 * TOKENS * HEADS * SIZE * 2
    made.register_kv_caches({name: (torch.zeros(count, dtype=torch.uint8) if fill is None else
                                    stand_ins.random_bytes(torch, count, fill + i)).view(torch.bfloat16)
                             .view(BLOCKS, 2, TOKENS, HEADS, SIZE) for i, name in enumerate(NAMES)})
    return made


def wait(workers, wanted):
    """Until these requests are done sending, receiving, and those have failed."""
    got = [set(), set(), set()]
    deadline = time.monotonic() + 120
    while got != wanted and time.monotonic() < deadline:
        for one in workers:
            result = one.get_transfer_results()
            for i, names in enumerate((result.finished_sending, result.finished_recving, result.failed_recving)):
                got[i] |= names or set()
        time.sleep(0.01)
    assert got == wanted, (got, wanted)


bootstrap = MooncakeBootstrapServer("127.0.0.1", 0)
bootstrap.start()
prefill, decode = worker("kv_producer", bootstrap, 5), worker("kv_consumer", bootstrap, None)
for turn in range(2):  # The second time the two know one another.
    sent, places = {}, {}
    lengths = [1, 12, 30, 41]
    first = [1 + sum(lengths[:i]) for i in range(4)]
    pull, begun, done = (connector.MooncakeConnectorMetadata() for _ in range(3))
    for i, length in enumerate(lengths):
        key, transfer = f"{turn}.{i}", f"transfer {turn}.{i}"
        sent[key] = list(range(first[i], first[i] + length))
        places[key] = [BLOCKS - 1 - n for n in sent[key]][::-1 if turn else 1]
        begun.add_new_req("p" + key, [], {"transfer_id": transfer}, load_remote_cache=False)
        done.add_new_req("p" + key, [sent[key]], {"transfer_id": transfer}, load_remote_cache=False)
        pull.add_new_req("d" + key, [places[key]], {"transfer_id": transfer, "remote_engine_id": "engine of the kv_producer",
                                                   "remote_bootstrap_addr": f"http://127.0.0.1:{bootstrap.port}"})
    prefill.start_load_kv(begun)
    decode.start_load_kv(pull)  # Asks before the prefill has ended.
    prefill.start_load_kv(done)
    wait((prefill, decode), [{"p" + key for key in sent}, {"d" + key for key in sent}, set()])
    assert decode.get_block_ids_with_load_errors() == set()
    for key, blocks in sent.items():
        for layer in NAMES:
            for there, here in zip(blocks, places[key]):
                same(torch, decode.device_kv_caches[layer][here], prefill.device_kv_caches[layer][there], (key, layer))
    for layer in NAMES:
        decode.device_kv_caches[layer].zero_()
assert decode.get_kv_connector_stats() or prefill.get_kv_connector_stats()
stand_ins.finish(2 * sum(lengths) * LAYERS * 2 * TOKENS * HEADS * SIZE * 2)
bootstrap.shutdown()
sys.stdout.flush()
os._exit(0)  # Loops of the connector run for ever.
