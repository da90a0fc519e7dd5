"""The key-value server that engines meet at when they are given `http://host:port/metadata`, with the standard library alone.

`mooncake_master --enable_http_metadata_server=true` serves the same requests; this is the server for a cluster without a master.
A key of the engines' addresses (`rpc_meta`) can be written once: two engines that claim one name are a mistake.
"""
import argparse
import logging
import re
import signal
import sys
import threading
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Dict, Optional, Tuple
from urllib.parse import parse_qs, urlsplit

MAX_VALUE_BYTES = 64 << 20
MAX_TOTAL_BYTES = 256 << 20  # Of keys and values, as of the master's server.
MAX_KEYS = 1 << 17
MAX_CONNECTIONS = 256  # Each has a thread.
IDLE_SECONDS = 300


class KVPoll(Enum):
    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *args) -> None:
        self.room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(*args)

    def process_request(self, request, client_address) -> None:
        if self.room.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # No thread to be had.
                self.room.release()
                raise
        else:
            logging.warning("%s is hung up on: there are %d connections", client_address[0], MAX_CONNECTIONS)
            self.shutdown_request(request)

    def process_request_thread(self, request, client_address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request, client_address) -> None:
        logging.debug("%s: %s", client_address[0], sys.exc_info()[1])  # A client that went away.


class KVBootstrapServer:
    """Serves from a thread of its own between run() and close(). `store` holds what was written."""

    def __init__(self, port: int, host: str = "0.0.0.0") -> None:
        self.port = port
        self.host = host
        self.store: Dict[str, bytes] = {}
        self.total = 0  # Bytes of keys and values.
        self.lock = threading.Lock()
        self.thread: Optional[threading.Thread] = None
        self._server: Optional[_Server] = None

    def run(self) -> threading.Thread:
        self._server = _Server((self.host, self.port), self._handler())
        self.port = self._server.server_address[1]
        self.thread = threading.Thread(target=self._server.serve_forever, name="http-metadata", daemon=True)
        self.thread.start()
        logging.info("HTTP metadata server at %s:%d", self.host, self.port)
        return self.thread

    def close(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        self.thread.join()

    def poll(self) -> KVPoll:
        if self.thread is None:
            return KVPoll.Failed
        return KVPoll.Success if self._server is not None and self.thread.is_alive() else KVPoll.Failed

    @staticmethod
    def _size(key: str, value: Optional[bytes]) -> int:
        return 0 if value is None else len(key.encode()) + len(value)

    def _answer(self, method: str, key: str, body: bytes) -> Tuple[int, bytes]:
        if not key:
            return 400, b"metadata key is required"
        with self.lock:
            if method == "PUT":
                if "rpc_meta" in key and key in self.store:
                    return 400, b"Duplicate rpc_meta key not allowed"
                total = self.total + self._size(key, body) - self._size(key, self.store.get(key))
                if total > MAX_TOTAL_BYTES or (key not in self.store and len(self.store) >= MAX_KEYS):
                    return 507, b"too much metadata"
                self.store[key], self.total = body, total
                return 200, b"metadata updated"
            if method not in ("GET", "HEAD", "DELETE"):
                return 405, b"Method not allowed"
            if key not in self.store:
                return 404, b"metadata not found"
            if method == "DELETE":
                self.total -= self._size(key, self.store.pop(key))
                return 200, b"metadata deleted"
            return 200, self.store[key]

    def _handler(self):
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = IDLE_SECONDS
            disable_nagle_algorithm = True
            wbufsize = -1  # One packet for the header and the body.

            def serve(self) -> None:
                lengths = self.headers.get_all("Content-Length", ["0"])
                clear = len(lengths) == 1 and re.fullmatch("[0-9]{1,18}", lengths[0].strip(" \t")) is not None
                length = int(lengths[0]) if clear else -1
                if not 0 <= length <= MAX_VALUE_BYTES or "Transfer-Encoding" in self.headers:
                    self.close_connection = True
                    return self.reply(413 if length > 0 else 400, b"the body needs a Content-Length of at most 64 MiB")
                body = self.rfile.read(length)
                if len(body) < length:  # The client went away in the middle: what came is no value.
                    self.close_connection = True
                    return
                url = urlsplit(self.path)
                if url.path != "/metadata":
                    return self.reply(404, b"404: Not Found")
                self.reply(*owner._answer(self.command, parse_qs(url.query).get("key", [""])[0].strip(), body))

            def reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = do_PATCH = do_OPTIONS = serve

            def log_message(self, form: str, *values: object) -> None:
                logging.debug("%s " + form, self.address_string(), *values)

        return Handler


def parse_args(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The HTTP metadata server of Mooncake")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])
    return parser.parse_args(argv)


def main() -> int:
    args = parse_args()
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(levelname)s %(message)s")
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    server = KVBootstrapServer(port=args.port, host=args.host)
    try:
        server.run()
    except OSError as error:
        print(f"cannot listen on {args.host}:{args.port}: {error.strerror}", file=sys.stderr)
        return 1
    done.wait()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
