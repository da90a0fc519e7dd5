#!/usr/bin/env python3
"""libtransfer_engine.so and libmooncake_store.so export exactly the functions that their headers declare, libmooncake.so
only names of ours, and each thin library can be loaded alone, as bindings load it."""
import ctypes
import pathlib
import re
import subprocess
import sys

BUILD = pathlib.Path(sys.argv[1])
ROOT = pathlib.Path(__file__).resolve().parents[3]


def exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", BUILD / "lib" / library], check=True, capture_output=True,
                           text=True).stdout.split("\n")
    names = {line.split()[-1].split("@")[0] for line in lines if line}
    return {n for n in names if not n.startswith(("__asan", "__odr_asan", "__tsan", "__ubsan", "_init", "_fini"))}


def declared(*headers):
    text = "".join((ROOT / "include" / "compat" / h).read_text() for h in headers)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return set(re.findall(r"^[a-z][\w \*]*?\**(\w+)\([^;{]*\);", text, flags=re.M | re.S))


def main():
    classic, tent = declared("transfer_engine_c.h"), declared("tent/transfer_engine.h")
    store = declared("store_c.h")
    assert len(classic) == 27, sorted(classic)
    assert len(tent) == 32 + 1 and all(n.startswith("tent_") for n in tent), sorted(tent)
    assert len(store) >= 18 and all(n.startswith("mooncake_store_") for n in store), sorted(store)
    for library, names in (("libtransfer_engine.so", classic | tent), ("libmooncake_store.so", store)):
        assert exported(library) == names, sorted(exported(library) ^ names)
        soname = subprocess.run(["readelf", "-d", BUILD / "lib" / library], check=True, capture_output=True,
                                text=True).stdout
        assert f"[{library}.0]" in soname, soname
        if "san" not in BUILD.name:  # a sanitizer's runtime must come first in the process
            loaded = ctypes.CDLL(str(BUILD / "lib" / library))
            for name in names:
                getattr(loaded, name)
    strangers = {n for n in exported("libmooncake.so") if not n.startswith("mc_")}
    assert not strangers, sorted(strangers)
    print(f"{len(classic)} + {len(tent)} + {len(store)} functions, nothing else")


main()
