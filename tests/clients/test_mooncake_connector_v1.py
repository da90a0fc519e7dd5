#!/usr/bin/env python3
"""Our KV connector for vLLM (mooncake.mooncake_connector_v1) on vLLM's classes. `test_mooncake_connector_v1.py BUILD 0.12.0` takes another
release, and with one of 0.10 to 0.12 upstream's connector, from its wheel, takes part on either side."""
import os
import sys

import clients
import peers as interop

if __name__ == "__main__":
    requirement, packages = clients.VLLM
    env = {}
    if len(sys.argv) > 2:
        requirement = f"vllm=={sys.argv[2]}"
        if sys.argv[2].startswith("0.1"):
            package = os.path.abspath(interop.wheel(sys.argv[1], interop.NEWEST).package)
            env["MC_UPSTREAM_CONNECTOR"] = os.path.join(package, "mooncake_connector_v1.py")
    sys.exit(clients.drive(sys.argv[1], requirement, "mooncake_connector_v1.py", packages, env))
