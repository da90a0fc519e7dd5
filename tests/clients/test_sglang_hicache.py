#!/usr/bin/env python3
"""SGLang's HiCache backend for Mooncake, from its wheel, unchanged. `test_sglang_hicache.py BUILD 0.5.9` takes another release."""
import sys

import clients

if __name__ == "__main__":
    release = sys.argv[2] if len(sys.argv) > 2 else "0.5.23"
    sys.exit(clients.drive(sys.argv[1], f"sglang=={release}", "sglang_hicache.py", ["requests"]))
