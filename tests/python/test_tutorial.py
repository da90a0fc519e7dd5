#!/usr/bin/env python3
"""The blocks of docs/python.md run as they stand, in order, in one interpreter, against a master of ours;
the doctor finds the installation well, and a master that is not there; the type stubs name what there is, and nothing else."""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import peers as interop  # noqa: E402


STUBS = """
import ast, mooncake, mooncake.store, mooncake.engine
for module in (mooncake.store, mooncake.engine):
    tree = ast.parse(open(f"{mooncake.__path__[0]}/{module.__name__.rsplit('.', 1)[1]}.pyi").read())
    def names(body):
        found = set()
        for node in body:
            found.update({getattr(node, "name", None), *(t.id for t in getattr(node, "targets", ())),
                          getattr(getattr(node, "target", None), "id", None)})
        return found
    real = {n for n in dir(module) if not n.startswith("_")}
    assert real <= names(tree.body), real - names(tree.body)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            cls = getattr(module, node.name)
            real = {n for n in vars(cls) if not n.startswith("_") and n not in ("TransferOpcode", "exports")}
            stub = {n for n in names(node.body) - {None} if not n.startswith("_")}
            assert real <= stub, (node.name, real - stub)
            assert all(hasattr(cls, n) or hasattr(cls(), n) for n in stub if n not in real), (node.name, stub - real)
print("stubs fine")
"""


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
        stubs = subprocess.run([sys.executable, "-c", STUBS], env=env, text=True, timeout=60, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
        print(f"stubs: {'ok' if 'stubs fine' in stubs.stdout else 'FAILED' + stubs.stdout}")
        failed = failed or not well or "stubs fine" not in stubs.stdout
    finally:
        peers.close(failed)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
