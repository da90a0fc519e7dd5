"""Starting the programs from Python tests: a master on ports that the kernel chooses, nodes, HTTP, and checks that say what
differed. A test is a script that gets the build folder as its argument and exits 0, 1, or 77 for "skipped".
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request


def bin_dir(argv=None):
    return pathlib.Path((argv or sys.argv)[1]).resolve() / "bin"


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def check_equal(got, want, what):
    check(got == want, f"{what}: got {got!r}, want {want!r}")


class Process:
    """A program whose output goes to a file, so that it never blocks and can be read at any time."""

    def __init__(self, args, env=None):
        self.log = tempfile.NamedTemporaryFile(prefix="mc_test_", suffix=".log", delete=False)
        full_env = dict(os.environ, MC_LOG_LEVEL="INFO")
        full_env.update(env or {})
        self.process = subprocess.Popen([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT, env=full_env)

    def output(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def wait_for(self, pattern, timeout=120):
        """The match of a line of the output; fails when the process ends or the time is over."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            match = re.search(pattern, self.output(), re.MULTILINE)
            if match:
                return match
            if self.process.poll() is not None:
                match = re.search(pattern, self.output(), re.MULTILINE)
                check(match, f"ended with {self.process.returncode} before '{pattern}':\n{self.output()}")
                return match
            time.sleep(0.01)
        raise AssertionError(f"no '{pattern}' within {timeout} s:\n{self.output()}")

    def stop(self, number=15, timeout=120):
        """Sends the signal (0 = none), waits; the exit status."""
        if number and self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not end within {timeout} s after signal {number}:\n{self.output()}")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()
        os.unlink(self.log.name)


class Master(Process):
    def __init__(self, build_bin, *flags, program="mooncake_master"):
        super().__init__([build_bin / program, "--port=0", "--metrics_port=0", "--http_metadata_server_port=0",
                          "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1",
                          "--http_metadata_server_host=127.0.0.1", *flags])
        ready = self.wait_for(r"master ready rpc=\S+:(\d+) .*admin=\S+:(\d+)(?: metadata=\S+:(\d+))?")
        self.rpc = f"127.0.0.1:{ready.group(1)}"
        self.admin = f"127.0.0.1:{ready.group(2)}"
        self.metadata = f"127.0.0.1:{ready.group(3)}" if ready.group(3) else None


class Node(Process):
    def __init__(self, build_bin, master, size="64MB", *flags):
        super().__init__([build_bin / "mooncake", "node", f"--master={master.rpc}", f"--segment_bytes={size}",
                          "--host=127.0.0.1", *flags])
        self.name = self.wait_for(r"^node (\S+) lends").group(1)


def http(method, address, path, body=None):
    """(status, content type, body text) of one request."""
    request = urllib.request.Request(f"http://{address}{path}", method=method,
                                     data=body.encode() if body is not None else None)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers.get("Content-Type"), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Content-Type"), error.read().decode()


def has_openssl():
    return shutil.which("openssl") is not None


def certificates(folder):
    """Makes, with the openssl program: a CA ("ca"), and signed by it "server" and "client" (both for 127.0.0.1); and another
    CA, "stranger", that signed nothing. NAME.pem and NAME.key in the folder."""
    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for ca in ("ca", "stranger"):
        openssl("req", "-x509", *key, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}", "-days", "2")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.req", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.req", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", "ext", "-out", f"{name}.pem")


def tls_environment(folder, name="server", **more):
    """What a process needs to show NAME's certificate and to believe the CA's."""
    return {"MC_TLS_CA": f"{folder}/ca.pem", "MC_TLS_CERT": f"{folder}/{name}.pem", "MC_TLS_KEY": f"{folder}/{name}.key", **more}


def run(args, input_bytes=None, timeout=300, env=None):
    """Runs a program to its end; the CompletedProcess with bytes."""
    return subprocess.run([str(a) for a in args], input=input_bytes, capture_output=True, timeout=timeout,
                          env=dict(os.environ, **(env or {})))


def main(*tests):
    """Runs the functions in order, each with a stack of things to close; the exit status of the script."""
    failed = 0
    for test in tests:
        closing, scratch = [], pathlib.Path(tempfile.mkdtemp(prefix="mc_test_"))
        try:
            test(closing, scratch)
            print(f"ok      {test.__name__}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {test.__name__}", flush=True)
            traceback.print_exc()
            for thing in closing:
                print("---- output of", thing.process.args[0], "\n" + thing.output(), flush=True)
        finally:
            for thing in reversed(closing):
                thing.close()
            shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(1 if failed else 0)
