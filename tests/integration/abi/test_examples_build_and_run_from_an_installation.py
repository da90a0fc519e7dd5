#!/usr/bin/env python3
"""`cmake --install` to a fresh prefix, then what a user does: every example is compiled by pkg-config against what was
installed, and run; C, C++ and upstream's interface as target and initiator of each other, and the store's example
against an installed master and node; and a program written for upstream's C++ client, with the flags of LMCache's build."""
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from programs import Master, Node, Process, check, check_equal, main, run

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(sys.argv[1]).resolve()
EXAMPLES = {"move.c": ("cc", "mooncake", []), "move.cpp": ("c++", "mooncake", ["-std=c++17"]),
            "move_upstream.c": ("cc", "transfer_engine", []), "objects.c": ("cc", "mooncake", [])}


def good(args, **kwargs):
    done = run(args, **kwargs)
    check(done.returncode == 0, f"{args}: {done.returncode}\n{done.stdout.decode()}{done.stderr.decode()}")
    return done.stdout.decode()


def install(prefix):
    good(["cmake", "--install", BUILD, "--prefix", prefix])
    pages = list(prefix.rglob("mooncake.pc"))
    check(len(pages) == 1, f"pages of pkg-config: {pages}")
    return pages[0].parent, {"PKG_CONFIG_PATH": str(pages[0].parent), "LD_LIBRARY_PATH": str(pages[0].parent.parent)}


def sanitizers():
    sanitizer = re.search(r"^MC_SANITIZE:\w+=(.+)$", (BUILD / "CMakeCache.txt").read_text(), re.M)
    return [f"-fsanitize={sanitizer.group(1)}"] if sanitizer else []


def compile_all(prefix, env):
    sanitize = sanitizers()
    programs = {}
    for name, (compiler, package, flags) in EXAMPLES.items():
        if not shutil.which(compiler):
            print(f"        {name}: there is no {compiler}", flush=True)
            continue
        page = good(["pkg-config", "--cflags", "--libs", package], env=env).split()
        check(all(str(ROOT) not in p for p in page), f"{package} leads into the source tree: {page}")
        programs[name] = prefix / name.replace(".", "_")
        good([compiler, "-Wall", "-Wextra", "-Werror", *flags, *sanitize, ROOT / "examples" / name, "-o", programs[name],
              *page], env=env)
    return programs


def native_connector(prefix, env, lib, master):
    """As LMCache builds its connector: MOONCAKE_INCLUDE_DIR, MOONCAKE_LIB_DIR, -std=c++20, -lstore."""
    if not shutil.which("c++"):
        print("        native_connector.cpp: there is no c++", flush=True)
        return
    program = prefix / "native_connector"
    good(["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", *sanitizers(), "-I", prefix / "prefix" / "include",
          pathlib.Path(__file__).with_name("native_connector.cpp"), "-o", program, "-L", lib, "-lstore", "-pthread"])
    check("64 chunks came back" in good([program, master.rpc], env=env), "the connector's verdict")


def pair(closing, env, target, initiator):
    waiting = Process([target, "target"], env)
    closing.append(waiting)
    name, address = waiting.wait_for(r"^(\S+:\d+) (0x[0-9a-f]+)$").groups()
    check("every byte came back" in good([initiator, "initiator", name, address], env=env), "the initiator's verdict")
    waiting.wait_for("^every byte is there$")
    check_equal(waiting.stop(0), 0, "exit status of the target")


def examples(closing, scratch):
    pages, env = install(scratch / "prefix")
    programs = compile_all(scratch, env)
    movers = [p for n, p in programs.items() if n.startswith("move")]
    check(len(movers) >= 2, f"compiled: {list(programs)}")
    for target, initiator in itertools.product(movers, movers):
        pair(closing, env, target, initiator)
        print(f"        {initiator.name} -> {target.name}", flush=True)
    check_equal(run([movers[0]], env=env).returncode, 2, "exit status without arguments")
    bad = run([movers[0], "initiator", "127.0.0.1:1", "0x1000"], env=env)
    check_equal(bad.returncode, 1, "exit status without a target")
    master = Master(scratch / "prefix" / "bin")
    closing.append(master)
    closing.append(Node(scratch / "prefix" / "bin", master))
    check("every byte came back" in good([programs["objects.c"], master.rpc], env=env), "the store's example")
    native_connector(scratch, env, pages.parent, master)


os.environ.pop("LD_PRELOAD", None)
main(examples)
