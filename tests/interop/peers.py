"""Real processes for the interoperation tests: ours and upstream's, interchangeable.

A test asks for roles (a master, a metadata server, a node, an agent that drives a client library) and says for each
whose implementation plays it, "ours" or "upstream" (or an upstream release such as "0.3.12.post1"). Every process listens
on loopback ports chosen here, is waited for until it serves, and is killed when the test ends, however it ends; on failure
the ends of all logs are printed.

Upstream is the wheel from PyPI, in a virtual environment inside the build directory, so that the test proves something
about what people really run. Without a network there is nothing to test against: exit 77, with the reason.

    def test(peers): ...
    main(test)                       # argv[1] = build directory
"""
import contextlib
import fcntl
import glob
import hashlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

PACKAGE = "mooncake-transfer-engine-non-cuda"
PACKAGE_OF_OURS = "ours-package"
NEWEST = "0.3.13.post1"
OLDER = "0.3.12.post1"
HERE = os.path.dirname(os.path.abspath(__file__))
READY_S = 30


class Skip(Exception):
    """The machine lacks what the test needs."""


# ---- the upstream wheel ----

def candidate_pythons():
    """Interpreters to try, the default one first; the wheel exists for some versions only."""
    found = [sys.executable, *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.1*/bin/python3")))]
    found += [shutil.which(f"python3.{minor}") for minor in range(10, 15)]
    return [p for i, p in enumerate(found) if p and p not in found[:i]]


class Wheel:
    """One upstream release in its own virtual environment."""

    def __init__(self, directory):
        self.python = os.path.join(directory, "bin", "python")
        package = glob.glob(os.path.join(directory, "lib", "python*", "site-packages", "mooncake"))
        if not package:
            raise Skip(f"the wheel in {directory} has no mooncake package")
        self.package = package[0]
        self.env = dict(os.environ)
        cudart = glob.glob(os.path.join(directory, "cudart", "nvidia", "*", "lib"))
        if cudart:
            self.env["LD_LIBRARY_PATH"] = ":".join(cudart)

    def program(self, name):
        path = os.path.join(self.package, name)
        os.chmod(path, 0o755)
        return path


def torch_python():
    """An interpreter that imports torch: MC_TORCH_PYTHON, or what tools/torch made; None without."""
    made = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "torch")
    if os.environ.get("MC_TORCH_PYTHON"):
        return os.environ["MC_TORCH_PYTHON"]
    return os.path.join(made, "bin", "python") if os.path.exists(os.path.join(made, "complete")) else None


def pip_python():
    """An interpreter that has pip: Debian's own has not, unless python3-pip is installed."""
    return sys.executable if importlib.util.find_spec("pip") else torch_python() or sys.executable


def quiet(argv, **kwargs):
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)


