"""The modules around the store: configuration, HTTP metadata server, REST service. The last two run as their commands do."""
import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from unittest import mock

from base import MASTER, MIB, ours_only, pattern
from mooncake import mooncake_config
from mooncake.mooncake_config import MooncakeConfig

# Where aiohttp is, for an interpreter that has none of its own.
SITE = os.environ.get("MC_CONTRACT_SITE", "")
NEEDED = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": MASTER}


def need_aiohttp(test):
    try:
        sys.path.append(SITE)
        import aiohttp  # noqa: F401
    except ImportError:
        test.skipTest("no aiohttp")
    finally:
        sys.path.remove(SITE)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def ask(method, url, body=None):
    """(status, body) of a request, also of one that is refused."""
    request = urllib.request.Request(url, data=body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@contextlib.contextmanager
def command(module, *argv):
    """`python -m mooncake.MODULE`, once it listens at the port that is yielded; SIGTERM has to end it."""
    port = free_port()
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), SITE])))
    popen = subprocess.Popen([sys.executable, "-m", f"mooncake.{module}", f"--port={port}", *argv], env=env,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        for _ in range(600):
            if popen.poll() is not None:
                raise AssertionError(popen.stdout.read().decode())
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        popen.send_signal(signal.SIGTERM)
        code = popen.wait(30)
        if code:
            raise AssertionError(f"{module} ended with {code}: {popen.stdout.read().decode()[-2000:]}")
    finally:
        popen.kill()
        popen.wait()
        popen.stdout.close()


class Configuration(unittest.TestCase):
    def config(self, **fields):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({**NEEDED, **fields}, file)
            file.flush()
            return MooncakeConfig.from_file(file.name)

    def test_defaults(self):
        config = self.config()
        self.assertEqual((config.global_segment_size, config.local_buffer_size, config.protocol, config.device_name),
                         (3355443200, 1 << 30, "tcp", ""))
        self.assertEqual((config.enable_ssd_offload, config.ssd_offload_path, config.tenant_id,
                          config.enable_client_http_server, config.client_http_port), (False, "", "default", False, 9300))

    def test_sizes(self):
        parse = mooncake_config._parse_segment_size
        for text, size in ((7, 7), ("7", 7), ("1.5KB", 1536), (" 2 gb ", 2 << 30), ("3t", 3 << 40), ("8B", 8), ("1e3", 1000),
                           ("4M", 4 << 20)):
            self.assertEqual(parse(text), size, text)
        for text in ("", "gb", "five", "1x", "-"):
            with self.assertRaises(ValueError, msg=text):
                parse(text)

    def test_words(self):
        for word, value in (("true", True), ("ON", True), (" yes ", True), ("enable", True), ("false", False), ("off", False),
                            ("", False), (None, False), (2, True)):
            self.assertIs(mooncake_config._parse_bool(word), value, word)
        with self.assertRaisesRegex(ValueError, "maybe"):
            mooncake_config._parse_bool("maybe")

    def test_what_is_refused(self):
        with self.assertRaisesRegex(ValueError, "protocol"):
            self.config(protocol=" ")
        with self.assertRaisesRegex(ValueError, "global_segment_size"):
            self.config(global_segment_size=-1)
        with self.assertRaisesRegex(ValueError, "local_hostname"):
            self.config(local_hostname="")
        with self.assertRaisesRegex(ValueError, "enabled?|boolean"):
            self.config(enable_ssd_offload="perhaps")
        self.assertEqual(self.config(protocol=" RDMA ").protocol, "rdma")
        self.assertEqual(self.config(protocol="pigeon").protocol, "pigeon")
        for name in NEEDED:
            with tempfile.NamedTemporaryFile("w") as file:
                json.dump({k: v for k, v in NEEDED.items() if k != name}, file)
                file.flush()
                with self.assertRaisesRegex(ValueError, f"Missing required config field: {name}"):
                    MooncakeConfig.from_file(file.name)

    def test_environment(self):
        with mock.patch.dict(os.environ, clear=True):
            with self.assertRaisesRegex(ValueError, "MOONCAKE_CONFIG_PATH.*MOONCAKE_MASTER"):
                MooncakeConfig.load_from_env()
            os.environ.update(MOONCAKE_MASTER="h:1", MOONCAKE_GLOBAL_SEGMENT_SIZE="1gb", MOONCAKE_OFFLOAD_ENABLED="yes",
                              MOONCAKE_CLIENT_HTTP_PORT="1234", MOONCAKE_TENANT_ID="t", MOONCAKE_DEVICE="mlx5_0")
            config = MooncakeConfig.load_from_env()
        self.assertEqual((config.master_server_address, config.local_hostname, config.metadata_server), ("h:1", "localhost",
                                                                                                         "P2PHANDSHAKE"))
        self.assertEqual((config.global_segment_size, config.enable_ssd_offload, config.client_http_port, config.tenant_id,
                          config.device_name), (1 << 30, True, 1234, "t", "mlx5_0"))
        with tempfile.NamedTemporaryFile("w") as file, mock.patch.dict(os.environ, MOONCAKE_CONFIG_PATH=file.name):
            json.dump({**NEEDED, "local_buffer_size": "16MB"}, file)
            file.flush()
            self.assertEqual(MooncakeConfig.load_from_env().local_buffer_size, 16 * MIB)


class MetadataServer(unittest.TestCase):
    def test_requests(self):
        with command("http_metadata_server", "--host=127.0.0.1", "--log-level=ERROR") as url:
            url += "/metadata"
            self.assertEqual(ask("GET", f"{url}?key=a%2Fb"), (404, b"metadata not found"))
            value = pattern(100000)
            self.assertEqual(ask("PUT", f"{url}?key=a%2Fb", value), (200, b"metadata updated"))
            self.assertEqual(ask("GET", f"{url}?key=a/b"), (200, value))
            self.assertEqual(ask("PUT", f"{url}?key=a%2Fb", b"{}"), (200, b"metadata updated"))
            self.assertEqual(ask("GET", f"{url}?key=%20a/b"), (200, b"{}"))
            self.assertEqual(ask("DELETE", f"{url}?key=a/b"), (200, b"metadata deleted"))
            self.assertEqual(ask("DELETE", f"{url}?key=a/b"), (404, b"metadata not found"))
            self.assertEqual(ask("PUT", f"{url}?key=rpc_meta/x", b"1"), (200, b"metadata updated"))
            self.assertEqual(ask("PUT", f"{url}?key=rpc_meta/x", b"2"), (400, b"Duplicate rpc_meta key not allowed"))
            self.assertEqual(ask("GET", url), (400, b"metadata key is required"))
            self.assertEqual(ask("POST", f"{url}?key=a", b"1"), (405, b"Method not allowed"))
            self.assertEqual(ask("GET", url.replace("/metadata", "/other"))[0], 404)

    @ours_only("it keeps what came, without a limit")
    def test_a_body_that_ends_early_is_no_value(self):
        with command("http_metadata_server", "--host=127.0.0.1", "--log-level=ERROR") as url:
            port = int(url.rsplit(":", 1)[1])

            def raw(text):
                with socket.create_connection(("127.0.0.1", port), 30) as sock:
                    sock.sendall(text)
                    sock.shutdown(socket.SHUT_WR)
                    return b"".join(iter(lambda: sock.recv(4096), b""))
            head = b"PUT /metadata?key=k HTTP/1.1\r\nHost: x\r\n"
            self.assertEqual(raw(head + b"Content-Length: 10\r\n\r\nabc"), b"")
            self.assertEqual(ask("GET", f"{url}/metadata?key=k")[0], 404)
            for lengths in (b"1\r\nContent-Length: 40", b"+1", b"1_0", b"-1", b"0x1", b"", b"1, 1", b"9" * 30):
                answer = raw(head + b"Content-Length: " + lengths + b"\r\n\r\nGET /metadata?key=k HTTP/1.1\r\n\r\n")
                self.assertRegex(answer, rb"\AHTTP/1.1 4\d\d ")
                self.assertEqual(answer.count(b"HTTP/1.1"), 1, lengths)
            self.assertEqual(ask("PUT", f"{url}/metadata?key=k", b"v"), (200, b"metadata updated"))

    @ours_only("it keeps what came, without a limit")
    def test_the_store_has_limits(self):
        from mooncake import http_metadata_server as module
        server = module.KVBootstrapServer(0)
        with mock.patch.multiple(module, MAX_KEYS=2, MAX_TOTAL_BYTES=20):
            self.assertEqual(server._answer("PUT", "a", b"x" * 10)[0], 200)
            self.assertEqual(server._answer("PUT", "b", b"x" * 9)[0], 507)
            self.assertEqual(server._answer("PUT", "b", b"x")[0], 200)
            self.assertEqual(server._answer("PUT", "c", b"")[0], 507)
            self.assertEqual(server._answer("PUT", "a", b"x" * 17)[0], 200)
            self.assertEqual(server._answer("DELETE", "a", b"")[0], 200)
            self.assertEqual(server._answer("PUT", "c", b"x" * 17)[0], 200)

    def test_two_engines_meet(self):
        import mooncake.engine
        with command("http_metadata_server", "--host=127.0.0.1", "--log-level=ERROR") as url:
            engines = [mooncake.engine.TransferEngine() for _ in range(2)]
            names = [f"127.0.0.1:{free_port()}" for _ in engines]
            for engine, name in zip(engines, names):
                self.assertEqual(engine.initialize(name, f"{url}/metadata", "tcp", ""), 0)
            source, target = (engine.allocate_managed_buffer(4096) for engine in engines)
            self.assertEqual(engines[0].write_bytes_to_buffer(source, b"over the server", 15), 0)
            self.assertEqual(engines[0].transfer_sync_write(names[1], source, target, 15), 0)
            self.assertEqual(engines[1].read_bytes_from_buffer(target, 15), b"over the server")
            del engine, engines


class Rest(unittest.TestCase):
    def call(self, method, path, body=None):
        status, answer = ask(method, self.url + path, None if body is None else
                             body if isinstance(body, bytes) else json.dumps(body).encode())
        return status, json.loads(answer)

    def setUp(self):
        need_aiohttp(self)
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".json"))
        json.dump({**NEEDED, "global_segment_size": "64MB", "local_buffer_size": "16MB"}, file)
        file.flush()
        self.url = stack.enter_context(command("mooncake_store_service", f"--config={file.name}", "-Dlocal_buffer_size=32MB"))

    def test_objects(self):
        self.assertEqual(self.call("DELETE", "/api/remove_all")[0], 200)
        self.assertEqual(self.call("PUT", "/api/put", {"key": "rest", "value": "wörter"}), (200, {"status": "success"}))
        self.assertEqual(ask("GET", f"{self.url}/api/get/rest"), (200, "wörter".encode()))
        self.assertEqual(self.call("GET", "/api/exist/rest"), (200, {"exists": True}))
        self.assertEqual(self.call("GET", "/api/exist/none"), (200, {"exists": False}))
        self.assertEqual(self.call("GET", "/api/get/none"), (404, {"error": "Key not found"}))
        self.assertEqual(self.call("PUT", "/api/put", {"key": "rest"}), (400, {"error": "Missing key or value"}))
        self.assertEqual(self.call("PUT", "/api/put", b"{")[0], 500)
        self.assertEqual(self.call("DELETE", "/api/remove/none"), (500, {"error": "Remove operation failed"}))
        self.assertEqual(self.call("PUT", "/api/put", {"key": "unread", "value": "x"})[0], 200)
        self.assertEqual(self.call("DELETE", "/api/remove/unread"), (200, {"status": "success"}))
        self.assertEqual(self.call("DELETE", "/api/remove_all"), (200, {"status": "success removed 0 keys"}))

    @ours_only("lives and conditions are ours")
    def test_terms(self):
        put = lambda **more: self.call("PUT", "/api/put", {"key": "terms", "value": "x", **more})
        self.assertEqual(put(ttl_ms=60000, if_absent=True), (200, {"status": "success"}))
        self.assertEqual(put(if_absent=True), (409, {"error": "Key exists"}))
        info = self.call("GET", "/api/inspect/terms")[1]
        self.assertTrue(0 < info["ttl_ms"] <= 60000 and info["size"] == 1, info)
        self.assertEqual(put(if_version=info["version"], value="longer")[0], 200)
        self.assertEqual(ask("GET", f"{self.url}/api/get/terms"), (200, b"longer"))
        self.assertEqual(put(if_version=info["version"])[0], 409)
        self.assertEqual(self.call("GET", "/api/inspect/none"), (404, {"error": "Key not found"}))
        for wrong in ({"ttl_ms": "1"}, {"ttl_ms": -1}, {"if_absent": 1}, {"if_absent": True, "if_version": 1}):
            self.assertEqual(put(**wrong)[0], 400, wrong)
        self.assertEqual(self.call("PUT", "/api/put", {"key": "nobody", "value": "x", "if_version": 5})[0], 404)

    def test_segments(self):
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            os.truncate(file.name, 32 * MIB)
            name = os.path.basename(file.name)
            bad = {"error": "Missing or invalid name or size"}
            for body in ({}, {"name": name}, {"name": "../x", "size": 1}, {"name": "..", "size": 1}):
                self.assertEqual(self.call("POST", "/api/mount_shm", body), (400, bad))
            self.assertEqual(self.call("POST", "/api/mount_shm", {"name": "absent" + name, "size": 32 * MIB})[0], 500)
            status, answer = self.call("POST", "/api/mount_shm", {"name": "/" + name, "size": 32 * MIB})
            self.assertEqual((status, answer["status"], len(answer["segment_ids"])), (200, "success", 1))
            ids = answer["segment_ids"]
            self.assertEqual(self.call("POST", "/api/unmount_shm", {}), (400, {"error": "Missing segment_ids"}))
            self.assertEqual(self.call("POST", "/api/unmount_shm", {"segment_ids": ids[0]}), (200, {"status": "success"}))
            self.assertEqual(self.call("POST", "/api/unmount_shm", {"segment_ids": ids}), (500, {
                "error": "Unmount failed for one or more segments", "failed_segment_ids": ids}))

            prefill = {"status": "success", "mode": "prefill"}
            self.assertEqual(self.call("POST", "/api/reconfigure", {"mode": "x"}),
                             (400, {"error": "Invalid mode. Use 'decode' or 'prefill'"}))
            self.assertEqual(self.call("POST", "/api/reconfigure", {"mode": "decode"}),
                             (400, {"error": "Missing path or size for decode mode"}))
            status, answer = self.call("POST", "/api/reconfigure", {"mode": "decode", "path": file.name, "size": 32 * MIB})
            self.assertEqual((status, answer["mode"], len(answer["segment_ids"])), (200, "decode", 1))
            status, answer = self.call("POST", "/api/reconfigure", {"mode": "decode", "path": "/absent", "size": 32 * MIB})
            self.assertEqual((status, answer["mode"]), (500, "decode"))
            self.assertIn("keeping previous decode segments", answer["error"])
            self.assertEqual(self.call("POST", "/api/reconfigure", {"mode": "prefill"}), (200, prefill))

        for size in (0, -1, "1", True, None):
            self.assertEqual(self.call("POST", "/api/mount", {"size": size}),
                             (400, {"error": "Invalid size, must be a positive integer"}))
        status, answer = self.call("POST", "/api/mount", {"size": 20 * MIB})
        self.assertEqual((status, answer["allocated_size"], len(answer["segment_ids"])), (200, 32 * MIB, 1))
        self.assertEqual(self.call("POST", "/api/unmount", {"segment_ids": answer["segment_ids"]}), (200, {"status": "success"}))
        self.assertEqual(self.call("POST", "/api/unmount", {"segment_ids": answer["segment_ids"]})[0], 500)

        self.assertEqual(self.call("POST", "/api/unmount_local_disk", b"{"), (400, {"error": "Malformed JSON body"}))
        self.assertEqual(self.call("POST", "/api/unmount_local_disk", []),
                         (400, {"error": "Request body must be a JSON object"}))
        for grace in (-1, 3601, "1", True):
            self.assertEqual(self.call("POST", "/api/unmount_local_disk", {"grace_period_seconds": grace})[0], 400)
        self.assertEqual(self.call("POST", "/api/unmount_local_disk", {}), (200, {"status": "success"}))

