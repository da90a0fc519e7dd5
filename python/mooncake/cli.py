"""Console scripts: the programs lie beside this file."""
import os
import stat
import sys


def program(name):
    """The path of a program of the package, made executable if an installer forgot that."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if not os.path.exists(path):
        raise SystemExit(f"{name} is not part of this installation: {path} is missing")
    if not os.access(path, os.X_OK):
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def become(name):
    """Runs the program in this process's place, so that its number and its signals are the program's."""
    path = program(name)
    os.execv(path, [path, *sys.argv[1:]])


def main():
    become("mooncake_master")


def mooncake():
    become("mooncake")


if __name__ == "__main__":
    main()
