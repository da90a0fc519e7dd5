"""SGLang's HiCache storage class MooncakeStore, with a host pool of CPU memory in place of the one that a GPU's cache has."""
import os
import runpy
import sys

import stand_ins
from stand_ins import ADMIN, CLIENT, MASTER, absent, package, same

for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.hybrid_cache", "sglang.srt.mem_cache.storage",
             "sglang.srt.mem_cache.storage.mooncake_store", "sglang.srt.observability", "sglang.srt.metrics"):
    package(name)
absent("sglang.srt.mem_cache.pool_host", "HostKVCache", "HostTensorAllocator")
absent("sglang.srt.mem_cache.pool_host.mla", "MLATokenToKVPoolHost")
absent("sglang.srt.mem_cache.memory_pool_host", "HostKVCache", "HostTensorAllocator", "MLATokenToKVPoolHost")  # Before 0.5.16.
absent("sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler", "DevicePoolEntry")
for name in ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector"):  # The second until 0.5.9.
    absent(name).StorageMetrics = type(
        "StorageMetrics", (), {"__init__": lambda self: [setattr(self, name, []) for name in (
            "prefetch_pgs", "backup_pgs", "prefetch_bandwidth", "backup_bandwidth")] and None})

import torch  # noqa: E402
import mooncake.store  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig  # noqa: E402
from sglang.srt.mem_cache.storage.mooncake_store import mooncake_store  # noqa: E402

assert mooncake_store.__file__.startswith(CLIENT) and "/build/" in mooncake.store.__file__
PAGES, PAGE_BYTES = 128, 64 << 10
NEWER = "attn_cp_rank" in HiCacheStorageConfig.__dataclass_fields__  # Than 0.5.9.


class HostPool:
    """Pages of one buffer; a page has `parts` pieces (k and v; one for MLA; a piece per layer where layers come first)."""
    page_size = 1
    layout = "page_first"

    def __init__(self, parts):
        self.parts = parts
        self.kv_buffer = stand_ins.random_bytes(torch, 2 * PAGES * parts * PAGE_BYTES, parts).view(-1, parts, PAGE_BYTES)

    def get_page_buffer_meta(self, indices):
        places = [self.kv_buffer[int(i), part].data_ptr() for i in indices for part in range(self.parts)]
        return places, [PAGE_BYTES] * len(places)

    def get_ksize_per_token(self):
        return self.parts * PAGE_BYTES


def store(mla, extra=None, **fields):
    settings = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=mla,
                    enable_storage_metrics=True, is_page_first_layout=True, model_name="org/model")
    settings.update(fields)
    settings = {name: value for name, value in settings.items() if name in HiCacheStorageConfig.__dataclass_fields__}  # Older: fewer.
    return mooncake_store.MooncakeStore(HiCacheStorageConfig(**settings, extra_config=dict(
        master_server_address=MASTER, master_metrics_port=int(ADMIN), check_server=True, local_hostname="127.0.0.1",
        global_segment_size=64 << 20, metadata_server="P2PHANDSHAKE", protocol="tcp", device_name="",
        **(extra or {}))))


def pages_go_and_come(tag, mla, parts, extra=None, **fields):
    """Write-back of pages 0..127, prefetch into 128..255 by another client, a miss, and what batch_exists says."""
    extra = {"extra_backend_tag": tag, **(extra or {})}
    writer, reader = store(mla, extra, **fields), store(mla, extra, **fields)
    source, target = HostPool(parts), HostPool(parts)
    writer.register_mem_pool_host(source)
    reader.register_mem_pool_host(target)
    keys = [f"page{i}" for i in range(PAGES)]
    assert reader.batch_exists(keys) == 0
    assert writer.batch_set_v1(keys, torch.arange(PAGES)) == [True] * PAGES
    assert writer.batch_set_v1(keys, torch.arange(PAGES)) == [True] * PAGES  # All exist: nothing is written.
    assert reader.batch_exists(keys + ["absent"]) == PAGES
    target.kv_buffer[PAGES:] = 0
    assert reader.batch_get_v1(keys, torch.arange(PAGES, 2 * PAGES)) == [True] * PAGES
    same(torch, target.kv_buffer[PAGES:], source.kv_buffer[:PAGES], tag)
    assert reader.batch_get_v1(["absent"] + keys[1:], torch.arange(PAGES)) == [False] + [True] * (PAGES - 1)
    same(torch, target.kv_buffer[1:PAGES], source.kv_buffer[1:PAGES], tag)
    assert len(reader.get_stats().prefetch_bandwidth) == (2 if NEWER else 0)
    print(f"{tag}: {PAGES} pages of {parts} x {PAGE_BYTES} bytes", flush=True)
    return writer


def single_objects():
    one, pool = store(False), HostPool(2)
    one.register_mem_pool_host(pool)
    place, back = pool.kv_buffer[0, 0], pool.kv_buffer[1, 0]
    assert not one.exists("single")
    assert one.set("single", target_location=place.data_ptr(), target_sizes=PAGE_BYTES)
    assert one.exists("single") and one.get("single", back.data_ptr(), PAGE_BYTES)
    same(torch, back, place, "single")
    assert not one.get("absent", back.data_ptr(), PAGE_BYTES)


def host_memory():
    """Memory of Mooncake's own allocator, registered and used like a pool."""
    allocator = mooncake_store.MooncakeHostTensorAllocator()  # The memory lives as long as this.
    tensor = allocator.allocate((4, 1 << 20), torch.uint8)
    tensor[0] = stand_ins.random_bytes(torch, 1 << 20, 9)
    one = store(False)
    one.register_buffer(tensor)
    assert one.set("host", target_location=tensor[0].data_ptr(), target_sizes=1 << 20)
    assert one.get("host", tensor[1].data_ptr(), 1 << 20)
    same(torch, tensor[1], tensor[0], "host memory")


def sglangs_own_test():
    """The test program that SGLang ships beside the class; it divides the segment by up to eight ranks."""
    os.environ.update(MOONCAKE_MASTER=MASTER, MOONCAKE_LOCAL_HOSTNAME="127.0.0.1", MOONCAKE_GLOBAL_SEGMENT_SIZE=str(256 << 20),
                      MOONCAKE_PROTOCOL="tcp")
    runpy.run_module("sglang.srt.mem_cache.storage.mooncake_store.test_mooncake_store", run_name="__main__")
    print("SGLang's test_mooncake_store.py: ok", flush=True)


pages_go_and_come("mha", False, 2)
pages_go_and_come("mla", True, 1)
if NEWER:
    pages_go_and_come("layers", True, 4)  # Several buffers make one object: *_multi_buffers.
pages_go_and_come("groups", False, 2, {"enable_group_semantics": True})
pages_go_and_come("tenant", False, 2, {"tenant_id": "someone"})
last = pages_go_and_come("pipeline", False, 2, pp_rank=1, pp_size=2, tp_size=1)
single_objects()
if NEWER:
    host_memory()
    sglangs_own_test()  # That of 0.5.9 lacks a method of its own stand-in.
last.clear()
stand_ins.finish((6 if NEWER else 5) * (2 * PAGES - 1) * PAGE_BYTES)
sys.stdout.flush()
