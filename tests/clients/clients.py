"""Real clients, unchanged from PyPI, on our package, master and node.

A client's wheel is downloaded and unpacked in the build directory (clients/), without what it depends on: only the few packages
that the modules under test import are installed beside it. torch has to be there: tools/torch makes an interpreter that
imports it, MC_TORCH_PYTHON names another (torch 2.3 or later; no GPU is used). What a client needs of a GPU, and nothing else,
is replaced by the driver script that runs in that interpreter (sglang_hicache.py and its neighbours). Without torch or PyPI:
exit 77.
"""
import fcntl
import glob
import os
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import peers as interop  # noqa: E402

VLLM = ("vllm==0.33.0", ["regex", "pyzmq", "prometheus_client", "msgspec", "fastapi", "uvicorn", "httpx"])  # 340 MB, for three drivers.
PIP = ["-m", "pip", "--disable-pip-version-check", "-q"]


def torch_python():
    """The interpreter with torch, and its version of both."""
    python = interop.torch_python()
    if not python:
        raise interop.Skip("no torch: tools/torch makes an interpreter that has it, MC_TORCH_PYTHON names one")
    done = interop.quiet([python, "-c", "import torch, sys; print(torch.__version__, '%d.%d' % sys.version_info[:2])"])
    if done.returncode:
        raise interop.Skip(f"{python} has no torch: {done.stdout.strip()[-300:]}")
    return python, *done.stdout.split()[-2:]


def pip(*argv):
    done = interop.quiet([interop.pip_python(), *PIP, *argv])
    if done.returncode:
        raise interop.Skip(f"pip {' '.join(argv)}: {done.stdout.strip()[-400:]}")


def unpacked(build, requirement, version, packages=()):
    """The folder with the client's files and another with the packages; made once."""
    base = os.path.join(os.path.abspath(build), "clients", requirement.replace("==", "-"))
    client, others = os.path.join(base, "client"), os.path.join(base, "packages")
    os.makedirs(base, exist_ok=True)
    with open(os.path.join(base, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete, wanted = os.path.join(base, "complete"), " ".join(packages)
        if not os.path.exists(complete) or open(complete).read() != wanted:
            target = ["--python-version", version, "--only-binary", ":all:"]
            if not glob.glob(os.path.join(base, "*.whl")):
                pip("download", "--no-deps", *target, "-d", base, requirement)
            with zipfile.ZipFile(glob.glob(os.path.join(base, "*.whl"))[0]) as wheel:
                # Libraries are for a GPU and a newer C++ library than Debian 12's; the drivers do without.
                wheel.extractall(client, [name for name in wheel.namelist() if not name.endswith(".so")])
            if packages:
                pip("install", *target, "--target", others, "--upgrade", *packages)
            with open(complete, "w") as out:
                out.write(wanted)
    return client, others


def drive(build, requirement, script, packages=(), env=(), timeout=400):
    """Runs the driver script against a master and a node of ours; its exit status."""
    if not os.path.exists(os.path.join(build, "python", "mooncake", "store.abi3.so")):
        print("skipped: this build has no Python package")
        return 77
    try:
        python, torch, version = torch_python()
        client, others = unpacked(build, requirement, version, packages)
    except interop.Skip as reason:
        print(f"skipped: {reason}")
        return 77
    peers = interop.Peers(build)
    failed = True
    try:
        master = peers.master("ours")
        peers.node("ours", master)
        # torch and numpy of the interpreter go first, then ours, then the client.
        path = os.pathsep.join([os.path.join(peers.build, "python"), client, HERE])
        environment = dict(os.environ, PYTHONPATH=path, CLIENT_PACKAGES=others, MC_MASTER=master.address,
                           MC_MASTER_ADMIN=str(master.admin), MC_CLIENT=client, PYTHONDONTWRITEBYTECODE="1",
                           MC_LOG_LEVEL="ERROR", **dict(env))
        done = subprocess.run([python, "-X", "faulthandler", os.path.join(HERE, script)], env=environment,
                              cwd=peers.directory, timeout=timeout)
        print(f"{requirement}, torch {torch}, Python {version}: {'ok' if done.returncode == 0 else done.returncode}", flush=True)
        failed = done.returncode != 0
    finally:
        peers.close(failed)
    return done.returncode
