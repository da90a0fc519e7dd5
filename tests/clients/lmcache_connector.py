"""LMCache's remote backend for Mooncake, with and without chunk metadata.

lmcache_native, compiled for a newer C++ library than Debian 12's, and transformers, which tokenizes text, do nothing for this path:
both stand empty.
"""
import asyncio
import sys
import threading
from unittest import mock

import stand_ins
from stand_ins import CLIENT, MASTER, same

sys.modules["lmcache.lmcache_native"] = sys.modules["transformers"] = mock.MagicMock()

import torch  # noqa: E402
import mooncake.store  # noqa: E402
from lmcache.utils import CacheEngineKey  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.storage_backend.connector import CreateConnector, mooncakestore_connector  # noqa: E402
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # noqa: E402

assert mooncakestore_connector.__file__.startswith(CLIENT) and "/build/" in mooncake.store.__file__
CHUNKS, TOKENS = 32, 256
LAYERS, HEADS, HEAD = 4, 8, 32


def setting(save_chunk_meta):
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=TOKENS, local_cpu=True, max_local_cpu_size=0.125, remote_url=f"mooncakestore://{MASTER}/",
        extra_config={"save_chunk_meta": save_chunk_meta, "mooncake_local_hostname": "127.0.0.1",
                      "mooncake_metadata_server": "P2PHANDSHAKE", "mooncake_global_segment_size": 64 << 20,
                      "mooncake_local_buffer_size": 64 << 20, "mooncake_master_server_addr": MASTER, "transfer_timeout": 30,
                      "mooncake_prefer_local_alloc": True})
    metadata = LMCacheMetadata("model", 1, 1, 0, 0, torch.bfloat16, (LAYERS, 2, TOKENS, HEADS, HEAD), chunk_size=TOKENS)
    return config, metadata


def chunks_go_and_come(save_chunk_meta):
    config, metadata = setting(save_chunk_meta)
    backend = LocalCPUBackend(config, metadata, dst_device="cpu")
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def wait(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    connector = CreateConnector(config.remote_url, loop, backend, config, metadata)
    inner = getattr(connector, "_connector", connector)
    assert type(getattr(inner, "real_connector", inner)).__name__ in ("MooncakestoreConnector", "InstrumentedRemoteConnector")
    keys = [CacheEngineKey("model", 1, 0, (1 + save_chunk_meta) * 1000 + i, torch.bfloat16) for i in range(CHUNKS)]
    chunks = []
    for i in range(CHUNKS):
        chunk = backend.allocate(metadata.get_shapes(), metadata.get_dtypes(), MemoryFormat.KV_2LTD)
        chunk.raw_tensor.view(torch.uint8).copy_(stand_ins.random_bytes(torch, chunk.get_size(), i).view(chunk.raw_tensor.view(
            torch.uint8).shape))
        chunks.append(chunk)
    expected = [chunk.raw_tensor.clone() for chunk in chunks]
    assert not wait(connector.exists(keys[0]))
    for chunk in chunks:
        chunk.ref_count_up()
    wait(connector.batched_put(keys[:-1], chunks[:-1]))
    wait(connector.put(keys[-1], chunks[-1]))
    assert all(wait(connector.exists(key)) for key in keys) and connector.exists_sync(keys[0])
    absent = CacheEngineKey("model", 1, 0, 999999, torch.bfloat16)
    assert wait(connector.batched_async_contains("lookup", keys + [absent])) == CHUNKS
    got = wait(connector.batched_get(keys + [absent]))
    assert len(got) == CHUNKS + 1 and got[-1] is None
    for i, chunk in enumerate(got[:-1]):
        same(torch, chunk.raw_tensor, expected[i], f"chunk {i}")
    wait(connector.close())
    loop.call_soon_threadsafe(loop.stop)
    print(f"save_chunk_meta={save_chunk_meta}: {CHUNKS} chunks of {chunks[0].get_size()} bytes", flush=True)


chunks_go_and_come(False)
chunks_go_and_come(True)
stand_ins.finish(2 * CHUNKS * LAYERS * 2 * TOKENS * HEADS * HEAD * 2)
sys.stdout.flush()
