#!/usr/bin/env python3
"""vLLM's own scheduler on its two Mooncake connectors, from its wheel, unchanged."""
import sys

import clients

if __name__ == "__main__":
    requirement, packages = clients.VLLM
    sys.exit(clients.drive(sys.argv[1], requirement, "vllm_schedulers.py", packages))
