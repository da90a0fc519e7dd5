#!/usr/bin/env python3
"""SGLang's HiCache backend for Mooncake, from its wheel, unchanged."""
import sys

import clients

if __name__ == "__main__":
    sys.exit(clients.drive(sys.argv[1], "sglang==0.5.23", "sglang_hicache.py", ["requests"]))
