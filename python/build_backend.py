"""Makes the wheel (PEP 517), with the standard library only: no build dependency has to be downloaded.

    pip install .                       the usual way
    python3 python/build_backend.py D   the wheel into folder D (`make wheel`)

CMake builds the modules and programs in build/wheel (MC_WHEEL: every file looks for libraries beside itself first). The shared
libraries that a bare Debian lacks are put into mooncake/libs, but for those of transport modules, which are of the machine's
hardware: such a module is loaded where they are. Files carry DT_RPATH, not RUNPATH, because the former also counts
for the libraries of libraries. The platform tag says the glibc that the files really ask for.
"""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
NAME = "mooncake-transfer-engine-c"
PROGRAMS = ("mooncake", "mooncake_master", "mooncake_client", "transfer_engine_bench")
SCRIPTS = {
    "mooncake": "mooncake.cli:mooncake",
    "mooncake_master": "mooncake.cli:main",
    "mooncake_client": "mooncake.cli_client:main",
    "transfer_engine_bench": "mooncake.cli_bench:main",
    "transfer_engine_topology_dump": "mooncake.transfer_engine_topology_dump:main",
    "mooncake_http_metadata_server": "mooncake.http_metadata_server:main",
    "mc_store_rest_server": "mooncake.mooncake_store_service:sync_main",
}
# Transports that are loaded at run time, with the library that each is for.
MODULES = {"transport-rdma.so": "libibverbs.so.1", "transport-fabric.so": "libfabric.so.1"}
# Of the C library and its loader, which every Linux has; all else comes along.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libresolv)[.-]")


def version():
    with open(os.path.join(ROOT, "CMakeLists.txt")) as file:
        return re.search(r"project\(mooncake VERSION (\S+)", file.read()).group(1)


def metadata():
    with open(os.path.join(HERE, "README.md")) as file:
        description = file.read()
    return (f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version()}\n"
            "Summary: Mooncake in C: Transfer Engine and distributed store for the KV caches of LLM serving\n"
            "Requires-Python: >=3.10\n"
            "Requires-Dist: aiohttp ; extra == 'service'\nProvides-Extra: service\n"
            "Requires-Dist: numpy ; extra == 'structured'\n"
            "Requires-Dist: msgpack ; extra == 'structured'\nProvides-Extra: structured\n"
            f"Description-Content-Type: text/markdown\n\n{description}")


def run(*argv, **keywords):
    return subprocess.run([str(a) for a in argv], check=True, text=True, **keywords)


def build():
    """The folder with the package, made by CMake."""
    directory = os.environ.get("MOONCAKE_WHEEL_BUILD", os.path.join(ROOT, "build", "wheel"))
    run("cmake", "-S", ROOT, "-B", directory, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS_RELEASE=-O2",
        "-DMC_TESTS=OFF", "-DMC_PYTHON=ON", "-DMC_WHEEL=ON", stdout=subprocess.DEVNULL)
    run("cmake", "--build", directory, "--target", "mooncake_python_all", stdout=sys.stderr)
    return os.path.join(directory, "python", "mooncake")


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def vendor(package):
    """Copies the libraries that the package's files need beside them; the ELF files of the package."""
    libs = os.path.join(package, "libs")
    os.makedirs(libs)
    files = [os.path.join(base, name) for base, _, names in os.walk(package) for name in names]
    elves = [path for path in files if is_elf(path)]
    for path in elves:
        run("strip", "--strip-unneeded", path)
        if os.path.basename(path) in MODULES:
            continue
        listing = run("ldd", path, stdout=subprocess.PIPE).stdout
        for name, place in re.findall(r"^\s*(\S+) => (\S+) ", listing, re.MULTILINE):
            if place == "not":
                raise SystemExit(f"{path} needs {name}, which is not here")
            known = SYSTEM.match(name) or os.path.realpath(place).startswith(os.path.realpath(package))
            if not known and not os.path.exists(os.path.join(libs, name)):
                shutil.copy(place, os.path.join(libs, name))
    return elves + [os.path.join(libs, name) for name in os.listdir(libs)]


def platform_tag(elves):
    """manylinux_2_N: the newest glibc that a file asks for."""
    newest = 17
    for path in elves:
        symbols = run("objdump", "-T", path, stdout=subprocess.PIPE).stdout
        newest = max([newest, *(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", symbols))])
    return f"manylinux_2_{newest}_{os.uname().machine}"


def stage(directory):
    """The package as it will be installed; its ELF files."""
    package = os.path.join(directory, "mooncake")
    # Links are the programs, which lie elsewhere in the build; what an interpreter left behind stays away.
    shutil.copytree(build(), package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    return vendor(package)


def dist_info(directory, tag):
    info = os.path.join(directory, f"{NAME.replace('-', '_')}-{version()}.dist-info")
    os.makedirs(info)
    scripts = "".join(f"{name} = {place}\n" for name, place in SCRIPTS.items()
                      if os.path.exists(os.path.join(HERE, place.split(":")[0].replace(".", "/") + ".py")))
    for name, text in (("METADATA", metadata()), ("entry_points.txt", f"[console_scripts]\n{scripts}"),
                       ("WHEEL", f"Wheel-Version: 1.0\nGenerator: mooncake\nRoot-Is-Purelib: false\nTag: cp310-abi3-{tag}\n")):
        with open(os.path.join(info, name), "w") as file:
            file.write(text)
    shutil.copy(os.path.join(ROOT, "LICENSE"), info)
    return info


def pack(directory, info, path):
    """A zip of the folder, in a fixed order with fixed times, and with the record that wheels have."""
    files = sorted(os.path.relpath(os.path.join(base, name), directory)
                   for base, _, names in os.walk(directory) for name in names)
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, data)
        for name in files:
            with open(os.path.join(directory, name), "rb") as file:
                data = file.read()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            program = os.access(os.path.join(directory, name), os.X_OK)
            add(name, data, 0o755 if program else 0o644)
        name = os.path.join(os.path.relpath(info, directory), "RECORD")
        add(name, record + f"{name},,\n", 0o644)


# ---- PEP 517 ----

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory() as directory:
        tag = platform_tag(stage(directory))
        info = dist_info(directory, tag)
        name = f"{NAME.replace('-', '_')}-{version()}-cp310-abi3-{tag}.whl"
        pack(directory, info, os.path.join(wheel_directory, name))
    return name


def build_sdist(sdist_directory, config_settings=None):
    name = f"{NAME.replace('-', '_')}-{version()}"
    path = os.path.join(os.path.abspath(sdist_directory), f"{name}.tar.gz")
    run("git", "-C", ROOT, "archive", f"--prefix={name}/", "-o", path, "HEAD")
    return os.path.basename(path)


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    print(os.path.join(sys.argv[1], build_wheel(sys.argv[1])))
