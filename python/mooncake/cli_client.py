"""Console script mooncake_client."""
from mooncake.cli import become


def main():
    become("mooncake_client")


if __name__ == "__main__":
    main()
