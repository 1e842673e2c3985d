#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Failures of devices, as a user of `lockstep run` meets them: every rank says the same sentence,
# which names the rank or its process, and its device, and nobody waits. On fake devices
# (tests/fake_gpu), to which all memory is their own.
. "$(dirname "$0")/run_lib.sh"
export LOCKSTEP_CUDA_LIBRARY=$BUILD/tests/fake_gpu/libcuda-fake.so
export LOCKSTEP_NCCL_LIBRARY=$BUILD/tests/fake_gpu/libnccl-fake.so
export FAKE_CUDA_EVERYWHERE=1
hello=$BUILD/examples/hello
own='export LOCKSTEP_DEVICE=cuda:$LOCKSTEP_RANK_HINT;'
first='[ "$LOCKSTEP_RANK_HINT" = 0 ]'
second='[ "$LOCKSTEP_RANK_HINT" = 1 ]'

# The grace gives all ranks the time to print their sentences.
patient=(-n 3 --grace $((4000 * slow))ms)

# fails SCRIPT: three ranks run it, and end soon, none of them well.
fails() {
    local start
    start=$(now_ms)
    "$lockstep" run "${patient[@]}" -- sh -c "$1" >"$work/out" 2>&1 </dev/null && fail "'$1' was to fail"
    within 5000 "$start" "the end of '$1'"
}

# says RANK TEXT
says() {
    grep -qF -- "$2" <(grep "^\[$1\] " "$work/out") ||
        { fail "rank $1 does not say '$2':"; sed 's/^/    /' "$work/out"; }
}

all_say() {
    for rank in 0 1 2; do says "$rank" "$1"; done
}

# At the start.
fails "LOCKSTEP_DEVICE=cuda:3 exec '$hello'"
all_say ") compute on the same GPU, GPU-"

fails "$own if $second; then LOCKSTEP_DEVICE=cuda:9; fi; exec '$hello'"
says 0 ") cannot compute on its GPU, cuda:9: cuDeviceGet: invalid device ordinal (101)"
says 1 "the device cannot be used, cuda:9: cuDeviceGet: invalid device ordinal (101)"
says 2 ") cannot compute on its GPU, cuda:9: cuDeviceGet: invalid device ordinal (101)"

fails "export FAKE_NCCL_VERSION=21703; $own exec '$hello'"
all_say " has NCCL 2.17.3; workers with GPUs exchange gradients by NCCL, 2.18 or newer"

# In a step: the device of rank 1 is lost, among devices and beside a rank without one.
lost="if $second; then export FAKE_CUDA_FAIL=op:60:719@1; fi;"
failed="rank 1 (host $(hostname)): its device failed, cuda:1: cu"
fails "$own $lost exec '$hello'"
all_say "$failed"
all_say ": unspecified launch failure (719)"
fails "$own if $first; then LOCKSTEP_DEVICE=none; fi; $lost exec '$hello'"
all_say "$failed"

# Rank 2 stands still before a step in which the others wait for it, and is killed there. Their abort
# of NCCL does not return.
export FAKE_NCCL_ABORT_HANGS=1 LOCKSTEP_ABORT_MS=300
"$lockstep" run "${patient[@]}" -- sh -c "$own exec '$BUILD/examples/phases' --hang 1 --collect-ms 0" \
    >"$work/out" 2>&1 </dev/null &
run=$!
comes "$work/out" "rank 2 hangs in update "
start=$(now_ms)
kill -9 "$(rank_pid 2)"
wait "$run" && fail "a run with a rank that was killed was to fail"
within 5000 "$start" "the end of all after the death of rank 2"
says 0 "LOCKSTEP_E_PEER_LOST: rank 2 on host $(hostname) was lost: "
says 1 "LOCKSTEP_E_PEER_LOST: rank 2 on host $(hostname) was lost: "
has "$work/out" "rank 2 was killed by signal 9 (SIGKILL) after "

nothing_left "devices"
finish
