#!/usr/bin/env python3
"""The blocks of docs/python.md run as they stand, in order, in one interpreter, against a master of ours;
the doctor finds the installation well, and a master that is not there."""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import peers as interop  # noqa: E402


def main():
    if not os.path.exists(os.path.join(sys.argv[1], "python", "mooncake", "store.abi3.so")):
        print("skipped: this build has no Python package")
        return 77
    with open(os.path.join(ROOT, "docs", "python.md")) as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)
    peers = interop.Peers(sys.argv[1])
    failed = True
    try:
        master = peers.master("ours")
        env = dict(os.environ, PYTHONPATH=os.path.join(peers.build, "python"), MC_LOG_LEVEL="ERROR")
        code = f"MASTER = {master.address!r}\n" + "\n".join(blocks) + "\nprint('done')\n"
        done = subprocess.run([interop.torch_python() or sys.executable, "-c", code], env=env, text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        failed = done.returncode != 0 or "done" not in done.stdout or len(blocks) < 8
        print(f"{len(blocks)} blocks: {'FAILED' if failed else 'ok'}\n{done.stdout if failed else ''}")
        doctor = subprocess.run([sys.executable, "-m", "mooncake.doctor", "--master", master.address], env=env, text=True,
                                timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        well = doctor.returncode == 0 and "a value went to the store and came back" in doctor.stdout
        absent = subprocess.run([sys.executable, "-m", "mooncake.doctor", "--master", "127.0.0.1:1"], env=env, text=True,
                                timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        well = well and absent.returncode == 1 and "127.0.0.1:1" in absent.stdout
        print(f"doctor: {'ok' if well else 'FAILED' + doctor.stdout + absent.stdout}")
        failed = failed or not well
    finally:
        peers.close(failed)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