def install_wheel(directory, release):
    """Makes the environment; raises Skip with pip's words when no interpreter gets the wheel."""
    reason = "no python3 with venv"
    for python in candidate_pythons():
        shutil.rmtree(directory, ignore_errors=True)
        made = quiet([python, "-m", "venv", directory])
        if made.returncode:
            reason = made.stdout
            continue
        pip = [os.path.join(directory, "bin", "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        got = quiet(pip + [f"{PACKAGE}=={release}"])
        if got.returncode:
            reason = got.stdout
            continue
        if release.startswith("0.3.12") or release == "0.3.13":
            # These were linked with the CUDA runtime although they do not use it.
            cudart = quiet(pip + ["--no-deps", "--target", os.path.join(directory, "cudart"),
                                  "nvidia-cuda-runtime-cu12<12.9"])
            if cudart.returncode:
                reason = cudart.stdout
                continue
        return
    shutil.rmtree(directory, ignore_errors=True)
    raise Skip(f"pip cannot install {PACKAGE}=={release}: {reason.strip()[-400:]}")


def ensure_ibverbs():
    """The wheel's programs link libibverbs even where there is no RDMA device."""
    if any(glob.glob(os.path.join(d, "libibverbs.so.1*")) for d in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64",
                                                                     "/usr/lib/aarch64-linux-gnu", "/usr/lib")):
        return
    print("installing libibverbs1 (the upstream wheel links it)", flush=True)
    done = quiet(["apt-get", "install", "-y", "libibverbs1"], env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"))
    if done.returncode:
        raise Skip(f"libibverbs1 is missing and cannot be installed: {done.stdout.strip()[-300:]}")


def wheel(build, release):
    """The release's environment in the build directory, made on first use; tests running at once wait for the maker."""
    base = os.path.join(build, "interop")
    os.makedirs(base, exist_ok=True)
    directory = os.path.join(base, f"upstream-{release}")
    with open(os.path.join(base, f"{release}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marker = os.path.join(directory, "complete")
        if not os.path.exists(marker):
            ensure_ibverbs()
            install_wheel(directory, release)
            open(marker, "w").close()
    return Wheel(directory)


# ---- ports and raw calls ----

def free_port():
    """A port nobody has now, below the ephemeral range so that outgoing connections do not take it meanwhile. The
    starters below try again when somebody did."""
    while True:
        port = random.SystemRandom().randint(17100, 31000)
        with socket.socket() as s:
            try:
                s.bind(("0.0.0.0", port))
                return port
            except OSError:
                continue


def function_id(name):
    return struct.unpack(">I", hashlib.md5(f"mooncake::WrappedMasterService::{name}".encode()).digest()[:4])[0]


def read_exact(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError("connection closed")
        data += piece
    return data


def raw_call(port, name, body=b"", timeout=5):
    """One coro_rpc request; (err_code, body)."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
        sock.sendall(struct.pack("<BBBBIIII", 21, 0, 0, 0, 1, function_id(name), len(body), 0) + body)
        header = read_exact(sock, 16)
        _, _, err, _, _, length, attached = struct.unpack("<BBBBIII", header)
        answer = read_exact(sock, length)
        read_exact(sock, attached)
        return err, answer


def http_get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


# ---- processes ----

class Died(Exception):
    pass


class Agent:
    """A process running agent.py: one client library, driven by JSON lines. agent.put(...) runs `put` there."""

    def __init__(self, popen, name, log):
        self.popen, self.name, self.log = popen, name, log
        self.lock = threading.Lock()

    def call(self, op, *args, **kwargs):
        with self.lock:
            self.popen.stdin.write(json.dumps([op, args, kwargs]) + "\n")
            self.popen.stdin.flush()
            line = self.popen.stdout.readline()
        if not line:
            raise Died(f"{self.name} ended during {op} (status {self.popen.poll()})")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"{self.name}.{op}{args}: {answer['error']}")
        return answer["result"]

    def __getattr__(self, op):
        return lambda *args, **kwargs: self.call(op, *args, **kwargs)


def relay(listener, target, source):
    """Copies bytes between each accepted connection and one of its own from `source`; a close travels on."""
    def copy(a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    with contextlib.suppress(OSError):
        while True:
            near = listener.accept()[0]
            try:
                far = socket.create_connection(target, source_address=(source, 0))
            except OSError:
                near.close()
                continue
            for s in (near, far):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((near, far), (far, near)):
                threading.Thread(target=copy, args=pair, daemon=True).start()


class Master:
    def __init__(self, popen, rpc, admin, metadata, restart):
        self.popen, self.rpc, self.admin, self.metadata_port, self.restart_with = popen, rpc, admin, metadata, restart

    @property
    def address(self):
        return f"127.0.0.1:{self.rpc}"

    @property
    def metadata(self):
        return f"http://127.0.0.1:{self.metadata_port}/metadata"

    def segments(self):
        return http_get(f"http://127.0.0.1:{self.admin}/get_all_segments").split()


class Peers:
    def __init__(self, build):
        self.build = os.path.abspath(build)
        self.directory = tempfile.mkdtemp(prefix="mooncake-interop-")
        self.started = []  # (name, popen, log path)
        self.listeners = []
        self.sanitizer = self._sanitizer()

    # -- whose program

    def _sanitizer(self):
        with contextlib.suppress(OSError):
            for line in open(os.path.join(self.build, "CMakeCache.txt")):
                if line.startswith("MC_SANITIZE:") and line.strip().split("=", 1)[1]:
                    return line.strip().split("=", 1)[1]
        return ""

    def release(self, who):
        return NEWEST if who == "upstream" else who

    def program(self, who, name):
        """(argv0, environment)"""
        if who == "ours":
            path = os.path.join(self.build, "bin", name)
            if not os.path.exists(path):
                raise AssertionError(f"{path} is not built")
            return path, dict(os.environ)
        installed = wheel(self.build, self.release(who))
        return installed.program(name), dict(installed.env)

    # -- starting and stopping

    def start(self, name, argv, env=None, **kwargs):
        log = os.path.join(self.directory, f"{len(self.started):02d}-{name}.log")
        with open(log, "w") as out:
            kwargs.setdefault("stdout", out)
            popen = subprocess.Popen(argv, stderr=out, env=env or dict(os.environ), cwd=self.directory, **kwargs)
        self.started.append((name, popen, log))
        return popen, log

    def until(self, what, popen, ready, seconds=READY_S):
        """Polls ready(); False when the process ended first."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if popen is not None and popen.poll() is not None:
                return False
            with contextlib.suppress(OSError, EOFError):
                if ready():
                    return True
            time.sleep(0.02)
        raise AssertionError(f"{what} is not ready after {seconds} s")

    def stop(self, popen, kill=False):
        if popen.poll() is None:
            popen.kill() if kill else popen.terminate()
            try:
                popen.wait(timeout=10)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
        return popen.returncode

    def crashed(self):
        """Processes that ended by themselves and badly, which a test might not have noticed."""
        return [f"{name} (status {popen.returncode})" for name, popen, _ in self.started
                if popen.poll() not in (None, 0, -signal.SIGTERM, -signal.SIGKILL)]

    def close(self, failed):
        for listener in self.listeners:
            listener.close()
        for _, popen, _ in reversed(self.started):
            if popen.stdin:
                with contextlib.suppress(OSError):
                    popen.stdin.close()
            if popen.poll() is None:
                popen.kill()
            popen.wait()
        if failed:
            for name, popen, log in self.started:
                print(f"---- {name} (status {popen.returncode}): end of {log}")
                with contextlib.suppress(OSError):
                    print("".join(line[:300].rstrip() + "\n" for line in open(log, errors="replace").readlines()[-25:]), end="")
        else:
            shutil.rmtree(self.directory, ignore_errors=True)

    # -- roles

    def master(self, who, metadata_server=False, args=(), rpc=None, admin=None):
        argv0, env = self.program(who, "mooncake_master")
        for _ in range(5):
            ports = [rpc or free_port(), admin or free_port(), free_port()]
            argv = [argv0, f"--rpc_port={ports[0]}", "--rpc_address=127.0.0.1", f"--metrics_port={ports[1]}", *args]
            if who != "ours":
                argv.append("--logtostderr=true")
            elif "--enable_offload=true" in args:  # the next master of the port finds them
                argv.append(f"--offload_notes_path={self.directory}/notes.{ports[0]}")
            if metadata_server:
                argv += ["--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1",
                         f"--http_metadata_server_port={ports[2]}"]
            popen, _ = self.start(f"master-{who}", argv, env)

            def ready():
                if metadata_server:
                    http_get(f"http://127.0.0.1:{ports[2]}/health")
                http_get(f"http://127.0.0.1:{ports[1]}/health")
                return raw_call(ports[0], "ServiceReady")[0] == 0

            if self.until(f"master of {who}", popen, ready):
                ports[2] = ports[2] if metadata_server else 0
                return Master(popen, *ports, lambda: self.master(who, metadata_server, args, ports[0], ports[1]))
        raise Died(f"the master of {who} does not start")

    def node(self, who, master, metadata="P2PHANDSHAKE", segment="512MB", args=(), env=None, ready=None):
        """A mooncake_client process that lends a segment. `ready` instead of one segment more at the master."""
        argv0, environment = self.program(who, "mooncake_client")
        environment.update(env or {})
        before = len(master.segments())
        for _ in range(5):
            argv = [argv0, "--host=127.0.0.1", f"--port={free_port()}", f"--global_segment_size={segment}",
                    f"--master_server_address={master.address}", f"--metadata_server={metadata}", "--protocol=tcp",
                    *args]
            if who != "ours":
                argv.append("--logtostderr=true")
            popen, _ = self.start(f"node-{who}", argv, environment)
            if self.until(f"node of {who}", popen, ready or (lambda: len(master.segments()) > before)):
                return popen
        raise Died(f"the node of {who} does not start")

    def agent(self, who, env=None):
        """A process that drives `who`: ours by ctypes, upstream's wheel, or (for measuring) our Python package in the place
        of the wheel, called by the very same lines."""
        environment = dict(os.environ)
        python = sys.executable
        if who == "ours":
            environment["MOONCAKE_LIBRARY"] = os.path.join(self.build, "lib", "libmooncake.so")
            runtime = {"address,undefined": "libasan.so", "thread": "libtsan.so"}.get(self.sanitizer)
            if runtime:
                environment["LD_PRELOAD"] = quiet(["gcc", f"-print-file-name={runtime}"]).stdout.strip()
                environment["ASAN_OPTIONS"] = "detect_leaks=0"
        elif who != PACKAGE_OF_OURS:
            installed = wheel(self.build, self.release(who))
            environment, python = dict(installed.env), installed.python
        environment.update(env or {})
        if who == PACKAGE_OF_OURS:
            environment["PYTHONPATH"] = os.pathsep.join([os.path.join(self.build, "python"),
                                                         *filter(None, [environment.get("PYTHONPATH")])])
        popen, log = self.start(f"agent-{who}", [python, os.path.join(HERE, "agent.py"), "ours" if who == "ours" else
                                                 "upstream"], environment, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        return Agent(popen, f"agent-{who}-{popen.pid}", log)

    def store(self, who, master, metadata="P2PHANDSHAKE", segment=0, buffer=160 << 20, env=None):
        """An agent with an open store client; "ours-abi" is ours through upstream's C ABI."""
        if who == "ours-abi":
            who, env = "ours", dict(env or {}, MOONCAKE_TEST_ABI="1")
        agent = self.agent(who, env)
        agent.open_store(master=master.address, metadata=metadata, segment=segment, buffer=buffer)
        return agent

    def seen_from(self, master, source):
        """The same master, reached from another (loopback) address, as a client on another machine would: a relay."""
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=relay, args=(listener, ("127.0.0.1", master.rpc), source), daemon=True).start()
        self.listeners.append(listener)
        return Master(master.popen, listener.getsockname()[1], master.admin, master.metadata_port, None)

    def engine(self, who, metadata="P2PHANDSHAKE", env=None):
        if who == "ours-abi":
            who, env = "ours", dict(env or {}, MOONCAKE_TEST_ABI="1")
        agent = self.agent(who, env)
        agent.open_engine(metadata=metadata)
        return agent


def main(*tests):
    """Runs the tests one after another; exit status for ctest."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} BUILD_DIRECTORY [TEST...]")
    wanted = sys.argv[2:]
    sys.stdout.reconfigure(line_buffering=True)
    skipped, failed, ran = [], [], 0
    for test in tests:
        if wanted and test.__name__ not in wanted:
            continue
        peers, begun, bad = Peers(sys.argv[1]), time.monotonic(), True
        try:
            test(peers)
            if peers.crashed():
                raise AssertionError(f"crashed: {peers.crashed()}")
            bad, ran = False, ran + 1
            print(f"ok    {test.__name__}  {time.monotonic() - begun:.1f} s")
        except Skip as why:
            bad = False
            skipped.append(test.__name__)
            print(f"skip  {test.__name__}: {why}")
        except Exception:
            failed.append(test.__name__)
            print(f"FAIL  {test.__name__}")
            traceback.print_exc(file=sys.stdout)
        finally:
            peers.close(bad)
    if failed:
        sys.exit(1)
    if not ran:
        sys.exit(77 if skipped else f"no test ran ({wanted})")
