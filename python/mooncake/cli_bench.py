"""Console script transfer_engine_bench."""
import subprocess
import sys

from mooncake.cli import program


def main():
    return subprocess.call([program("transfer_engine_bench"), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
