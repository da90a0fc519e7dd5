#!/bin/bash
# In the guest: the RDMA suite on two pairs of NICs. Arguments: source folder, build folder, then what vm_rdma gets.
set -u
source=$1 build=$2
shift 2
. "$source/tests/vm/rxe.sh"
rxe_pairs 2 || exit 125
exec "$build/tests/vm_rdma" "$@"
