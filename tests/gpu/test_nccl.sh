#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Several ranks on one real GPU, which libcuda-shared.so shows them as several: NCCL sums between them. In worlds of
# two and three, and of two beside two CPU ranks, all ranks have to end with the same bits. A rank that is killed in a
# step is named by the other.
set -eu
job=$BUILD/tests/gpu/job
log=$BUILD/tests/gpu/nccl.log
shared=$BUILD/tests/gpu/libcuda-shared.so

# Two ranks of one GPU are refused.
if "$LOCKSTEP_TEST_BIN/lockstep" run --no-prefix -n 2 -- "$job" --check --device 0,1 >"$log" 2>&1; then
    echo "two ranks have computed on one GPU"
    exit 1
fi
grep -m1 'compute on the same GPU, GPU-' "$log" || { cat "$log"; exit 1; }

if [ -n "${LOCKSTEP_CUDA_LIBRARY:-}" ]; then
    echo "the stand-in has devices enough: libcuda-shared.so is for a real one"
    exit 77
fi
export LOCKSTEP_CUDA_LIBRARY="$shared" NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MULTI_RANK_GPU_ENABLE=1
# Older versions of NCCL refuse ranks of one GPU on one host.
apart='NCCL_HOSTID=host-$LOCKSTEP_RANK_HINT; export NCCL_HOSTID;'
for world in "2 0,1" "3 0,1,2" "4 0,1"; do
    set -- $world
    "$LOCKSTEP_TEST_BIN/lockstep" run --no-prefix -n $1 -- sh -c "$apart exec $job --check --device $2" >"$log" 2>&1 || {
        echo "$1 ranks, $2 with a GPU:"
        cat "$log"
        exit 1
    }
    echo "$1 ranks, $2 with a GPU: $(grep '^hash' "$log" | sort -u)"
done

"$LOCKSTEP_TEST_BIN/lockstep" run --no-prefix -n 2 --grace 20s -- sh -c "$apart
    if [ \$LOCKSTEP_RANK_HINT = 0 ]; then exec $job --long --device 0,1; fi
    $job --long --device 0,1 & sleep 6; kill -9 \$!; wait \$!" >"$log" 2>&1 || :
grep -E '^job: .*rank 1' "$log" || { cat "$log"; exit 1; }
