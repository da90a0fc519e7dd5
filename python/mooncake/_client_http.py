"""The HTTP server of a store that was set up with enable_client_http_server=True: upstream's three routes, /health, /metrics and
/metrics/summary. Its thread looks five times a second whether the store is still open, and holds it no longer than that takes."""
import http.server
import os
import threading
import time
import warnings
import weakref

LOOK_S = 0.2
BIND_TRIES = 10  # A server of a store that was just closed may have the port for another LOOK_S.


def _answer(store, path):
    """(status, type, text)."""
    if path == "/health":
        well = store.health_check() == 0
        return (200 if well else 503, "application/json",
                '{"status":"%s","code":%d}' % (("healthy", 0) if well else ("unhealthy", -900)))
    if path not in ("/metrics", "/metrics/summary"):
        return 404, "text/plain", "404 Not Found"
    if os.environ.get("MC_STORE_CLIENT_METRIC", "1").lower() in ("0", "false", "off", "no"):
        return 503, "text/plain", "metrics not available"
    text = store.metrics()
    if path == "/metrics":
        return 200, "text/plain; version=0.0.4", text
    return 200, "text/plain", "".join(line for line in text.splitlines(True) if not line.startswith("#"))


def _handler(reference):
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10  # Of a peer that connects and says nothing.

        def do_GET(self):
            store = reference()
            status, kind, text = (503, "text/plain", "closed") if store is None else _answer(store, self.path)
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass
    return Handler


def _run(server, reference):
    def is_open():
        store = reference()
        return store is not None and store.health_check() != 1
    with server:
        while is_open():
            server.handle_request()


def serve(store, port):
    """Serves until the store closes. A port that is taken is a warning: the store works without."""
    reference = weakref.ref(store)
    for left in reversed(range(BIND_TRIES)):
        try:
            server = http.server.ThreadingHTTPServer(("", port), _handler(reference))
            break
        except (OSError, OverflowError) as error:
            if not left or isinstance(error, OverflowError):
                warnings.warn(f"mooncake: no HTTP server at port {port}: {error}", RuntimeWarning, stacklevel=2)
                return
            time.sleep(LOOK_S / 2)
    server.timeout, server.daemon_threads = LOOK_S, True
    threading.Thread(target=_run, args=(server, reference), name="mooncake-http", daemon=True).start()
