#!/usr/bin/env python3
"""vLLM's store client for encoder outputs, from its wheel (340 MB), unchanged."""
import sys

import clients

if __name__ == "__main__":
    sys.exit(clients.drive(sys.argv[1], "vllm==0.33.0", "vllm_embedding_store.py", ["regex"]))
