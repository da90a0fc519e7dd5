"""TransferQueue's storage client for Mooncake: tensors and other values, in more than one of its batches, written over, read by
another client, removed. tensordict, whose class is only asked for, and Ray stand empty."""
import sys

import stand_ins
from stand_ins import CLIENT, MASTER, absent, package, same

for name in ("transfer_queue", "transfer_queue.storage", "transfer_queue.storage.clients", "transfer_queue.utils"):
    package(name)
absent("tensordict", "TensorDictBase", "TensorDict")
absent("ray")

import torch  # noqa: E402
import mooncake.store  # noqa: E402
from transfer_queue.storage.clients import mooncake_client  # noqa: E402

assert mooncake_client.__file__.startswith(CLIENT) and "/build/" in mooncake.store.__file__
TENSORS = mooncake_client.BATCH_SIZE_LIMIT + 50
KINDS = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def client(**settings):
    return mooncake_client.MooncakeStoreClient({
        "local_hostname": "127.0.0.1", "metadata_server": "p2phandshake", "master_server_address": MASTER,
        "global_segment_size": 64 << 20, "local_buffer_size": 64 << 20, "protocol": "tcp", "device_name": None, **settings})


def tensor(i, seed):
    count = 1 + (i * 37) % 5000
    bits = stand_ins.random_bytes(torch, count * 8, 1000 * seed + i)
    kind = KINDS[i % len(KINDS)]
    return (bits[:count] > 127) if kind == torch.bool else bits.view(kind) if i % 2 else bits.view(kind).reshape(1, -1)


def values(seed):
    tensors = [tensor(i, seed) for i in range(TENSORS)]
    others = [{"step": seed, "text": "\u00e9" * 100}, ["a", 1, None], "string", 5, b"bytes" * 1000, {"nested": torch.arange(5)}]
    return tensors + others


def equal(got, wanted, name):
    if isinstance(wanted, torch.Tensor):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
        same(torch, got.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8), name)
    elif isinstance(wanted, dict) and "nested" in wanted:
        assert torch.equal(got["nested"], wanted["nested"])
    else:
        assert got == wanted, (name, got, wanted)


def written_and_read(settings):
    writer, reader = client(**settings), client(**settings)
    for seed in (1, 2):  # The second time every value replaces one.
        stored = values(seed)
        keys = [f"{len(settings)}/{i}" for i in range(len(stored))]
        metas = writer.put(keys, stored)
        shapes = [list(v.shape) if isinstance(v, torch.Tensor) else None for v in stored]
        dtypes = [v.dtype if isinstance(v, torch.Tensor) else None for v in stored]
        got = reader.get(keys, shapes, dtypes, metas)
        for key, one, wanted in zip(keys, got, stored):
            equal(one, wanted, key)
    writer.clear(keys + ["never there"])
    mooncake_client.MAX_RETRIES, mooncake_client.RETRY_DELAY_SECONDS = 1, 0.01
    try:
        reader.get(keys[:1], shapes[:1], dtypes[:1], metas[:1])
    except RuntimeError as error:
        assert "-704" in str(error), error
    else:
        raise AssertionError("a removed key was read")
    reader.close()
    writer.close()
    print(f"{settings}: {len(keys)} values, twice", flush=True)


written_and_read({})
written_and_read({"hard_pin": False})
stand_ins.finish(4 * TENSORS * 8)
sys.stdout.flush()
