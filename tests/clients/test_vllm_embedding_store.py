#!/usr/bin/env python3
"""vLLM's store client for encoder outputs, from its wheel, unchanged."""
import sys

import clients

if __name__ == "__main__":
    requirement, packages = clients.VLLM
    sys.exit(clients.drive(sys.argv[1], requirement, "vllm_embedding_store.py", packages))
