#!/usr/bin/env python3
"""The structures that tests/interop/ours.py hands to libmooncake.so are those of the headers, to the byte: a field that one
has and the other has not is memory overwritten, far from where it shows."""
import ctypes
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
BUILD = pathlib.Path(sys.argv[1]).resolve()
SOURCE = """#include <stddef.h>
#include <stdio.h>
#include "mooncake/store.h"
#include "mooncake/transfer.h"
int main(void) {
"""
NAMES = {"StoreOptions": "mc_store_options", "ReplicateConfig": "mc_replicate_config", "Slice": "mc_slice",
         "Item": "mc_store_item", "ReplicaInfo": "mc_replica_info", "EngineOptions": "mc_engine_options",
         "Request": "mc_transfer_request", "BufferInfo": "mc_buffer_info", "Notification": "mc_notification"}


def classes():
    """The ctypes structures of ours.py, without its library being loaded."""
    text = (HERE / "ours.py").read_text()
    parts = [part for part in text.split("\nclass ") if part.split("(")[0] in NAMES]
    scope = {}
    exec("from ctypes import *\n", scope)
    for part in parts:
        exec("class " + part.split("\n\n")[0], scope)
    return {name: scope[name] for name in NAMES}


def fields(structure):
    return [field for field, *_ in structure._fields_ if field != "later"]


def main():
    program = SOURCE
    found = classes()
    for name, structure in found.items():
        c = f"struct {NAMES[name]}"
        program += f'    printf("{name} %zu", sizeof({c}));\n'
        for field in fields(structure):
            program += f'    printf(" %zu", offsetof({c}, {field}));\n'
        program += '    printf("\\n");\n'
    with tempfile.TemporaryDirectory() as scratch:
        source, binary = pathlib.Path(scratch) / "sizes.c", pathlib.Path(scratch) / "sizes"
        source.write_text(program + "    return 0;\n}\n")
        subprocess.run(["cc", "-I", HERE.parents[1] / "include", source, "-o", binary], check=True)
        lines = subprocess.run([binary], check=True, capture_output=True, text=True).stdout.splitlines()
    wrong = 0
    for line in lines:
        name, size, *offsets = line.split()
        structure = found[name]
        have = [ctypes.sizeof(structure)] + [getattr(structure, field).offset for field in fields(structure)]
        want = [int(size), *map(int, offsets)]
        room = have[0] > want[0] and "later" in dir(structure)  # for members that come later
        if have[1:] != want[1:] or (have[0] != want[0] and not room):
            print(f"FAILED  {name}: size and offsets {have}, in the header {want}")
            wrong += 1
    print(f"{len(lines)} structures compared, {wrong} differ")
    return 1 if wrong or len(lines) != len(NAMES) else 0


sys.exit(main())
