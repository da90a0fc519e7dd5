"""What users of each interface write: mypy --strict has nothing to say about it (test_types.py). Nobody runs it."""
from __future__ import annotations

from mooncake import MooncakeStore
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
from mooncake.reshard import weight
from mooncake.store import BufferPool, MooncakeDistributedStore, ReplicateConfig


def people(master: str) -> int:
    with MooncakeStore(master=master) as store:
        store["page"] = b"value"
        found: bytes = store["page"]
        there: dict[str, bool] = store.exist(["page", "other"])
        store.put_large("weights", found, progress=lambda done, total: print(done, total))
        return len(found) + len(there) + store.info("page").version + sum(len(key) for key in store.keys("page/"))


def engines(master: str) -> list[int]:
    store = MooncakeDistributedStore()
    dict_form: int = store.setup({"local_hostname": "127.0.0.1", "global_segment_size": 0})
    code: int = store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master)
    config = ReplicateConfig()
    config.replica_num = 2
    if dict_form or code or store.put("key", b"value", config):
        raise RuntimeError(str(code))
    value: bytes = store.get("key")
    with BufferPool(store).acquire(len(value)) as lease:
        got: list[int] = store.batch_get_into(["key"], [lease.ptr], [lease.size])
    store.close()
    return got


def transfer(peer: str) -> int:
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
        return -1
    address: int = engine.allocate_managed_buffer(4096)
    return engine.transfer_sync(peer, address, address, 4096, TransferOpcode.Write, TransferNotify("a", "b"))


def move(source: weight.WeightPlacementManifest, target: weight.WeightPlacementManifest) -> int:
    plan = weight.plan_placement_transfer(source, target)
    return sum(length for region in plan.operations for _, _, length in region.iter_segments(max_segments=10))