class Engines(http.server.BaseHTTPRequestHandler):
    """Stands in for a prefill and a decode engine: says on the former where blocks are, and on the latter what it was told."""

    seen, refuse = [], 0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.server.name, self.path, body, dict(self.headers)))
        if self.refuse:
            self.send_response(self.refuse)
            self.end_headers()
            self.wfile.write(b"no")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
        self.end_headers()
        if self.server.name.startswith("prefill"):
            self.wfile.write(json.dumps({"kv_transfer_params": {"remote_host": self.server.name}}).encode())
        else:
            for piece in range(3):
                self.wfile.write(f"data: {piece} of {self.server.name}\n\n".encode())
                self.wfile.flush()

    def log_message(self, *_):
        pass


class Proxy(unittest.TestCase):
    def engine(self, name):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engines)
        server.name = name
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return str(server.server_port)

    @ours_only("upstream's proxy needs fastapi, httpx and uvicorn; it answers 500 to whatever goes wrong")
    def test_a_prefill_and_a_decode_engine_answer_a_request(self):
        need_aiohttp(self)
        Engines.seen, Engines.refuse = [], 0
        prefills, decodes = ([self.engine(f"{kind}{i}") for i in range(2)] for kind in ("prefill", "decode"))
        argv = ["--prefiller-hosts", *["127.0.0.1"] * 2, "--prefiller-ports", *prefills, "--decoder-hosts", *["127.0.0.1"] * 2,
                "--decoder-ports", *decodes]
        with command("vllm_v1_proxy_server", *argv) as url:
            self.assertEqual(json.loads(ask("GET", f"{url}/healthcheck")[1]),
                             {"status": "ok", "prefill_instances": 2, "decode_instances": 2})
            for turn in range(3):
                sent = {"model": "m", "prompt": "x", "max_tokens": 9, "min_tokens": 5, "max_completion_tokens": 9, "stream": True,
                        "stream_options": {"include_usage": True}}
                path = "/v1/chat/completions" if turn else "/v1/completions"
                status, body = ask("POST", url + path, json.dumps(sent).encode())
                self.assertEqual((status, body.decode()),
                                 (200, "".join(f"data: {piece} of decode{turn % 2}\n\n" for piece in range(3))))
                (first, there, asked, headers), (second, _, told, more) = Engines.seen[-2:]
                self.assertEqual((first, second, there), (f"prefill{turn % 2}", f"decode{turn % 2}", path))
                self.assertEqual((asked["stream"], asked["max_tokens"], asked["max_completion_tokens"], asked["min_tokens"]),
                                 (False, 1, 1, 1))
                self.assertTrue(asked["kv_transfer_params"]["do_remote_decode"])
                self.assertNotIn("stream_options", asked)
                self.assertEqual(told, {**sent, "kv_transfer_params": {"remote_host": first}})
                self.assertEqual(headers["X-Request-Id"], more["X-Request-Id"])
            for wrong in (b"", b"[]", b"{"):
                self.assertEqual(ask("POST", f"{url}/v1/completions", wrong)[0], 400)
            Engines.refuse = 429
            self.assertEqual(ask("POST", f"{url}/v1/completions", b"{}"), (429, b"no"))
        with command("vllm_v1_proxy_server", "--prefiller-host", "127.0.0.1", "--prefiller-port", str(free_port())) as url:
            status, body = ask("POST", f"{url}/v1/completions", b"{}")
            self.assertEqual(status, 502)
            self.assertIn("cannot be reached", json.loads(body)["error"])
