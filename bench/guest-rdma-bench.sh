#!/bin/bash
# In the guest of bench/rdma-vm: verbs and engine in turns. Arguments: source folder, build folder, rounds.
set -u
source=$1 build=$2 rounds=$3
. "$source/tests/vm/rxe.sh"
rxe_pairs 1 || exit 125

# MB/s (10^6) of perftest: a server on rxe1, a client on rxe0.
verbs() { # write|read SIZE MESSAGES
    timeout 100 "ib_$1_bw" -d rxe1 -x 1 -s "$2" -n "$3" -t 128 -F --report_gbits >/tmp/server 2>&1 &
    sleep 2
    timeout 100 "ib_$1_bw" -d rxe0 -x 1 -s "$2" -n "$3" -t 128 -F --report_gbits 127.0.0.1 2>&1 |
        awk -v size="$2" '$1 == size {print $4 * 1000 / 8}'
    wait
}

engine() { # write|read SIZE
    MC_LOG_LEVEL=ERROR timeout 100 "$build/bin/bench_rdma" rxe0 rxe1 "$1" "$2" 5 | awk '{print $2}'
}

echo "op size verbs engine ratio (MB/s)"
for op in write read; do
    for size in 65536 1048576; do
        messages=$((size == 65536 ? 1000 : 100))
        for ((round = 0; round < rounds; round++)); do
            v=$(verbs $op $size $messages)
            e=$(engine $op $size)
            echo "$op $size ${v:-0} ${e:-0}" | awk '{printf "%s %d %.1f %.1f %.2f\n", $1, $2, $3, $4, ($3 > 0 ? $4 / $3 : 0)}' |
                tee -a /tmp/table
        done
    done
done
awk '{k = $1 " " $2; n[k]++; v[k] += $3; e[k] += $4}
     END {for (k in n) printf "mean %s verbs=%.1f engine=%.1f ratio=%.2f\n", k, v[k] / n[k], e[k] / n[k], e[k] / v[k]}' \
    /tmp/table | sort
