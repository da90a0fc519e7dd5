#!/usr/bin/env python3
"""`mooncake simulate cache` writes the curves it prints, for both trace formats, and names what is wrong."""
import json
import pathlib
import subprocess
import sys
import tempfile

MOONCAKE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release") / "bin" / "mooncake"
TRACES = pathlib.Path(__file__).resolve().parents[2] / "data" / "traces"


def simulate(*args):
    return subprocess.run([MOONCAKE, "simulate", "cache", *map(str, args)], capture_output=True, text=True)


def curves(trace, capacities):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        done = simulate("--trace", trace, "--policy", "lru,s3fifo,own,opt", "--capacity",
                        ",".join(map(str, capacities)), "--json", out)
        assert done.returncode == 0, done.stderr
        rows = json.loads(out.read_text())
    hits = {}
    for row in rows:
        assert set(row) == {"policy", "capacity", "prefix_hit", "block_hit"}, row
        assert 0 <= row["prefix_hit"] <= row["block_hit"] <= 1, row
        assert f"{row['prefix_hit']:.4f}" in done.stdout
        hits[row["policy"], row["capacity"]] = row["prefix_hit"]
    assert set(hits) == {(p, c) for p in ("lru", "s3fifo", "own", "opt") for c in capacities}
    return hits


def main():
    hits = curves(TRACES / "synthetic_trace.jsonl.gz", [1000, 3000])
    assert abs(hits["lru", 1000] - 0.082) < 0.001 and abs(hits["opt", 3000] - 0.447) < 0.001, hits
    assert hits["own", 3000] > hits["lru", 3000], hits
    hits = curves(TRACES / "agentic" / "trace_0685.json.gz", [500, 5000])
    assert hits["own", 500] > hits["lru", 500] + 0.3, hits
    for args, complaint in (
        (["--trace", TRACES / "README.md"], "README.md"),
        (["--trace", "x.jsonl", "--policy", "mru"], "no policy 'mru'"),
        (["--trace", "x.jsonl", "--capacity", "10,0"], "'0' is no capacity"),
        (["--trace", "x.jsonl", "--capacity", "-5"], "'-5' is no capacity"),
        (["--trace", "x.jsonl", "--capacity", ""], "no capacity is named"),
        (["--trace", "x.jsonl", "--policy", ","], "no policy is named"),
        (["--trace", "missing.jsonl"], "missing.jsonl"),
        ([], "which trace"),
    ):
        done = simulate(*args)
        assert done.returncode in (1, 2) and complaint in done.stderr, (args, done)


main()
