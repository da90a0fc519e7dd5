#!/usr/bin/env python3
"""A master with --tenant_quota_connector_type=etcd keeps the quotas of tenants in a real etcd, under upstream's key and in its
words: what one master is told, the next one knows; what cannot be read or reached ends the start with a reason."""
import base64
import json
import pathlib
import shutil
import socket
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Process, bin_dir, check, check_equal, http, main  # noqa: E402

BIN = bin_dir()
KEY = "mooncake-store/quota-test/tenant_quota_policy"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_etcd(scratch):
    """Its ports may be taken between being found and being used: then again."""
    for attempt in range(5):
        etcd = Etcd(scratch / f"etcd-{attempt}")
        if etcd.ready():
            return etcd
        etcd.close()
    raise AssertionError("etcd does not start")


class Etcd(Process):
    def __init__(self, folder):
        client, peer = free_port(), free_port()
        self.address = f"127.0.0.1:{client}"
        url, peer_url = f"http://{self.address}", f"http://127.0.0.1:{peer}"
        super().__init__([shutil.which("etcd"), "--name", "test", "--data-dir", folder, "--listen-client-urls", url,
                          "--advertise-client-urls", url, "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls",
                          peer_url, "--initial-cluster", f"test={peer_url}"])

    def ready(self):
        until = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < until:
            try:
                self.get(KEY)
                return True
            except OSError:
                time.sleep(0.05)
        return False

    def call(self, verb, **body):
        coded = {name: base64.b64encode(text.encode()).decode() for name, text in body.items()}
        request = urllib.request.Request(f"http://{self.address}/v3/kv/{verb}", json.dumps(coded).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def get(self, key):
        found = self.call("range", key=key).get("kvs")
        return base64.b64decode(found[0]["value"]).decode() if found else None

    def put(self, key, text):
        self.call("put", key=key, value=text)


def flags(etcd):
    return ("--enable_multi_tenants", "--cluster_id=quota-test", "--tenant_quota_connector_type=etcd",
            f"--tenant_quota_connector_uri={etcd}")


def quotas(master):
    status, _, body = http("GET", master.admin, "/api/v1/tenant_quotas")
    check_equal(status, 200, body)
    return {one["tenant_id"]: one["requested_quota_bytes"] for one in json.loads(body)["data"]}


def quotas_outlive_the_master(closing, scratch):
    closing.append(etcd := start_etcd(scratch))
    closing.append(master := Master(BIN, *flags(etcd.address)))
    check_equal(quotas(master), {}, "no key is a policy without tenants")
    for name, size in (("team-a", 1 << 30), ("team-b", 5)):
        status, _, body = http("PUT", master.admin, f"/api/v1/tenant_quotas?tenant_id={name}",
                               json.dumps({"requested_quota_bytes": size}))
        check_equal(status, 200, body)
    text = etcd.get(KEY)
    check_equal(text, 'version: 1\n\ntenants:\n  - name: "team-a"\n    quota: 1073741824\n  - name: "team-b"\n    quota: 5\n',
                "what is in etcd")
    check_equal(master.stop(), 0, "the master's end")
    etcd.put(KEY, text.replace("quota: 5", "quota: 7MB"))
    closing.append(second := Master(BIN, *flags("etcd://" + etcd.address)))
    check_equal(quotas(second), {"team-a": 1 << 30, "team-b": 7 << 20}, "quotas of the second master")
    check_equal(http("DELETE", second.admin, "/api/v1/tenant_quotas?tenant_id=team-a")[0], 200, "DELETE")
    check("team-a" not in etcd.get(KEY), "a quota that was deleted is still in etcd")
    etcd.stop()
    status, _, body = http("PUT", second.admin, "/api/v1/tenant_quotas?tenant_id=team-c", '{"requested_quota_bytes":1}')
    check_equal(status, 500, f"a quota that etcd did not take: {body}")
    check("team-c" not in quotas(second), "a quota that was not kept counts all the same")


def a_start_that_cannot_read_them_ends(closing, scratch):
    closing.append(etcd := start_etcd(scratch))
    etcd.put(KEY, "version: 2\n")
    for address, word in ((etcd.address, "version must be 1"), (f"127.0.0.1:{free_port()}", "etcd"), ("nonsense:x", "etcd")):
        failed = Process([BIN / "mooncake_master", "--port=0", "--metrics_port=0", *flags(address)])
        closing.append(failed)
        check(failed.stop(0) != 0 and word in failed.output(), f"{address}: {failed.output()}")


if shutil.which("etcd") is None:
    print("skipped: there is no etcd")
    sys.exit(77)
main(quotas_outlive_the_master, a_start_that_cannot_read_them_ends)
