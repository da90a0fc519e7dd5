#!/usr/bin/env python3
import sys

import clients

if __name__ == "__main__":
    # Its engine is told "rdma", as on a machine with a GPU; MC_FORCE_TCP is Mooncake's own word for one without.
    sys.exit(clients.drive(sys.argv[1], "checkpoint-engine==0.4.2", "checkpoint_engine_p2p_store.py", ["loguru"],
                           [("MC_FORCE_TCP", "1"), ("PS_P2P_STORE_RDMA_DEVICES", "rdma_0")]))
