#!/bin/bash
# The RDMA suite (vm_rdma.c) in a guest with four Soft-RoCE NICs. Usage: test_rdma_in_a_guest.sh BUILD [test name]
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(realpath "$1")
shift
if [ ! -e "$build/lib/mooncake/transport-rdma.so" ]; then
    echo "skipped: built without libibverbs"
    exit 77
fi
GUEST_TIMEOUT=${GUEST_TIMEOUT:-540} exec "$source/tests/vm/guest" "${VM_IMAGE_DIR:-$source/build/vm}" \
    "$source/tests/vm/guest-rdma.sh" "$source" "$build" "$@"
