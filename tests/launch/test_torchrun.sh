#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torchrun of PyTorch on two hosts, two C trainers on each, with certificates as docs/two-hosts.md makes
# them: ranks, equal bits, a trainer that fails, and restarts. Hosts are namespaces that end with this
# script. PyTorch comes from PyPI into the build directory (1 GB), unless TORCH_PYTHON names an
# interpreter that has it.
. "$(dirname "$0")/venv.sh"
python_with TORCH_PYTHON torch torch==2.13.0
. "$(dirname "$0")/hosts.sh"

# both NAME OPTIONS...: torchrun on both hosts. $work/NAME.0 and .1 are what they print, ${status[0]} and
# [1] how they end.
both() {
    local name=$1 host pids=()
    shift
    for host in 0 1; do
        on $host timeout 240 "$python" -m torch.distributed.run --nnodes 2 --nproc-per-node 2 \
            --rdzv-backend c10d --rdzv-endpoint 10.77.0.1:29500 --rdzv-id digits --monitor-interval 0.1 \
            --no-python "$@" >"$work/$name.$host" 2>&1 &
        pids[host]=$!
    done
    status=()
    for host in 0 1; do
        wait "${pids[host]}"
        status[host]=$?
    done
    cat "$work/$name.0" "$work/$name.1" >"$work/$name"
}

both well "$work/trainer" well -
[ "${status[*]}" = "0 0" ] || fail "a job that ends well: status ${status[*]}"
all_ranks well
done_with well

both failing --max-restarts 0 "$work/trainer" fail -
[ "${status[*]}" = "1 1" ] || fail "a trainer that fails: status ${status[*]}"
grep -q "exitcode *: 7 " "$work/failing.1" || fail "torchrun does not name the status of rank 3"
for host in 0 1; do
    grep -q "rank 3 on host host1 was lost" "$work/failing.$host" || fail "host $host: no word of rank 3"
done
done_with failing

both again --max-restarts 3 "$work/trainer" first "$work/started"
[ "${status[*]}" = "0 0" ] || fail "a job that is started again: status ${status[*]}"
all_ranks again
new_generation again
done_with again
finish
