#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The conformance programs with a real GPU in the place of the stand-ins: one rank has it ("staged"), or libcuda-shared.so
# shows it to several ranks ("mixed", "nccl"). All memory of tests counts as memory of the device. The programs are
# those of `make gpu-conformance`. NCCL has to take several ranks of one GPU in one process; otherwise only "staged" runs.
# FILTER narrows the tests, JOBS is how many programs run at a time, SETTINGS are those that run.
set -u
cd "$(dirname "$0")/../.."
nccl=${LOCKSTEP_NCCL_LIBRARY:-$(ldconfig -p | sed -nE 's/.*libnccl\.so\.2 .*=> //p' | head -1)}
devices=$BUILD/tests/gpu/devices
logs=$BUILD/tests/gpu/conformance
mkdir -p "$devices" "$logs"
ln -sf "$BUILD/tests/gpu/libcuda-shared.so" "$devices/libcuda-fake.so"
ln -sf "${nccl:-/nonexistent}" "$devices/libnccl-fake.so"
settings=staged
if [ $# = 2 ]; then
    :
elif [ -n "$nccl" ] && grep -q NCCL_MULTI_RANK_GPU_ENABLE "$nccl"; then
    settings="staged mixed nccl"
else
    echo "skipped: mixed and nccl: NCCL (${nccl:-none}) does not take several ranks of one GPU"
fi
export LOCKSTEP_TEST_DEVICES="$devices" LOCKSTEP_TEST_ALGORITHMS=all
export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
# All ranks are one process: a kernel that waits for another rank's must not keep it from being loaded or begun.
export CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER
# One heap, and large from the beginning: the driver refuses to copy what lies in two registrations. Memory that goes
# back to the system has to be registered again when it is used again.
export GLIBC_TUNABLES=glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=17179869184:glibc.malloc.arena_max=1:glibc.malloc.top_pad=268435456:glibc.pthread.stack_cache_size=4294967296
one() {
    program=$1
    setting=$2
    name=$(basename "$program")
    log=$logs/$name.$setting
    LOCKSTEP_TEST_FILTER="${FILTER:-*}/$setting/*" timeout -k 2 "${LIMIT:-60}" "$program" >"$log" 2>&1
    status=$?
    grep -q '^no test matches' "$log" && return
    echo "$name $setting: status $status, $(grep -c '^\[       OK' "$log") passed, $(grep -cE '^\[  FAILED  \] [a-z]' "$log") failed"
}
if [ $# = 2 ]; then
    one "$1" "$2"
    exit 0
fi
for setting in ${SETTINGS:-$settings}; do
    for source in $(grep -lE 'stamp_run|device_stories_run|kinds_on_devices' tests/conformance/test_*.c); do
        program=$BUILD/${source%.c}
        case $program in *test_device_replicas) continue ;; esac # It needs a stand-in.
        echo "$program $setting"
    done
done | xargs -P "${JOBS:-4}" -L 1 tests/gpu/test_conformance.sh >"$logs/summary"
sort "$logs/summary"
! grep -vE 'status 0,' "$logs/summary"
