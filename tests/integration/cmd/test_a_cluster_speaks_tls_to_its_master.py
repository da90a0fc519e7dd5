#!/usr/bin/env python3
"""A master with certificates for RPC and HTTP: nodes and commands that know its CA work as ever, others get a clear error and
nothing else."""
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
    stranger = mooncake("get", at, "--timeout=60s", "key", env=dict(env, MC_TLS_CA=f"{scratch}/stranger.pem"))
    check(b"certificate verify failed" in stranger.stderr, f"another CA is named: {stranger}")
    missing = mooncake("get", at, "key", env=dict(env, MC_TLS_CA=f"{scratch}/nothing.pem"))
    check(b"nothing.pem" in missing.stderr and b"No such file" in missing.stderr, f"a missing file is named: {missing}")
    check(mooncake("get", at, "key", env=env).stdout == value, "and the cluster is as it was")


def admin_and_metadata_speak_it_too(closing, scratch):
    certificates(scratch)
    files = [f"--{plane}_tls_{what}={scratch}/{file}" for plane in ("rpc", "http")
             for what, file in (("cert", "server.pem"), ("key", "server.key"), ("ca", "ca.pem"))]
    master = Master(BIN, "--enable_http_metadata_server", *files)
    closing.append(master)
    env = {"MC_TLS_CA": f"{scratch}/ca.pem", "MC_TLS_CERT": f"{scratch}/client.pem", "MC_TLS_KEY": f"{scratch}/client.key"}
    metadata = f"--metadata=https://{master.metadata}/metadata"
    node = Process([BIN / "mooncake", "node", f"--master={master.rpc}", metadata, "--segment_bytes=64MB", "--host=127.0.0.1"], env=env)
    closing.append(node)
    node.wait_for("lends")
    at, value = f"--master={master.rpc}", bytes(range(256)) * 800
    check_equal(mooncake("put", at, metadata, "key", env=env, input_bytes=value).returncode, 0, "put")
    check(mooncake("get", at, metadata, "key", env=env).stdout == value, "get returns every byte")
    for found in (at, f"--admin=https://{master.admin}"):
        stat = mooncake("stat", found, env=env)
        check(stat.returncode == 0 and b"1" in stat.stdout, f"stat by {found}: {stat}")
    plain = mooncake("stat", f"--admin={master.admin}", env=env)
    check(plain.returncode != 0 and master.admin.encode() in plain.stderr, f"plain: {plain}")
    nobody = mooncake("stat", f"--admin=https://{master.admin}", env={"MC_TLS_CA": env["MC_TLS_CA"]})
    check(nobody.returncode != 0, f"no certificate: {nobody}")
    stranger = mooncake("get", at, f"--metadata=http://{master.metadata}/metadata", "--timeout=3s", "key", env=env)
    check(stranger.returncode != 0 and stranger.stdout == b"", f"plain metadata: {stranger}")


def a_master_without_its_key_does_not_start(closing, scratch):
    certificates(scratch)
    for flags, word in (([f"--rpc_tls_cert={scratch}/server.pem"], b"go together"),
                        ([f"--rpc_tls_cert={scratch}/server.pem", f"--rpc_tls_key={scratch}/client.key"], b"client.key"),
                        ([f"--http_tls_cert={scratch}/server.pem"], b"go together"),
                        ([f"--http_tls_cert={scratch}/none.pem", f"--http_tls_key={scratch}/server.key"], b"none.pem"),
                        ([f"--rpc_tls_cert={scratch}/none.pem", f"--rpc_tls_key={scratch}/server.key"], b"none.pem")):
        answer = run([BIN / "mooncake_master", "--port=0", "--metrics_port=0", *flags], timeout=20)
        check(answer.returncode == 1 and word in answer.stderr, f"{flags}: {answer}")


try:
    subprocess.run(["openssl", "version"], check=True, capture_output=True)
except (OSError, subprocess.CalledProcessError):
    print("skipped: no openssl program to make certificates with")
    sys.exit(77)
main(everything_works_for_who_may, admin_and_metadata_speak_it_too, a_master_without_its_key_does_not_start)
