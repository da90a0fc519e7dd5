#!/usr/bin/env python3
"""The wheel as a user gets it: built, installed in a bare environment of every Python here from 3.10 on, used. What its files ask
of the system is counted."""
import ctypes.util
import glob
import os
import re
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import peers as interop  # noqa: E402

NEWEST_GLIBC = 36  # Debian 12
IMPORT_MS = 50
# Of the C library; a file may need nothing else that is not in the wheel.
SYSTEM = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

MODULES = {"transport-rdma.so": {"libibverbs.so.1"}, "transport-fabric.so": {"libfabric.so.1"}}


def run(*argv, **keywords):
    done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **keywords)
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, argv))}: {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def pythons():
    found = {}
    for python in interop.candidate_pythons():
        try:
            version = run(python, "-c", "import sys; print(*sys.version_info[:2])").split()
        except (OSError, AssertionError):
            continue
        if [int(n) for n in version] >= [3, 10]:
            found.setdefault(tuple(version), python)
    return found


def check_files(package):
    """Everything that the files need is in the wheel or in the C library; no path of the build machine is left."""
    files = [path for path in glob.glob(os.path.join(package, "**"), recursive=True) if os.path.isfile(path)]
    elves = [path for path in files if open(path, "rb").read(4) == b"\x7fELF"]
    names = {os.path.basename(path) for path in elves}
    assert {"store.abi3.so", "engine.abi3.so", "libmooncake.so", "mooncake_master"} <= names, names
    newest = 0
    for path in elves:
        dynamic = run("readelf", "-d", path)
        needed = set(re.findall(r"\(NEEDED\).*\[(\S+)\]", dynamic))
        own = MODULES.get(os.path.basename(path), set())  # Loaded at run time; only it may need what not every machine has.
        assert needed <= names | SYSTEM | own, f"{path} needs {needed - names - SYSTEM - own}"
        for paths in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic):
            if "/libs/" not in path:
                assert all(p.startswith("$ORIGIN") for p in paths.split(":")), f"{path}: {paths}"
        newest = max([newest, *(int(n) for n in re.findall(r"GLIBC_2\.(\d+)", run("objdump", "-T", path)))])
    assert newest <= NEWEST_GLIBC, f"glibc 2.{newest}"
    print(f"files: {len(elves)} binaries, glibc 2.{newest}")
    assert not any(name.startswith(("libibverbs", "libfabric")) for name in names), names
    for transport, library in (("rdma", "ibverbs"), ("fabric", "fabric")):
        if f"transport-{transport}.so" in names and ctypes.util.find_library(library):
            module = ctypes.CDLL(os.path.join(package, f"transport-{transport}.so"))
            assert getattr(module, f"mc_{transport}_provider"), "no provider"


def check_symbols(package):
    """No function of Python is used that 3.10 has not; no symbol but ours is exported."""
    for name in ("store", "engine", "_fast_copy"):
        path = os.path.join(package, f"{name}.abi3.so")
        exported = re.findall(r" [TDBR] (\S+)", run("nm", "-D", "--defined-only", path))
        assert exported == [f"PyInit_{name}"], exported
    exported = re.findall(r" [TDBR] (\S+)", run("nm", "-D", "--defined-only", os.path.join(package, "libmooncake.so")))
    assert exported and all(re.match(r"(mc|mooncake)_", s) for s in exported), exported


def unpack(directory):
    """What pip would do, but for the scripts: to bring it up takes longer than all else here."""
    site = glob.glob(os.path.join(directory, "lib", "python*", "site-packages"))[0]
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            os.chmod(archive.extract(entry, site), entry.external_attr >> 16 & 0o777)


def check_installed(peers, python, directory, by_pip):
    run(python, "-m", "venv", directory, *([] if by_pip else ["--without-pip"]))
    bin_dir = os.path.join(directory, "bin")
    own = os.path.join(bin_dir, "python")
    if by_pip:
        run(own, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel)
    else:
        unpack(directory)
    package = run(own, "-c", "import mooncake; print(mooncake.__path__[0])", cwd="/").strip()
    if by_pip:
        check_files(package)
        check_symbols(package)
    else:
        run(own, "-m", "compileall", "-q", package)
        bin_dir = package
    # Of the processor: what else the machine does must not decide.
    times = [float(run(own, "-c", "import time; t = time.process_time(); import mooncake.store; "
                       "print((time.process_time() - t) * 1e3)", cwd="/")) for _ in range(5)]
    assert min(times) < IMPORT_MS, times
    rpc, admin = interop.free_port(), interop.free_port()
    master, _ = peers.start("master", [os.path.join(bin_dir, "mooncake_master"), f"--rpc_port={rpc}",
                                       "--rpc_address=127.0.0.1", f"--metrics_port={admin}"])
    peers.until("master", master, lambda: interop.raw_call(rpc, "ServiceReady")[0] == 0)
    env = dict(os.environ, MC_CONTRACT_SIDE="ours", MC_CONTRACT_MASTER=f"127.0.0.1:{rpc}", PYTHONDONTWRITEBYTECODE="1",
               **({} if by_pip else {"MC_CONTRACT_SHORT": "1"}))
    env.pop("PYTHONPATH", None)
    last = run(own, "-m", "unittest", "discover", "-s", os.path.join(HERE, "contract"), "-p", "*_contract.py", env=env,
               cwd=peers.directory).strip().splitlines()
    peers.stop(master)
    assert "OK" in last[-1], last[-5:]
    ran = next(line for line in last if line.startswith("Ran "))
    scripts = glob.glob(os.path.join(bin_dir, "m*")) + glob.glob(os.path.join(bin_dir, "transfer_engine*")) if by_pip else [
        os.path.join(bin_dir, name) for name in ("mooncake", "mooncake_client", "transfer_engine_bench")]
    assert len(scripts) >= (7 if by_pip else 3), scripts
    for script in scripts:
        run(script, "--help")
    print(f"{own}: import {min(times):.1f} ms, {ran}", flush=True)


def main():
    global wheel
    if not os.path.exists(os.path.join(sys.argv[1], "python", "mooncake", "store.abi3.so")):
        print("skipped: this build has no Python package")
        return 77
    peers = interop.Peers(sys.argv[1])
    failed = True
    try:
        env = dict(os.environ, MOONCAKE_WHEEL_BUILD=os.path.join(peers.build, "wheel"))
        wheel = run(sys.executable, os.path.join(ROOT, "python", "build_backend.py"), peers.directory,
                    env=env).strip().splitlines()[-1]
        print(f"{os.path.basename(wheel)}: {os.path.getsize(wheel) >> 10} KiB")
        for i, (version, python) in enumerate(pythons().items()):
            check_installed(peers, python, os.path.join(peers.directory, "venv" + ".".join(version)), i == 0)
        failed = False
    finally:
        peers.close(failed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
