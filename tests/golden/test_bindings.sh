#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A binding that Python makes of lockstep.json alone opens a session and trains a step. `make lint`
# checks that lockstep.json is what the header gives.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ -n "${LOCKSTEP_TEST_SANITIZER:-}" ]; then
    echo "skipped: Python would need the sanitizer's library to be loaded first"
    exit 77
fi
exec env -u LOCKSTEP_COORDINATOR -u LOCKSTEP_WORLD_SIZE PYTHONDONTWRITEBYTECODE=1 python3 "$here/bindings_check.py" \
    "$here/../../include/lockstep/lockstep.json" "$LOCKSTEP_TEST_LIB/liblockstep.so"
