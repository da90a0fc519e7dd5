"""checkpoint-engine's P2PStore, which moves weights between trainers: tensors of one process are read by another, in batches. The
device manager, which looks for GPUs and NICs, is a small class here, and the address is the loopback's."""
import os
import subprocess
import sys

import stand_ins
from stand_ins import CLIENT, package, same

package("checkpoint_engine")

import torch  # noqa: E402
import mooncake.engine  # noqa: E402
from checkpoint_engine import p2p_store  # noqa: E402

assert p2p_store.__file__.startswith(CLIENT) and "/build/" in mooncake.engine.__file__
p2p_store.get_ip = lambda: "127.0.0.1"  # Its own asks for the way to the Internet.
SIZES = (1, 4096, 1 << 20, 5 << 20, 0x12345)


class DeviceManager:
    transfer_engine_protocol = "rdma"

    class device_module:
        @staticmethod
        def device_count():
            return 8

    @staticmethod
    def rdma_device(local_rank):
        return os.environ["PS_P2P_STORE_RDMA_DEVICES"]


def store(rank):
    os.environ["RANK"] = str(rank)
    return p2p_store.P2PStore(DeviceManager())


def owner():
    one = store(1)
    tensors = {f"weight{i}": stand_ins.random_bytes(torch, size, i) for i, size in enumerate(SIZES)}
    one.register_named_tensors(tensors)
    print("serving", one.addr, *(f"{t.data_ptr()}" for t in tensors.values()), flush=True)
    sys.stdin.readline()
    assert one.unregister_named_tensors(list(tensors)) == len(SIZES) and not one.named_tensors
    print("done", flush=True)


def reader():
    peer = subprocess.Popen([sys.executable, __file__, "owner"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    words = next(line for line in peer.stdout if line.startswith("serving ")).split()
    address, places = words[1], [int(word) for word in words[2:]]
    one = store(0)
    mine = {f"mine{i}": torch.zeros(size, dtype=torch.uint8) for i, size in enumerate(SIZES)}
    one.register_named_tensors(mine)
    for _ in range(3):
        for tensor in mine.values():
            tensor.zero_()
        one.batch_transfer_sync_read(address, [t.data_ptr() for t in mine.values()], places, list(SIZES))
        for i, (name, tensor) in enumerate(mine.items()):
            same(torch, tensor, stand_ins.random_bytes(torch, SIZES[i], i), name)
    try:
        one.batch_transfer_sync_read(address, [mine["mine1"].data_ptr()], [16], [4096])
    except AssertionError:
        pass
    else:
        raise SystemExit("memory that nobody registered was read")
    one.unregister_named_tensors(list(mine))
    peer.stdin.write("\n")
    peer.stdin.flush()
    assert "done" in peer.stdout.read() and peer.wait(60) == 0
    print(f"{len(SIZES)} tensors, three times", flush=True)


if sys.argv[1:] == ["owner"]:
    owner()
else:
    reader()
    stand_ins.finish(3 * sum(SIZES))
sys.stdout.flush()
