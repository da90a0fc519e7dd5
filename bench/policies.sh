#!/bin/bash
# The curves of docs/eviction.md: prefix hits of every policy on the FAST'25 traces and on all agentic sessions merged.
# Usage: bench/policies.sh [BUILD [TRACES]]; traces: data/traces, or a folder with the same names, packed or not.
#        bench/policies.sh --cost [BUILD [TRACES]]: what own makes of the cost of recomputing, attention as dear as the rest at 40,000 tokens.
#        bench/policies.sh --hostile [BUILD]: the worst that `own` does to LRU on the traces of bench/hostile-traces (five minutes).
set -euo pipefail
hostile='' cost=''
case "${1:-}" in
--hostile) hostile=1 && shift ;;
--cost) cost=1 && shift ;;
esac
build=${1:-build/release}
traces=${2:-data/traces}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

one() { # name, trace files
    local name=$1
    shift
    "$build/bin/mooncake" simulate --policy lru,s3fifo,own,opt --capacity 1000,3000,10000,30000,50000 \
        --json "$work/$name.json" "$@" >/dev/null
    python3 - "$name" "$work/$name.json" <<'PY'
import json, sys
rows = json.load(open(sys.argv[2]))
hit = {(r["policy"], r["capacity"]): r["prefix_hit"] for r in rows}
capacities = sorted({r["capacity"] for r in rows})
print(f"| {sys.argv[1]} | " + " | ".join(f"{c:,}" for c in capacities) + " |")
print("|---|" + "---|" * len(capacities))
for policy in dict.fromkeys(r["policy"] for r in rows):
    print(f"| {policy} | " + " | ".join(f"{hit[policy, c]:.3f}" for c in capacities) + " |")
gap = sum(hit["opt", c] - hit["lru", c] for c in capacities)
gain = sum(hit["own", c] - hit["lru", c] for c in capacities)
worst = min(hit["own", c] - hit["lru", c] for c in capacities)
print(f"\nown closes {gain / gap if gap else 0:.3f} of the gap; least gain over LRU {worst:+.4f}\n")
PY
}

worst() { # LRU and own of each capacity, and own's least gain
    python3 - "$1" "$work/$1.json" <<'PY'
import json, sys
rows = json.load(open(sys.argv[2]))
hit = {(r["policy"], r["capacity"]): r["prefix_hit"] for r in rows}
capacities = sorted({r["capacity"] for r in rows})
gains = [hit["own", c] - hit["lru", c] for c in capacities]
print(f"| {sys.argv[1]} | " + " | ".join(f"{hit['lru', c]:.3f} {hit['own', c]:.3f}" for c in capacities) + f" | {min(gains):+.4f} |")
PY
}

costs() { # name, trace files: the gaps to the optimum that are closed, of prefix hits, block hits and saved computing
    local name=$1 run
    shift
    for run in false true; do
        "$build/bin/mooncake" simulate --policy lru,s3fifo,own,opt --capacity 1000,3000,10000,30000,50000 \
            --attention_tokens 40000 --ignore_cost=$run "$@" >"$work/$name.$run"
    done
    python3 - "$name" "$work/$name.false" "$work/$name.true" <<'PY'
import sys
def tables(path):
    got, title = {}, None
    for line in open(path):
        words = line.split()
        if line.strip() in ("prefix hits", "block hits", "recomputing saved"):
            title, names = line.strip(), None
        elif title and words and words[0] == "blocks":
            names = words[1:]
        elif title and words:
            for name, value in zip(names, words[1:]):
                got[title, name] = got.get((title, name), 0) + float(value)
    return got
told, blind = tables(sys.argv[2]), tables(sys.argv[3])
print(f"| {sys.argv[1]} | prefix hits | block hits | recomputing saved |")
print("|---|---|---|---|")
for name, of, key in (("lru", told, "lru"), ("s3fifo", told, "s3fifo"), ("own", blind, "own"), ("own, told what it costs", told, "own"), ("opt", told, "opt")):
    cells = []
    for title in ("prefix hits", "block hits", "recomputing saved"):
        gap, gain = of[title, "opt"] - of[title, "lru"], of[title, key] - of[title, "lru"]
        cells.append(f"{of[title, key] / 5:.4f} ({gain / gap:.3f})")
    print(f"| {name} | " + " | ".join(cells) + " |")
print()
PY
}

if [ -n "$hostile" ]; then
    "$(dirname "$0")/hostile-traces" "$work"
    echo "| lru own | 300 | 1,000 | 3,000 | 10,000 | 30,000 | 100,000 | 200,000 | least gain |"
    echo "|---|---|---|---|---|---|---|---|---|"
    for trace in "$work"/*.jsonl; do
        name=$(basename "$trace" .jsonl)
        "$build/bin/mooncake" simulate cache --trace "$trace" --policy lru,own \
            --capacity 300,1000,3000,10000,30000,100000,200000 --json "$work/$name.json" >/dev/null
        worst "$name"
    done
    exit
fi

what=one
[ -z "$cost" ] || what=costs
$what conversation cache --trace "$(ls "$traces"/conversation_trace.jsonl* | head -1)"
$what synthetic cache --trace "$(ls "$traces"/synthetic_trace.jsonl* | head -1)"
# shellcheck disable=SC2046
$what agentic cache $(ls "$traces"/agentic/*.json*)
