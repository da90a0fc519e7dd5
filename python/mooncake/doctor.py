"""Says what this installation can do, and why not. Usage: python -m mooncake.doctor [--master HOST:PORT]

Without --master it starts one of its own for the test. Ends with 1 when something that is needed does not work.
"""
import argparse
import importlib.util
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time


class Report:
    def __init__(self):
        self.failed = 0

    def good(self, what, text=""):
        print(f"  ok    {what}{': ' + text if text else ''}")

    def note(self, what, text):
        print(f"  note  {what}: {text}")

    def bad(self, what, text):
        self.failed += 1
        print(f"  BAD   {what}: {text}")


def look_at_package(report):
    import mooncake
    package = mooncake.__path__[0]
    report.good("Python", f"{platform.python_version()}, {platform.libc_ver()[1] or 'unknown'} glibc, {platform.machine()}")
    for name in ("mooncake.store", "mooncake.engine"):
        begin = time.perf_counter()
        try:
            importlib.import_module(name)
            report.good(name, f"loaded in {(time.perf_counter() - begin) * 1e3:.1f} ms from {package}")
        except ImportError as error:
            report.bad(name, str(error))
    for name in ("mooncake_master", "mooncake_client", "transfer_engine_bench", "mooncake"):
        path = os.path.join(package, name)
        if not os.path.exists(path):
            report.bad(name, f"{path} is missing")
        elif subprocess.run([path, "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            report.bad(name, f"{path} does not run")
        else:
            report.good(name)
    for name, use in (("numpy", "arrays"), ("torch", "tensors"), ("aiohttp", "the REST service")):
        if importlib.util.find_spec(name) is None:
            report.note(name, f"not installed; {use} need it")
        else:
            report.good(name)


def look_at_machine(report):
    shm = os.statvfs("/dev/shm")
    free = shm.f_bavail * shm.f_frsize >> 20
    (report.good if free > 64 else report.note)("/dev/shm", f"{free} MiB free")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    text = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked >> 10} KiB (RDMA registers locked memory)"
    report.good("lockable memory", text)
    nodes = [n for n in os.listdir("/sys/devices/system/node") if n.startswith("node")] if os.path.isdir(
        "/sys/devices/system/node") else ["node0"]
    nics = os.listdir("/sys/class/infiniband") if os.path.isdir("/sys/class/infiniband") else []
    report.good("machine", f"{os.cpu_count()} CPUs, {len(nodes)} NUMA nodes, RDMA NICs: {', '.join(sorted(nics)) or 'none'}")


def own_master(directory):
    """(process, address) of a master on ports of the kernel's choice."""
    from mooncake.cli import program
    log = os.path.join(directory, "master.log")
    with open(log, "w") as out:
        process = subprocess.Popen([program("mooncake_master"), "--port=0", "--metrics_port=0", "--rpc_address=127.0.0.1"],
                                   stdout=out, stderr=out, env=dict(os.environ, MC_LOG_LEVEL="INFO"))
    for _ in range(100):
        time.sleep(0.05)
        with open(log) as file:
            for line in file:
                if "master ready rpc=" in line:
                    return process, "127.0.0.1:" + line.split("rpc=")[1].split()[0].rsplit(":", 1)[1]
        if process.poll() is not None:
            break
    process.kill()
    with open(log) as file:
        raise RuntimeError(f"mooncake_master does not start:\n{file.read()[-2000:]}")


def try_store(report, master):
    from mooncake.client import MooncakeError, MooncakeStore
    key = f"mooncake.doctor/{os.getpid()}"
    try:
        with MooncakeStore(master, segment="16MB") as store:
            value = os.urandom(1 << 20)
            begin = time.perf_counter()
            store[key] = value
            if store[key] != value:
                report.bad("store", "other bytes came back")
                return
            took = (time.perf_counter() - begin) * 1e3
            del store[key]
            report.good("store", f"a value went to the store and came back ({took:.1f} ms for 1 MiB, by {master})")
    except MooncakeError as error:
        report.bad("store", f"the master at {master}: {error}")


def main():
    parser = argparse.ArgumentParser(prog="python -m mooncake.doctor", description=__doc__.splitlines()[0])
    parser.add_argument("--master", help="try this master instead of one of our own")
    options = parser.parse_args()
    report = Report()
    print("package")
    look_at_package(report)
    print("machine")
    look_at_machine(report)
    print("cluster")
    if report.failed:
        report.note("store", "not tried: the package is not whole")
    elif options.master:
        try_store(report, options.master)
    else:
        with tempfile.TemporaryDirectory() as directory:
            try:
                process, address = own_master(directory)
            except RuntimeError as error:
                report.bad("mooncake_master", str(error))
            else:
                try:
                    try_store(report, address)
                finally:
                    process.terminate()
                    process.wait()
    print("all is well" if not report.failed else f"{report.failed} problems")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
