#!/usr/bin/env python3
"""A master with a certificate: nodes and commands that know its CA work as ever, others get a clear error and nothing else."""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from programs import Master, Process, bin_dir, check, check_equal, main, run  # noqa: E402

BIN = bin_dir()


def openssl(folder, *args):
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


def certificates(folder):
    for ca in ("ca", "stranger"):
        openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{ca}.key", "-out", f"{ca}.pem",
                "-subj", f"/CN={ca}", "-days", "2")
    for name in ("server", "client"):
        openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.req", "-subj", f"/CN={name}")
        (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl(folder, "x509", "-req", "-in", f"{name}.req", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", "ext", "-out", f"{name}.pem")


def mooncake(*args, env, input_bytes=None):
    return run([BIN / "mooncake", *args], input_bytes=input_bytes, env=env)


def everything_works_for_who_may(closing, scratch):
    certificates(scratch)
    master = Master(BIN, f"--rpc_tls_cert={scratch}/server.pem", f"--rpc_tls_key={scratch}/server.key", f"--rpc_tls_ca={scratch}/ca.pem")
    closing.append(master)
    env = {"MC_TLS_CA": f"{scratch}/ca.pem", "MC_TLS_CERT": f"{scratch}/client.pem", "MC_TLS_KEY": f"{scratch}/client.key"}
    node = Process([BIN / "mooncake", "node", f"--master={master.rpc}", "--segment_bytes=64MB", "--host=127.0.0.1"], env=env)
    closing.append(node)
    node.wait_for("lends")
    at, value = f"--master={master.rpc}", bytes(range(256)) * 8000
    check_equal(mooncake("put", at, "key", env=env, input_bytes=value).returncode, 0, "put")
    check(mooncake("get", at, "key", env=env).stdout == value, "get returns every byte")
    check_equal(mooncake("ls", at, env=env).stdout, b"key\n", "ls")
    bench = mooncake("bench", at, "--value_bytes=10000", "--batch=16", "--threads=4", "--count=20", env=env)
    check(bench.returncode == 0, f"bench: {bench}")
    for what, wrong in (("plain", {}), ("no certificate", {"MC_TLS_CA": env["MC_TLS_CA"]}),
                        ("another CA", dict(env, MC_TLS_CA=f"{scratch}/stranger.pem"))):
        answer = mooncake("get", at, "--timeout=3s", "key", env=wrong)
        check(answer.returncode == 1 and answer.stdout == b"", f"{what}: {answer}")
    stranger = mooncake("get", at, "--timeout=3s", "key", env=dict(env, MC_TLS_CA=f"{scratch}/stranger.pem"))
    check(b"certificate verify failed" in stranger.stderr, f"another CA is named: {stranger}")
    missing = mooncake("get", at, "key", env=dict(env, MC_TLS_CA=f"{scratch}/nothing.pem"))
    check(b"nothing.pem" in missing.stderr and b"No such file" in missing.stderr, f"a missing file is named: {missing}")
    check(mooncake("get", at, "key", env=env).stdout == value, "and the cluster is as it was")


def a_master_without_its_key_does_not_start(closing, scratch):
    certificates(scratch)
    for flags, word in (([f"--rpc_tls_cert={scratch}/server.pem"], b"go together"),
                        ([f"--rpc_tls_cert={scratch}/server.pem", f"--rpc_tls_key={scratch}/client.key"], b"client.key"),
                        ([f"--rpc_tls_cert={scratch}/none.pem", f"--rpc_tls_key={scratch}/server.key"], b"none.pem")):
        answer = run([BIN / "mooncake_master", "--port=0", "--metrics_port=0", *flags], timeout=20)
        check(answer.returncode == 1 and word in answer.stderr, f"{flags}: {answer}")


try:
    subprocess.run(["openssl", "version"], check=True, capture_output=True)
except (OSError, subprocess.CalledProcessError):
    print("skipped: no openssl program to make certificates with")
    sys.exit(77)
main(everything_works_for_who_may, a_master_without_its_key_does_not_start)
