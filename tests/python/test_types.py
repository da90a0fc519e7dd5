#!/usr/bin/env python3
"""Types: py.typed is in the package, mypy's stubtest finds no difference between the stubs of the extension modules and the modules, and
mypy --strict has nothing to say about typed_program.py. mypy is PyPI's, in the build folder; without, skipped."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import peers as interop  # noqa: E402

MYPY = "mypy==2.4.1"


def mypy(build):
    """The folder that mypy is in; None and why not."""
    folder = os.path.join(build, "types", MYPY.replace("==", "-"))
    if not os.path.exists(os.path.join(folder, "complete")):
        done = interop.quiet([interop.pip_python(), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--upgrade", "--target",
                              folder, MYPY])
        if done.returncode:
            return None, done.stdout.strip()[-400:]
        with open(os.path.join(folder, "complete"), "w"):
            pass
    return folder, None


def main():
    build = os.path.abspath(sys.argv[1])
    package = os.path.join(build, "python")
    if not os.path.exists(os.path.join(package, "mooncake", "store.abi3.so")):
        print("skipped: this build has no Python package")
        return 77
    folder, why = mypy(build)
    if why:
        print(f"skipped: no mypy: {why}")
        return 77
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([folder, package]), MYPYPATH=package, MC_LOG_LEVEL="ERROR")
    asked = [("stubtest", ["-m", "mypy.stubtest", "--concise", "--allowlist", os.path.join(HERE, "stubtest-allowlist.txt"),
                           "mooncake.store", "mooncake.engine"]),
             ("mypy --strict", ["-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", os.path.join(folder, "cache"),
                                os.path.join(HERE, "typed_program.py")])]
    running = [(name, subprocess.Popen([sys.executable, *argv], env=env, cwd=os.path.dirname(folder), text=True, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT)) for name, argv in asked]
    failed = not os.path.exists(os.path.join(package, "mooncake", "py.typed"))
    for name, process in running:
        said = process.communicate(timeout=600)[0]
        print(f"{name}: {'ok' if process.returncode == 0 else 'FAILED'}\n{said}")
        failed |= process.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
