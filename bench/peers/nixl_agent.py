"""A process that is one NIXL agent with its UCX backend, driven by JSON lines like tests/interop/agent.py.
Runs in the environment that bench/peers/run makes for nixl-cu12. Its loop is what NIXL's users do: a prepared request is
posted, and asked for its state until it is done."""
import base64
import ctypes
import json
import os
import sys

from nixl_cu12 import nixl_agent, nixl_agent_config

from measure import percentile, run_threads


class Agent:
    """With a progress thread where it serves; who asks makes progress by asking."""

    def __init__(self, name, size, thread):
        self.agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=thread, backends=["UCX"]))
        self.memory = ctypes.create_string_buffer(size + 4096)
        self.address = (ctypes.addressof(self.memory) + 4095) & ~4095
        self.size = size
        self.registered = self.agent.register_memory([(self.address, size, 0, "")], "DRAM")

    def describe(self):
        return {"metadata": base64.b64encode(self.agent.get_agent_metadata()).decode(), "address": self.address}

    def fill(self, byte):
        ctypes.memset(self.address, byte, self.size)

    def holds(self, byte, length):
        return ctypes.string_at(self.address, length) == bytes([byte]) * length

    def measure(self, operation, peer, size, batch, seconds):
        agent = self.agent
        name = agent.add_remote_agent(base64.b64decode(peer["metadata"]))
        local, remote = (agent.get_xfer_descs([(base + i * size, size, 0) for i in range(batch)], "DRAM")
                         for base in (self.address, peer["address"]))
        handle = agent.initialize_xfer(operation.upper(), local, remote, name)

        def call():
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            return state != "DONE"
        run_threads([[call]], seconds / 4, True)
        done, failed, took, samples = run_threads([[call]], seconds, True)
        agent.release_xfer_handle(handle)
        agent.remove_remote_agent(name)
        return {"gb_per_second": done * batch * size / took / 1e9, "failures": failed,
                "p50_us": percentile(samples, .5), "p99_us": percentile(samples, .99)}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NIXL's own words go to the log
    agent = Agent(sys.argv[1], int(sys.argv[2]), sys.argv[1] == "serves")
    for line in sys.stdin:
        operation, arguments, _ = json.loads(line)
        try:
            answer = {"result": getattr(agent, operation)(*arguments)}
        except Exception as why:  # the answer says which
            answer = {"error": repr(why)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
