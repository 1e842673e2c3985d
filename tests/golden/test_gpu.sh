#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Without a GPU the targets that need one say so in one line and succeed. With a stand-in for libcuda
# their programs work, and every line says that nothing of it is real.
set -eu
cd "$(dirname "$0")/../.."

expect() {
    if ! printf '%s\n' "$2" | grep -Eq "$1"; then
        printf 'no line like %s in:\n%s\n' "$1" "$2"
        exit 1
    fi
}

for what in test bench; do
    said=$(LOCKSTEP_CUDA_LIBRARY=/nonexistent/libcuda.so tests/gpu/run $what)
    expect '^skipped: no usable GPU: .*/nonexistent/libcuda.so' "$said"
done

export LOCKSTEP_CUDA_LIBRARY="$BUILD/tests/fake_gpu/libcuda-fake.so"
export LOCKSTEP_NCCL_LIBRARY="$BUILD/tests/fake_gpu/libnccl-fake.so"
expect '^Fake GPU, sm_' "$("$BUILD/tests/gpu/probe")"
said=$(LOCKSTEP_TEST_FILTER='*revoked*' "$BUILD/tests/gpu/test_kernels" 2>&1)
expect 'PASSED  . 1 test' "$said"
# One rank has its gradients on the stand-in: the job's results are the same bits.
expect '^2 ranks: hash ' "$(LOCKSTEP_TEST_RANKS=2 tests/gpu/test_job.sh)"

# This test looks at the output: no sanitizer is needed for it, and they are slow.
if [ -n "${LOCKSTEP_TEST_SANITIZER:-}" ]; then
    exit 0
fi
said=$("$BUILD/tests/gpu/bench_nccl"; "$BUILD/tests/gpu/bench_kernels")
expect '^fake: as the library enqueues it, 100 tensors ' "$said"
expect '^fake: scatter 4 bytes +500 odd tensors ' "$said"
if printf '%s\n' "$said" | grep -v '^fake: '; then
    echo "a line does not say that it is of a fake"
    exit 1
fi
