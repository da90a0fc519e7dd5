"""Prints which NICs are near which memory, as JSON. Usage: transfer_engine_topology_dump [--device NAMES]"""
import argparse
import json

from mooncake.engine import TransferEngine


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="", help="only these NICs, separated by commas")
    parser.add_argument("--backend", choices=("classic", "tent"), default="classic", help="both tell the same here")
    options = parser.parse_args()
    print(json.dumps(json.loads(TransferEngine().get_local_topology(options.device)), indent=2))


if __name__ == "__main__":
    main()
