"""A process whose RpcInterface sends back what it gets: the first 32 bytes of a message say whereto. Prints its address; ends with
its standard input."""
import queue
import socket
import sys

from mooncake.engine import RpcInterface

work = queue.Queue()
while True:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % probe.getsockname()[1]
    rpc = RpcInterface()
    rpc.initialize(address, 4)
    rpc.set_data_receive_callback(lambda message: work.put(message["data"]))
    if rpc.start_server_async():
        break
print("address", address, flush=True)


def answer():
    while True:
        data = work.get()
        if rpc.send_data(data[:32].decode().strip(), data[32:]):
            print("cannot answer", flush=True)


import threading  # noqa: E402
threading.Thread(target=answer, daemon=True).start()
sys.stdin.read()
