#!/usr/bin/env python3
"""What upstream's Python modules have by name, ours have too, for the same parameters: every public class, method, property and
function of the modules below that its wheel holds. Each of them that is in an extension module occurs in tests/python/contract, and no module is missing without a word. Without torch (tools/torch) the modules that need it are left out."""
import glob
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import peers as interop  # noqa: E402

MODULES = ["async_store", "buffer_pool", "cli", "cli_bench", "cli_client", "fabric_allocator_utils", "http_metadata_server",
           "mooncake_config", "mooncake_store_service", "transfer_engine_topology_dump", "structured_object_store", "shared_segment",
           "_fast_copy", "engine", "store", "dataproto_catalog", "reshard", "reshard.contracts", "reshard.geometry", "reshard.weight",
           "reshard.weight.manifest", "reshard.weight.planner"]
# What of upstream's is not ours to have, and why.
ELSEWHERE = {
    "shared_segment.SharedSegment()": "create_shared_segment() makes it",
    **{f"transfer_engine_topology_dump.{name}": "a part of the program" for name in (
        "apply_backend", "dump_te_topology", "dump_tent_topology", "parse_args", "resolve_backend",
        "sanitize_tent_conf_for_discover")},
}
# Modules of upstream's package that ours has not: docs/compatibility.md says why.
ABSENT = {"ep", "pg", "mooncake_ep_buffer", "mooncake_elastic_buffer", "mooncake_ssd_register", "mooncake_ssd_unregister",
          "spdk_tgt_create"}
REFUSED = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module("mooncake." + name)
    except ImportError as error:
        assert f"mooncake.{name} is not in this package: " in str(error) and error.name == "mooncake." + name, error
    else:
        raise AssertionError(f"mooncake.{name} is here and said to be absent")
"""
LIST = """
import enum, importlib, inspect, json, sys
def shape(function):
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    return [(p.name, p.kind.name, p.default is not p.empty) for p in parameters]
def public(names):
    return [n for n in names if not n.startswith("_")]
found = {}
for name in sys.argv[1:]:
    try:
        module = importlib.import_module("mooncake." + name)
    except ImportError as error:
        print("absent", name, error, file=sys.stderr)
        continue
    found[name] = None
    for n in public(getattr(module, "__all__", dir(module))):
        thing = getattr(module, n)
        home = getattr(thing, "__module__", None)
        if inspect.ismodule(thing) or (home is not None and not str(home).startswith("mooncake")):
            continue
        found[f"{name}.{n}"] = shape(thing) if inspect.isfunction(thing) else None
        if inspect.isclass(thing) and not issubclass(thing, (enum.Enum, Exception)):
            for m in public(dir(thing)):
                if not hasattr(thing, "__dataclass_fields__") or m not in thing.__dataclass_fields__:
                    value = inspect.getattr_static(thing, m)
                    value = getattr(value, "__func__", value)
                    found[f"{name}.{n}.{m}"] = shape(value) if inspect.isfunction(value) else None
            if inspect.isfunction(getattr(thing, "__init__", None)):
                found[f"{name}.{n}()"] = shape(thing)
print("names " + json.dumps(found))
"""


def names(python, env):
    done = subprocess.run([python, "-c", LIST, *MODULES], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=300)
    line = [line for line in done.stdout.splitlines() if line.startswith("names ")]
    if not line:
        raise SystemExit(f"{python} says no names: {done.stderr[-2000:]}")
    return json.loads(line[0][6:])


def modules(package):
    """What a package holds, by name: modules and programs; libraries are its own business."""
    found = {re.sub(r"(\.cpython\S*|\.abi3)?\.(py|so|pyi)$", "", name) for name in os.listdir(package)}
    return {name for name in found if not name.startswith(("__", "lib")) and name != "py.typed"}


def untested(names):
    """What of the two extension modules no contract test speaks of."""
    said = set()
    for path in glob.glob(os.path.join(HERE, "contract", "*_contract.py")):
        with open(path) as file:
            said.update(re.findall(r"[A-Za-z_]\w*", file.read()))
    return sorted(name for name in names if name.startswith(("store.", "engine.")) and name.rstrip("()").split(".")[-1] not in said)


def accepts(ours, theirs):
    """Every call that theirs takes, ours takes; it may take more."""
    return ours[:len(theirs)] == theirs and all(more[2] or more[1].startswith("VAR") for more in ours[len(theirs):])


def main():
    build = sys.argv[1]
    if not os.path.exists(os.path.join(build, "python", "mooncake", "store.abi3.so")):
        print("skipped: this build has no Python package")
        return 77
    try:
        wheel = interop.wheel(build, interop.NEWEST)
    except interop.Skip as reason:
        print(f"skipped: {reason}")
        return 77
    site = glob.glob(os.path.join(os.path.dirname(wheel.package)))[0]
    python = interop.torch_python() or wheel.python
    theirs = names(python, dict(wheel.env, PYTHONPATH=site))
    # aiohttp is upstream's environment's; our package comes first.
    ours = names(python, dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.join(os.path.abspath(build), "python"), site])))
    wrong, compared = [], 0
    for name, shape in theirs.items():
        if name.split(".")[0] not in theirs or any(name == e or name.startswith(e + ".") for e in ELSEWHERE):
            continue
        compared += 1
        if name not in ours:
            wrong.append(f"{name} is missing")
        elif shape is not None and ours[name] is not None and not accepts(ours[name], shape):
            wrong.append(f"{name}: {ours[name]}, upstream's {shape}")
    print(f"{compared} names of {len([n for n in theirs if '.' not in n])} modules compared")
    wrong += [f"{name} has no contract test" for name in untested(theirs)]
    own = modules(os.path.join(build, "python", "mooncake"))
    wrong += [f"the module {name} is not here" for name in modules(wheel.package) - own - {"_fast_copy.c"}]
    said = subprocess.run([python, "-c", REFUSED, *sorted(ABSENT)], env=dict(os.environ, PYTHONPATH=os.path.join(build, "python")),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wrong += [said.stdout] if said.returncode else []
    print("\n".join(wrong))
    return int(bool(wrong) or compared < 300)


if __name__ == "__main__":
    sys.exit(main())
