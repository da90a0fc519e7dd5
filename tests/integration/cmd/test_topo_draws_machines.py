#!/usr/bin/env python3
"""`mooncake topo`: text, upstream's JSON and SVG of the machines of the unit tests and of this one; boxes of the drawing
nest and show every device once; filters; what cannot be used is refused by name."""
import json
import os
import pathlib
import re
import sys
import xml.dom.minidom

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from programs import bin_dir, check, check_equal, main, run

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "unit" / "topo" / "fixtures"
for variable in ("MC_TE_FILTERS", "MC_TE_FILTERS_EXCLUDE", "MC_CUSTOM_TOPO_JSON"):
    os.environ.pop(variable, None)


def topo(*args, fails=False, env=None):
    done = run([bin_dir() / "mooncake", "topo", *args], env=env)
    check((done.returncode != 0) == fails, f"topo {args}: {done.returncode} {done.stderr.decode()}")
    return (done.stderr if fails else done.stdout).decode()


def source(name):
    tree = FIXTURES / f"{name}.sys"
    return [f"--xml={FIXTURES / name}.xml"] + ([f"--sysfs={tree}"] if tree.exists() else [])


def golden(name):
    lines = (FIXTURES / f"{name}.golden").read_text().split("\n")
    devices = [line.split()[1] for line in lines if re.match(r"(nic|gpu|nvme) ", line)]
    return devices, json.loads(next(line for line in lines if line.startswith("{")))


def boxes(svg):
    pattern = r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)" rx="6" class="(\w+)"'
    return [(int(x), int(y), int(x) + int(w), int(y) + int(h), kind) for x, y, w, h, kind in re.findall(pattern, svg)]


def inside(a, b):
    return a[0] >= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] <= b[3]


def every_machine(closing, scratch):
    names = sorted(p.stem for p in FIXTURES.glob("*.xml"))
    check(len(names) >= 8, f"machines: {names}")
    for name in names:
        devices, matrix = golden(name)
        check_equal(json.loads(topo("--json", *source(name))), matrix, f"matrix of {name}")
        text = topo(*source(name), f"--svg={scratch / 'drawing.svg'}")
        svg = (scratch / "drawing.svg").read_text()
        xml.dom.minidom.parseString(svg)
        rectangles = boxes(svg)
        for device in devices:
            check(device in text, f"{device} of {name} in the text:\n{text}")
            check_equal(svg.count(f">{device}<"), 1, f"times that the drawing of {name} names {device}")
        check_equal(sum(kind not in ("node", "bridge") for *_, kind in rectangles), len(devices), f"tiles of {name}")
        for i, a in enumerate(rectangles):
            for b in rectangles[i + 1:]:
                apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                check(apart or inside(a, b) or inside(b, a), f"boxes of {name} cross: {a} {b}")


def the_state_of_cards(closing, scratch):
    text = topo(*source("nic-down"))
    check(re.search(r"mlx5_0 .*DOWN", text), text)
    check(re.search(r"mlx5_1 .*up, 200 Gbit/s", text), text)


def filters(closing, scratch):
    where = source("pcie-switches")
    check_equal(json.loads(topo("--json", "--only=mlx5_3", *where))["cuda:0"], [["mlx5_3"], []], "--only")
    by_env = topo("--json", *where, env={"MC_TE_FILTERS_EXCLUDE": "mlx5_0,mlx5_3"})
    check_equal(json.loads(by_env)["cpu:1"], [[], ["mlx5_1", "mlx5_2"]], "MC_TE_FILTERS_EXCLUDE")


def a_matrix_of_the_user(closing, scratch):
    file = scratch / "matrix.json"
    file.write_text('{"cpu:0": [["mlx5_7"], []]}')
    check_equal(json.loads(topo("--json", f"--matrix={file}")), {"cpu:0": [["mlx5_7"], []]}, "--matrix")
    file.write_text('{"cpu:0": [["mlx5_7"],\n  oops]}')
    said = topo("--json", f"--matrix={file}", fails=True)
    check(f"{file}: line 2, column" in said, said)
    check("/nowhere: cannot be opened" in topo("--matrix=/nowhere", fails=True), "a file that is not there")


def this_machine(closing, scratch):
    check("NUMA node" in topo(), "text")
    check("cpu:0" in json.loads(topo("--json")), "matrix")


def what_cannot_be_read(closing, scratch):
    check("cannot be read" in topo("--xml=/nowhere.xml", fails=True), "no XML")
    check("/nowhere cannot be read" in topo("--sysfs=/nowhere", fails=True), "no sysfs")
    check("cannot be written" in topo("--svg=/nowhere/at/all.svg", fails=True), "no place for the drawing")


main(every_machine, the_state_of_cards, filters, a_matrix_of_the_user, this_machine, what_cannot_be_read)
