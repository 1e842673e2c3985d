#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The stream of a GPU stands still for some seconds. `lockstep stalls` names the rank, the gradient and the stream, and
# the job goes on after that.
set -eu
log=$BUILD/tests/gpu/stall.log
LOCKSTEP_COORDINATOR_STALL_FLOOR_MS=1000 "$LOCKSTEP_TEST_BIN/lockstep" run --no-prefix -n 2 -- sh -c '
    if [ "$LOCKSTEP_RANK_HINT" = 1 ]; then
        for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1; "$LOCKSTEP_TEST_BIN/lockstep" stalls; done &
    fi
    exec "$BUILD/tests/gpu/job" --stall --device 0' >"$log" 2>&1 || { cat "$log"; exit 1; }
grep -E -m1 'waits for the gradient of .* on stream 0x.*which its device has not finished' "$log" || { cat "$log"; exit 1; }
