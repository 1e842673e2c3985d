#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Survivors of a death go on, with gradients and buffers of one, two and all ranks on a real GPU, which libcuda-shared.so
# shows to each of them: test_recovery_devices without its stand-ins. Ranks die at random instants, and the survivors
# have to end with equal bits. TESTS="plain kinds": collectives by name, in ordinary memory, which is registered.
# LOCKSTEP_TEST_FAULT_ROUNDS is how many jobs of each test run.
set -eu
nccl=${LOCKSTEP_NCCL_LIBRARY:-$(ldconfig -p | sed -nE 's/.*libnccl\.so\.2 .*=> //p' | head -1)}
devices=$BUILD/tests/gpu/recovery-devices
if [ -z "${LOCKSTEP_CUDA_LIBRARY:-}" ]; then
    mkdir -p "$devices"
    ln -sf "$BUILD/tests/gpu/libcuda-shared.so" "$devices/libcuda-fake.so"
    ln -sf "${nccl:-/nonexistent}" "$devices/libnccl-fake.so"
    export LOCKSTEP_TEST_DEVICES="$devices" NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
    # See test_conformance.sh.
    export GLIBC_TUNABLES=glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=17179869184:glibc.malloc.arena_max=1:glibc.malloc.top_pad=268435456
fi
export LOCKSTEP_TEST_FAULT_ROUNDS="${LOCKSTEP_TEST_FAULT_ROUNDS:-12}"
for test in ${TESTS:-devices}; do
    "$BUILD/tests/fault/test_recovery_$test"
done
