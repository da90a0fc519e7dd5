#!/usr/bin/env python3
import sys

import clients

if __name__ == "__main__":
    # It knows RDMA only, and asks the program ibv_devices for a NIC: the driver has one of its own. MC_FORCE_TCP is Mooncake's word
    # for a machine without.
    sys.exit(clients.drive(sys.argv[1], "lmdeploy==0.18.0", "lmdeploy_migration.py", ["pydantic"], [("MC_FORCE_TCP", "1")]))
