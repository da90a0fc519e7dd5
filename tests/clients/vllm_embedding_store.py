"""vLLM's client of the store for encoder outputs (cross_encoder_cache), made from a configuration file as its workers make it."""
import json
import os
import sys
import tempfile

import stand_ins
from stand_ins import CLIENT, MASTER, absent, package, same

EC = "vllm.distributed.ec_transfer.ec_connector"
KV = "vllm.distributed.kv_transfer.kv_connector.v1"
for name in ("vllm", "vllm.distributed", "vllm.distributed.ec_transfer", EC, f"{EC}.mooncake_store_embedding", "vllm.utils",
             "vllm.distributed.kv_transfer", "vllm.distributed.kv_transfer.kv_connector", KV, f"{KV}.mooncake"):
    package(name)
import logging  # noqa: E402
absent("vllm.logger").init_logger = logging.getLogger
absent("vllm.utils.network_utils").get_ip = lambda: "127.0.0.1"
absent(f"{KV}.mooncake.rdma_utils").get_requester_local_hostname = lambda ip: ip

import torch  # noqa: E402
import mooncake.store  # noqa: E402
from vllm.distributed.ec_transfer.ec_connector.mooncake_store_embedding import store_client  # noqa: E402
from vllm.distributed.ec_transfer.ec_connector.mooncake_store_embedding.data import TensorSpec  # noqa: E402

assert store_client.__file__.startswith(CLIENT) and "/build/" in mooncake.store.__file__
COUNT, TOKENS, HIDDEN = 48, 196, 1024


def client(directory, mode, tenant):
    path = os.path.join(directory, f"{mode}.json")
    with open(path, "w") as file:
        json.dump({"metadata_server": "P2PHANDSHAKE", "master_server_address": MASTER, "protocol": "tcp", "mode": mode,
                   "global_segment_size": "64MB" if mode == "embedded" else 0, "local_buffer_size": "16MB", "tenant_id": tenant},
                  file)
    os.environ["MOONCAKE_CONFIG_PATH"] = path
    return store_client.create_mooncake_embedding_store_client(read_buffer_bytes=4 << 20)


def tensors_go_and_come(directory, dtype, tenant):
    writer, reader = (client(directory, mode, tenant) for mode in ("embedded", "standalone-store"))
    tensors = {f"{dtype}/{i}": stand_ins.random_bytes(torch, (TOKENS + i) * HIDDEN * dtype.itemsize, i).view(dtype).view(-1, HIDDEN)
               for i in range(COUNT)}
    specs = {key: TensorSpec(tuple(one.shape), str(dtype), one.nbytes) for key, one in tensors.items()}
    assert reader.batch_exists(list(tensors)) == [False] * COUNT
    for key, one in tensors.items():
        writer.put_tensor(key, one)
    writer.put_tensor(key, one)  # Again: kept as it is.
    assert reader.batch_exists([*tensors, "absent"]) == [True] * COUNT + [False] and writer.exists(key)
    loaded = reader.load_tensors({"absent": specs[key], **specs}, "cpu")
    assert list(loaded) == list(tensors)
    for key, one in tensors.items():
        same(torch, loaded[key], one, key)
    other = TensorSpec((1, HIDDEN), str(dtype), HIDDEN * dtype.itemsize)
    assert reader.load_tensors({key: other}, "cpu") == {}  # Larger than expected: refused, not cut.
    writer.close()
    reader.close()
    print(f"{dtype}, tenant {tenant}: {COUNT} tensors", flush=True)


with tempfile.TemporaryDirectory() as place:
    tensors_go_and_come(place, torch.bfloat16, "default")
    tensors_go_and_come(place, torch.float32, "someone")
stand_ins.finish(COUNT * TOKENS * HIDDEN * 6)
sys.stdout.flush()
