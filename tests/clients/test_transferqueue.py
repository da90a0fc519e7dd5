#!/usr/bin/env python3
import sys

import clients

if __name__ == "__main__":
    sys.exit(clients.drive(sys.argv[1], "transferqueue==0.1.11", "transferqueue_client.py",
                           ["cloudpickle", "msgspec", "pyzmq", "psutil"]))
