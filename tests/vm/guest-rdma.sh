#!/bin/bash
# In the guest: the RDMA suite on two pairs of NICs, then upstream's command lines of the benchmark. Arguments: source folder,
# build folder, then what vm_rdma gets.
set -u
source=$1 build=$2
shift 2
. "$source/tests/vm/rxe.sh"
rxe_pairs 2 || exit 125
"$build/tests/vm_rdma" "$@" || exit
[ $# -eq 0 ] || exit 0

bench() { # NICS FLAG...: over rdma, and over these NICs
    "$build/bin/transfer_engine_bench" --protocol=rdma --device_name="$1" --local_server_name=127.0.0.1 --block_size=65536 \
        --batch_size=2 --threads=1 --buffer_size=1MB "${@:2}"
}
bench rxe1,rxe3 --mode=target >/tmp/target 2>&1 &
target=$!
until name=$(sed -n 's/.*listening on //p' /tmp/target) && [ -n "$name" ]; do
    kill -0 $target || exit 1
    sleep 0.2
done
bench rxe0,rxe2 --segment_id="$name" --verify --duration=2 2>&1 | tee /tmp/initiator
kill $target
grep -q 'Verified: 0 blocks wrong' /tmp/initiator && ! grep -q 'batch count 0,' /tmp/initiator &&
    grep -q 'nic=rxe1 is left out' /tmp/initiator || exit 1
