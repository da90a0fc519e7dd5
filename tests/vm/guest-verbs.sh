#!/bin/bash
# In the guest of tests/vm/verbs-check. Arguments: source folder, build folder, rounds.
set -u
source=$1 check=$2/tests/verbs_check rounds=$3 failed=0
. "$source/tests/vm/rxe.sh"
rxe_pairs 1 || exit 125
echo 64 >/proc/sys/net/core/netdev_max_backlog
uname -r
for shape in "read 8388608 65536 2 16" "read 8388608 1048576 2 16" "read 8388608 65536 2 1" "write 8388608 65536 2 16"; do
    "$check" rxe0 rxe1 $shape "$rounds" || failed=1
done
dmesg | grep -m1 'WARNING.*rxe_' # the kernel notices that it completes well what has failed
exit $failed
