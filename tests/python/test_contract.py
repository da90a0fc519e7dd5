#!/usr/bin/env python3
"""One set of tests, two implementations: tests/python/contract runs with our package and our master, then with upstream's
wheel and its master. Arguments: the build folder, then unittest's. The tensors need torch (tools/torch)."""
import concurrent.futures
import glob
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import peers as interop  # noqa: E402


def interpreter(peers, side, torch=True):
    """(python, environment) that imports this side's package; with torch where there is one and it is asked for."""
    if side == "ours":
        python, env = sys.executable, dict(os.environ, PYTHONPATH=os.path.join(peers.build, "python"))
        env["MC_LOG_LEVEL"] = "ERROR"
        try:  # The REST service needs aiohttp, which upstream's environment has.
            env["MC_CONTRACT_SITE"] = os.path.dirname(interop.wheel(peers.build, interop.NEWEST).package)
        except interop.Skip:
            pass
    else:
        installed = interop.wheel(peers.build, interop.NEWEST)
        python, env = installed.python, dict(installed.env)
    if torch and interop.torch_python():
        places = [env.get("PYTHONPATH", ""), *glob.glob(os.path.join(os.path.dirname(os.path.dirname(python)), "lib", "python*",
                                                                    "site-packages"))]
        env["PYTHONPATH"] = places[0] or places[1]
        python = interop.torch_python()
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    return python, env


def rpc_peer(peers, side):
    """The address of a process of the other side that sends messages back, or None without upstream's wheel."""
    try:
        python, env = interpreter(peers, "upstream" if side == "ours" else "ours", torch=False)
    except interop.Skip:
        return None
    popen, _ = peers.start("rpc-peer", [python, os.path.join(HERE, "contract", "rpc_peer.py")], env, stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True)
    line = popen.stdout.readline().split()
    if line[:1] != ["address"]:
        raise AssertionError("rpc_peer.py does not start")
    return line[1]


def run(peers, side, real=None, alone=False):
    """(exit status, what to print) of the tests with this side's package and master; with `real`, of those of the dummy client by
    way of a mooncake_client (and master) of that side. Unless `alone`, the other side's tests run meanwhile."""
    master = peers.master(real or side)
    node = peers.node(real, master) if real else None
    python, env = interpreter(peers, side)
    env.update(MC_CONTRACT_SIDE=side, MC_CONTRACT_MASTER=master.address)
    if not (real or alone):  # The two exchange structured objects.
        others = "upstream" if side == "ours" else "ours"
        env.update(MC_CONTRACT_OWN_OBJECTS=os.path.join(peers.directory, f"objects-of-{side}.json"),
                   MC_CONTRACT_OTHERS_OBJECTS=os.path.join(peers.directory, f"objects-of-{others}.json"))
    if not real and (address := rpc_peer(peers, side)):
        env["MC_CONTRACT_RPC_PEER"] = address
    if real:
        port = next(word.split("=")[1] for word in node.args if word.startswith("--port="))
        env.update(MC_CONTRACT_REAL_CLIENT=f"127.0.0.1:{port}", MC_CONTRACT_REAL_SIDE=real)
    log = os.path.join(peers.directory, f"{side}-{real}.log")
    with open(log, "w") as out:
        done = subprocess.run([python, "-m", "unittest", "discover", "-v", "-s", os.path.join(HERE, "contract"),
                               "-p", "dummy_contract.py" if real else "*_contract.py", *sys.argv[2:]],
                              env=env, cwd=peers.directory, stdout=out, stderr=out, timeout=600)
    text = [line for line in open(log, errors="replace") if not line.startswith(("I2", "W2", "E2", "I1", "W1", "E1", "20"))]
    said = f"---- {side}" + (f" by way of {real}: " if real else ": ") + " ".join(text[-3:]).strip().replace("\n", " ")
    if done.returncode:
        said += "\n" + "".join(text[-80:])
    if node:
        peers.stop(node)
    peers.stop(master.popen)
    return done.returncode, said


def main():
    if not os.path.exists(os.path.join(sys.argv[1], "python", "mooncake", "store.abi3.so")):
        print("skipped: this build has no Python package")
        return 77
    peers = interop.Peers(sys.argv[1])
    failed, skipped = 0, None
    runs = [("upstream", None), ("ours", None), ("ours", "ours"), ("upstream", "upstream"), ("upstream", "ours"), ("ours", "upstream")]
    try:
        interop.wheel(peers.build, interop.NEWEST)
    except interop.Skip as reason:
        runs, skipped = [("ours", None), ("ours", "ours")], reason
    try:
        # Most of the time goes by waiting (for leases, services that start), so they run beside each other.
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for done in concurrent.futures.as_completed([pool.submit(run, peers, *sides, skipped is not None) for sides in runs]):
                code, said = done.result()
                print(said, flush=True)
                failed |= code
    finally:
        peers.close(False)
    if skipped:
        print(f"skipped: {skipped}")
    return failed or (77 if skipped else 0)


if __name__ == "__main__":
    sys.exit(main())
