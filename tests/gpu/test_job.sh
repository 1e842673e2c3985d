#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The same job with all gradients in host memory, and with those of one rank on a GPU: the same
# results, bit by bit, in worlds of one to four ranks.
set -eu
job=$BUILD/tests/gpu/job
for ranks in ${LOCKSTEP_TEST_RANKS:-1 2 4}; do
    cpu=$("$LOCKSTEP_TEST_BIN/lockstep" run --no-prefix -n $ranks -- "$job" --check --device none)
    gpu=$("$LOCKSTEP_TEST_BIN/lockstep" run --no-prefix -n $ranks -- "$job" --check --device 0)
    cpu=$(echo "$cpu" | grep '^hash' | sort -u)
    gpu=$(echo "$gpu" | grep '^hash' | sort -u)
    if [ -z "$cpu" ] || [ "$cpu" != "$gpu" ]; then
        echo "$ranks ranks: on the host '$cpu', with a GPU '$gpu'"
        exit 1
    fi
    echo "$ranks ranks: $cpu"
done
