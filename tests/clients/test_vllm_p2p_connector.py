#!/usr/bin/env python3
"""vLLM's MooncakeConnector, from its wheel, unchanged."""
import sys

import clients

if __name__ == "__main__":
    requirement, packages = clients.VLLM
    sys.exit(clients.drive(sys.argv[1], requirement, "vllm_p2p_connector.py", packages))
