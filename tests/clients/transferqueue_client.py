"""TransferQueue's storage client for Mooncake: tensors and other values, in more than one of its batches, written over, read by
another client, removed. And its start of a master, and of a node with an SSD: what would kill every other master of this machine
finds none (`pgrep` is one that says so). tensordict, whose class is only asked for, Ray and OmegaConf stand empty."""
import os
import socket
import sys
import tempfile
import threading

import stand_ins
from stand_ins import CLIENT, MASTER, absent, package, same

for name in ("transfer_queue", "transfer_queue.storage", "transfer_queue.storage.clients", "transfer_queue.storage.bootstrap",
             "transfer_queue.utils"):
    package(name)
absent("omegaconf", "DictConfig")
absent("tensordict", "TensorDictBase", "TensorDict")
absent("ray")

import torch  # noqa: E402
import mooncake.store  # noqa: E402
from transfer_queue.storage.bootstrap import mooncake_bootstrap  # noqa: E402
from transfer_queue.storage.clients import mooncake_client  # noqa: E402

assert mooncake_bootstrap.__file__.startswith(CLIENT)
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


class Settings(dict):
    """OmegaConf's, as far as the bootstrap asks."""

    def __getattr__(self, name):
        return self[name]


def free_ports(count):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


def programs(place):
    """A folder in front of PATH: our programs, the master with any port for its metrics, and a pgrep that finds nothing."""
    ours = os.path.dirname(mooncake.store.__file__)
    for name, line in (("mooncake_master", f'exec "{ours}/mooncake_master" "$@" --metrics_port=0'),
                       ("mooncake_client", f'exec "{ours}/mooncake_client" "$@"'), ("pgrep", "exit 1")):
        path = os.path.join(place, name)
        with open(path, "w") as out:
            out.write(f"#!/bin/sh\n{line}\n")
        os.chmod(path, 0o755)
    os.environ["PATH"] = place + os.pathsep + os.environ["PATH"]


def bootstrapped(place, failed, offload):
    """Its own master: with HTTP metadata and a node that offloads, or alone."""
    master, metadata, port = free_ports(3)
    settings = {"local_hostname": "127.0.0.1", "master_server_address": f"127.0.0.1:{master}",
                "metadata_server": f"127.0.0.1:{metadata}" if offload else "P2PHANDSHAKE", "global_segment_size": 64 << 20,
                "protocol": "tcp", "auto_init": True,
                "offload": {"enabled": offload, "client_port": port, "file_storage_path": os.path.join(place, "ssd"),
                            "local_buffer_size_bytes": 16 << 20}}
    made = mooncake_bootstrap.initialize_mooncake_storage(Settings(backend=Settings(MooncakeStore=Settings(settings))))
    processes = list(made.values()) if offload else [made]
    try:
        written_and_read({key: settings[key] for key in ("master_server_address", "metadata_server")})
        assert all(one.poll() is None for one in processes)
        failed.discard(offload)
    finally:
        for one in reversed(processes):
            one.terminate()
            one.wait()


def its_own_masters():
    failed = {False, True}
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        programs(place)
        threads = [threading.Thread(target=bootstrapped, args=(place, failed, offload)) for offload in (False, True)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert not failed, failed


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
its_own_masters()
stand_ins.finish(8 * TENSORS * 8)
sys.stdout.flush()
