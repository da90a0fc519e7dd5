#!/usr/bin/env python3
"""LMCache's Mooncake connector, from its wheel, unchanged. `test_lmcache_connector.py BUILD 0.5.0` takes another release."""
import sys

import clients

PACKAGES = ["aiofile", "aiofiles", "aiohttp", "cachetools", "cryptography", "httpx", "msgspec", "numba", "orjson",
            "prometheus_client", "psutil", "py-cpuinfo", "pyyaml", "pyzmq", "redis", "requests", "sortedcontainers", "xxhash"]

if __name__ == "__main__":
    release = sys.argv[2] if len(sys.argv) > 2 else "0.5.6"
    sys.exit(clients.drive(sys.argv[1], f"lmcache=={release}", "lmcache_connector.py", PACKAGES))
