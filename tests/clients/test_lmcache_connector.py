#!/usr/bin/env python3
"""LMCache's Mooncake connector, from its wheel, unchanged."""
import sys

import clients

PACKAGES = ["aiofile", "aiofiles", "aiohttp", "cachetools", "cryptography", "httpx", "msgspec", "numba", "orjson",
            "prometheus_client", "psutil", "py-cpuinfo", "pyyaml", "pyzmq", "redis", "requests", "sortedcontainers", "xxhash"]

if __name__ == "__main__":
    sys.exit(clients.drive(sys.argv[1], "lmcache==0.5.6", "lmcache_connector.py", PACKAGES))
